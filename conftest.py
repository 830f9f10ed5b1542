"""Pytest for the whole repository: the lab contract and the markers that need something.

The lab contract. A lab's tests ask for the fixture `lab` and get a module. Which one,
the environment variable `LAB_IMPL` says:

    LAB_IMPL=solution     solution.py beside the test file (this is the default)
    LAB_IMPL=starter      starter.py beside the test file
    LAB_IMPL=PATH         that file; a relative path is tried from the current directory,
                          then from the test file's folder

A `LAB_IMPL` that leads to no file ends the run with exit code 4 (a usage error), so that a
mistyped path can never pass for a failing solution. A file that imports the very function that
its lab builds is refused by name; `course/learner/refuse.py` says how a lab names it.

The markers. `gpu`, `torch`, `triton` and `vllm` name what a test needs. Where that is
missing the test is skipped with one line that says so. Nothing here imports torch unless a
selected test carries `gpu`.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import importlib.util
import os
import re
import signal
import sys
from collections.abc import Callable, Generator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

# Matrix products on one thread, as in the engine, here and in the processes that tests start. With small
# ones a second thread mostly waits, and waiting takes as much of the processor as work does. OpenBLAS reads
# this once, when numpy is loaded, and torch when it is; vLLM's workers count the cores again unless they are
# told not to.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


def _missing_package(name: str) -> str | None:
    return None if importlib.util.find_spec(name) else f"{name} is not installed"


def _missing_gpu() -> str | None:
    if reason := _missing_package("torch"):
        return reason
    if sys.platform.startswith("linux"):
        try:  # torch looks for the same driver, but takes seconds to import
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            return "torch sees no CUDA device"
    import torch

    return None if torch.cuda.is_available() else "torch sees no CUDA device"


# marker -> (what --markers prints, what is missing here or None)
NEEDS: dict[str, tuple[str, Callable[[], str | None]]] = {
    "gpu": ("needs a CUDA GPU, and torch built for it", _missing_gpu),
    "torch": ("needs torch", lambda: _missing_package("torch")),
    "triton": ("needs triton", lambda: _missing_package("triton")),
    "vllm": ("needs the real vLLM, its CPU or its GPU build", lambda: _missing_package("vllm")),
}
_missing: dict[str, str | None] = {}


def pytest_configure(config: pytest.Config) -> None:
    for marker, (description, _) in NEEDS.items():
        config.addinivalue_line("markers", f"{marker}: {description}")
    # A job in the background of a script is deaf to Ctrl-C, and so is every command that it starts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if importlib.util.find_spec("hypothesis"):
        from hypothesis import settings

        # The same examples on every run. --hypothesis-profile=explore draws new ones.
        settings.register_profile("repeatable", deadline=None, derandomize=True)
        settings.register_profile("explore", deadline=None)
        settings.load_profile("repeatable")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collecting tests makes 150,000 objects that stay to the end. Garbage collection waits until they are
    there, and passes over them afterwards: to go through them once takes a tenth of a second. What tests
    load and keep stays as well, so the oldest generation is gone through a fifth as often as usual."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*gc.get_threshold()[:2], 50)
        gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, (_, probe) in NEEDS.items():
        if item.get_closest_marker(marker) is None:
            continue
        if marker not in _missing:
            _missing[marker] = probe()
        if reason := _missing[marker]:
            pytest.skip(f"{marker}: {reason}")


def _lab_file(choice: str, folder: Path, start: Path) -> Path:
    """The file that `LAB_IMPL=choice` names for the lab in `folder`; ends the run if none."""
    if choice in ("solution", "starter"):
        tried = [folder / f"{choice}.py"]
    else:
        path = Path(choice).expanduser()
        tried = [path] if path.is_absolute() else [start / path, folder / path]
    for path in tried:
        if path.is_file():
            return path.resolve()
    pytest.exit(
        f"LAB_IMPL={choice!r} names no file. It may be 'solution' (the default), 'starter' or the "
        f"path of a Python file; looked for {' and '.join(map(str, dict.fromkeys(tried)))}.",
        returncode=pytest.ExitCode.USAGE_ERROR,
    )


def _load(path: Path) -> ModuleType:
    """Load `path` under a name that no other lab's module can have."""
    stem = re.sub(r"\W+", "_", f"{path.parent.name}_{path.stem}")
    name = f"lab_{stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    loader = SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up by name
    try:
        # Straight from the source: a .pyc is matched by whole seconds and size, which a file
        # edited twice in a second can fool.
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest) -> ModuleType:
    """The module under test, as `LAB_IMPL` chooses it (see above)."""
    choice = os.environ.get("LAB_IMPL", "").strip() or "solution"
    folder = request.path.parent
    path = _lab_file(choice, folder, request.config.invocation_params.dir)
    module = _load(path)
    if (folder / "README.md").is_file():
        from course.learner.refuse import AnswerImportedError, refuse_the_answer

        try:
            refuse_the_answer(module, path, folder)
        except AnswerImportedError as refused:
            message = f"{path.name}, line {refused.line}: {refused}"
            raise pytest.fail.Exception(message, pytrace=False) from None
    return module
