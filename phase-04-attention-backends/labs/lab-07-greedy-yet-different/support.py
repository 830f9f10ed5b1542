"""What the tests and scripts of lab 04-07 share: steps of the numpy Llama, by hand, and what comes out of
each part.

`step` runs one step of `mini_vllm`'s model without an engine, so that whoever stands beside a request is
chosen and not scheduled. `record` keeps what each part of the model returned for one request, in the order
of the computation. `rebuilt` is the model with other products, norms and attention in it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention import AttentionMetadata, PagedAttention, TiledAttention
from mini_vllm.attention.paged import reshape_and_cache
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.model_loader import load_model
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.tokenizer import Tokenizer

Array = NDArray[np.float32]
HERE = Path(__file__).resolve().parent
BLOCK_SIZE = 16


@cache
def model() -> LlamaForCausalLM:
    """The shipped checkpoint. Do not change it; `rebuilt` makes a copy."""
    return load_model(DEFAULT_MODEL)


@cache
def tokenizer() -> Tokenizer:
    """The shipped checkpoint's."""
    return Tokenizer.from_folder(DEFAULT_MODEL)


def captured(name: str) -> Any:
    """A committed result: `flips`, `ties`, `vllm` or `pin`."""
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


@dataclass
class Seat:
    """A request in a step.

    Attributes:
        tokens: its token ids, as many as the step leaves it with.
        computed: how many of them earlier steps have computed.
        block_ids: its blocks, enough for all tokens.
    """

    tokens: list[int]
    computed: int
    block_ids: list[int]


