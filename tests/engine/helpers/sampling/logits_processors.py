"""Logits processors that run in both engines, and requests that use them.

The file says nowhere whose arrays it gets. Where vLLM is installed its classes are vLLM's, which
`mini_vllm` takes too. As a program (see `course.parity.tokens_run.run_worker`) it keeps real vLLM in a
process of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

INSTALLED = "vllm" if importlib.util.find_spec("vllm") else "mini_vllm"
_PACKAGE = ".v1.sample" if INSTALLED == "vllm" else ".sample"
_interface: Any = importlib.import_module(f"{INSTALLED}{_PACKAGE}.logits_processor")
SETTINGS: dict[str, Any] = {"block_size": 16, "max_model_len": 128, "max_num_seqs": 6}
POOL = 14
"""Blocks, so few that requests are preempted."""


class ForcePhrase(_interface.LogitsProcessor):  # type: ignore[misc]
    """After `at` tokens says `phrase`, token by token. Keeps its own books, in the order that vLLM's own
    processors keep theirs: added, removed, moved."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        phrase = (sampling_params.extra_args or {}).get("phrase")
        if phrase == []:
            raise ValueError("phrase must hold a token")

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self.rows: dict[int, tuple[int, list[int], list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        if batch_update is None:
            return
        for row, params, _, output_ids in batch_update.added:
            extra = params.extra_args or {}
            if "phrase" in extra:
                self.rows[row] = extra["at"], extra["phrase"], output_ids
            else:
                self.rows.pop(row, None)
        for row in batch_update.removed:
            self.rows.pop(row, None)
        for source, target, direction in batch_update.moved:
            moving, displaced = self.rows.pop(source, None), self.rows.pop(target, None)
            if moving is not None:
                self.rows[target] = moving
            if displaced is not None and direction == _interface.MoveDirectionality.SWAP:
                self.rows[source] = displaced

    def apply(self, logits: Any) -> Any:
        for row, (at, phrase, output_ids) in self.rows.items():
            said = len(output_ids) - at
            if 0 <= said < len(phrase):
                logits[row] = -float("inf")
                logits[row, phrase[said]] = 0.0
        return logits


class SayNothingTwice(_interface.AdapterLogitsProcessor):  # type: ignore[misc]
    """Bars what stands in the prompt or the output, for requests that ask for it."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        return bar_what_was_said if (params.extra_args or {}).get("nothing_twice") else None


def bar_what_was_said(prompt_ids: list[int], output_ids: list[int], logits: Any) -> Any:
    logits[list({*prompt_ids, *output_ids})] = -float("inf")
    return logits


def requests() -> list[dict[str, Any]]:
    """Prompts and what their parameters are made of: some ask for the one, some for the other, some for
    nothing."""
    asked = []
    for i in range(24):
        extra: dict[str, Any] | None = None
        if i % 3 == 0:
            extra = {"phrase": [10 + i, 40 + i, 70 + i], "at": i % 7}
        elif i % 3 == 1:
            extra = {"nothing_twice": True}
        prompt = [1, *(20 + (i * 7 + j * (3 + i % 5)) % 200 for j in range(3 + (i * 11) % 40))]
        asked.append({"prompt": prompt, "max_tokens": 4 + (i * 5) % 19, "extra_args": extra})
    return asked


def play(engine: str, named: bool) -> dict[str, Any]:
    """The tokens of `requests()`, and how often one was preempted; `named`: the processors by name."""
    from mini_vllm.config.engine import DEFAULT_MODEL

    module: Any = importlib.import_module(engine)
    here = "tests.engine.helpers.sampling.logits_processors"
    own = importlib.import_module(here)  # not `__main__`'s
    processors: list[Any] = [own.ForcePhrase, own.SayNothingTwice]
    if named:
        processors = [f"{here}:{each.__name__}" for each in processors]
    more: dict[str, Any] = {}
    if engine == "vllm":
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        more = {
            "dtype": "float32",
            "distributed_executor_backend": UniProcExecutor,
            "gpu_memory_utilization": 0.3,
        }
    llm = module.LLM(
        str(DEFAULT_MODEL),
        enforce_eager=True,
        async_scheduling=False,
        num_gpu_blocks_override=POOL,
        logits_processors=processors,
        **SETTINGS,
        **more,
    )
    core = llm.llm_engine.engine_core
    scheduler = core.engine_core.scheduler if engine == "vllm" else core.scheduler
    preempted: list[str] = []
    preempt = scheduler._preempt_request

    def counted(request: Any, *args: Any, **kwargs: Any) -> Any:
        preempted.append(request.request_id)
        return preempt(request, *args, **kwargs)

    scheduler._preempt_request = counted
    asked = requests()
    outputs = llm.generate(
        [{"prompt_token_ids": one["prompt"]} for one in asked],
        [
            module.SamplingParams(
                temperature=0,
                max_tokens=one["max_tokens"],
                ignore_eos=True,
                extra_args=one["extra_args"],
            )
            for one in asked
        ],
        use_tqdm=False,
    )
    return {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "preempted": len(preempted),
    }


if __name__ == "__main__":
    engine, job, answer = sys.argv[1:]
    Path(answer).write_text(json.dumps(play(engine, json.loads(Path(job).read_text()))))
