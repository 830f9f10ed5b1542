"""What the lab's tests and scripts share: models, ranks that are threads, and what vLLM's ranks said."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.distributed.communicator import Communicator, Ledger
from mini_vllm.distributed.thread_communicator import run_ranks
from mini_vllm.layers.rotary_embedding import apply_rotary_emb, rope_inv_freq
from mini_vllm.model_loader import LlamaConfig, expected_tensors, load_config, load_weights
from mini_vllm.model_loader.shards import ShardedWeights, get_rank_config
from mini_vllm.tokenizer import Tokenizer

Array = NDArray[Any]
RECORDED = Path(__file__).resolve().parent / "recorded.json"
NUM_TOKENS = 24
PROMPTS = [
    Tokenizer.from_folder(DEFAULT_MODEL).encode(text)
    for text in ("Once upon a time", "The scheduler")
]
Call = tuple[str, tuple[int, ...], int]


@cache
def tiny() -> tuple[LlamaConfig, dict[str, Array]]:
    """The tiny Llama: what it is, and its tensors by name."""
    return load_config(DEFAULT_MODEL), dict(load_weights(DEFAULT_MODEL))


@cache
def biased() -> tuple[LlamaConfig, dict[str, Array]]:
    """One layer with random numbers that has biases and an untied LM head, 8 heads and 4 KV heads."""
    config = dataclasses.replace(
        tiny()[0],
        num_hidden_layers=1,
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=8,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=False,
    )
    generator = np.random.default_rng(0)
    return config, {
        name: generator.standard_normal(shape).astype(np.float32) / 8
        for name, shape in expected_tensors(config).items()
    }


def coordinates(shape: tuple[int, ...]) -> Array:
    """A tensor whose numbers say where they are: 1 for the first, and so on; 0 is none of them."""
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


def where_from(kept: Any, shape: tuple[int, ...]) -> str:
    """What of `coordinates(shape)` has been kept, in words."""
    kept = np.asarray(kept)
    if kept.ndim != len(shape):
        return f"an array of shape {kept.shape}"
    numbers = kept.reshape(len(kept), -1).astype(int) if kept.size else np.zeros((0, 1), int)
    padding = int((numbers == 0).all(1).sum())
    here = numbers[numbers > 0] - 1
    if not here.size:
        return f"{padding} rows of zeros"
    width = shape[1] if len(shape) > 1 else 1
    rows, columns = divmod(here, width)
    words = [f"rows {rows.min()}:{rows.max() + 1}"]
    if len(shape) > 1:
        words.append(f"columns {columns.min()}:{columns.max() + 1}")
    box = (rows.max() + 1 - rows.min()) * (columns.max() + 1 - columns.min())
    words += ["not in one piece"] if box != here.size else []
    words += [f"then {padding} rows of zeros"] if padding else []
    return ", ".join(words)


class Attend:
    """A rank's KV cache, and attention over it: the `attend` that a lab's functions are given.

    `begin` says which rows of the step are whose; then each layer calls it once.
    """

    def __init__(self, config: LlamaConfig, num_requests: int) -> None:
        self.head_dim = config.head_dim
        self.inv_freq = rope_inv_freq(config)
        self.caches: dict[tuple[int, int], list[Array]] = {}
        self.computed = [0] * num_requests
        self.pieces: list[range] = []

    def begin(self, lengths: list[int]) -> None:
        """The next step has so many new tokens of each request, one behind the other."""
        ends = np.cumsum(lengths).tolist()
        self.pieces = [range(end - n, end) for end, n in zip(ends, lengths, strict=True)]
        self.positions = np.concatenate(
            [np.arange(done, done + n) for done, n in zip(self.computed, lengths, strict=True)]
        )
        self.computed = [done + n for done, n in zip(self.computed, lengths, strict=True)]

    def __call__(self, layer: int, q: Array, k: Array, v: Array) -> Array:
        parts = []
        for name, part in (("q", q), ("k", k), ("v", v)):
            heads = part.shape[1] // self.head_dim
            assert heads * self.head_dim == part.shape[1] > 0, (
                f"{name} has {part.shape[1]} numbers per token, and a head has {self.head_dim}: a rank "
                "attends with whole heads"
            )
            parts.append(part.reshape(len(part), -1, self.head_dim))
        q, k, v = parts
        assert (q.shape[1] % k.shape[1], k.shape) == (0, v.shape), (
            f"{q.shape[1]} heads of q, {k.shape[1]} of k and {v.shape[1]} of v do not go together"
        )
        angles = self.positions.astype(np.float32)[:, None, None] * self.inv_freq
        q, k = (apply_rotary_emb(x, np.cos(angles), np.sin(angles)) for x in (q, k))
        outputs = [
            self._attend_request(self._remember(layer, number, k[piece], v[piece]), q[piece])
            for number, piece in enumerate(self.pieces)
        ]
        return np.concatenate(outputs).reshape(len(q), -1)

    def _remember(self, layer: int, request: int, k: Array, v: Array) -> list[Array]:
        before = self.caches.get((layer, request))
        now = (
            [k, v]
            if before is None
            else [np.concatenate(x) for x in zip(before, (k, v), strict=True)]
        )
        self.caches[layer, request] = now
        return now

    def _attend_request(self, cache: list[Array], q: Array) -> Array:
        k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in cache)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.float32(np.sqrt(self.head_dim))
        first = len(k) - len(q)
        hidden = np.arange(len(k)) > first + np.arange(len(q))[:, None]
        scores = np.where(hidden, -np.inf, scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", weights, v).astype(np.float32)


# ---- ranks -----------------------------------------------------------------------------------------


@dataclass
class OfRank:
    """What one rank has returned, what it has said in order, and the arrays that it brought."""

    result: Any
    calls: list[Call]
    brought: list[Array]
    ledger: Ledger


def listen(communicator: Communicator) -> list[tuple[Call, Array]]:
    """From now on: every call of this rank, in order, with the array that went into it."""
    heard: list[tuple[Call, Array]] = []
    record = communicator.ledger.record

    def noted(kind: str, array: Any) -> None:
        heard.append(((kind, tuple(array.shape), array.nbytes), np.array(array)))
        record(kind, array)

    communicator.ledger.record = noted  # type: ignore[method-assign]
    return heard


def on_ranks(
    lab: ModuleType,
    model: tuple[LlamaConfig, dict[str, Array]],
    size: int,
    call: Callable[[Any], Any],
    cut: Callable[..., Array] | None = None,
) -> list[OfRank]:
    """`call(rank)` on each of `size` ranks, whose weights `cut` has cut: the lab's own, unless given."""
    config, weights = model

    def rank_main(communicator: Communicator) -> OfRank:
        mine = {
            name: (cut or lab.cut)(name, weight, config, communicator.rank, size)
            for name, weight in weights.items()
        }
        heard = listen(communicator)
        result = call(lab.Rank(config, mine, communicator))
        return OfRank(result, [c for c, _ in heard], [x for _, x in heard], communicator.ledger)

    return run_ranks(rank_main, size)


