"""Lab 02-05: what vLLM says when it starts, and why a request waits. Your work: twelve short functions.

Everything here is for a dense decoder with full attention on one device, without drafts, LoRA or a KV
connector, under `fcfs` and synchronous scheduling: the shipped checkpoint, as capture.py starts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# -- Given: names and counters. Nothing to do here.

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


# -- Your work: the pool.


def memory_bytes(text: str) -> int:
    """The bytes that vLLM's flag `--kv-cache-memory-bytes` reads from `text`.

    A whole number is bytes. A small letter behind it (k, m, g, t) stands for a thousand, a million, a billion
    or a trillion, and a capital for the power of 1,024 beside that. A decimal fraction, such as `1.5g`, may
    stand before a small letter; any fraction of a byte is cut off.

    Raises:
        ValueError: for a fraction before a capital, or with no letter behind it.
    """
    raise NotImplementedError


def page_bytes(block_size: int, num_kv_heads: int, head_size: int, dtype: str) -> int:
    """Bytes that one block takes in one layer. vLLM calls that a page.

    Args:
        block_size: tokens in a block.
        num_kv_heads: heads that have keys and values of their own.
        head_size: numbers in one vector of one head.
        dtype: of the cache, a key of `DTYPE_BYTES`.
    """
    raise NotImplementedError


def num_gpu_blocks(memory: int, num_layers: int, page: int, override: int | None = None) -> int:
    """The size of the pool in blocks, as vLLM reports it. The same block has a page in every layer.

    Args:
        memory: bytes for the KV cache.
        num_layers: layers with a KV cache.
        page: what `page_bytes` says.
        override: vLLM's `num_gpu_blocks_override`. Where it is given, memory does not count.
    """
    raise NotImplementedError


def blocks_of(num_tokens: int, block_size: int) -> int:
    """Blocks in which `num_tokens` tokens of one request lie. 0 tokens lie in none."""
    raise NotImplementedError


def max_concurrency(num_blocks: int, max_model_len: int, block_size: int) -> float:
    """The X in vLLM's line `Maximum concurrency for L tokens per request: Xx`, not rounded.

    Find it from the figures of the README. Below 1 vLLM does not start.

    Args:
        num_blocks: what `num_gpu_blocks` says.
        max_model_len: the L.
    """
    raise NotImplementedError


def kv_cache_tokens(num_blocks: int, max_model_len: int, block_size: int) -> int:
    """The N in vLLM's line `GPU KV cache size: N tokens`. Find it from the figures of the README."""
    raise NotImplementedError


# -- Your work: what runs, and when it gets its blocks.


def run_at_once(num_blocks: int, num_tokens: int, block_size: int, max_num_seqs: int) -> int:
    """How many of very many requests run in the first step.

    All arrive together, each has a prompt of `num_tokens` tokens of its own, and a step may compute as many
    tokens as you like.

    Args:
        num_blocks: what `num_gpu_blocks` says.
        num_tokens: at least 1, at most `max_model_len`.
    """
    raise NotImplementedError


def blocks_granted(
    num_prompt_tokens: int, max_tokens: int, block_size: int, max_num_batched_tokens: int
) -> list[int]:
    """How many blocks one request alone is granted in each of its steps, with nothing in the cache.

    A step computes at most `max_num_batched_tokens` tokens of the prompt. The step that computes the last of
    them samples the first token, and each later step computes the token sampled before it and samples
    another, until there are `max_tokens`. A step grants the blocks that its own tokens need, and no more.

    Returns:
        As many numbers as the request takes steps.
    """
    raise NotImplementedError


# -- Your work: who waits.


def blocks_needed(num_tokens: int, block_size: int, hit_blocks: int, free_hit_blocks: int) -> int:
    """Blocks of the free queue that a waiting request takes, so that it holds `num_tokens` tokens.

    Args:
        num_tokens: its tokens, those in hit blocks among them.
        hit_blocks: full blocks that the prefix cache found for it.
        free_hit_blocks: those of them that no request holds.
    """
    raise NotImplementedError


def why_waiting(moment: Moment) -> str | None:
    """The rule that holds the request back in this step, or None if it is let in.

    Several rules may hold at once. Answer with the first, in the order in which vLLM asks
    (`vllm/v1/core/sched/scheduler.py:545 in Scheduler.schedule`): PREEMPTION, BUDGET, SEATS, BEHIND, and then
    the blocks. vLLM's answer about the blocks is a bare no; you say which no it is, NEVER, GATE or BLOCKS.

    A step computes what is not in hit blocks, as much as the budget and the threshold allow. With
    `reserve_full_isl` the blocks of the whole sequence must be free, else those of what this step computes.
    """
    raise NotImplementedError


# -- Your work: the prefix cache.


def expected_hits(prompts: Sequence[Sequence[int]], block_size: int) -> list[int]:
    """The tokens of each prompt that come out of the prefix cache.

    The prompts are admitted one after the other, each asks for one token, and nothing is ever evicted. (It
    does not matter whether two are admitted in the same step.)

    Args:
        prompts: lists of token ids, in the order of their admission.

    Returns:
        One number for each prompt: vLLM's `num_cached_tokens`.
    """
    raise NotImplementedError


def hit_rate(prompts: Sequence[Sequence[int]], block_size: int, lookups: Sequence[int]) -> float:
    """The hit rate, between 0 and 1, that vLLM's counters of queries and hits give.

    Both count tokens, and both count at every look-up. A request that is refused looks again in the next
    step; here it finds the same each time.

    Args:
        prompts: as for `expected_hits`.
        lookups: how often each prompt was looked up, admission included.

    Returns:
        0.0 where nothing was looked up.
    """
    raise NotImplementedError
