"""Lab 01-04: the model, loaded once."""

from __future__ import annotations

from typing import Any

import pytest

from mini_vllm.checkpoint import load_model
from mini_vllm.engine import DEFAULT_MODEL


@pytest.fixture(scope="session")
def model() -> Any:
    return load_model(DEFAULT_MODEL)
