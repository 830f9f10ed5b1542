"""Load a kernel file and call its entry, in a child process; stand-ins for what only a GPU has."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

Entry = Callable[..., Any]


class Refused(Exception):
    """The kernel cannot be run at all; the message says why."""


def stand_in_for_a_gpu() -> None:
    """What a launcher may ask the device for, answered without one (a GPU of sm_80 with 108 processors)."""
    properties = SimpleNamespace(multi_processor_count=108, major=8, minor=0, name="none")
    torch.cuda.get_device_properties = lambda device=None: properties
    torch.cuda.get_device_capability = lambda device=None: (8, 0)
    torch.cuda.current_device = lambda: 0
    from triton.runtime.autotuner import Autotuner

    # No clock here: of several configurations the first is taken.
    Autotuner._bench = lambda self, *args, config, **meta: 0.0


def load_entry(path: Path, entry: str) -> Entry:
    """The function `entry` of the file. Raises Refused."""
    name = f"kernel_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise Refused(f"{path.name} cannot be imported: {in_words(error, path)}") from error
    finally:
        sys.path.remove(str(path.parent))
    function = getattr(module, entry, None)
    if not callable(function):
        raise Refused(f"{path.name} defines no function {entry}")
    return function  # type: ignore[no-any-return]


def call(entry: Entry, inputs: dict[str, Any], path: Path) -> Any:
    """`entry` on the inputs, by position. Raises Refused for whatever it raises."""
    try:
        return entry(*inputs.values())
    except Exception as error:
        if isinstance(_root(error), NotImplementedError):
            name = inspect.unwrap(entry).__name__
            raise Refused(f"{name} is not written yet: it raises NotImplementedError") from error
        raise Refused(in_words(error, path)) from error


def in_words(error: BaseException, path: Path) -> str:
    """What was raised, and the last line of the file that it went through."""
    root = _root(error)
    frames = [f for e in (root, error) for f in traceback.extract_tb(e.__traceback__)]
    lines = [frame.lineno for frame in frames if Path(frame.filename) == path]
    where = f" (line {lines[-1] if root is error else lines[0]})" if lines else ""
    text = str(root).strip() or "no message"
    *_, code, mark, said = ["", "", *text.splitlines()]
    if (
        mark.strip() == "^"
    ):  # Triton's compiler shows the whole function up to the line that it refuses
        text = f"{said}, at `{code.strip()}`"
    return f"{type(root).__name__}: {text}{where}"


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error
