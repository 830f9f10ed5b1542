"""One call of a kernel, with what must come out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from course.kernels.record import Launch


@dataclass
class Case:
    """Inputs in guarded memory, the float64 answer, and how far from it an honest kernel may be."""

    label: str  # "float16, heads 8 over 2, lengths 37 1 64"
    inputs: dict[str, Any]  # the entry's arguments by name, in order
    expected: torch.Tensor  # float64
    tolerance: torch.Tensor  # like `expected`
    least: dict[str, int]  # bytes that any kernel must move, by tensor; "out" for the answer
    # Of an input that is written in part: which of its leading indices hold something.
    live: dict[str, torch.Tensor]
    about: dict[str, Any] = field(default_factory=dict)  # what `explain` of the problem needs
    # Bytes of a tensor that the answer depends on, where that is not `least`: several programs may have to
    # read the same ones.
    distinct: dict[str, int] = field(default_factory=dict)
    first_axis: str = "sequences"  # what the rows of the answer are, where it has three axes


def stored_by_kernels(launches: list[Launch], got: torch.Tensor) -> bool:
    """Whether kernels stored every number of the answer, and torch none."""
    stored = [a.addresses for one in launches for a in one.accesses if a.kind != "load"]
    index = np.indices(got.shape).reshape(got.ndim, -1)
    offsets = sum(i * s for i, s in zip(index, got.stride(), strict=True))
    wanted = got.data_ptr() + np.asarray(offsets) * got.element_size()
    return bool(np.isin(wanted, np.concatenate(stored) if stored else []).all())
