"""What the contract of each problem of the kernel bench allows, and what its cases reach.

    python tests/authors/kernel_contract.py [PROBLEM ...]

One row a quantity that a kernel may read. A value that the contract allows and no case has is a hole: a
kernel that is wrong there is accepted. Exit status 1 if there is one.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from course.kernels.problems import PROBLEMS


@dataclass(frozen=True)
class Row:
    """One quantity: its ends in the contract, and in the cases."""

    problem: str
    quantity: str
    allowed: tuple[float, float]
    reached: tuple[float, float] | None

    @property
    def is_hole(self) -> bool:
        """Whether the cases stop short of an end, by more than a part in a hundred."""
        if self.reached is None:
            return True
        (low, high), (least, most) = self.allowed, self.reached
        return least > low + abs(low) / 100 or most < high - abs(high) / 100

    def __str__(self) -> str:
        found = "nothing" if self.reached is None else " to ".join(f"{x:g}" for x in self.reached)
        allowed = " to ".join(f"{x:g}" for x in self.allowed)
        mark = "  HOLE" if self.is_hole else ""
        return f"{self.problem:13} {self.quantity:44} {allowed:>24} {found:>24}{mark}"


def rows(problem: str) -> Iterator[Row]:
    """The quantities of a problem, by its `ALLOWS` and `measure`."""
    module = importlib.import_module(PROBLEMS[problem])
    measured = [module.measure(case) for case in (*module.cases(), module.traffic())]
    for quantity, allowed in module.ALLOWS.items():
        ends = [found[quantity] for found in measured if quantity in found]
        reached = (min(low for low, _ in ends), max(high for _, high in ends)) if ends else None
        yield Row(problem, quantity, allowed, reached)


def main(problems: Sequence[str]) -> int:
    print(f"{'problem':13} {'quantity':44} {'allowed':>24} {'in the cases':>24}")
    found = [row for problem in problems or PROBLEMS for row in rows(problem)]
    print("\n".join(map(str, found)))
    holes = sum(row.is_hole for row in found)
    print(f"{len(found)} quantities, {holes} of them with a hole")
    return int(holes > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
