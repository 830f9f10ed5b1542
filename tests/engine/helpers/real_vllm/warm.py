"""Scripts that import vLLM, run without the six seconds in which its packages are loaded.

    python -m tests.engine.helpers.real_vllm.warm < REQUESTS

This process loads what vLLM loads of other people's packages, and never vLLM itself, which reads its
variables when it is imported. For each request, a line of JSON, it forks one more, which becomes the script:
its arguments, variables, folder and output are those that `python SCRIPT` would have. A line with the exit
status comes back. `tests.engine.helpers.real_vllm.vllm_helpers.output_of` is the caller.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import importlib.util
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[4]
PACKAGES = (
    "torch",
    "torch._inductor.compile_fx",
    "torch.distributed",
    "torchvision",
    "transformers.models.auto.image_processing_auto",
    "transformers.models.auto.processing_auto",
    "openai.types.responses",
    "xgrammar",
    "compressed_tensors",
    "gguf",
    "aiohttp",
    "fastapi",
    "zmq",
    "sympy",
)
CAN_FORK = hasattr(os, "fork") and sys.platform.startswith("linux")
# Read when torch or Triton is loaded, so a script for which they matter gets a process of its own.
EARLY = ("TRITON_INTERPRET", "TORCHINDUCTOR", "TORCHDYNAMO")


# -- the side of the tests ------------------------------------------------------------------------


def fits(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """May this script run in a fork? Not if it, or its environment, says something of `EARLY`."""
    same = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    if not CAN_FORK or any(map(env.get, EARLY)):
        return False
    if any(env.get(name) != value for name, value in same.items()):
        return False
    if importlib.util.find_spec("vllm") is None:  # a laptop: there is nothing to have loaded
        return False
    return not any(name in _source(command) for name in EARLY)


def _source(command: Sequence[str]) -> str:
    if command[0] == "-c":
        return command[1]
    if command[0] == "-m":
        spec = importlib.util.find_spec(command[1])
        path = spec.origin if spec else None
        return Path(path).read_text(encoding="utf-8") if path else EARLY[0]
    return Path(command[0]).read_text(encoding="utf-8")


@functools.cache
def _server() -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    server = subprocess.Popen(
        [sys.executable, "-m", __name__],
        cwd=ROOT, env=env | {"PYTHONPATH": str(ROOT)}, text=True, encoding="utf-8",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    atexit.register(
        server.wait
    )  # after the next line, so that its processor time counts as the tests'
    atexit.register(server.kill)
    return server


def run(command: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run([sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True)`."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory(prefix="warm-") as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        request = {"command": list(command), "env": dict(env), "out": str(out), "err": str(err)}
        print(json.dumps(request), file=server.stdin, flush=True)
        answer = server.stdout.readline()
        assert answer, f"the process that {command} was to be forked from has ended"
        texts = [path.read_text(encoding="utf-8") for path in (out, err)]
    return subprocess.CompletedProcess([sys.executable, *command], json.loads(answer), *texts)


# -- the side of the scripts ----------------------------------------------------------------------


class _Late:
    """What torch would have read on being loaded, and a script sets before it imports vLLM."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] not in ("vllm", "mini_vllm"):
            return
        config = sys.modules["torch._dynamo.config"]
        config.disable = os.environ.get("TORCH_COMPILE_DISABLE") == "1"  # type: ignore[attr-defined]


def _become(request: dict[str, Any]) -> None:
    """Be the script, in a process that was forked for it."""
    os.environ.clear()
    os.environ.update(request["env"])
    for number, path in ((0, os.devnull), (1, request["out"]), (2, request["err"])):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT
        os.dup2(os.open(path, flags, 0o600), number)
    sys.stdin = os.fdopen(0, encoding="utf-8")  # the old one may hold the next request
    sys.meta_path.insert(0, _Late())  # type: ignore[arg-type]
    what, *rest = request["command"]
    if what == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif what == "-c":
        sys.argv = ["-c", *rest[1:]]
        main = sys.modules["__main__"]
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = [what, *rest]
        sys.path[0] = str(Path(what).resolve().parent)
        runpy.run_path(what, run_name="__main__")


def main() -> None:
    for name in PACKAGES:
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # vLLM collects garbage six times a start, and goes through all of this
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            answers.close()
            _become(json.loads(line))
            return  # and end as a script does
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


if __name__ == "__main__":
    main()
