"""The sweep averages each request's share of waste.

A request of one token in a block of 16 wastes 15 slots of 16, one of 1,000 tokens 8 of 1,008. The mean of
the two shares says 47 %; of the memory 2 % is lost. Add up the slots first and divide once.

Refused by `test_sweep`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def sweep(lengths: Any, block_sizes: Any) -> list[Any]:
    rows = []
    for row in solution_sweep(lengths, block_sizes):
        shares = [
            1 - n / (row.block_size * solution.blocks_for(n, row.block_size)) for n in lengths
        ]
        rows.append(row._replace(waste=sum(shares) / len(shares)))
    return rows


solution_sweep = solution.sweep
solution.sweep = sweep


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
