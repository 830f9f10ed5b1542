"""Given: the loads of real vLLM's manager, as it is and with your fix. Needs vLLM 0.22.1.

    python in_vllm.py [solution | starter]            its two managers, without a model
    python in_vllm.py [solution | starter] --engine   the whole engine with the shipped adapters (a minute)
    python in_vllm.py --record                        write recorded.json, which the tests read

Strings hash otherwise in every process, and a `LoRARequest` hashes by its name. So run it twice; or set
PYTHONHASHSEED.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from course.learner.labs import load_module, need_vllm

for variable, setting in (
    ("VLLM_LOGGING_LEVEL", "ERROR"),
    ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
    ("VLLM_CPU_KVCACHE_SPACE", "1"),
    ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
    ("TORCH_COMPILE_DISABLE", "1"),
):
    os.environ.setdefault(variable, setting)

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_11_06_support")


def real_manager(max_loras: int, max_cpu_loras: int, loads: list[int], fills: list[int]) -> Any:
    """vLLM's two managers as they are, without a model: what they would read and fill is noted."""
    from vllm.lora import model_manager, worker_manager

    inner: Any = model_manager.LRUCacheLoRAModelManager.__new__(
        model_manager.LRUCacheLoRAModelManager
    )
    inner.lora_config = SimpleNamespace(max_loras=max_loras, max_cpu_loras=max_cpu_loras)
    inner.lora_index_to_id = [None] * max_loras
    inner.modules = {"note": SimpleNamespace(reset_lora=lambda slot: fills.append(slot))}
    inner._get_lora_layer_weights = lambda lora, name: None
    cache = model_manager.LoRALRUCache
    inner._registered_adapters = cache(max_cpu_loras, inner.deactivate_adapter)
    inner._active_adapters = cache(max_loras, inner._deactivate_adapter)
    inner._create_merged_loras_inplace = lambda lora: None
    outer: Any = worker_manager.LRUCacheWorkerLoRAManager.__new__(
        worker_manager.LRUCacheWorkerLoRAManager
    )
    outer._adapter_manager = inner

    def load(request: Any) -> Any:
        loads.append(request.lora_int_id)
        return SimpleNamespace(id=request.lora_int_id)

    outer._load_adapter = load
    return outer


@contextmanager
def fixed_by(apply_adapters: Callable[..., None] | None) -> Iterator[None]:
    """Within it vLLM's manager applies a step's adapters with this function; None: with its own."""
    from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager as Real

    own = Real._apply_adapters
    if apply_adapters is not None:
        Real._apply_adapters = apply_adapters  # type: ignore[method-assign]
    try:
        yield
    finally:
        Real._apply_adapters = own  # type: ignore[method-assign]


def walks(steps: Sequence[Sequence[int]], max_loras: int) -> list[tuple[list[int], list[int]]]:
    """Of each step the order in which vLLM's set is walked, and the adapters that are loaded."""
    from vllm.lora.request import LoRARequest

    loads: list[int] = []
    manager, found = real_manager(max_loras, max_loras, loads, []), []
    for step in steps:
        # What a runner hands over: `vllm/v1/worker/gpu_input_batch.py:976 InputBatch.make_lora_inputs`.
        requests = {LoRARequest(f"tenant-{adapter}", adapter, "-") for adapter in step}
        before = len(loads)
        manager.set_active_adapters(requests, None)
        found.append(([request.lora_int_id for request in requests], loads[before:]))
    return found


def measure() -> dict[str, Any]:
    """What is recorded of one hash seed."""
    steps = walks([step.adapters for step in support.day()], support.SLOTS)
    last = [([], None), *((walk, []) for walk, _ in steps)]
    day = [(now, *step) for now, step in enumerate(steps) if step != last[now]]
    return {"five": walks(support.FIVE, 2), "day": day}


