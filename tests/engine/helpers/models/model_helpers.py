"""Random steps for attention, and random Llama checkpoints written without transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm.attention import AttentionMetadata, PagedAttention
from mini_vllm.model_loader import LlamaConfig, expected_tensors

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "float32",
}


def random_weights(config: LlamaConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Float32 tensors for `config`, by name, of a size that makes attention pick out tokens."""
    drawn = _draw(tuple(expected_tensors(config).items()), seed)
    return {name: weight.copy() for name, weight in drawn.items()}


@lru_cache(maxsize=16)
def _draw(shapes: tuple[tuple[str, tuple[int, ...]], ...], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: (rng.standard_normal(shape) * 0.3 + ("norm" in name)).astype(np.float32)
        for name, shape in shapes
    }


def to_bfloat16(array: np.ndarray) -> np.ndarray:
    """The uint16 bit patterns of `array` cut down to bfloat16 (towards zero)."""
    return (np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def write_safetensors(path: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    """Write `{name: (dtype code, array)}` in the format, from its definition."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (code, array) in tensors.items():
        span = [offset, offset + array.nbytes]
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": span}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(array.tobytes() for _, array in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_checkpoint(folder: Path, seed: int = 0, **changes: Any) -> dict[str, np.ndarray]:
    """Write a random float32 checkpoint with `CONFIG` and `changes`; returns its tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = CONFIG | changes
    (folder / "config.json").write_text(json.dumps(raw))
    weights = random_weights(LlamaConfig.from_dict(raw), seed)
    write_safetensors(folder / "model.safetensors", {n: ("F32", w) for n, w in weights.items()})
    return weights


@dataclass
class Step:
    """One step of attention: what `PagedAttention.forward` takes, with the past in the cache."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    kv_cache: np.ndarray
    metadata: AttentionMetadata

    def run(self, backend: PagedAttention) -> np.ndarray:
        """Attend on a copy of the cache, with fresh metadata; what numpy warns of is an error."""
        md = self.metadata
        fresh = AttentionMetadata(
            md.query_start_loc, md.seq_lens, md.block_table, md.slot_mapping, md.block_size,
            sliding_window=md.sliding_window,
        )  # fmt: skip
        with np.errstate(all="raise", under="ignore"):
            return backend.forward(self.query, self.key, self.value, self.kv_cache.copy(), fresh)


def make_step(
    rng: np.random.Generator,
    seq_lens: list[int],
    query_lens: list[int],
    *,
    block_size: int = 4,
    num_kv_heads: int = 2,
    group: int = 2,
    head_size: int = 8,
    canary: float = np.nan,
    scale: float = 1.0,
    contiguous: bool = False,
) -> Step:
    """Requests whose K and V up to now lie in shuffled blocks; every other slot holds `canary`.

    Entries of the table past a request's last block hold a block that is nobody's.
    """
    starts = np.concatenate([[0], np.cumsum(query_lens)]).astype(np.int32)
    needed = [-(-length // block_size) for length in seq_lens]
    num_blocks = sum(needed) + 3
    ids = np.arange(num_blocks) if contiguous else rng.permutation(num_blocks)
    table = np.full((len(seq_lens), max(needed) + 1), ids[-1], np.int32)
    shape = PagedAttention.get_kv_cache_shape(num_blocks, block_size, num_kv_heads, head_size)
    cache = np.full(shape, canary, np.float32)
    used = 0
    slots: list[int] = []
    for i, (length, queries) in enumerate(zip(seq_lens, query_lens, strict=True)):
        table[i, : needed[i]] = ids[used : used + needed[i]]
        used += needed[i]
        for position in range(length):
            block, offset = int(table[i, position // block_size]), position % block_size
            if position < length - queries:
                cache[block, offset] = rng.standard_normal(shape[2:]) * scale
            else:
                slots.append(block * block_size + offset)
    num_tokens = int(starts[-1])

    def draw(heads: int) -> np.ndarray:
        return (rng.standard_normal((num_tokens, heads, head_size)) * scale).astype(np.float32)

    return Step(
        draw(num_kv_heads * group),
        draw(num_kv_heads),
        draw(num_kv_heads),
        cache,
        AttentionMetadata(
            starts, np.array(seq_lens, np.int32), table, np.array(slots, np.int64), block_size
        ),
    )


class Server:
    """A paged cache of NaN, shuffled blocks, and requests that are fed in any portions."""

    def __init__(self, model: Any, block_size: int = 4, num_blocks: int = 80) -> None:
        self.model = model
        self.block_size = block_size
        c = model.config
        shape = model.attention.get_kv_cache_shape(
            num_blocks, block_size, c.num_key_value_heads, c.head_dim
        )
        self.kv_caches = [self.new_cache(shape) for _ in range(c.num_hidden_layers)]
        self.free = np.random.default_rng(5).permutation(num_blocks).tolist()
        self.tables: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}

    def new_cache(self, shape: tuple[int, ...]) -> Any:
        return np.full(shape, np.nan, np.float32)

    def logits(self, ids: Any, positions: Any, metadata: AttentionMetadata) -> np.ndarray:
        """Run the model; logits of every row."""
        hidden = self.model.forward(ids, positions, self.kv_caches, metadata)
        return self.model.compute_logits(hidden)

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
        logits = np.split(self.logits(np.array(ids), np.array(positions), metadata), starts[1:-1])
        return dict(zip(portions, logits, strict=True))


def texts(model: Any, lengths: tuple[int, ...] = (40, 9, 23)) -> dict[str, list[int]]:
    rng = np.random.default_rng(3)
    return {
        f"r{i}": rng.integers(0, model.config.vocab_size, n).tolist() for i, n in enumerate(lengths)
    }


def whole(model: Any, tokens: list[int], server: type[Server] = Server) -> np.ndarray:
    return server(model).step({"r": tokens})["r"]


def in_portions(
    model: Any, all_tokens: dict[str, list[int]], make_server: type[Server] = Server
) -> dict[str, np.ndarray]:
    """Chunked prefills beside decodes: requests start at different steps and end one by one."""
    server = make_server(model)
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


def greedy(model: Any, prompt: list[int], steps: int, server: type[Server] = Server) -> list[int]:
    """The likeliest next token, `steps` times."""
    running, tokens = server(model), list(prompt)
    portion = tokens
    for _ in range(steps):
        portion = [int(running.step({"r": portion})["r"][-1].argmax())]
        tokens = tokens + portion
    return tokens[len(prompt) :]
