"""Lab 02-03: what the manager refuses before anything else, which the lab gives, held here."""

from __future__ import annotations

from types import ModuleType

import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module

LAB = ROOT / "phase-02-paged-attention/labs/lab-03-share-and-evict"
tests = load_module(LAB / "test_lab.py", "test_lab_02_03_tests")
make, ask = tests.make, tests.ask


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    return load_module(LAB / "starter.py", "test_lab_02_03_starter")


def test_no_tokens_is_a_mistake_of_the_caller(lab: ModuleType) -> None:
    """ValueError that says what was asked for."""
    for number in (0, -3):
        with pytest.raises(ValueError, match=str(number)):
            make(lab).allocate_slots(ask("ada", range(4)), number)
