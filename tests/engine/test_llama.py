"""The Llama decoder: the same logits as Hugging Face transformers, however a text is cut up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_helpers import CONFIG, random_weights

from mini_vllm.attention import AttentionMetadata, PagedAttention
from mini_vllm.checkpoint import LlamaConfig, load_model
from mini_vllm.llama import LlamaForCausalLM, rope_inv_freq

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


class Server:
    """A paged cache of NaN, shuffled blocks, and requests that are fed in any portions."""

    def __init__(self, model: LlamaForCausalLM, block_size: int = 4, num_blocks: int = 80) -> None:
        self.model = model
        self.block_size = block_size
        c = model.config
        shape = model.attention.get_kv_cache_shape(
            num_blocks, block_size, c.num_key_value_heads, c.head_dim
        )
        self.kv_caches = [np.full(shape, np.nan, np.float32) for _ in range(c.num_hidden_layers)]
        self.free = np.random.default_rng(5).permutation(num_blocks).tolist()
        self.tables: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}

    def step(self, portions: dict[str, list[int]]) -> dict[str, np.ndarray]:
        """Run one step; logits of every token of every request in it."""
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        starts = [0]
        for name, tokens in portions.items():
            table = self.tables.setdefault(name, [])
            done = self.computed.get(name, 0)
            for position in range(done, done + len(tokens)):
                if position // self.block_size == len(table):
                    table.append(self.free.pop())
                block = table[position // self.block_size]
                slots.append(block * self.block_size + position % self.block_size)
                positions.append(position)
            self.computed[name] = done + len(tokens)
            ids += tokens
            starts.append(len(ids))
        width = max(len(self.tables[name]) for name in portions)
        block_table = np.zeros((len(portions), width), np.int32)
        for row, name in enumerate(portions):
            block_table[row, : len(self.tables[name])] = self.tables[name]
        metadata = AttentionMetadata(
            np.array(starts, np.int32),
            np.array([self.computed[name] for name in portions], np.int32),
            block_table,
            np.array(slots, np.int64),
            self.block_size,
        )
        hidden = self.model.forward(np.array(ids), np.array(positions), self.kv_caches, metadata)
        logits = np.split(self.model.compute_logits(hidden), starts[1:-1])
        return dict(zip(portions, logits, strict=True))


def texts(model: LlamaForCausalLM, lengths: tuple[int, ...] = (40, 9, 23)) -> dict[str, list[int]]:
    rng = np.random.default_rng(3)
    return {
        f"r{i}": rng.integers(0, model.config.vocab_size, n).tolist() for i, n in enumerate(lengths)
    }


def whole(model: LlamaForCausalLM, tokens: list[int]) -> np.ndarray:
    return Server(model).step({"r": tokens})["r"]


def in_portions(model: LlamaForCausalLM, all_tokens: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """Chunked prefills beside decodes: requests start at different steps and end one by one."""
    server = Server(model)
    logits: dict[str, list[np.ndarray]] = {name: [] for name in all_tokens}
    step = 0
    while any(server.computed.get(n, 0) < len(t) for n, t in all_tokens.items()):
        portions = {}
        for i, (name, tokens) in enumerate(all_tokens.items()):
            done = server.computed.get(name, 0)
            size = 7 if done < len(tokens) // 2 else 1
            if step >= 2 * i and done < len(tokens):
                portions[name] = tokens[done : done + size]
        for name, rows in server.step(portions).items():
            logits[name].append(rows)
        step += 1
    return {name: np.concatenate(rows) for name, rows in logits.items()}


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    assert actual.shape == expected.shape
    assert np.isfinite(actual).all()
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


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
