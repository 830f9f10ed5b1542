"""What a launcher starts, without running it: to hold the interpreter's side against the compiler's.

A kernel that asks who runs it can be right in the interpreter and wrong on a GPU. So both children call the
launcher on the same inputs, and must see the same kernels start, from the same source, with the same
arguments and grid.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from course.kernels.loading import (
    CHOICE,
    Entry,
    Refused,
    call,
    processors_of,
)

# One start: the kernel's name, its source and what that reads, its grid, its arguments in words.
Start = list[str]
_PLAIN = (int, float, str, bool, type(None))
# What a kernel can learn about who runs it; the compiler evaluates some of them as it goes.
_ASKING = {
    "hasattr", "getattr", "isinstance", "type", "callable", "vars", "dir", "globals", "locals", "eval",
    "exec", "open", "__import__", "id",
}  # fmt: skip
_INSIDE = {"handle", "knobs", "environ", "modules", "__class__", "__dict__"}


def starts(
    kind: type,
    entry: Entry,
    inputs: dict[str, Any],
    path: Path,
    kernels: dict[int, Any] | None = None,
) -> list[Start]:
    """Every launch of a call of `entry`. None is run. `kind` is the class of jitted functions here; into
    `kernels` go those that were started."""
    found: list[Start] = []

    def note(kernel: Any, *how: Any) -> None:
        found.append(describe(kernel, *how))
        if kernels is not None:
            kernels[id(kernel)] = kernel

    with instead_of_running(kind, note):
        try:
            call(entry, inputs, path)
        except Refused as refused:
            found.append(["raised", str(refused), "", ""])
    return found


def starts_of_all(
    kind: type,
    entry: Entry,
    inputs: list[dict[str, Any]],
    path: Path,
    kernels: dict[int, Any] | None = None,
) -> list[list[Start]]:
    """`starts` on the inputs of each case, with as many processors as the kernel sees there."""
    found = []
    for number, one in enumerate(inputs):
        with processors_of(number, len(inputs)):
            found.append(starts(kind, entry, one, path, kernels))
    return found


_GPU = torch.device("cuda", 0)  # made here: inside of `_Elsewhere` it would be the CPU


class _OnGPU(torch.Tensor):
    """A tensor that says it is on a GPU. Its numbers are here."""

    is_cuda = True

    @property
    def device(self) -> torch.device:
        return _GPU

    def get_device(self) -> int:
        return 0


class _Elsewhere(TorchFunctionMode):
    """Makes on the CPU what a launcher makes on a GPU, and says that it is there."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args = [_here(value) for value in args]
        kwargs = {name: _here(value) for name, value in (kwargs or {}).items()}
        with torch._C.DisableTorchFunctionSubclass():
            made = function(*args, **kwargs)
        if isinstance(made, tuple | list) and not isinstance(made, torch.Size):
            return (
                type(made)([_there(one) for one in made]) if type(made) in (tuple, list) else made
            )
        return _there(made)


def _here(value: Any) -> Any:
    if isinstance(value, torch.device) or (isinstance(value, str) and value[:4] == "cuda"):
        return "cpu"
    return value


def _there(value: Any) -> Any:
    return value.as_subclass(_OnGPU) if type(value) is torch.Tensor else value


def starts_on_a_gpu(entry: Entry, inputs: dict[str, Any], path: Path) -> list[Start]:
    """As `starts`, for the compiler's side, with inputs that say they are on a GPU."""
    from triton.runtime.jit import JITFunction

    there = {name: _there(value) for name, value in inputs.items()}
    with _Elsewhere():
        return starts(JITFunction, entry, there, path)


@contextmanager
def instead_of_running(kind: type, note: Callable[..., Any]) -> Iterator[None]:
    """Launches of functions of this class call `note` with function, arguments and grid, and do no more."""
    run = kind.run  # type: ignore[attr-defined]

    def noted(kernel: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        note(kernel, args, kwargs, grid)

    kind.run = noted  # type: ignore[attr-defined]
    CHOICE.number = 0
    try:
        yield
    finally:
        kind.run = run  # type: ignore[attr-defined]


def describe(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any) -> Start:
    """One launch in words."""
    named = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    if callable(grid):
        grid = grid(named)
    size = [int(n) for n in (grid if isinstance(grid, tuple | list) else (grid,))]
    said = ", ".join(f"{name}={_words(value)}" for name, value in sorted(named.items()))
    return [kernel.fn.__name__, digest(kernel), str(size + [1] * (3 - len(size))), said]


def _words(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{list(value.shape)} of strides {list(value.stride())}"
    if hasattr(value, "arg_names"):
        return digest(value)
    if isinstance(value, _PLAIN):
        return repr(value)
    return repr(getattr(value, "value", None) or str(value).partition(" at 0x")[0])


def digest(kernel: Any) -> str:
    """Of a kernel's source, the functions that it calls, and the numbers that it reads from its file."""
    key = hashlib.sha256()
    for function in with_callees(kernel):
        key.update(_source(function).encode())
        for name, value in sorted(_reads(function), key=lambda pair: pair[0]):
            plain = getattr(value, "value", value)
            if isinstance(plain, _PLAIN):
                key.update(f"{name}={plain!r};".encode())
    return key.hexdigest()[:16]


def with_callees(kernel: Any) -> list[Any]:
    """The Python function of a kernel, and of everything of its own that it calls."""
    found: list[Any] = []
    rest = [kernel]
    while rest:
        function = rest.pop()
        while hasattr(function, "fn"):
            function = function.fn
        theirs = str(getattr(function, "__module__", "")).startswith(("triton.", "torch."))
        if theirs or not inspect.isfunction(function) or function in found:
            continue
        found.append(function)
        rest += [value for _, value in sorted(_reads(function), key=lambda pair: pair[0])]
    return found


def _reads(function: Any) -> list[tuple[str, Any]]:
    """The globals and closed-over variables that a function's code names."""
    names: set[str] = set()
    codes: list[CodeType] = [function.__code__]
    while codes:
        code = codes.pop()
        names |= {*code.co_names}
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
    closed = inspect.getclosurevars(function).nonlocals
    found = {name: function.__globals__[name] for name in names if name in function.__globals__}
    return list((found | dict(closed)).items())


def _source(function: Any) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return repr(function.__code__.co_code)


def asks_who_runs_it(kernel: Any) -> str | None:
    """What in a kernel's source finds out whether it is interpreted, in words, or None."""
    for function in with_callees(kernel):
        try:
            tree = ast.parse(textwrap.dedent(_source(function)))
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            asked = ""
            if isinstance(node, ast.Name) and node.id in _ASKING:
                asked = node.id
            elif isinstance(node, ast.Attribute) and node.attr in _INSIDE:
                asked = f".{node.attr}"
            if asked:
                line = function.__code__.co_firstlineno + getattr(node, "lineno", 1) - 1
                return f"{function.__name__} uses {asked} (line {line})"
    return None
