"""Load a kernel file and call its entry, in a child process; stand-ins for what only a GPU has."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

Entry = Callable[..., Any]


class Refused(Exception):
    """The kernel cannot be run at all; the message says why."""


PROCESSORS = 108  # of an A100
# Of an autotuned kernel's configurations, the one to take, and the most that any kernel here has; and the
# streaming multiprocessors that a launcher is told of.
CHOICE = SimpleNamespace(number=0, most=1, processors=PROCESSORS)


@contextmanager
def processors_of(number: int, count: int) -> Iterator[None]:
    """A launcher is told as many processors as case `number` of `count` has. The last is the long one.

    One that starts a program for each processor must be right where they are fewer than the tiles, and where
    they are more: every other case has three.
    """
    few = number % 2 == 0 and number + 1 < count
    CHOICE.processors = 3 if few else PROCESSORS
    try:
        yield
    finally:
        CHOICE.processors = PROCESSORS


class _Properties:
    """Of a GPU of sm_80, under torch's names."""

    major, minor, name, warp_size = 8, 0, "none", 32

    @property
    def multi_processor_count(self) -> int:
        return int(CHOICE.processors)


def stand_in_for_a_gpu() -> None:
    """What a launcher may ask the device for, answered without one."""
    torch.cuda.get_device_properties = lambda device=None: _Properties()
    torch.cuda.get_device_capability = lambda device=None: (8, 0)
    torch.cuda.current_device = lambda: 0
    from triton.runtime.autotuner import Autotuner

    # No clock here: the bench asks for one configuration after the other.
    run = Autotuner.run

    def tuned(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        CHOICE.most = max(CHOICE.most, len(tuner.configs))
        tuner.cache.clear()
        return run(tuner, *args, **kwargs)

    def chosen(tuner: Any, *args: Any, config: Any, **meta: Any) -> float:
        return float(config is not tuner.configs[min(CHOICE.number, len(tuner.configs) - 1)])

    def no_disk(tuner: Any, key: Any, configs: Any, bench: Any) -> bool:
        bench()
        return False

    Autotuner.run, Autotuner._bench, Autotuner.check_disk_cache = tuned, chosen, no_disk


class StandIn:
    """As much of a driver as compiling needs."""

    def __init__(self, capability: int) -> None:
        self.capability = capability
        self.utils = self  # where Triton's own drivers have what follows

    def get_device_properties(self, device: int = 0) -> dict[str, int]:
        return {"multiprocessor_count": CHOICE.processors, "warpSize": 32, "max_shared_mem": 166912}

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # Triton keeps what it has compiled by device

    def get_current_stream(self, device: Any = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, kind: str) -> str:
        from triton.backends.nvidia.driver import ty_to_cpp

        return ty_to_cpp(kind)  # type: ignore[no-any-return]

    @staticmethod
    def is_active() -> bool:
        return True


def stand_in_driver(capability: int = 80) -> None:
    """Makes a launcher that asks Triton's driver see a GPU of this capability."""
    import triton

    triton.runtime.driver.set_active(StandIn(capability))
    torch.cuda.get_device_capability = lambda device=None: divmod(capability, 10)


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
        if isinstance(root := _root(error), NotImplementedError):
            last = traceback.extract_tb(root.__traceback__)[-1]
            name = last.name if Path(last.filename) == path else inspect.unwrap(entry).__name__
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
