"""The Llama decoder: the same logits as Hugging Face transformers, however a text is cut up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm.attention import PagedAttention
from mini_vllm.layers.activation import silu_and_mul
from mini_vllm.layers.rotary_embedding import rope_inv_freq
from mini_vllm.model_loader import LlamaConfig, load_model
from mini_vllm.models import llama
from mini_vllm.models.llama import LlamaForCausalLM
from tests.engine.helpers.models.model_helpers import (
    CONFIG,
    Server,
    in_portions,
    random_weights,
    relative_error,
    texts,
    whole,
)

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}


def build(**changes: Any) -> LlamaForCausalLM:
    config = LlamaConfig.from_dict(CONFIG | changes)
    return LlamaForCausalLM(config, random_weights(config))


@pytest.mark.torch
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_key_value_heads": 4, "tie_word_embeddings": False},
        {"num_key_value_heads": 1},
        {"rope_parameters": LLAMA3},
        {"rope_parameters": LINEAR},
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
        {"head_dim": 16},
        {"num_hidden_layers": 1, "rms_norm_eps": 1e-2},
    ],
    ids=["gqa2", "mha-untied", "mqa", "llama3", "linear", "biases", "wide-heads", "eps"],
)
def test_logits_equal_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    raw = {k: v for k, v in (CONFIG | changes).items() if k != "architectures"}
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**raw)).float().eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    tokens = texts(ours)
    portions = in_portions(ours, tokens)
    for name, ids in tokens.items():
        with torch.no_grad():
            expected = theirs(torch.tensor([ids])).logits[0].numpy()
        assert relative_error(whole(ours, ids), expected) < 1e-4, "whole prompt at once"
        assert relative_error(portions[name], expected) < 1e-4, "chunks and decodes, batched"


@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 4}, {"num_key_value_heads": 1}])
def test_chunked_and_batched_equal_whole_and_alone(changes: dict[str, Any]) -> None:
    model = build(**changes)
    tokens = texts(model)
    portions = in_portions(model, tokens)
    for name, ids in tokens.items():
        assert relative_error(portions[name], whole(model, ids)) < 1e-5


@pytest.mark.parametrize("rows", [1, 3, 16])
def test_an_mlp_in_pieces_equals_one_piece(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mlp = build(mlp_bias=True).layers[0].mlp
    x = np.random.default_rng(0).standard_normal((16, CONFIG["hidden_size"])).astype(np.float32)
    expected = mlp.forward(x)
    asked: list[int] = []
    monkeypatch.setattr(llama, "MLP_ROWS", rows)
    monkeypatch.setattr(llama, "silu_and_mul", lambda y: asked.append(len(y)) or silu_and_mul(y))
    assert relative_error(mlp.forward(x), expected) < 1e-6
    assert asked == [rows] * (16 // rows) + [16 % rows] * (16 % rows > 0)


def test_block_size_does_not_matter() -> None:
    model = build()
    ids = texts(model)["r0"]
    for block_size in (1, 7, 16):
        logits = Server(model, block_size).step({"r": ids})["r"]
        assert relative_error(logits, whole(model, ids)) < 1e-5


def test_every_past_token_reaches_the_logits() -> None:
    """A model that ignored its cache could not see a corrupted one."""
    model = build()
    ids = texts(model, (20,))["r0"]
    own = whole(model, ids)[-1]
    for i in range(len(ids)):
        changed = ids.copy()
        changed[i] = (ids[i] + 1) % model.config.vocab_size
        assert np.abs(whole(model, changed)[-1] - own).max() > 1e-3, f"token {i}"


def test_order_of_tokens_matters() -> None:
    model = build()
    ids = texts(model, (12,))["r0"]
    swapped = [ids[1], ids[0], *ids[2:]]
    assert np.abs(whole(model, swapped)[-1] - whole(model, ids)[-1]).max() > 1e-3


def test_positions_have_no_table_that_could_end() -> None:
    model = build(max_position_embeddings=16)
    longer = build(max_position_embeddings=128)
    ids = texts(model)["r0"]
    # Bit for bit: the two models multiply matrices of the same shapes.
    np.testing.assert_array_equal(whole(model, ids), whole(longer, ids))


def test_attention_is_injected() -> None:
    class Counting(PagedAttention):
        calls = 0

        def forward(self, *args: Any, **kwargs: Any) -> np.ndarray:
            self.calls += 1
            return np.zeros_like(super().forward(*args, **kwargs))

    config = LlamaConfig.from_dict(CONFIG)
    backend = Counting()
    model = LlamaForCausalLM(config, random_weights(config), backend)
    ids = texts(model)["r0"]
    logits = whole(model, ids)
    assert backend.calls == config.num_hidden_layers
    # Without attention a token's logits depend on that token only.
    np.testing.assert_allclose(logits[7], whole(model, [ids[7]])[0], rtol=1e-4, atol=1e-4)


def test_extreme_activations_stay_finite() -> None:
    """Scores and gates far out of the range of float32's exp."""
    config = LlamaConfig.from_dict(CONFIG)
    weights = random_weights(config)
    for name in weights:
        if "q_proj" in name or "gate_proj" in name:
            weights[name] *= 300
    model = LlamaForCausalLM(config, weights)
    with np.errstate(all="raise", under="ignore"):  # the model itself must not warn
        logits = whole(model, texts(model)["r0"])
    assert np.isfinite(logits).all()


def test_llama3_scaling_by_band() -> None:
    config = LlamaConfig.from_dict(CONFIG | {"rope_parameters": LLAMA3, "head_dim": 32})
    plain = LlamaConfig.from_dict(
        CONFIG | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "head_dim": 32}
    )
    scaled, base = rope_inv_freq(config), rope_inv_freq(plain)
    wavelength = 2 * np.pi / base
    ratio = base / scaled
    np.testing.assert_allclose(ratio[wavelength < 32 / 4], 1, rtol=1e-6)
    np.testing.assert_allclose(ratio[wavelength > 32 / 1], 4, rtol=1e-6)
    between = ratio[(wavelength > 32 / 4) & (wavelength < 32 / 1)]
    assert len(between) > 0
    assert ((between > 1) & (between < 4)).all()
    assert scaled.dtype == np.float32
