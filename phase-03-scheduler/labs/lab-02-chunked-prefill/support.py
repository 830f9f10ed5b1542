"""Given for lab 03-02: engines of every kind, two of them broken, and the prompts to ask them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm import EngineConfig, LLMEngine
from mini_vllm.attention import AttentionMetadata, PagedAttention
from mini_vllm.attention.paged import attend, reshape_and_cache
from mini_vllm.engine.parts import EngineParts

Array = NDArray[np.float32]

DOCUMENT = "A scheduler decides who runs in each step."
PROMPTS = {
    "fay": f"{DOCUMENT} So?",
    "gil": f"{DOCUMENT} Who?",
    "hal": "The seat",
    "ida": "Why is my request slow?",
}
"""47, 48, 9 and 24 tokens, with the one that begins a text."""


class _Broken(PagedAttention):
    """Paged attention, one request after the other, in which `position` and `first` can be wrong."""

    @staticmethod
    def first(seq_len: int, n: int) -> int:
        """The first key that the last `n` of `seq_len` tokens see."""
        return 0

    @staticmethod
    def position(seq_len: int, n: int) -> int:
        """Where the first of the last `n` of `seq_len` tokens stands."""
        return seq_len - n

    def forward(
        self,
        query: Array,
        key: Array,
        value: Array,
        kv_cache: Array,
        attn_metadata: AttentionMetadata,
    ) -> Array:
        reshape_and_cache(key, value, kv_cache, attn_metadata.slot_mapping)
        num_tokens, num_heads, head_size = query.shape
        num_kv_heads = key.shape[1]
        output = np.empty((num_tokens, num_heads * head_size), np.float32)
        starts = attn_metadata.query_start_loc.tolist()
        for i, seq_len in enumerate(attn_metadata.seq_lens.tolist()):
            rows = slice(starts[i], starts[i + 1])
            n = starts[i + 1] - starts[i]
            first = self.first(seq_len, n)
            blocks = attn_metadata.block_table[i][: -(-seq_len // attn_metadata.block_size)]
            kv = kv_cache[blocks].reshape(-1, 2, num_kv_heads, head_size)[first:seq_len]
            k, v = kv.transpose(1, 2, 0, 3)[:, :, None]
            q = query[rows].reshape(n, num_kv_heads, -1, head_size).transpose(1, 2, 0, 3)
            position = self.position(seq_len, n) + np.arange(n)
            future = np.arange(first, seq_len) > position[:, None]
            bias = np.where(future, np.float32(-np.inf), np.float32(0))
            out = attend(q * np.float32(head_size**-0.5), k, v, bias)
            output[rows] = out.transpose(2, 0, 1, 3).reshape(n, num_heads * head_size)
        return output


class Forgetful(_Broken):
    """A piece of a prompt sees no piece before it. A single token, a decode, sees everything."""

    @staticmethod
    def first(seq_len: int, n: int) -> int:
        return seq_len - n if n > 1 else 0


class TopLeft(_Broken):
    """A piece's mask begins at the first key instead of ending at the last one."""

    @staticmethod
    def position(seq_len: int, n: int) -> int:
        return 0 if n > 1 else seq_len - 1


def make_engine(attention: type[PagedAttention] | None = None, **settings: Any) -> LLMEngine:
    """An engine on the shipped model; without settings every prompt goes into one step."""
    given: dict[str, Any] = {"block_size": 4, "num_gpu_blocks": 200, "max_model_len": 128}
    parts = EngineParts() if attention is None else EngineParts(attention=attention)
    return LLMEngine(config=EngineConfig(**(given | settings)), parts=parts)
