"""Beam searches on `vllm` or `mini_vllm`: what they find, and how often EOS ended a beam.

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

EOS = 2


def make_prompts(count: int) -> list[list[int]]:
    """Ends of the corpus's texts without their last few tokens, so that the model is about to stop."""
    from course.parity.tokens import corpus_texts
    from mini_vllm.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(DEFAULT_MODEL)
    return [tokenizer.encode(text)[-160:-6] for text in corpus_texts(3, count)]


def play(engine: str, prompts: Sequence[list[int]], searches: Sequence[dict[str, Any]]) -> Any:
    """For each search, for each prompt, the beams: output tokens, text, log probability, score's sum."""
    module: Any = importlib.import_module(engine)
    params: Any = importlib.import_module(f"{engine}.sampling_params").BeamSearchParams
    more: dict[str, Any] = {}
    if engine == "vllm":
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        more = {
            "dtype": "float32",
            "distributed_executor_backend": UniProcExecutor,
            "gpu_memory_utilization": 0.3,
        }
    llm = module.LLM(
        str(DEFAULT_MODEL), enforce_eager=True, async_scheduling=False, block_size=16, max_model_len=512,
        num_gpu_blocks_override=1200, **more,
    )  # fmt: skip
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    return [
        [
            [[list(beam.tokens), beam.text, beam.cum_logprob] for beam in output.sequences]
            for output in llm.beam_search(asked, params(**search))
        ]
        for search in searches
    ]


if __name__ == "__main__":
    engine, job, answer = sys.argv[1:]
    Path(answer).write_text(json.dumps(play(engine, **json.loads(Path(job).read_text()))))
