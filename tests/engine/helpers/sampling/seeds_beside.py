"""A request with a seed, alone and in company, on `vllm` or on `mini_vllm`: the tokens it gets.

As a program (see `course.parity.tokens_run.run_worker`) it keeps real vLLM in a process of its own.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from mini_vllm.config.engine import DEFAULT_MODEL

SETTINGS: dict[str, Any] = {"block_size": 16, "max_model_len": 64}
NUM_TOKENS = 12


def make_engine(engine: str, log_stats: bool = False) -> Any:
    """An `LLMEngine` with the shipped model, on a CPU; with `log_stats` it counts."""
    if engine == "vllm":
        import vllm
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        return vllm.LLM(
            str(DEFAULT_MODEL),
            dtype="float32",
            enforce_eager=True,
            async_scheduling=False,
            distributed_executor_backend=UniProcExecutor,
            num_gpu_blocks_override=64,
            disable_log_stats=not log_stats,
            **SETTINGS,
        ).llm_engine
    import mini_vllm

    config = mini_vllm.EngineConfig(num_gpu_blocks=64, **SETTINGS)
    return mini_vllm.LLMEngine(config=config, log_stats=log_stats)


def play(engine: str, situations: list[list[dict[str, Any]]]) -> list[list[int]]:
    """For each situation, the tokens of a request with seed 7; a situation: its neighbours' params."""
    llm_engine = make_engine(engine)
    params_type: Any = importlib.import_module(engine).SamplingParams
    answers = []
    for number, beside in enumerate(situations):
        for index, knobs in enumerate([{"seed": 7}, *beside]):
            settings = {"max_tokens": NUM_TOKENS, "ignore_eos": True, "temperature": 2.0} | knobs
            params = params_type(**settings)
            prompt = {"prompt_token_ids": [1, 5, 6, 7]}
            llm_engine.add_request(f"{number}.{index}", prompt, params)
        tokens: list[int] = []
        while llm_engine.has_unfinished_requests():
            for output in llm_engine.step():
                if output.request_id == f"{number}.0":
                    tokens = list(output.outputs[0].token_ids)
        answers.append(tokens)
    return answers


if __name__ == "__main__":
    engine, job, answer = sys.argv[1:]
    answers = play(engine, json.loads(Path(job).read_text()))
    Path(answer).write_text(json.dumps(answers))
