"""Lab 01-03: the model and its tokenizer, loaded once."""

from __future__ import annotations

from typing import Any

import pytest

from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.model_loader import load_model
from mini_vllm.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def model() -> Any:
    return load_model(DEFAULT_MODEL)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(DEFAULT_MODEL)
