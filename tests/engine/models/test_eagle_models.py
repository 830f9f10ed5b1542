"""EAGLE and EAGLE-3 heads: the same states as plain dense arithmetic, however a text is cut up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm.attention import AttentionMetadata
from mini_vllm.config.eagle import name_eagle_architecture
from mini_vllm.model_loader import CheckpointError, load_model
from mini_vllm.model_loader.drafter import expected_eagle_tensors, load_eagle, load_eagle_config
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.models.llama_eagle import EagleLlamaForCausalLM
from tests.engine.helpers.models.model_helpers import (
    CONFIG,
    Server,
    write_checkpoint,
    write_safetensors,
)

TARGET: dict[str, Any] = {"num_hidden_layers": 4}
HEADS: dict[str, dict[str, Any]] = {
    "eagle": {"architectures": ["EagleLlamaForCausalLM"], "num_hidden_layers": 2},
    "eagle3": {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": 20,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 4]},
    },
}
Tensors = dict[str, np.ndarray]


@pytest.fixture
def target(tmp_path: Path) -> LlamaForCausalLM:
    """A random Llama of four layers."""
    write_checkpoint(tmp_path / "target", **TARGET)
    return load_model(tmp_path / "target")


def write_head(folder: Path, method: str, **changes: Any) -> Tensors:
    """A random head without an embedding, by the names of its checkpoint."""
    raw = CONFIG | {"tie_word_embeddings": False} | HEADS[method] | changes
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    rng = np.random.default_rng(7)
    tensors: dict[str, tuple[str, np.ndarray]] = {}
    for name, parameter in expected_eagle_tensors(load_eagle_config(folder, method)):
        if not parameter.optional:
            name = name.removeprefix("model.")
            if method == "eagle3":
                name = name.replace("layers.0.", "midlayer.")
            weight = rng.standard_normal(parameter.shape) * 0.3 + ("norm" in name)
            tensors[name] = "F32", weight.astype(np.float32)
    if method == "eagle3":
        ids = np.sort(rng.permutation(raw["vocab_size"])[: raw["draft_vocab_size"]])
        tensors["d2t"] = "I64", (ids - np.arange(len(ids))).astype(np.int64)
        tensors["t2d"] = "BOOL", np.isin(np.arange(raw["vocab_size"]), ids)
    write_safetensors(folder / "model.safetensors", tensors)
    return {name: array for name, (_, array) in tensors.items()}


def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """RMSNorm in float64."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + CONFIG["rms_norm_eps"]) * weight