def right_cut(name: str, weight: Array, config: LlamaConfig, rank: int, size: int) -> Array:
    """What the engine's ranks hold, for tests of what they do with it. (A bias that is added once, the
    engine's other ranks hold as zeros.)"""
    if name.endswith(("o_proj.bias", "down_proj.bias")):
        return weight
    place: Any = SimpleNamespace(rank=rank, world_size=size)
    rank_config = get_rank_config(config, size, rank)
    return ShardedWeights({name: weight}, config, rank_config, place)[name]


@dataclass
class Played:
    """What the ranks made of the two prompts.

    Attributes:
        tokens: by request.
        logits: by rank, those of every step, one behind the other.
        calls: by rank, its calls in order.
        ledgers: by rank, how often each was made.
    """

    tokens: list[list[int]]
    logits: list[Array]
    calls: list[list[Call]]
    ledgers: list[Any]


def play(lab: ModuleType, size: int, num_tokens: int = NUM_TOKENS) -> Played:
    """Greedy decoding of the two prompts on `size` ranks; each rank samples for itself."""
    config = tiny()[0]

    def generate(rank: Any) -> tuple[list[list[int]], Array]:
        attend = Attend(config, len(PROMPTS))
        new = [list(prompt) for prompt in PROMPTS]
        tokens: list[list[int]] = [[] for _ in PROMPTS]
        seen = []
        for _ in range(num_tokens):
            lengths = [len(of_request) for of_request in new]
            attend.begin(lengths)
            last = np.cumsum(lengths) - 1
            logits = lab.forward(rank, np.concatenate(new), attend, last)
            seen.append(logits)
            new = [[int(row.argmax())] for row in logits]
            for of_request, token in zip(tokens, new, strict=True):
                of_request += token
        return tokens, np.concatenate(seen)

    ranks = on_ranks(lab, tiny(), size, generate)
    return Played(
        ranks[0].result[0],
        [rank.result[1] for rank in ranks],
        [rank.calls for rank in ranks],
        [rank.ledger.calls for rank in ranks],
    )


def recorded() -> dict[int, dict[str, Any]]:
    """What vLLM's ranks said, by their number: `tokens`, `first_step` in order, `ledger` with counts."""
    found = json.loads(RECORDED.read_text(encoding="utf-8"))
    return {one["size"]: one for one in found["served"]}
