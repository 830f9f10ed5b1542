"""Lab 05-05: count what a step launches, predict its time, and judge what was measured. Your work: every
NotImplementedError. What says "Given" is already written.

`measure.py` counts, predicts and judges with what you write here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

# -- Given: what the functions take and return. Nothing to do here.

GAIN, LOSS, UNDECIDED = "gain", "loss", "undecided"
ALLOCATIONS = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")
Pair = tuple[float, float]


class Launches(NamedTuple):
    """Kernel calls in a step that Inductor compiled.

    Attributes:
        fused: calls of kernels that Inductor wrote.
        library: calls of existing kernels, a matrix product for instance.
    """

    fused: int
    library: int


class Prediction(NamedTuple):
    """A step on paper. Seconds.

    Attributes:
        host: the processor's time for starting the kernels.
        device: the time of the kernels, once started.
        step: the time of the step.
        lost: share of the step in which no kernel works (0 to 1).
    """

    host: float
    device: float
    step: float
    lost: float


class Gain(NamedTuple):
    """What a change gained, by pairs of measurements.

    Attributes:
        ratio: how many times faster, by the middle pair.
        low, high: the same by the pairs that speak least and most for the change.
        verdict: GAIN or LOSS where all pairs agree, else UNDECIDED.
    """

    ratio: float
    low: float
    high: float
    verdict: str


# -- Your work.


def predictions() -> dict[str, Any]:
    """Your answers before you look. The README has the names and the choices."""
    raise NotImplementedError


# -- Count.


def storages(values: Any) -> list[int]:
    """The memory of each tensor in `values`, one number each. Given. Needs torch.

    Tensors may stand in lists, tuples and dictionaries.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    tensors = (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))
    return [tensor.untyped_storage()._cdata for tensor in tensors]


def count_operators(run: Callable[[], object]) -> dict[str, int]:
    """How often each operator that starts a kernel is started during `run()`. Given.

    Needs torch. Inside a `TorchDispatchMode` PyTorch hands each operator to the mode, and takes its result
    from the mode.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    counted: dict[str, int] = {}

    class Counter(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            if starts_kernel(func, (args, kwargs), out):
                name = func.overloadpacket.__name__
                counted[name] = counted.get(name, 0) + 1
            return out

    with Counter():
        run()
    return counted


def starts_kernel(func: Any, came_in: Any, out: Any) -> bool:
    """Whether an operator that PyTorch ran started a kernel. `count_operators` asks for each operator.

    Two kinds start none:

    - a view: it writes nothing, and all memory in its result is memory that came in. `storages` tells which.
    - an allocation: its name is one of ALLOCATIONS.

    An operator that writes in place starts a kernel, though its result is memory that came in.

    Args:
        func: the operator. `func.overloadpacket.__name__` is its short name, "mm" or "add";
            `func._schema.is_mutable` says whether it writes to what came in.
        came_in: its arguments, `(args, kwargs)`.
        out: its result: a tensor, several, or none.
    """
    raise NotImplementedError


def count_launches(code: str) -> Launches:
    """The kernels that Inductor's output starts in one step. Given.

    Args:
        code: a Python file as Inductor writes it. It first defines kernels; its method `call` runs them in
            order, one statement per line. Less indented code for a benchmark follows.

    A line of `call` starts a kernel if it calls `cpp_fused_…(` (on a CPU), `triton_….run(` (on a GPU),
    `extern_kernels.…(` or `torch.ops.…(`, with or without `name = ` in front. The first two are fused. A
    kernel that is called twice is started twice. Comments and `del` start nothing.
    """
    names = [match[1] for line in _body(code) if (match := _CALL.match(line))]
    fused = sum(name.startswith(("cpp_fused", "triton_")) for name in names)
    return Launches(fused, len(names) - fused)


_CALL = re.compile(
    r"\s*(?:\w+ = )?((?:cpp_fused|triton_)\w+(?:\.run)?|extern_kernels\.\w+|torch\.ops\.[\w.]+)\("
)


def _body(code: str) -> list[str]:
    """The lines of the function `call`."""
    lines = code.splitlines()
    first = next(i for i, line in enumerate(lines) if line.lstrip().startswith("def call("))
    margin = len(lines[first]) - len(lines[first].lstrip())
    body = []
    for line in lines[first + 1 :]:
        if line.strip() and len(line) - len(line.lstrip()) <= margin:
            break
        body.append(line)
    return body


# -- Predict.


def cost_per_operator(chains: Sequence[tuple[int, float]]) -> float:
    """Seconds for one more operator, from chains of operators that do next to nothing. Given.

    Args:
        chains: (operators, seconds that they took together), in any order; lengths may repeat.

    Returns:
        the slope of the straight line through all points by least squares. What a measurement costs besides
        its operators is the line's intercept, which is not needed here.

    Raises:
        ValueError: there are not two lengths; the message has the word "operators".
    """
    counts = [float(count) for count, _ in chains]
    if len(set(counts)) < 2:
        raise ValueError(f"chains of {sorted(set(counts))} operators: two lengths are needed")
    middle = sum(counts) / len(counts)
    rise = sum((count - middle) * seconds for count, seconds in chains)
    return rise / sum((count - middle) ** 2 for count in counts)


def refuse_impossible(launches: int, cost: float, bytes_read: float, bandwidth: float) -> None:
    """Raise ValueError for a negative number, or a bandwidth that is not positive; it names which. Given."""
    for name, value in (("launches", launches), ("cost", cost), ("bytes_read", bytes_read)):
        if value < 0:
            raise ValueError(f"{name} is {value!r}; it cannot be negative")
    if bandwidth <= 0:
        raise ValueError(f"bandwidth is {bandwidth!r}; it must be positive")


def predict(
    launches: int, cost: float, bytes_read: float, bandwidth: float, *, overlap: bool
) -> Prediction:
    """A step that starts `launches` kernels and reads `bytes_read` bytes.

    Args:
        cost: seconds of the processor for one launch.
        bytes_read: what its kernels must read, the weights above all.
        bandwidth: bytes per second.
        overlap: True on a GPU, which works on one kernel while the processor starts the next. False on a CPU,
            where the same core does first the one and then the other.

    An empty step takes no time and loses none.

    Raises:
        ValueError: an impossible number; the first line is given.
    """
    refuse_impossible(launches, cost, bytes_read, bandwidth)
    raise NotImplementedError


# -- Judge.


def gain(pairs: Sequence[Pair]) -> Gain:
    """What the pairs `(before, after)` say, in seconds. The two of a pair were measured back to back.

    A machine does not have the same speed all the time, but it has nearly the same for the two of a pair. So
    each pair gives one ratio, and `ratio` is their median.

    Raises:
        ValueError: there are no pairs; the message says "no pairs".
    """
    raise NotImplementedError


def gain_ends(gains: Mapping[int, Gain]) -> int | None:
    """The size from which nothing is gained, up to the largest that was measured.

    Args:
        gains: by size, a batch or a width, in any order.

    Returns:
        the smallest measured size for which neither it nor a larger one has the verdict GAIN; None if the
        largest has it, or if nothing was measured.
    """
    raise NotImplementedError


def cost_of_removed(before: int, after: int, pairs: Sequence[Pair]) -> float:
    """Seconds that each saved launch was worth, by the median of the pairs' differences.

    Args:
        before, after: launches of a step.
        pairs: as for `gain`.

    Raises:
        ValueError: `after` is not below `before`; the message has the word "launches".
    """
    raise NotImplementedError
