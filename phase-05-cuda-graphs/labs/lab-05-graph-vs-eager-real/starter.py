"""Lab 05-05: count what a step launches, predict its time, and judge what was measured. Your work: every
NotImplementedError.

`measure.py` counts, predicts and judges with what you write here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

# -- Given: what the functions take and return. Nothing to do here.

GAIN, LOSS, UNDECIDED = "gain", "loss", "undecided"
ALLOCATIONS = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")
Pair = tuple[float, float]


class Launches(NamedTuple):
    """Calls of kernels in a step that Inductor compiled.

    Attributes:
        fused: of kernels that Inductor wrote.
        library: of kernels that were there before, a matrix product for instance.
    """

    fused: int
    library: int


class Prediction(NamedTuple):
    """A step on paper. Seconds.

    Attributes:
        host: what starting its kernels takes the processor.
        device: what its kernels take, once started.
        step: what the step takes.
        lost: share of the step in which no kernel works (0 to 1).
    """

    host: float
    device: float
    step: float
    lost: float


class Gain(NamedTuple):
    """What a change brought, by pairs of measurements.

    Attributes:
        ratio: how many times faster, as the middle pair has it.
        low, high: the pairs that speak least and most for the change.
        verdict: GAIN or LOSS where all pairs agree, else UNDECIDED.
    """

    ratio: float
    low: float
    high: float
    verdict: str


# -- Your work.


def predictions() -> dict[str, Any]:
    """What you say before you look: the names and what to answer stand in the README."""
    raise NotImplementedError


# -- Count.


def count_operators(run: Callable[[], object]) -> dict[str, int]:
    """How often each operator is started while `run()` runs, for those that start a kernel. Needs torch.

    `torch.utils._python_dispatch.TorchDispatchMode` is a context in which PyTorch hands each operator to your
    `__torch_dispatch__(self, func, types, args, kwargs)`, and takes its result from there: call
    `func(*args, **kwargs)` and return what it returns. `func.overloadpacket.__name__` is the operator's short
    name, "mm" or "add". Import torch inside this function, since the rest of the file needs none.

    Two kinds start no kernel and are not counted:

    - a view: it writes nothing (`func._schema.is_mutable` is false), and all memory in its result is memory
      that came in with its arguments. Compare `tensor.untyped_storage()._cdata`. Tensors may stand in lists
      and tuples, and in kwargs: `torch.utils._pytree.tree_leaves` finds them all.
    - an allocation: its name is one of ALLOCATIONS.

    An operator that writes in place starts a kernel, though its result is memory that came in.
    """
    raise NotImplementedError


def count_launches(code: str) -> Launches:
    """The kernels that Inductor's output starts in one step.

    Args:
        code: a Python file as Inductor writes it. Above, kernels are defined; the method `call` runs them in
            order, one statement a line. Below it stands what a benchmark would need, at a smaller margin.

    A line of `call` starts a kernel if it calls `cpp_fused_…(` (on a CPU), `triton_….run(` (on a GPU),
    `extern_kernels.…(` or `torch.ops.…(`, with or without `name = ` in front. The first two are fused. A
    kernel that is called twice is started twice. Comments and `del` start nothing.
    """
    raise NotImplementedError


# -- Predict.


def cost_per_operator(chains: Sequence[tuple[int, float]]) -> float:
    """Seconds for one operator more, from chains of operators that do next to nothing.

    Args:
        chains: (operators, seconds that they took together), in any order, lengths may repeat.

    Returns:
        the slope of the straight line through all points by least squares. What a measurement costs besides
        its operators is in the line's other number, which nobody needs here.

    Raises:
        ValueError: there are not two lengths; the message has the word "operators".
    """
    raise NotImplementedError


def predict(
    launches: int, cost: float, bytes_read: float, bandwidth: float, *, overlap: bool
) -> Prediction:
    """A step that starts `launches` kernels and reads `bytes_read` bytes.

    Args:
        cost: seconds of the processor for one launch.
        bytes_read: what its kernels must read, the weights above all.
        bandwidth: bytes a second.
        overlap: True on a GPU, which works on one kernel while the processor starts the next. False on a CPU,
            where the same core does first the one and then the other.

    A step of nothing takes no time and loses none.

    Raises:
        ValueError: a negative number, or a bandwidth that is not positive; the message names it.
    """
    raise NotImplementedError


# -- Judge.


def gain(pairs: Sequence[Pair]) -> Gain:
    """What the pairs `(before, after)` say, each measured one right behind the other. Seconds.

    A machine does not have the same speed all the time, but it has nearly the same for the two of a pair. So
    each pair gives one ratio, and `ratio` is their median.

    Raises:
        ValueError: there are none; the message says "no pairs".
    """
    raise NotImplementedError


def gain_ends(gains: Mapping[int, Gain]) -> int | None:
    """The size from which on nothing is gained any more, up to the largest that was measured.

    Args:
        gains: by size, a batch or a width, in any order.

    Returns:
        the smallest measured size for which neither it nor a larger one has the verdict GAIN; None where the
        largest has it, or nothing was measured.
    """
    raise NotImplementedError


def cost_of_removed(before: int, after: int, pairs: Sequence[Pair]) -> float:
    """Seconds that each launch saved was worth, by the measured pairs: the median of their differences.

    Args:
        before, after: launches of a step.
        pairs: as for `gain`.

    Raises:
        ValueError: not fewer launches than before; the message has the word "launches".
    """
    raise NotImplementedError
