"""Run the scripts of `snippets/` on one engine and keep what each one prints.

As a program (`python -m tests.engine.helpers.real_vllm.run_snippets ENGINE JOB ANSWER`, see
`course.parity.tokens_run.run_worker`) it runs all of them in one process, because vLLM's import alone
takes 20 s. The scripts say `from vllm import …`; for `mini_vllm` that word is
replaced, and nothing else.
"""

from __future__ import annotations

import functools
import gc
import io
import json
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "snippets"
ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").is_file())
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))


def source(name: str, engine: str) -> str:
    """The script as it runs on `engine`, `vllm` or `mini_vllm`."""
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    return re.sub(r"^from vllm\b", f"from {engine}", text, flags=re.MULTILINE)


def run(name: str, engine: str) -> dict[str, Any]:
    """What the script prints, and the traceback it ends with, or None."""
    out = io.StringIO()
    failure = None
    before = Path.cwd()
    os.chdir(ROOT)  # the scripts name the shipped checkpoint from there
    try:
        # Not by another sys.stdout: vLLM asks that one for its file descriptor.
        names = {"__name__": "__main__", "print": functools.partial(print, file=out)}
        exec(compile(source(name, engine), name, "exec"), names)
    except Exception:
        failure = traceback.format_exc()
    finally:
        os.chdir(before)
    return {"name": name, "printed": out.getvalue(), "failure": failure}


def load_fast() -> None:
    """Real vLLM's workers into this process, and 512 blocks an engine: none gives its memory back."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    create = EngineArgs.create_engine_config

    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.distributed_executor_backend = UniProcExecutor
        self.gpu_memory_utilization = min(self.gpu_memory_utilization, 0.3)
        self.num_gpu_blocks_override = 512
        return create(self, *args, **kwargs)

    EngineArgs.create_engine_config = create_engine_config


def main(engine: str, job: str, answer: str) -> None:
    if engine == "vllm":
        load_fast()
    answers = []
    for name in json.loads(Path(job).read_text(encoding="utf-8")):
        answers.append(run(name, engine))
        gc.collect()  # an engine's memory, before the next one asks for its own
    Path(answer).write_text(json.dumps(answers), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
