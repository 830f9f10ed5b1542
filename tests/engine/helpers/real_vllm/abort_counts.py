"""Two requests, one of them aborted, on `vllm` or on `mini_vllm`: what the metrics count as finished.

As a program (see `course.parity.tokens_run.run_worker`) it keeps real vLLM in a process of its own.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from tests.engine.helpers.sampling.seeds_beside import make_engine


def play(engine: str) -> dict[str, float]:
    """`vllm:request_success` by its reason, after one request has ended and one has been aborted."""
    llm_engine = make_engine(engine, log_stats=True)
    params_type: Any = importlib.import_module(engine).SamplingParams
    for name in ("ends", "aborted"):
        params = params_type(temperature=0.0, max_tokens=4, ignore_eos=True)
        llm_engine.add_request(name, {"prompt_token_ids": [1, 5, 6, 7]}, params)
    llm_engine.step()
    llm_engine.abort_request(["aborted"])
    while llm_engine.has_unfinished_requests():
        llm_engine.step()
    return {
        metric.labels["finished_reason"]: metric.value
        for metric in llm_engine.get_metrics()
        if metric.name == "vllm:request_success"
    }


if __name__ == "__main__":
    engine, _, answer = sys.argv[1:]
    Path(answer).write_text(json.dumps(play(engine)))
