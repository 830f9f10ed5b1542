"""Lab 05-05: count what a step launches, predict its time, judge what was measured. One solution."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

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


def predictions() -> dict[str, Any]:
    """What you say before you look. See the README."""
    return {
        "operators, width 2048 for 128": "as many",
        "kernels, width 2048 for 128": "as many",
        "share of launches left, width 128": "a quarter",
        "width 128, batch 1": GAIN,
        "width 128, batch 64": GAIN,
        "width 2048, batch 1": UNDECIDED,
        "vLLM on a CPU, batch 1": GAIN,
        "vLLM on a CPU, batch 8": GAIN,
        "vLLM on a CPU, batch 64": GAIN,
    }


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
    """Neither an allocation, nor a view of memory that came in."""
    given = set(storages(came_in))
    view = not func._schema.is_mutable and given.issuperset(storages(out))
    return func.overloadpacket.__name__ not in ALLOCATIONS and not view


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
    """A step that starts `launches` kernels and reads `bytes_read` bytes."""
    refuse_impossible(launches, cost, bytes_read, bandwidth)
    host, device = launches * cost, bytes_read / bandwidth
    step = max(host, device) if overlap else host + device
    return Prediction(host, device, step, 1 - device / step if step else 0.0)


# -- Judge.


def gain(pairs: Sequence[Pair]) -> Gain:
    """What the pairs `(before, after)` say, in seconds. The two of a pair were measured back to back."""
    if not pairs:
        raise ValueError("no pairs: nothing was measured")
    ratios = sorted(before / after for before, after in pairs)
    low, high = ratios[0], ratios[-1]
    verdict = GAIN if low > 1 else LOSS if high < 1 else UNDECIDED
    return Gain(median(ratios), low, high, verdict)


def gain_ends(gains: Mapping[int, Gain]) -> int | None:
    """The size from which nothing is gained, up to the largest that was measured."""
    end = None
    for size in sorted(gains, reverse=True):
        if gains[size].verdict == GAIN:
            break
        end = size
    return end


def cost_of_removed(before: int, after: int, pairs: Sequence[Pair]) -> float:
    """Seconds that each launch saved was worth, by the measured pairs."""
    if after >= before:
        raise ValueError(f"{before} launches before and {after} after: none was saved")
    return median(slow - fast for slow, fast in pairs) / (before - after)
