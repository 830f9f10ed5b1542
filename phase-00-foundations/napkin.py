"""What the pages of phase 00 compute with: the guide's card and model, and runs of the shipped model.

The pages import from here, so that a doctest shows what it is about and not how it was set up.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.attention import AttentionMetadata, PagedAttention
from mini_vllm.attention.backend import AttentionBackend
from mini_vllm.attention.paged import attend_request, reshape_and_cache
from mini_vllm.engine.parts import EngineParts
from mini_vllm.sample.ops import apply_top_k_top_p

HERE = Path(__file__).resolve().parent
SHEETS: dict[str, dict[str, Any]] = {
    sheet["name"]: sheet
    for sheet in json.loads((HERE / "labs/lab-04-prefill-vs-decode/gpus.json").read_text("utf-8"))
}
GIB = 1024**3

# An A100 80GB SXM, and Llama-3-8B in 16 bits (2 bytes a weight). The guide counts the parameters.
flops: float = SHEETS["A100 80GB SXM"]["printed_tflops"] * 1e12
bandwidth: float = SHEETS["A100 80GB SXM"]["bandwidth_gb_s"] * 1e9
params = 8_030_261_248
per_token = 2 * 32 * 8 * 128 * 2  # bytes of KV: K and V, layers, KV heads, width of a head, bytes
for_kv = 0.92 * 80 * GIB - 2 * params  # bytes left for the cache, on paper


def run(
    token_ids: list[int], engine: LLMEngine
) -> tuple[NDArray[np.float32], list[NDArray[np.float32]]]:
    """One pass over a text, on an empty cache.

    Returns:
        the last layer's vectors, `[n, hidden_size]`, and a cache a layer,
        `[blocks, 16, 2, KV heads, head dim]`, of which the token at position p fills
        `[p // 16, p % 16]`.
    """
    n, model, backend = len(token_ids), engine.model, PagedAttention()
    c, blocks = model.config, -(-n // 16)
    shape = backend.get_kv_cache_shape(blocks, 16, c.num_key_value_heads, c.head_dim)
    caches = [np.zeros(shape, np.float32) for _ in model.layers]
    meta = AttentionMetadata(
        query_start_loc=np.array([0, n], np.int32),
        seq_lens=np.array([n], np.int32),
        block_table=np.arange(blocks, dtype=np.int32)[None],
        slot_mapping=np.arange(n),
        block_size=16,
    )
    return model.forward(np.array(token_ids), np.arange(n), caches, meta), caches


def key(caches: list[NDArray[np.float32]], position: int, layer: int = -1) -> list[float]:
    """The first numbers of a token's key, as a layer's cache holds it; the first KV head's."""
    numbers = caches[layer][position // 16, position % 16, 0, 0, :4]
    return [round(float(x), 2) for x in numbers]


def greedy(max_tokens: int) -> SamplingParams:
    """Always the likeliest token, and exactly so many of them."""
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def tokens_per_pass(prompt: str, max_tokens: int, budget: int = 2048) -> list[int]:
    """How many tokens each forward pass of a request takes in, `budget` at most."""
    config = EngineConfig(max_num_batched_tokens=budget, max_num_seqs=8)
    engine, passes = LLMEngine(config=config), list[int]()
    engine.engine_core.step_observers.append(
        lambda step: passes.append(step.scheduler_output.total_num_scheduled_tokens)
    )
    for _ in engine.stream(prompt, greedy(max_tokens)):
        pass
    return passes


def counters(prompt: str, max_tokens: int) -> Iterator[str]:
    """A request's two counters, before its first step and after each."""
    engine = LLMEngine()
    engine.add_request("0", prompt, greedy(max_tokens))
    request = engine.engine_core.scheduler.requests["0"]
    when = "waiting"
    while True:
        computed, there = request.num_computed_tokens, request.num_tokens
        yield f"{when}: {computed} of {there} computed, {there - computed} behind"
        if not engine.has_unfinished_requests():
            return
        engine.step()
        when = "one step later"


def byte_pair_encode(text: str, times: int) -> tuple[list[tuple[str, str]], list[str]]:
    """Merge the most frequent pair of neighbours, the leftmost of equals, `times` times.

    Returns:
        the pairs in the order of their merges, and the tokens that `text` is left with.
    """
    pieces, merges = list(text), list[tuple[str, str]]()
    for _ in range(times):
        (pair, _count), *_ = Counter(itertools.pairwise(pieces)).most_common(1)
        merges.append(pair)
        joined = list[str]()
        for piece in pieces:
            if joined and (joined[-1], piece) == pair:
                joined[-1] += piece
            else:
                joined.append(piece)
        pieces = joined
    return merges, pieces


def two_requests(max_tokens: int) -> LLMEngine:
    """Request A, "The KV cache", after its first step, and B, "Hello", which has just come."""
    engine = LLMEngine()
    engine.add_request("A", "The KV cache", greedy(max_tokens))
    engine.step()
    engine.add_request("B", "Hello", greedy(max_tokens))
    return engine


def kept_by_top_p(logits: list[float], top_p: float) -> int:
    """How many tokens the sampler's top-p leaves."""
    left = apply_top_k_top_p(np.array([logits], np.float32), None, np.array([top_p], np.float32))
    return int(np.isfinite(left).sum())


def text_with(attention: type[AttentionBackend], prompt: str, max_tokens: int) -> str:
    """What the shipped model writes on another attention backend."""
    engine = LLMEngine(parts=EngineParts(attention=attention))
    *_, last = engine.stream(prompt, greedy(max_tokens))
    return last.outputs[0].text


class ReadsFirst(PagedAttention):
    """A mistake on purpose: it attends over the cache as it was before this step's K and V came."""

    def forward(
        self,
        query: NDArray[np.float32],
        key: NDArray[np.float32],
        value: NDArray[np.float32],
        kv_cache: NDArray[np.float32],
        attn_metadata: AttentionMetadata,
    ) -> NDArray[np.float32]:
        before, (n, heads, width) = kv_cache.copy(), query.shape
        reshape_and_cache(key, value, kv_cache, attn_metadata.slot_mapping)
        starts = attn_metadata.query_start_loc.tolist()
        parts = [
            attend_request(query[first:end], before, block_ids, seq_len)
            for (first, end), block_ids, seq_len in zip(
                itertools.pairwise(starts),
                attn_metadata.block_table,
                attn_metadata.seq_lens.tolist(),
                strict=True,
            )
        ]
        return np.concatenate(parts).reshape(n, heads * width)
