"""Tokens of Qwen 2 and 3 and of models with experts equal real vLLM's; so do routers and experts alone."""

from __future__ import annotations

import pytest

from tests.engine.helpers.models.moe_models import KINDS
from tests.engine.helpers.real_vllm.vllm_helpers import output_of
from tests.engine.helpers.thorough import either

PROMPTS = either(12, 16)
"""A process of its own makes more, if it is asked: 100 of them, in three scenarios, take two minutes."""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What one process says of all of them: to import vLLM takes longer than to run a tiny model."""
    return output_of(
        "-m", "tests.engine.helpers.models.moe_parity", tmp_path_factory.mktemp("moe"), PROMPTS, "one",
        TORCH_COMPILE_DISABLE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_LOGGING_LEVEL="ERROR", OMP_NUM_THREADS="1",
    )  # fmt: skip


@pytest.mark.vllm
def test_tokens_equal_vllms(said: str) -> None:
    """With chunked prefill, prefix caching, and a pool too small for all; logprobs within 1e-4."""
    lines = said.splitlines()
    for kind in KINDS:
        scenario = lines[lines.index(kind) + 1]
        assert f"{PROMPTS} requests" in scenario
        assert "0 mismatches" in scenario
    assert lines.count("equal") == len(KINDS)


@pytest.mark.vllm
def test_routers_and_experts_equal_vllms(said: str) -> None:
    assert said.count(": 10000 rows equal") == 12
    assert "experts: 500 cases within" in said
