"""Lab 03-06: what vLLM's meters of the prefix cache show, and why a request found nothing. Your work: every
NotImplementedError.

Everything here is for a dense decoder with full attention on one device, without drafts, LoRA or a KV
connector, under `fcfs` and synchronous scheduling: the shipped checkpoint, as capture.py starts it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

# -- Given: what a record of vLLM holds. Nothing to do here.


class Visit(NamedTuple):
    """A request of a workload.

    Attributes:
        tokens: token ids of the prompt.
        salt: `cache_salt`, or None.
        reads: False for a request that does not read the cache, because it wants logprobs of the prompt.
        answer: token ids of the answer.
    """

    tokens: tuple[int, ...]
    salt: str | None = None
    reads: bool = True
    answer: tuple[int, ...] = ()


class Lookup(NamedTuple):
    """One look-up in the prefix cache, as vLLM records it. A request that does not read is not looked up.

    Attributes:
        name: of the request.
        num_tokens: tokens that the request had then: its prompt, plus output from before a preemption.
        num_hits: tokens found.
        preempted: the request was preempted before, at least once.
    """

    name: str
    num_tokens: int
    num_hits: int
    preempted: bool


class Step(NamedTuple):
    """One step of the engine.

    Attributes:
        lookups: in order. They do not tell whether the request then got its blocks.
        computed: tokens of each request that the step computed.
        sampled: requests that got an answer token, one each.
    """

    lookups: tuple[Lookup, ...]
    computed: Mapping[str, int]
    sampled: frozenset[str]


class Counters(NamedTuple):
    """`vllm:prefix_cache_queries` and `vllm:prefix_cache_hits`, both in tokens."""

    queries: int
    hits: int


class Sources(NamedTuple):
    """`vllm:prompt_tokens_by_source`: tokens with the labels local_compute and local_cache_hit."""

    local_compute: int
    local_cache_hit: int


class Diagnosis(NamedTuple):
    """Why a request found nothing.

    Attributes:
        reason: one of the seven words below, or None for a request that found something.
        common: the longest beginning of its prompt, in tokens, that an earlier visit with the same salt
            has said as well.
    """

    reason: str | None
    common: int


OFF = "caching is off"
NO_READ = "does not read"  # it wants logprobs of its prompt, so all of the prompt must be computed
SHORT = "prompt too short"  # there is no full block before its last token
EVICTED = "gone"  # its first block was there under its salt, so somebody has taken it since
SALT = "other salt"  # its first block was there, but under another salt
MOVED = (
    "not from the start"  # a block's worth of its tokens was said before, behind another beginning
)
LITTLE = "too little in common"  # none of these: what it shares does not fill a block


# -- Your work: before you write anything.


def predictions() -> dict[str, int]:
    """Your guesses for the README's seven questions, under the names that it uses."""
    raise NotImplementedError


# -- Your work: what is found.


def found_tokens(visits: Sequence[Visit], block_size: int, caching: bool) -> list[int]:
    """The tokens of each prompt that are found in the prefix cache, one number per visit.

    The visits are admitted in this order, the pool is large, and a step has room for all that are in it.
    It does not matter whether two are admitted in the same step. A request that finds an answer's tokens
    comes after that answer is finished.

    What a request has computed is in the cache, prompt and answer, in full blocks. The last token of an
    answer is sampled and never computed. At least one token of each prompt must be computed.

    Args:
        visits: in the order of their admission.
        block_size: tokens in a block.
        caching: whether prefix caching is on.
    """
    raise NotImplementedError


def usage(
    num_tokens: Sequence[int], found: Sequence[int], num_gpu_blocks: int, block_size: int
) -> float:
    """What `vllm:kv_cache_usage_perc` says after the first step, between 0 and 1.

    All requests are admitted in this step and computed whole, and none is finished by it. There were none
    before them, so what one finds is held by another of them.

    Args:
        num_tokens: of each prompt.
        found: what `found_tokens` says of each.
        num_gpu_blocks: the pool as vLLM reports it. One of its blocks, the null block, is never given out.
        block_size: tokens in a block.
    """
    raise NotImplementedError


# -- Your work: the meters.


def counters(steps: Sequence[Step]) -> Counters:
    """The counters of a server, which records every step.

    They count tokens, and they count each look-up, before it is known whether the request gets its blocks.
    The look-ups of a request that was preempted go to a separate sum, which no counter shows.
    """
    raise NotImplementedError


def counters_offline(steps: Sequence[Step]) -> Counters:
    """The same counters in the offline `LLM`, which drops what a step without output reports."""
    raise NotImplementedError


def by_source(steps: Sequence[Step], num_prompt_tokens: Mapping[str, int]) -> Sources:
    """Prompt tokens by where they came from.

    A prompt is counted once, in the step of the request's first token. What its last look-up up to then
    found counts as found (whether it was preempted before or not), and the rest as computed. A request
    that has no token yet is not counted.

    Args:
        steps: all steps.
        num_prompt_tokens: of each request, by name.
    """
    raise NotImplementedError


def line_rate(steps: Sequence[Step], most: int = 1000) -> float:
    """The `Prefix cache hit rate` in a server's log line after these steps, between 0 and 1.

    It is hits over queries, as `counters` counts them, of the newest steps. A step with no such look-up
    leaves no trace. After each step, as long as more than `most` look-ups are remembered, the oldest step is
    forgotten whole; but the newest step stays. 0.0 if nothing is remembered.
    """
    raise NotImplementedError


def hidden_work(steps: Sequence[Step], num_prompt_tokens: Mapping[str, int]) -> int:
    """The computed tokens that no meter shows: those computed a second time.

    Two kinds of work are shown. `local_compute` counts prompt tokens, as in `by_source`. And each token of
    an answer but the last is computed once, in the step that samples the next one. All requests are finished.

    Args:
        steps: all steps.
        num_prompt_tokens: of each request, by name.
    """
    computed = sum(sum(step.computed.values()) for step in steps)
    sampled = [name for step in steps for name in step.sampled]
    decoded = len(sampled) - len(set(sampled))
    return computed - by_source(steps, num_prompt_tokens).local_compute - decoded


# -- Your work: why a request found nothing.


def diagnose(
    visits: Sequence[Visit], which: int, found: int, block_size: int, caching: bool
) -> Diagnosis:
    """Why a request found nothing: the first of the seven reasons above that holds, in their order.

    An earlier visit comes before it in `visits`. What a visit has said is its prompt and the computed part
    of its answer. The first block of a request is its first `block_size` tokens. For MOVED, look for
    `block_size` tokens that follow one another anywhere in its prompt and anywhere in what an earlier visit
    said under the same salt.

    Args:
        visits: all visits, in order of arrival.
        which: the place of the request in `visits`.
        found: what vLLM says it found, its `num_cached_tokens`. The pool may have been small.
        block_size: tokens in a block.
        caching: whether prefix caching is on.
    """
    raise NotImplementedError
