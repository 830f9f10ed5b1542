"""One of the ranks that torchrun starts: writes its tokens, and what it has said, to a folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mini_vllm import LLM, SamplingParams

PROMPTS = ["Once upon a time", "The scheduler", "A block table holds"]


def make_params() -> list[SamplingParams]:
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    drawn = SamplingParams(temperature=1, seed=3, max_tokens=12)
    return [greedy] * 3 + [drawn] * 3


def main(attention: str, folder: str) -> None:
    llm = LLM(
        attention=attention,
        tensor_parallel_size=2,
        distributed_executor_backend="external_launcher",
        num_gpu_blocks=40,
    )
    outputs = llm.generate(PROMPTS * 2, make_params(), use_tqdm=False)
    model: Any = llm.llm_engine.model
    tensor = model.groups.tensor
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    said = [tensor.ledger.count("all_reduce"), tensor.ledger.count("all_gather")]
    path = Path(folder) / f"{tensor.rank}.json"
    path.write_text(json.dumps({"tokens": tokens, "said": said}), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
