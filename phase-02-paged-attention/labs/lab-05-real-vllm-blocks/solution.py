"""Lab 02-05: what vLLM says when it starts, and why a request waits.

Everything here is for a dense decoder with full attention on one device, without drafts, LoRA or a KV
connector, under `fcfs` and synchronous scheduling: the shipped checkpoint, as capture.py starts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

# -- Given: names and counters.

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1}
"""Bytes of one number, by the names that vLLM's `kv_cache_dtype` and `dtype` take."""

PREEMPTION = "preemption"  # in this step somebody was preempted, so nobody is let in
BUDGET = "budget"  # the step has no tokens left
SEATS = "max_num_seqs"  # as many requests run as may run
BEHIND = "behind"  # the one in front of it waits, and nobody overtakes
NEVER = "never"  # refused, and the whole sequence is larger than the usable pool
GATE = "gate"  # what this step computes would fit, but not the whole sequence, which is asked for
BLOCKS = "blocks"  # not even what this step computes would fit


@dataclass(frozen=True)
class Moment:
    """A waiting request, and the counters in the moment in which the scheduler gets to it.

    The running requests have had their turn in this step, so their blocks and tokens are gone already.

    Attributes:
        preempted: a request was preempted in this step.
        token_budget: tokens that the step may still compute.
        num_running: requests that run.
        max_num_seqs: how many may run.
        ahead: requests that wait in front of it, and go on waiting.
        num_tokens: of the request: its prompt, and its output if it was preempted after some.
        hit_blocks: blocks that the prefix cache found for it.
        free_hit_blocks: those of them that no request holds, so that they are in the free queue.
        free_blocks: length of the free queue.
        num_gpu_blocks: the pool, as vLLM reports it.
        block_size: tokens in a block.
        reserve_full_isl: vLLM's `scheduler_reserve_full_isl`, True unless you say otherwise.
        long_prefill_token_threshold: the most that a step computes of one prompt; 0 for no limit.
    """

    preempted: bool
    token_budget: int
    num_running: int
    max_num_seqs: int
    ahead: int
    num_tokens: int
    hit_blocks: int
    free_hit_blocks: int
    free_blocks: int
    num_gpu_blocks: int
    block_size: int
    reserve_full_isl: bool = True
    long_prefill_token_threshold: int = 0


# -- The solution: the pool.


def memory_bytes(text: str) -> int:
    """Small letters are powers of 1,000, capitals of 1,024."""
    number, letter = text[:-1], text[-1:]
    if letter in tuple("kmgt"):
        return int(float(number) * 10 ** (3 * "kmgt".index(letter) + 3))
    if letter in tuple("KMGT"):
        return int(number) << 10 * ("KMGT".index(letter) + 1)
    return int(text)


def page_bytes(block_size: int, num_kv_heads: int, head_size: int, dtype: str) -> int:
    """A K and a V vector for each token and KV head."""
    return 2 * block_size * num_kv_heads * head_size * DTYPE_BYTES[dtype]


def num_gpu_blocks(memory: int, num_layers: int, page: int, override: int | None = None) -> int:
    """Whole blocks in the memory, or what was ordered."""
    return memory // (page * num_layers) if override is None else override


def blocks_of(num_tokens: int, block_size: int) -> int:
    """A block begun is a block taken."""
    return -(-num_tokens // block_size)


def max_concurrency(num_blocks: int, max_model_len: int, block_size: int) -> float:
    """All blocks, over those of one request of full length."""
    return num_blocks / blocks_of(max_model_len, block_size)


def kv_cache_tokens(num_blocks: int, max_model_len: int, block_size: int) -> int:
    """That many requests of full length, in tokens."""
    return int(max_concurrency(num_blocks, max_model_len, block_size) * max_model_len)


# -- The solution: what runs, and when it gets its blocks.


def run_at_once(num_blocks: int, num_tokens: int, block_size: int, max_num_seqs: int) -> int:
    """Seats, or whole requests in what the null block leaves."""
    return min(max_num_seqs, (num_blocks - 1) // blocks_of(num_tokens, block_size))


def blocks_granted(
    num_prompt_tokens: int, max_tokens: int, block_size: int, max_num_batched_tokens: int
) -> list[int]:
    """What the table grows by, from the tokens that are in the cache after each step."""
    after = list(range(max_num_batched_tokens, num_prompt_tokens, max_num_batched_tokens))
    after += range(num_prompt_tokens, num_prompt_tokens + max_tokens)
    held = [0, *(blocks_of(tokens, block_size) for tokens in after)]
    return [now - before for before, now in pairwise(held)]


# -- The solution: who waits.


def blocks_needed(num_tokens: int, block_size: int, hit_blocks: int, free_hit_blocks: int) -> int:
    """The new ones, and the hits that leave the free queue."""
    return blocks_of(num_tokens, block_size) - hit_blocks + free_hit_blocks


def why_waiting(moment: Moment) -> str | None:
    """Four questions before any block is counted, then the whole sequence, then the chunk."""
    m = moment
    if m.preempted:
        return PREEMPTION
    if m.token_budget == 0:
        return BUDGET
    if m.num_running >= m.max_num_seqs:
        return SEATS
    if m.ahead:
        return BEHIND
    found = m.hit_blocks * m.block_size
    chunk = min(m.num_tokens - found, m.token_budget)
    if m.long_prefill_token_threshold:
        chunk = min(chunk, m.long_prefill_token_threshold)

    def fits(num_tokens: int) -> bool:
        need = blocks_needed(num_tokens, m.block_size, m.hit_blocks, m.free_hit_blocks)
        return need <= m.free_blocks

    if fits(m.num_tokens if m.reserve_full_isl else found + chunk):
        return None
    if blocks_of(m.num_tokens, m.block_size) > m.num_gpu_blocks - 1:
        return NEVER
    return GATE if fits(found + chunk) else BLOCKS


# -- The solution: the prefix cache.


def expected_hits(prompts: Sequence[Sequence[int]], block_size: int) -> list[int]:
    """Full blocks from the start on, of the tokens before the last."""
    published: set[tuple[int, ...]] = set()
    hits = []
    for prompt in prompts:
        ends = range(block_size, len(prompt) + 1, block_size)
        found = 0
        while found + block_size < len(prompt) and tuple(prompt[: found + block_size]) in published:
            found += block_size
        hits.append(found)
        published |= {tuple(prompt[:end]) for end in ends}
    return hits


def hit_rate(prompts: Sequence[Sequence[int]], block_size: int, lookups: Sequence[int]) -> float:
    """Both sums run over look-ups, not over requests."""
    hits = expected_hits(prompts, block_size)
    queries = sum(len(p) * times for p, times in zip(prompts, lookups, strict=True))
    found = sum(n * times for n, times in zip(hits, lookups, strict=True))
    return found / queries if queries else 0.0
