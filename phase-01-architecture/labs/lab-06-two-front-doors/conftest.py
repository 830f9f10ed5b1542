"""Lab 01-06: a watched engine for each test, and the offline front door beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from course.learner.labs import load_support
from mini_vllm import LLM
from mini_vllm.config.engine import DEFAULT_MODEL, EngineConfig
from mini_vllm.model_loader import load_model
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.tokenizer import Tokenizer

support = load_support(__file__)


@pytest.fixture(scope="session")
def model() -> LlamaForCausalLM:
    return load_model(DEFAULT_MODEL)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(DEFAULT_MODEL)


@pytest.fixture
def engine(model: LlamaForCausalLM, tokenizer: Tokenizer) -> Any:
    return support.WatchedEngine(model, EngineConfig(**support.SETTINGS), tokenizer=tokenizer)


@pytest.fixture(scope="session")
def batch() -> Callable[..., list[RequestOutput]]:
    """The offline front door over an engine with the same settings."""
    llm = LLM(**support.SETTINGS)

    def generate(prompts: list[Any], params: list[SamplingParams]) -> list[RequestOutput]:
        return llm.generate(prompts, params, use_tqdm=False)

    return generate
