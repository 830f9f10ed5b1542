"""Lets tests import the helpers beside them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from course_helpers import make_repository  # noqa: E402
from site_helpers import browser, built, chromium, html  # noqa: E402, F401
from viewer_helpers import mixed, page, viewer_tab  # noqa: E402, F401

from course.learner.labs import Course, Lab  # noqa: E402


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    course = make_repository(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("LAB_IMPL", "MINI_VLLM_CHECKOUT", "MINI_VLLM_DRAW"):
        monkeypatch.delenv(name, raising=False)
    return course


@pytest.fixture
def totals(course: Course) -> Lab:
    return course.labs[0]
