"""What is said of a wrong prediction: which item, and never the answer."""

from __future__ import annotations

from typing import Any

import pytest

from course.learner.predictions import wrong_in


@pytest.mark.parametrize(
    ("said", "answer", "near", "wrong"),
    [
        (4, 4, 0, ""),
        (5, 4, 0, "5 is wrong"),
        (7.2, 7.5, 0.5, ""),
        ("GONE", "RARER", 0, "'GONE' is wrong"),
        (None, 4, 0, "None is wrong"),
        ((28, 29), [28, 29], 0, ""),
        ([28, 30], [28, 29], 0, "item 1 of [28, 30], counted from 0, is wrong"),
        ([3], [1], 0, "[3] is wrong"),
        ([1, 2, 3], [1, 2], 0, "2 items are asked for, and [1, 2, 3] has 3"),
        (3, [3], 0, "a list is asked for, not 3"),
        ([0.5, 1.2], [0.5, 1.0], 0.1, "item 1 of [0.5, 1.2], counted from 0, is wrong"),
        (("fay", 4), ("gil", 4), 0, "item 0 of ['fay', 4], counted from 0, is wrong"),
        ({"ann": 8, "ben": 2}, {"ben": 2, "ann": 8}, 0, ""),
        ({"ann": 8, "ben": 1}, {"ann": 8, "ben": 2}, 0, "'ben' of {'ann': 8, 'ben': 1} is wrong"),
        ({"ann": 8}, {"ann": 8, "ben": 2}, 0, "{'ann': 8} lacks an entry"),
        ({"cy": 8}, {"ann": 8}, 0, "'cy' does not belong into {'cy': 8}"),
        (8, {"ann": 8}, 0, "a dict is asked for, not 8"),
    ],
)
def test_which_item_is_wrong(said: Any, answer: Any, near: float, wrong: str) -> None:
    assert wrong_in(said, answer, near) == wrong


def test_numpys_numbers_are_shown_as_numbers() -> None:
    np = pytest.importorskip("numpy")
    assert wrong_in(np.float64(0.25), 0.5) == "0.25 is wrong"
    assert wrong_in(np.array([1, 3]), [1, 2]) == "item 1 of [1, 3], counted from 0, is wrong"