def dense_layer(w: Tensors, prefix: str, x: np.ndarray, residual: np.ndarray) -> np.ndarray:
    """A decoder layer on one text in float64: attention reads `x`, its result joins `residual`."""
    n, dim = len(x), CONFIG["hidden_size"] // CONFIG["num_attention_heads"]
    angles = np.arange(n)[:, None] * 10000.0 ** (-np.arange(0, dim, 2) / dim)

    def heads(name: str, turn: bool) -> np.ndarray:
        y = (x @ w[f"{prefix}.self_attn.{name}_proj.weight"].T).reshape(n, -1, dim)
        if turn:
            a, b = np.split(y, 2, axis=-1)
            cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
            y = np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)
        return y.repeat(CONFIG["num_attention_heads"] // y.shape[1], axis=1)

    scores = np.einsum("ihd,jhd->hij", heads("q", True), heads("k", True)) / np.sqrt(dim)
    scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = np.einsum("hij,jhd->ihd", weights, heads("v", False)).reshape(n, -1)
    residual = residual + out @ w[f"{prefix}.self_attn.o_proj.weight"].T
    y = norm(residual, w[f"{prefix}.post_attention_layernorm.weight"])
    gate, up = (y @ w[f"{prefix}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    return residual + (gate / (1 + np.exp(-gate)) * up) @ w[f"{prefix}.mlp.down_proj.weight"].T


def dense_eagle(w: Tensors, embeds: np.ndarray, states: np.ndarray) -> np.ndarray:
    """The states of a head of two layers, after `llama_eagle.py` in vLLM."""
    x = np.concatenate((embeds, states), axis=-1) @ w["fc.weight"].T
    x = dense_layer(w, "layers.0", x, x)
    return dense_layer(w, "layers.1", norm(x, w["layers.1.input_layernorm.weight"]), x)


def dense_eagle3(w: Tensors, embeds: np.ndarray, states: np.ndarray) -> np.ndarray:
    """The state before the last norm, after `llama_eagle3.py` in vLLM."""
    state = states @ w["fc.weight"].T
    normed = (
        norm(embeds, w["midlayer.input_layernorm.weight"]),
        norm(state, w["midlayer.hidden_norm.weight"]),
    )
    return dense_layer(w, "midlayer", np.concatenate(normed, axis=-1), state)


class HeadServer(Server):
    """A server whose steps run a head; `states` are those of one text, row by row."""

    def __init__(self, model: Any, states: np.ndarray) -> None:
        super().__init__(model)
        self.states = states

    def logits(self, ids: Any, positions: Any, metadata: AttentionMetadata) -> np.ndarray:
        """What the LM head reads and the state that goes on, side by side."""
        states = self.states[positions]
        both = self.model.forward(ids, positions, self.kv_caches, metadata, states)
        return np.concatenate(both, axis=-1)


@pytest.mark.parametrize("method", HEADS)
def test_states_equal_dense_arithmetic(
    method: str, target: LlamaForCausalLM, tmp_path: Path
) -> None:
    """A text at once, and in portions over a paged cache; its logits from either."""
    w = write_head(tmp_path / "head", method)
    head: Any = load_eagle(tmp_path / "head", method, target)
    rng = np.random.default_rng(3)
    ids = rng.integers(0, CONFIG["vocab_size"], 23)
    count = 1 if method == "eagle" else 3
    given = rng.standard_normal((23, count * CONFIG["hidden_size"])).astype(np.float32)
    embeds = target.embed_tokens[ids].astype(np.float64)
    wide = {name: weight.astype(np.float64) for name, weight in w.items()}
    if method == "eagle":
        states = given
        last = state = dense_eagle(wide, embeds, given.astype(np.float64))
        logits = last @ target.embed_tokens.T
    else:
        states = head.combine_hidden_states(given)
        state = dense_eagle3(wide, embeds, given.astype(np.float64))
        last = norm(state, wide["norm.weight"])
        known = w["t2d"]
        logits = np.full((23, CONFIG["vocab_size"]), -np.inf)
        logits[:, known] = last @ wide["lm_head.weight"].T
    want = np.concatenate((last, state), axis=-1)
    for portions in ([23], [1] * 23, [9, 1, 1, 12]):
        server, got = HeadServer(head, states), []
        for start, size in zip(np.cumsum([0, *portions[:-1]]), portions, strict=True):
            got.append(server.step({"a": ids[start : start + size].tolist()})["a"])
        np.testing.assert_allclose(np.concatenate(got), want, rtol=2e-4, atol=2e-4)
    hidden = np.concatenate(got)[:, : CONFIG["hidden_size"]]
    np.testing.assert_allclose(head.compute_logits(hidden), logits, rtol=1e-3, atol=1e-3)


def test_the_target_gives_the_input_of_the_layers_that_are_named(target: LlamaForCausalLM) -> None:
    """0 is the embedding, the number of layers what the last norm reads; unasked, nothing is kept."""
    ids, server = list(range(5, 16)), Server(target)
    plain = server.step({"a": ids})["a"]
    got: list[np.ndarray] = []

    def logits(ids: Any, positions: Any, metadata: AttentionMetadata) -> np.ndarray:
        hidden = target.forward(ids, positions, server.kv_caches, metadata, got)
        return target.compute_logits(hidden)

    server.logits = logits  # type: ignore[method-assign]
    target.aux_hidden_state_layers = (4, 0, 2)
    np.testing.assert_array_equal(server.step({"b": ids})["b"], plain)
    assert len(got) == 3, "one for each layer, from the lowest to the highest"
    np.testing.assert_array_equal(got[0], target.embed_tokens[ids])
    np.testing.assert_array_equal(target.compute_logits(target.norm(got[2])), plain)
    assert not np.allclose(got[1], got[0]), "layer 2's input is not the embedding"


def test_a_heads_own_embedding_and_lm_head_are_used(
    target: LlamaForCausalLM, tmp_path: Path
) -> None:
    """Without them they are the target's; EAGLE-3 asks the target for the states that it reads."""
    tensors = write_head(tmp_path / "head", "eagle")
    head = load_eagle(tmp_path / "head", "eagle", target)
    assert head.embed_tokens is target.embed_tokens
    assert head.lm_head is target.lm_head
    assert target.aux_hidden_state_layers == ()
    own = np.ones((CONFIG["vocab_size"], CONFIG["hidden_size"]), np.float32)
    more = tensors | {"embed_tokens.weight": own, "lm_head.weight": 2 * own}
    write_safetensors(
        tmp_path / "head" / "model.safetensors", {name: ("F32", w) for name, w in more.items()}
    )
    head = load_eagle(tmp_path / "head", "eagle", target)
    np.testing.assert_array_equal(head.embed_tokens, own)
    np.testing.assert_array_equal(head.lm_head.weight, 2 * own)
    write_head(tmp_path / "head3", "eagle3")
    load_eagle(tmp_path / "head3", "eagle3", target)
    assert target.aux_hidden_state_layers == (0, 2, 4)


@pytest.mark.parametrize(
    ("name", "method", "want"),
    [
        ("LlamaForCausalLM", "eagle", "EagleLlamaForCausalLM"),
        ("EagleLlamaForCausalLM", "eagle", "EagleLlamaForCausalLM"),
        ("LlamaForCausalLM", "eagle3", "Eagle3LlamaForCausalLM"),
        ("LlamaForCausalLMEagle3", "eagle3", "LlamaForCausalLMEagle3"),
        ("Eagle3LlamaForCausalLM", "eagle3", "Eagle3LlamaForCausalLM"),
    ],
)
def test_an_architecture_is_read_as_vllm_reads_it(name: str, method: str, want: str) -> None:
    """The method says which head a bare Llama is."""
    assert name_eagle_architecture(name, method) == want


def write_and_load(
    folder: Path, method: str, target: LlamaForCausalLM, **changes: Any
) -> EagleLlamaForCausalLM:
    """Either of which may find the fault."""
    write_head(folder, method, **changes)
    return load_eagle(folder, method, target)


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("eagle", {"architectures": ["MistralForCausalLM"]}, "of no head for method 'eagle'"),
        ("eagle3", {"architectures": ["EagleLlamaForCausalLM"]}, "for method 'eagle3'"),
        ("eagle", {"architectures": None}, "of no head"),
        ("eagle", {"hidden_size": 16}, "hidden_size is 16, and the target's is 32"),
        ("eagle", {"vocab_size": 62}, "vocab_size is 62, and the target's is 61"),
        ("eagle3", {"draft_vocab_size": 90}, "must not be above vocab_size"),
        ("eagle3", {"num_hidden_layers": 2}, "must be 1 for an EAGLE-3 head"),
        ("eagle3", {"norm_before_residual": True}, "norm_before_residual True"),
        ("eagle3", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 1]}}, "rising"),
        (
            "eagle3",
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}},
            "of 4 layers",
        ),
        ("eagle3", {"eagle_config": None}, r"of layers \(2, 2, 1\)"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(
    method: str, changes: dict[str, Any], message: str, target: LlamaForCausalLM, tmp_path: Path
) -> None:
    """The message names the field and its value."""
    with pytest.raises(CheckpointError, match=message):
        write_and_load(tmp_path / "head", method, target, **changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fc.weight": None}, "lacks tensor 'model.fc.weight'"),
        ({"midlayer.mlp.more": np.ones(3, np.float32)}, "no place for"),
        ({"d2t": np.zeros(19, np.int64)}, "d2t must lead from each of 20 draft tokens"),
        ({"d2t": np.arange(20)[::-1].copy()}, "to another id"),
        ({"d2t": np.full(20, 55)}, "below vocab_size"),
    ],
)
def test_a_checkpoint_with_wrong_tensors_is_refused(
    change: Tensors, message: str, target: LlamaForCausalLM, tmp_path: Path
) -> None:
    """One that is missing, one too many, and maps that lead nowhere."""
    tensors = write_head(tmp_path / "head", "eagle3") | change
    codes = {"float32": "F32", "int64": "I64", "bool": "BOOL"}
    kept = {n: (codes[str(w.dtype)], w) for n, w in tensors.items() if w is not None}
    write_safetensors(tmp_path / "head" / "model.safetensors", kept)
    with pytest.raises(CheckpointError, match=message):
        load_eagle(tmp_path / "head", "eagle3", target)


def test_a_head_is_no_model_to_serve(tmp_path: Path) -> None:
    """It has no embedding of its own and nothing to start from."""
    write_head(tmp_path / "head", "eagle")
    with pytest.raises(CheckpointError, match="not supported"):
        load_model(tmp_path / "head")
