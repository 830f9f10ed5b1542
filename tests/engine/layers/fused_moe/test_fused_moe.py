"""Experts: the grouped form gives what the plain one does, and both what their definition says."""

from __future__ import annotations

import numpy as np
import pytest

from mini_vllm.config.moe import MixtralConfig
from mini_vllm.layers.activation import silu_and_mul
from mini_vllm.layers.fused_moe import layer as layer_module
from mini_vllm.layers.fused_moe.fused_moe import fused_experts, reference_experts
from mini_vllm.layers.fused_moe.layer import FusedMoE
from mini_vllm.layers.fused_moe.router import fused_topk
from mini_vllm.models.registry import read_config
from tests.engine.helpers.models.model_helpers import random_weights

FORMS = [reference_experts, fused_experts]


def draw(
    rng: np.random.Generator, n: int, num_experts: int, k: int, hidden: int = 12, inner: int = 20
) -> tuple[np.ndarray, ...]:
    x, w13, w2 = (
        rng.normal(size=shape).astype(np.float32)
        for shape in ((n, hidden), (num_experts, hidden, 2 * inner), (num_experts, inner, hidden))
    )
    weights, ids = fused_topk(rng.normal(size=(n, num_experts)).astype(np.float32), k, True)
    return x, w13, w2, weights, ids


def one_by_one(
    x: np.ndarray, w13: np.ndarray, w2: np.ndarray, weights: np.ndarray, ids: np.ndarray
) -> np.ndarray:
    """Token by token, in float64."""
    out = np.zeros(x.shape)
    for t in range(len(x)):
        for weight, expert in zip(weights[t], ids[t], strict=True):
            gate_up = x[t].astype(np.float64) @ w13[expert]
            gate, up = np.split(gate_up, 2)
            out[t] += weight * ((gate / (1 + np.exp(-gate)) * up) @ w2[expert])
    return out


@pytest.mark.parametrize("form", FORMS)
def test_each_token_hears_its_experts_by_their_weights(form: object) -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        num_experts = int(rng.integers(1, 9))
        k = int(rng.integers(1, num_experts + 1))
        case = draw(rng, int(rng.integers(1, 20)), num_experts, k)
        expected = one_by_one(*case)
        error = np.abs(form(*case) - expected).max() / max(1, np.abs(expected).max())  # type: ignore[operator]
        assert error < 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_experts_without_tokens_are_not_read(form: object) -> None:
    x, w13, w2, weights, ids = draw(np.random.default_rng(1), 3, 16, 2)
    idle = np.setdiff1d(np.arange(16), ids)
    assert len(idle)
    w13[idle] = w2[idle] = np.nan
    assert np.isfinite(form(x, w13, w2, weights, ids)).all()  # type: ignore[operator]


def test_one_expert_is_an_mlp() -> None:
    x, w13, w2, _, ids = draw(np.random.default_rng(2), 5, 1, 1)
    dense = silu_and_mul(x @ w13[0]) @ w2[0]
    assert np.allclose(
        fused_experts(x, w13, w2, np.ones((5, 1), np.float32), ids), dense, atol=1e-5
    )


def test_the_layer_reads_gate_up_and_down_from_their_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = read_config(
        {
            "architectures": ["MixtralForCausalLM"], "vocab_size": 11, "hidden_size": 8,
            "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 1, "num_local_experts": 5,
        }
    )  # fmt: skip
    assert isinstance(config, MixtralConfig)
    weights = random_weights(config)
    moe = FusedMoE(config, weights, "model.layers.0")
    x = np.random.default_rng(3).normal(size=(9, 8)).astype(np.float32)
    expected = np.zeros((9, 8))
    prefix = "model.layers.0.block_sparse_moe"
    topk_weights, ids = fused_topk(x @ weights[f"{prefix}.gate.weight"].T, 2, True)
    for t in range(9):
        for weight, e in zip(topk_weights[t], ids[t], strict=True):
            w1, w2, w3 = (weights[f"{prefix}.experts.{e}.w{i}.weight"] for i in (1, 2, 3))
            gate = w1 @ x[t]
            expected[t] += weight * (w2 @ (gate / (1 + np.exp(-gate)) * (w3 @ x[t])))
    assert np.allclose(moe.forward(x), expected, atol=1e-5)
    monkeypatch.setattr(layer_module, "MOE_ROWS", 4)
    assert np.allclose(moe.forward(x), expected, atol=1e-5)