def measure_all(hash_seeds: Sequence[int] = support.HASH_SEEDS) -> dict[str, dict[str, Any]]:
    """By trace and hash seed, each measured in a process of its own."""
    found: dict[str, dict[str, Any]] = {"five": {}, "day": {}}
    for seed in hash_seeds:
        run = subprocess.run(
            [sys.executable, __file__, "--measure"],
            env=os.environ | {"PYTHONHASHSEED": str(seed)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        measured = json.loads(run.stdout.splitlines()[-1])
        for trace, steps in measured.items():
            found[trace][str(seed)] = steps
    return found


def record() -> None:
    parts = [
        f'"{trace}":{{\n'
        + ",\n".join(
            f'"{seed}":{json.dumps(steps, separators=(",", ":"))}' for seed, steps in runs.items()
        )
        + "}"
        for trace, runs in measure_all().items()
    ]
    support.RECORDED.write_text('{"vllm":"0.22.1",' + ",\n".join(parts) + "}\n", "utf-8")


# ---- the whole engine ------------------------------------------------------------------------------


def serve(apply_adapters: Callable[..., None] | None) -> tuple[list[int], list[list[int]]]:
    """Twenty-four requests of twelve tenants on four slots: the loads of each step that had some, and the
    tokens. The tenants share the three adapters that are shipped; vLLM tells them apart by name and id."""
    import vllm
    from vllm.lora.request import LoRARequest
    from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager as Real
    from vllm.utils import torch_utils
    from vllm.v1.executor import UniProcExecutor

    from mini_vllm.config.engine import DEFAULT_MODEL

    torch_utils.async_tensor_h2d.__defaults__ = (False,)  # else it pins memory, which takes a GPU
    shipped = sorted(p for p in Path(f"{DEFAULT_MODEL}-lora").iterdir() if p.is_dir())
    loads: list[int] = []
    load, set_active = Real._load_adapter, Real.set_active_adapters

    def counted_load(self: Any, request: Any) -> Any:
        loads[-1] += 1
        return load(self, request)

    def counted_step(self: Any, requests: Any, mapping: Any) -> None:
        loads.append(0)
        set_active(self, requests, mapping)

    llm = vllm.LLM(
        str(DEFAULT_MODEL),
        dtype="float32",
        enforce_eager=True,
        async_scheduling=False,
        distributed_executor_backend=UniProcExecutor,
        enable_lora=True,
        max_loras=4,
        max_lora_rank=16,
        max_num_seqs=8,
        max_model_len=128,
        num_gpu_blocks_override=64,
    )
    tenants = [1 + (5 * i) % 12 for i in range(24)]
    Real._load_adapter, Real.set_active_adapters = counted_load, counted_step  # type: ignore[method-assign]
    try:
        with fixed_by(apply_adapters):
            outputs = llm.generate(
                [{"prompt_token_ids": [20 + i, 30, 40]} for i in range(24)],
                [
                    vllm.SamplingParams(temperature=0, max_tokens=5 + i % 7, ignore_eos=True)
                    for i in range(24)
                ],
                lora_request=[
                    LoRARequest(f"tenant-{n}", n, str(shipped[n % len(shipped)])) for n in tenants
                ],
                use_tqdm=False,
            )
    finally:
        Real._load_adapter, Real.set_active_adapters = load, set_active  # type: ignore[method-assign]
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    return [number for number in loads if number], tokens


def main(which: str = "starter", *flags: str) -> None:
    need_vllm()
    if which == "--measure":
        print(json.dumps(measure()))
        return
    if which == "--record":
        record()
        return
    lab = load_module(HERE / f"{which}.py", f"lab_11_06_{which}")
    if "--engine" in flags:
        (own, tokens), (fixed, same) = serve(None), serve(lab.apply_adapters)
        print(f"as it is       {sum(own):3} loads, by step {own}")
        print(f"with your fix  {sum(fixed):3} loads, by step {fixed}")
        print("tokens", "equal" if tokens == same else "DIFFER")
        return
    own_five = walks(support.FIVE, 2)
    with fixed_by(lab.apply_adapters):
        fixed_five = walks(support.FIVE, 2)
    print("walk            loads  with your fix")
    for (walk, loaded), (_, fixed_loads) in zip(own_five, fixed_five, strict=True):
        print(f"{walk!s:15} {len(loaded):5}  {len(fixed_loads):13}")


if __name__ == "__main__":
    main(*sys.argv[1:])
