"""One call of a kernel, with what must come out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


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
