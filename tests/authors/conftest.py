"""Lets tests import the helpers beside them, and keeps what they leave in the process apart."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from course_helpers import make_repository  # noqa: E402
from site_helpers import browser, built, chromium, html  # noqa: E402, F401
from viewer_helpers import mixed, page, viewer_tab  # noqa: E402, F401

from course.learner.labs import Course, Lab  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def leave_no_groups_of_vllm() -> Iterator[None]:
    """A model of vLLM's that ran in this process leaves its process groups. The next model takes them as they
    are, and a mixture of experts after a dense model then finds no group for its experts."""
    yield
    state = sys.modules.get("vllm.distributed.parallel_state")
    if state is not None and state.model_parallel_is_initialized():
        state.cleanup_dist_env_and_memory()


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
