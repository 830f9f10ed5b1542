"""Lab 03-06: what vLLM's meters of the prefix cache show, and why a request found nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

# -- Given: what a record of vLLM holds.


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


def predictions() -> dict[str, int]:
    """The seven numbers of the README."""
    return {
        "found, noon": 32,
        "found, four copies": 144,
        "queries, in line": 512,
        "queries, prompt logprobs": 156,
        "offline queries, in pieces": 0,
        "local_cache_hit, preempted before the first token": 32,
        "blocks held, one document": 35,
    }


# -- The solution: what is found.


def _blocks(tokens: Sequence[int], block_size: int) -> Iterator[tuple[int, ...]]:
    """The beginnings that end with a full block, the shortest first."""
    for end in range(block_size, len(tokens) + 1, block_size):
        yield tuple(tokens[:end])


def _written(visit: Visit) -> tuple[int, ...]:
    """What a request leaves in the cache: all but the last token of the answer, which nobody computes."""
    return visit.tokens + visit.answer[:-1]


def found_tokens(visits: Sequence[Visit], block_size: int, caching: bool) -> list[int]:
    """The longest beginning that somebody before has written, under the same salt."""
    written: set[tuple[str | None, tuple[int, ...]]] = set()
    found = []
    for visit in visits:
        hits = 0
        if caching and visit.reads:
            for start in _blocks(visit.tokens[:-1], block_size):
                if (visit.salt, start) not in written:
                    break
                hits = len(start)
        found.append(hits)
        written |= {(visit.salt, start) for start in _blocks(_written(visit), block_size)}
    return found


def usage(
    num_tokens: Sequence[int], found: Sequence[int], num_gpu_blocks: int, block_size: int
) -> float:
    """New blocks over usable blocks: what was found is held already, by somebody in the same step."""
    held = sum(
        -(-n // block_size) - hits // block_size for n, hits in zip(num_tokens, found, strict=True)
    )
    return held / (num_gpu_blocks - 1)


# -- The solution: the meters.


def _first_visits(steps: Iterable[Step]) -> list[list[Lookup]]:
    """The look-ups of each step that vLLM counts: not those of requests that were preempted."""
    return [[look for look in step.lookups if not look.preempted] for step in steps]


def counters(steps: Sequence[Step]) -> Counters:
    """Every look-up, whether the request then got its blocks or not."""
    looks = [look for step in _first_visits(steps) for look in step]
    return Counters(sum(look.num_tokens for look in looks), sum(look.num_hits for look in looks))


def counters_offline(steps: Sequence[Step]) -> Counters:
    """The same, of the steps that brought somebody a token."""
    return counters([step for step in steps if step.sampled])


def by_source(steps: Sequence[Step], num_prompt_tokens: Mapping[str, int]) -> Sources:
    """The last look-up before the first token is the one that counts."""
    last: dict[str, int] = {}
    cached: dict[str, int] = {}
    for step in steps:
        last |= {look.name: look.num_hits for look in step.lookups}
        for name in step.sampled - cached.keys():
            cached[name] = last.get(name, 0)
    hits = sum(cached.values())
    return Sources(sum(num_prompt_tokens[name] for name in cached) - hits, hits)


def line_rate(steps: Sequence[Step], most: int = 1000) -> float:
    """Steps leave the window whole, the oldest first, and the newest never."""
    window: deque[list[Lookup]] = deque()
    num_lookups = 0
    for looks in _first_visits(steps):
        if looks:
            window.append(looks)
            num_lookups += len(looks)
        while len(window) > 1 and num_lookups > most:
            num_lookups -= len(window.popleft())
    kept = [look for looks in window for look in looks]
    queries = sum(look.num_tokens for look in kept)
    return sum(look.num_hits for look in kept) / queries if queries else 0.0


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


# -- The solution: why a request found nothing.


def diagnose(
    visits: Sequence[Visit], which: int, found: int, block_size: int, caching: bool
) -> Diagnosis:
    """Seven questions, the surest first."""
    visit = visits[which]
    before = [(one.salt, _written(one)) for one in visits[:which]]
    mine = [tokens for salt, tokens in before if salt == visit.salt]
    common = max((_common(visit.tokens, tokens) for tokens in mine), default=0)
    return Diagnosis(_reason(visit, before, mine, found, block_size, caching), common)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens up to the first difference."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def _reason(
    visit: Visit,
    before: Sequence[tuple[str | None, tuple[int, ...]]],
    mine: Sequence[tuple[int, ...]],
    found: int,
    block_size: int,
    caching: bool,
) -> str | None:
    if found:
        return None
    if not caching:
        return OFF
    if not visit.reads:
        return NO_READ
    if len(visit.tokens) <= block_size:
        return SHORT
    first = visit.tokens[:block_size]
    salts = {salt for salt, tokens in before if tokens[:block_size] == first}
    if visit.salt in salts:
        return EVICTED
    if salts:
        return SALT
    said = {run for tokens in mine for run in _runs(tokens, block_size)}
    return LITTLE if said.isdisjoint(_runs(visit.tokens, block_size)) else MOVED


def _runs(tokens: Sequence[int], length: int) -> Iterator[tuple[int, ...]]:
    """Every run of so many tokens that follow one another."""
    return (tuple(tokens[i : i + length]) for i in range(len(tokens) - length + 1))
