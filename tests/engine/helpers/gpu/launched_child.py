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


def main(attention: str, folder: str, size: str = "2") -> None:
    """A file `job.json` in the folder has other prompts, as token ids, and settings."""
    job = Path(folder) / "job.json"
    prompts: Any = PROMPTS * 2
    settings: dict[str, Any] = {"num_gpu_blocks": 40}
    params = make_params()
    if job.exists():
        given = json.loads(job.read_text("utf-8"))
        prompts = [{"prompt_token_ids": ids} for ids in given["prompts"]]
        params, settings = make_params()[:1] * len(prompts), given["settings"]
    llm = LLM(
        attention=attention,
        tensor_parallel_size=int(size),
        distributed_executor_backend="external_launcher",
        **settings,
    )
    outputs = llm.generate(prompts, params, use_tqdm=False)
    model: Any = llm.llm_engine.model
    tensor = model.groups.tensor
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    said = [tensor.ledger.count("all_reduce"), tensor.ledger.count("all_gather")]
    calls = sorted([*call, times] for call, times in tensor.ledger.calls.items())
    path = Path(folder) / f"{tensor.rank}.json"
    written = {"tokens": tokens, "said": said, "calls": calls}
    path.write_text(json.dumps(written), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