@dataclass
class Desk:
    """A KV cache and who lies in which blocks of it.

    Attributes:
        llama: the model whose cache it is.
        caches: a layer each, zeros at first.
    """

    llama: LlamaForCausalLM
    num_blocks: int = 256
    caches: list[Array] = field(default_factory=list)
    used: int = 0

    def __post_init__(self) -> None:
        c = self.llama.config
        shape = self.llama.attention.get_kv_cache_shape(
            self.num_blocks, BLOCK_SIZE, c.num_key_value_heads, c.head_dim
        )
        self.caches = [np.zeros(shape, np.float32) for _ in range(c.num_hidden_layers)]

    def seat(self, tokens: Sequence[int], computed: int = 0, room: int = 0) -> Seat:
        """A request with blocks of its own, for its tokens and `room` more.

        Raises ValueError where the blocks are used up.
        """
        need = -(-(len(tokens) + room) // BLOCK_SIZE)
        if self.used + need > self.num_blocks:
            raise ValueError(f"{need} blocks wanted, {self.num_blocks - self.used} are left")
        blocks = list(range(self.used, self.used + need))
        self.used += need
        return Seat(list(tokens), computed, blocks)

    def step(self, seats: Sequence[Seat]) -> Array:
        """Compute what the seats have not computed yet; hidden states `[rows, hidden_size]` of all of it."""
        hidden = self.llama.forward(*inputs(seats), self.caches, metadata(seats))
        for seat in seats:
            seat.computed = len(seat.tokens)
        return hidden

    def logits(self, seats: Sequence[Seat]) -> Array:
        """One step; the logits of each seat's last row, `[num_seats, vocab_size]`."""
        last = np.cumsum([len(seat.tokens) - seat.computed for seat in seats]) - 1
        return self.llama.compute_logits(self.step(seats)[last])


def inputs(seats: Sequence[Seat]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Token ids and positions of the flat batch, both `[rows]`."""
    ids = [t for seat in seats for t in seat.tokens[seat.computed :]]
    positions = [p for seat in seats for p in range(seat.computed, len(seat.tokens))]
    return np.array(ids, np.int32), np.array(positions, np.int32)


def metadata(seats: Sequence[Seat]) -> AttentionMetadata:
    """Who has which rows and which blocks."""
    counts = [len(seat.tokens) - seat.computed for seat in seats]
    table = np.zeros((len(seats), max(len(seat.block_ids) for seat in seats)), np.int32)
    slots: list[int] = []
    for row, seat in enumerate(seats):
        table[row, : len(seat.block_ids)] = seat.block_ids
        slots += [
            seat.block_ids[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE
            for p in range(seat.computed, len(seat.tokens))
        ]
    return AttentionMetadata(
        np.array([0, *np.cumsum(counts)], np.int32),
        np.array([len(seat.tokens) for seat in seats], np.int32),
        table,
        np.array(slots, np.int64),
        BLOCK_SIZE,
    )


# -- What comes out of each part.


class Tap:
    """A part of the model that writes down, under a name, what it returns for some rows."""

    def __init__(self, name: str, part: Any, rows: slice, log: list[tuple[str, Array]]) -> None:
        self.name, self.part, self.rows, self.log = name, part, rows, log

    def __getattr__(self, name: str) -> Any:
        return getattr(self.part, name)

    def keep(self, out: Array) -> Array:
        self.log.append((self.name, out[self.rows].copy()))
        return out

    def __call__(self, x: Array) -> Array:
        return self.keep(self.part(x))


class AttentionTap(Tap):
    """The same for attention, which all layers share: it counts them."""

    def forward(self, *args: Any) -> Array:
        layer = sum(name.endswith("attention") for name, _ in self.log)
        self.name = f"layer {layer} attention"
        return self.keep(self.part.forward(*args))


def record(desk: Desk, seats: Sequence[Seat], who: int) -> list[tuple[str, Array]]:
    """One step; what each part returned for the last row of seat `who`, in the order of the computation."""
    counts = [len(seat.tokens) - seat.computed for seat in seats]
    at = sum(counts[: who + 1]) - 1
    rows = slice(at, at + 1)
    log: list[tuple[str, Array]] = []
    plain = desk.llama
    desk.llama = _with_taps(plain, rows, log)
    try:
        hidden = desk.step(seats)
        logits = desk.llama.compute_logits(hidden[np.cumsum(counts) - 1])
    finally:
        desk.llama = plain
    return [*log, ("logits", logits[who])]


def _with_taps(llama: LlamaForCausalLM, rows: slice, log: list[tuple[str, Array]]) -> Any:
    made = copy.copy(llama)
    made.attention = AttentionTap("", llama.attention, rows, log)
    made.norm = Tap("last norm", llama.norm, rows, log)
    made.layers = []
    for i, layer in enumerate(llama.layers):
        new = copy.copy(layer)
        new.self_attn, new.mlp = copy.copy(layer.self_attn), copy.copy(layer.mlp)
        for holder, names in (
            (new, ("input_layernorm", "post_attention_layernorm")),
            (new.self_attn, ("qkv_proj", "o_proj")),
            (new.mlp, ("gate_up_proj", "down_proj")),
        ):
            for name in names:
                tap = Tap(f"layer {i} {name}", getattr(holder, name), rows, log)
                setattr(holder, name, tap)
        made.layers.append(new)
    return made


# -- The model with other kernels in it.


class Product:
    """A `Linear` whose product is another's."""

    def __init__(self, plain: Any, kernels: Any) -> None:
        # The engine keeps it as [out, in].
        self.weight, self.kernels = np.ascontiguousarray(plain.weight.T), kernels

    def __call__(self, x: Array) -> Array:
        return expect_array(self.kernels.linear(x, self.weight), (len(x), self.weight.shape[1]))


class Norm:
    """An `RMSNorm` by another's function."""

    def __init__(self, plain: Any, kernels: Any) -> None:
        self.weight, self.eps, self.kernels = plain.weight, float(plain.eps), kernels

    def __call__(self, x: Array) -> Array:
        return expect_array(self.kernels.rms_norm(x, self.weight, self.eps), x.shape)


class Rows(NamedTuple):
    """A request as `attend` gets it; the starter has the same."""

    query: Array
    key: Array
    value: Array


class Attention(PagedAttention):
    """The paged cache of `mini_vllm`, and another's `attend` over what is gathered from it."""

    def __init__(self, kernels: Any) -> None:
        self.kernels = kernels

    def forward(
        self,
        query: Array,
        key: Array,
        value: Array,
        kv_cache: Array,
        attn_metadata: AttentionMetadata,
    ) -> Array:
        """As `PagedAttention.forward`."""
        md = attn_metadata
        reshape_and_cache(key, value, kv_cache, md.slot_mapping)
        requests = []
        for i, seq_len in enumerate(md.seq_lens.tolist()):
            start, end = md.query_start_loc[i : i + 2].tolist()
            blocks = md.block_table[i, : -(-seq_len // md.block_size)]
            kv = kv_cache[blocks].reshape(-1, *kv_cache.shape[2:])[:seq_len]
            requests.append(Rows(query[start:end], kv[:, 0], kv[:, 1]))
        out = self.kernels.attend(requests, query.shape[-1] ** -0.5)
        return np.concatenate(list(out)).reshape(len(query), -1)


def rebuilt(llama: LlamaForCausalLM, kernels: Any) -> Any:
    """A copy of `llama` that computes with `kernels.linear`, `kernels.rms_norm` and `kernels.attend`."""
    made = copy.copy(llama)
    made.attention = Attention(kernels)
    made.norm, made.lm_head = Norm(llama.norm, kernels), Product(llama.lm_head, kernels)
    made.layers = []
    for layer in llama.layers:
        new = copy.copy(layer)
        new.self_attn, new.mlp = copy.copy(layer.self_attn), copy.copy(layer.mlp)
        new.input_layernorm = Norm(layer.input_layernorm, kernels)
        new.post_attention_layernorm = Norm(layer.post_attention_layernorm, kernels)
        new.self_attn.qkv_proj = Product(layer.self_attn.qkv_proj, kernels)
        new.self_attn.o_proj = Product(layer.self_attn.o_proj, kernels)
        new.mlp.gate_up_proj = Product(layer.mlp.gate_up_proj, kernels)
        new.mlp.down_proj = Product(layer.mlp.down_proj, kernels)
        made.layers.append(new)
    return made


def expect_array(got: Any, shape: tuple[int, ...], where: str = "the result") -> Array:
    """`got`, where it is a float32 array of that shape; else an assertion that says so."""
    assert isinstance(got, np.ndarray), f"{where}: return an array, not {type(got).__name__}"
    assert got.shape == shape, f"{where}: the shape is {shape}, not {got.shape}"
    assert got.dtype == np.float32, f"{where}: float32 is wanted, and it is {got.dtype}"
    return got


def bits(x: Any) -> bytes:
    """The bytes of an array: equal only where every bit is."""
    return np.ascontiguousarray(x).tobytes()


# -- The model in fewer bits.


def cut(x: Array, form: str) -> Array:
    """`x` rounded to the nearest `bfloat16` or `float16`, in float32 again; as it is for `float32`."""
    if form == "float16":
        return x.astype(np.float16).astype(np.float32)
    if form == "bfloat16":
        pattern = np.ascontiguousarray(x, np.float32).view(np.uint32)
        half = np.uint32(0x7FFF) + ((pattern >> np.uint32(16)) & np.uint32(1))  # ties to even
        return ((pattern + half) & np.uint32(0xFFFF0000)).view(np.float32)
    if form != "float32":
        raise ValueError(f"a format is float32, float16 or bfloat16, not {form!r}")
    return x


class Rounded:
    """A part of the model whose results are rounded."""

    def __init__(self, part: Any, form: str) -> None:
        self.part, self.form = copy.copy(part), form
        self.part.weight = np.ascontiguousarray(cut(part.weight, form))

    def __call__(self, x: Array) -> Array:
        return cut(self.part(x), self.form)


class RoundedAttention(TiledAttention):
    """The default backend; K, V and the result are rounded."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(
        self,
        query: Array,
        key: Array,
        value: Array,
        kv_cache: Array,
        attn_metadata: AttentionMetadata,
    ) -> Array:
        """As `TiledAttention.forward`."""
        q, k, v = (cut(x, self.form) for x in (query, key, value))
        return cut(super().forward(q, k, v, kv_cache, attn_metadata), self.form)


def rounded(form: str) -> Any:
    """The shipped model with weights and results rounded; sums and the residual stream stay float32."""
    llama = model()
    made = copy.copy(llama)
    made.embed_tokens = cut(llama.embed_tokens, form)
    made.attention = RoundedAttention(form)
    made.norm, made.lm_head = Rounded(llama.norm, form), Rounded(llama.lm_head, "float32")
    made.lm_head.part.weight = made.embed_tokens
    made.layers = []
    for layer in llama.layers:
        new = copy.copy(layer)
        new.self_attn, new.mlp = copy.copy(layer.self_attn), copy.copy(layer.mlp)
        for holder in (new, new.self_attn, new.mlp):
            for name in ("input_layernorm", "post_attention_layernorm", "qkv_proj", "o_proj",
                         "gate_up_proj", "down_proj"):  # fmt: skip
                if hasattr(holder, name):
                    setattr(holder, name, Rounded(getattr(holder, name), form))
        made.layers.append(new)
    return made


# -- What the committed results say.


def answers(lab: Any) -> dict[str, str | int]:
    """The answers to the predictions, from flips.json, ties.json, vllm.json and pin.json."""
    flips, vllm = captured("flips"), captured("vllm")["runs"]
    told: dict[str, str | int] = {}
    for name, at in flips["settings"].items():
        still = sum(i is not None for i in at)
        told[name] = lab.GONE if not still else lab.AS_BEFORE if still == len(at) else lab.RARER
    ties = captured("ties")["ties"]
    flipped = any(len(set(tie[how]["tokens"])) > 1 for tie in ties for how in ("prefill", "decode"))
    told["float32"] = lab.RARER if flipped else lab.GONE
    plain = vllm["as it comes, float32"]["decode, 1 beside her"]
    asked = vllm["VLLM_BATCH_INVARIANT=1, float32"]["decode, 1 beside her"]
    told["VLLM_BATCH_INVARIANT=1 on a CPU"] = lab.AS_BEFORE if asked == plain else lab.GONE
    told["first part in vLLM on a CPU"] = (
        "attention" if plain["first"].endswith(".attn") else plain["first"]
    )
    for line in captured("pin")["launches"]:
        case = line["max_query_len"], line["num_kv_heads"], line["batch_invariant"]
        if case == (1, 8, False) and line["num_seqs"] in (16, 17):
            told[f"segments, {line['num_seqs']} who decode"] = line["segments"]
            if line["num_seqs"] == 17:
                tiles = -(-4000 // (line["segments"] * line["tile"]))
                told["keys in turn, 4000 tokens, beside 16"] = tiles * line["tile"]
    return told
