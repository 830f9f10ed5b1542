"""Which method real vLLM makes of a `speculative_config`, with the shipped model as the drafter.

As a program (see `course.parity.tokens_run.run_worker`) it keeps real vLLM in a process of its own.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from mini_vllm.config.engine import DEFAULT_MODEL


def method_of(given: dict[str, Any], folder: Path) -> str | None:
    """The method, or None where vLLM refuses. `/models/` stands for the folder."""
    from vllm.config import ModelConfig, ParallelConfig, SpeculativeConfig

    given = dict(given)
    model = given.get("model", "")
    if model.startswith("/models/"):
        given["model"] = str(folder / model.removeprefix("/models/"))
        shutil.copytree(DEFAULT_MODEL, given["model"], dirs_exist_ok=True)
    target = ModelConfig(str(DEFAULT_MODEL), dtype="float32")
    try:
        config = SpeculativeConfig(
            num_speculative_tokens=3,
            target_model_config=target,
            target_parallel_config=ParallelConfig(),
            **given,
        )
    except (ValueError, NotImplementedError):
        return None
    return config.method


def main(job: str, answer: str) -> None:
    folder, cases = json.loads(Path(job).read_text(encoding="utf-8"))
    found = [method_of(given, Path(folder)) for given in cases]
    Path(answer).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
