"""The paged allocator hands out, at admission, the blocks of the longest that a request may become.

That is the old reservation in small pieces: nobody needs the fourth block before token 13 comes, and most
answers end long before. Take the blocks of `num_tokens`; `grow` takes the others when they are due.

Refused by `test_blocks_are_given_for_what_is_there`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


Right = solution.PagedAllocator


class PagedAllocator(Right):
    def allocate(self, name: str, num_tokens: int, at_most: int) -> bool:
        return super().allocate(name, at_most, at_most)


solution.PagedAllocator = PagedAllocator


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
