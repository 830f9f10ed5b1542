"""Where a decode step of real vLLM spends its processor time: 1 request, then 64. Needs vLLM.

It runs the CPU build in this process, on the shipped checkpoint, eager and with one thread, so that
a step is one thread's work and its CPU time can be read off the thread's own clock. `prepare` is
`execute_model` without the forward pass and the logits, which count as `sample`. The first step of a
fresh engine is shown apart: what it costs more is what a warm-up is for.

    python phase-01-architecture/step_cost.py
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

STEPS = 50
PARTS = ("schedule", "prepare", "forward", "sample", "update", "text")


class Clock:
    """CPU milliseconds of this thread that each wrapped function took, in the current step."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def wrap(self, owner: Any, method: str, name: str) -> None:
        inner: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            result = inner(*args, **kwargs)
            took = (time.thread_time() - start) * 1e3
            self.spent[name] = self.spent.get(name, 0.0) + took
            return result

        setattr(owner, method, timed)

    def row(self, step: Callable[[], object]) -> dict[str, float]:
        self.spent = {}
        step()
        spent = self.spent
        return {
            "schedule": spent["schedule"],
            "prepare": spent["execute"] - spent["forward"] - spent["logits"],
            "forward": spent["forward"],
            "sample": spent["logits"] + spent["sample"],
            "update": spent["update"],
            "text": spent["text"],
        }


def show(name: str, row: dict[str, float]) -> None:
    share = 100 * row["prepare"] / sum(row.values())
    print(f"{name:12}" + "".join(f"{row[part]:9.2f}" for part in PARTS) + f"{share:8.0f} %")


def main() -> None:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
    os.environ |= {"TORCH_COMPILE_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    import vllm
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    from mini_vllm.config.engine import DEFAULT_MODEL

    llm = vllm.LLM(
        str(DEFAULT_MODEL),
        dtype="float32",
        enforce_eager=True,
        block_size=16,
        enable_prefix_caching=False,
        distributed_executor_backend=UniProcExecutor,
    )
    engine: Any = llm.llm_engine
    core = engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.model_runner
    clock = Clock()
    clock.wrap(core.scheduler, "schedule", "schedule")
    clock.wrap(core.scheduler, "update_from_output", "update")
    clock.wrap(runner, "execute_model", "execute")
    clock.wrap(runner, "_model_forward", "forward")
    clock.wrap(runner.model, "compute_logits", "logits")
    clock.wrap(runner, "sample_tokens", "sample")
    clock.wrap(engine.output_processor, "process_outputs", "text")
    params = vllm.SamplingParams(temperature=0, max_tokens=STEPS + 2, ignore_eos=True)

    print(f"{'ms of CPU':12}" + "".join(f"{part:>9}" for part in PARTS) + "  prepare")
    for count in (1, 64):
        for number in range(count):
            engine.add_request(f"{count}-{number}", "The KV cache", params)
        first = clock.row(engine.step)
        if count == 1:
            show("very first", first)
        rows = [clock.row(engine.step) for _ in range(STEPS)]
        while engine.has_unfinished_requests():
            engine.step()
        show(f"{count:2} decoding", {part: sum(r[part] for r in rows) / STEPS for part in PARTS})


if __name__ == "__main__":
    main()
