"""Requests with `n` completions on `vllm` or `mini_vllm`: texts, the children's seeds and cached tokens.

As a program (see `course.parity.tokens_run.run_worker`) it keeps real vLLM in a process of its own.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mini_vllm.config.engine import DEFAULT_MODEL


def play(engine: str, asked: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each of the requests, one after another: what its children were and what they said."""
    module: Any = importlib.import_module(engine)
    more: dict[str, Any] = {}
    if engine == "vllm":
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        more = {"dtype": "float32", "distributed_executor_backend": UniProcExecutor}
        more["gpu_memory_utilization"] = 0.3
    llm = module.LLM(
        str(DEFAULT_MODEL), enforce_eager=True, async_scheduling=False, block_size=16, max_model_len=512,
        max_num_batched_tokens=512, enable_chunked_prefill=False, num_gpu_blocks_override=400, **more,
    )  # fmt: skip
    core = llm.llm_engine.engine_core
    scheduler = core.engine_core.scheduler if engine == "vllm" else core.scheduler
    children: list[Any] = []
    add = scheduler.add_request

    def noted(request: Any) -> Any:
        # Where vLLM counts what a prompt was spared; ours stands in the request itself.
        children.append((request, getattr(request, "prefill_stats", request)))
        return add(request)

    scheduler.add_request = noted
    answers = []
    for one in asked:
        children.clear()
        params = module.SamplingParams(
            temperature=2.0, max_tokens=8, ignore_eos=True, n=one["n"], seed=one["seed"]
        )
        if one["forget"]:
            llm.reset_prefix_cache()
        (output,) = llm.generate({"prompt_token_ids": one["prompt"]}, params, use_tqdm=False)
        answers.append(
            {
                "tokens": [list(each.token_ids) for each in output.outputs],
                "seeds": [child.sampling_params.seed for child, _ in children],
                "cached": [counts.num_cached_tokens for _, counts in children],
                "num_cached_tokens": output.num_cached_tokens,
            }
        )
    return answers


if __name__ == "__main__":
    engine, job, answer = sys.argv[1:]
    Path(answer).write_text(json.dumps(play(engine, json.loads(Path(job).read_text()))))
