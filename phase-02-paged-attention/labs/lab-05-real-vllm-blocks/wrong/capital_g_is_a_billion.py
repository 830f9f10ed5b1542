"""GB for GiB: `1G` is read as 1,000,000,000 bytes.

vLLM's flag counts by the thousand for small letters and by 1,024 for capitals, so 1G and 1g are 7% apart.
The case of the letter is all there is to tell them by.

Refused by `test_a_capital_letter_is_a_power_of_1024`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
original = solution.memory_bytes


def memory_bytes(text: str) -> int:
    return int(original(text.lower()))


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
