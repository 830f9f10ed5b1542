"""One call of a kernel, with what must come out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from course.kernels.record import Launch

Answer = tuple[torch.Tensor, torch.Tensor]  # float64, and how far from it an honest kernel may be


@dataclass
class Case:
    """Inputs in guarded memory, and how to work out what must come out.

    The answer is computed when it is first asked for. The process that runs a kernel never asks, so there is
    none in it that the kernel's file could find.
    """

    label: str  # "float16, heads 8 over 2, lengths 37 1 64"
    inputs: dict[str, Any]  # the entry's arguments by name, in order
    answer: Callable[[], Answer]  # from the inputs as they are now
    least: dict[str, int]  # bytes that any kernel must move, by tensor; "out" for the answer
    # Of an input that is written in part: which of its leading indices hold something.
    live: dict[str, torch.Tensor]
    about: dict[str, Any] = field(default_factory=dict)  # what `explain` of the problem needs
    # Bytes of a tensor that the answer depends on, where that is not `least`: several programs may have to
    # read the same ones.
    distinct: dict[str, int] = field(default_factory=dict)
    first_axis: str = "sequences"  # what the rows of the answer are, where it has three axes
    # The same shape with other numbers, and other lengths where there are any: for the second call.
    other: Callable[[], Case] | None = None
    # Turns the numbers of the large inputs into others, where they lie; twice is back.
    flip: Callable[[], None] | None = None
    flips: tuple[str, ...] = ("key_cache", "value_cache")  # which
    entries: tuple[int, ...] = ()  # of `block_table`: how many each row needs
    answer_dtype: torch.dtype | None = None  # if it is not the first input's
    # What to say of an index that is not live.
    dead: str = (
        "which no sequence has written: it lies behind the end of its sequence, or in a block of nobody. "
        "Mask it off; it may hold anything, even NaN, and 0 times NaN is NaN"
    )

    @cached_property
    def _answer(self) -> Answer:
        return self.answer()

    @property
    def expected(self) -> torch.Tensor:
        return self._answer[0]

    @property
    def tolerance(self) -> torch.Tensor:
        return self._answer[1]

    @property
    def dtype(self) -> torch.dtype:
        """That of the answer."""
        if self.answer_dtype is not None:
            return self.answer_dtype
        found: torch.dtype = next(iter(self.inputs.values())).dtype
        return found

    def flipped(self) -> Case:
        """This case with the answer that belongs to flipped inputs."""
        assert self.flip is not None
        self.flip()
        answer = self.answer()
        self.flip()
        fields = {**vars(self), "answer": lambda: answer, "other": None, "flip": None}
        fields.pop("_answer", None)
        return Case(**fields)

    def take(self, other: Case) -> dict[str, Any]:
        """The arguments for a second call: the numbers of `other`, in the memory of this case."""
        given = dict(other.inputs)
        for name, tensor in self.inputs.items():
            if isinstance(tensor, torch.Tensor):
                tensor.copy_(other.inputs[name])
                given[name] = tensor
        return given


def stored_by_kernels(
    launches: list[Launch], address: int, got: torch.Tensor, strides: tuple[int, ...]
) -> bool:
    """Whether kernels stored every number of the answer, which began at `address`."""
    stored = [a.addresses for one in launches for a in one.accesses if a.kind != "load"]
    index = np.indices(got.shape).reshape(got.ndim, -1)
    offsets = sum(i * s for i, s in zip(index, strides, strict=True))
    wanted = address + np.asarray(offsets) * got.element_size()
    return bool(np.isin(wanted, np.concatenate(stored) if stored else []).all())
