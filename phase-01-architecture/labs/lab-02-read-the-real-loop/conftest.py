"""Lab 01-02: the model and its tokenizer, loaded once."""

from __future__ import annotations

from typing import Any

import pytest

from course.learner.labs import load_support
from mini_vllm.checkpoint import load_model
from mini_vllm.tokenizer import Tokenizer

support = load_support(__file__)


@pytest.fixture(scope="session")
def loaded() -> tuple[Any, Any]:
    return load_model(support.engines.MODEL), Tokenizer.from_folder(support.engines.MODEL)
