"""`ModelForTextGeneration`: every model that can be loaded has what the engine asks of it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from mini_vllm import LLMEngine
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.model_loader import load_model
from mini_vllm.models.interfaces_base import ModelForTextGeneration
from tests.engine.helpers.engine.text_helpers import greedy

MEMBERS = {
    *ModelForTextGeneration.__annotations__,
    *(name for name in vars(ModelForTextGeneration) if not name.startswith("_")),
}


def check_members(model: Any) -> None:
    """Each member is there, and each method takes the protocol's arguments by their names."""
    for name in sorted(MEMBERS):
        assert hasattr(model, name), f"{type(model).__name__} has no {name}"
        asked = getattr(ModelForTextGeneration, name, None)
        if not inspect.isfunction(asked):
            continue
        wanted = list(inspect.signature(asked).parameters)[1:]
        taken = list(inspect.signature(getattr(model, name)).parameters)
        assert taken[: len(wanted)] == wanted, f"{type(model).__name__}.{name} takes {taken}"


@pytest.mark.parametrize("folder", ["tiny-llama", "tiny-mixtral"])
def test_a_shipped_model_has_them(folder: str) -> None:
    check_members(load_model(DEFAULT_MODEL.parent / folder))


@pytest.mark.torch
def test_a_model_in_torch_has_them() -> None:
    from mini_vllm.gpu.llama import LlamaForCausalLM
    from mini_vllm.model_loader import load_config, load_weights

    check_members(LlamaForCausalLM(load_config(DEFAULT_MODEL), load_weights(DEFAULT_MODEL)))


def test_the_engine_asks_for_nothing_else() -> None:
    """A wrapper that lends only these generates the same tokens."""
    inner = load_model(DEFAULT_MODEL)

    class Wrapper:
        def __getattr__(self, name: str) -> Any:
            assert name in MEMBERS, f"the engine asks a model for {name}"
            return getattr(inner, name)

    def generate(model: Any) -> list[int]:
        output = list(LLMEngine(model).stream([1, 80, 90, 100], greedy(12)))[-1].outputs[0]
        return [*output.token_ids]

    assert generate(Wrapper()) == generate(inner)
