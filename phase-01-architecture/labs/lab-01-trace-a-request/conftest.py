"""Lab 01-01: the model and its tokenizer, loaded once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mini_vllm
from mini_vllm.model_loader import load_model
from mini_vllm.tokenizer import Tokenizer

FOLDER = Path(mini_vllm.__file__).parent / "checkpoints" / "tiny-llama"


@pytest.fixture(scope="session")
def loaded() -> tuple[Any, Any]:
    return load_model(FOLDER), Tokenizer.from_folder(FOLDER)
