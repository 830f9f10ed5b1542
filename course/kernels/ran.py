"""What one call of a kernel gave, as the process that ran it tells the one that judges."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from course.kernels.case import stored_by_kernels
from course.kernels.record import Launch


@dataclass
class Ran:
    """What one call of a kernel gave: plain data, from the process that ran it."""

    returned: str = ""  # the type of what it returned
    got: torch.Tensor | None = None  # the result, if it is a tensor
    address: int = 0  # where its first number lay
    strides: tuple[int, ...] = ()
    lasts: bool = False  # it is as the kernels left it
    launches: list[Launch] = field(default_factory=list)
    overwritten: list[str] = field(default_factory=list)  # inputs that changed
    configs: int = 1  # of the kernel with the most

    def stored(self) -> bool:
        """Whether kernels stored every number of the result, and nothing changed it afterwards."""
        assert self.got is not None
        return self.lasts and stored_by_kernels(self.launches, self.address, self.got, self.strides)
