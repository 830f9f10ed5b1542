"""Lab 01-04: the model, loaded once."""

from __future__ import annotations

from typing import Any

import pytest

from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.model_loader import load_model


@pytest.fixture(scope="session")
def model() -> Any:
    return load_model(DEFAULT_MODEL)
