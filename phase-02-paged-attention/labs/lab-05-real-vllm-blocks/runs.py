"""Given: what is asked of real vLLM, one start after the other. Settings and requests, nothing else.

A run is a fresh start of vLLM on the shipped checkpoint with these settings, and then rounds of requests. The
requests of a round are added together, and it is over when all are done, or after `steps` steps.
A prompt is written as pairs (token id, how often), so `[(20, 16), (21, 10)]` has 26 tokens.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

Prompt = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Ask:
    """One request: it is added when `after` steps of its round are done."""

    name: str
    prompt: Prompt
    max_tokens: int = 1
    after: int = 0


@dataclass(frozen=True)
class Run:
    """One start. `lifts` names the run that this one repeats with a single setting or order changed."""

    name: str
    settings: dict[str, Any]
    rounds: tuple[tuple[Ask, ...], ...] = ()
    steps: int = 400
    lifts: str | None = None


def pool(blocks: int, max_model_len: int, **more: Any) -> dict[str, Any]:
    """Settings of a small pool: so many blocks of 16, the null block among them."""
    named = {"num_gpu_blocks_override": blocks, "max_model_len": max_model_len}
    return named | {"kv_cache_memory_bytes": 2**26, "block_size": 16} | more


def memory(nbytes: int, block_size: int, max_model_len: int, **more: Any) -> dict[str, Any]:
    """Settings of a pool of so many bytes."""
    named = {"kv_cache_memory_bytes": nbytes, "block_size": block_size}
    return named | {"max_model_len": max_model_len} | more


HALF = {"dtype": "bfloat16"}
STARTS = (
    Run("64 MiB, blocks of 16", memory(2**26, 16, 1024)),
    Run("64 MiB, blocks of 32", memory(2**26, 32, 1024)),
    Run("64 MiB, blocks of 128, 1,000 tokens", memory(2**26, 128, 1000)),
    Run("10**8 bytes, blocks of 64, 1,000 tokens", memory(10**8, 64, 1000)),
    Run("10**8 bytes, blocks of 128, 130 tokens", memory(10**8, 128, 130)),
    Run("32 MiB, bfloat16", memory(2**25, 16, 512, **HALF)),
    Run("32 MiB, fp8", memory(2**25, 16, 512, kv_cache_dtype="fp8", **HALF)),
    Run("8 blocks by order", pool(8, 64)),
    Run("9 blocks by order, 100 tokens", pool(9, 100)),
    Run("3 blocks by order", pool(3, 64)),
)
"""What vLLM says when it starts. The last one is refused."""


def alike(count: int, prompt: Prompt, max_tokens: int = 1) -> tuple[Ask, ...]:
    """The same prompt several times."""
    return tuple(Ask(f"copy-{i}", prompt, max_tokens) for i in range(count))


def strangers(count: int, tokens: int) -> tuple[Ask, ...]:
    """Prompts of one length that have nothing in common."""
    return tuple(Ask(f"r{i}", ((20 + i, tokens),)) for i in range(count))


UNCACHED = {"enable_prefix_caching": False}
LENGTHS = (1, 16, 17, 32, 33, 48, 49, 63)
AT_ONCE = (
    Run("2.00x", pool(8, 64, **UNCACHED), tuple(strangers(10, n) for n in LENGTHS)),
    Run("2.00x, three seats", pool(8, 64, max_num_seqs=3, **UNCACHED), (strangers(10, 16),)),
    Run("2.60x", pool(13, 80, **UNCACHED), tuple(strangers(10, n) for n in (33, 79))),
)
"""Ten requests arrive together: how many run in the first step?"""


def alone(tokens: int, max_tokens: int) -> tuple[Ask, ...]:
    return (Ask("ada", ((20, tokens),), max_tokens),)


GRANTS = (
    Run(
        "a step of 64 tokens",
        pool(40, 160, max_num_batched_tokens=64, max_num_seqs=8, **UNCACHED),
        tuple(alone(*pair) for pair in ((10, 8), (15, 3), (16, 1), (16, 2), (17, 17), (128, 2))),
    ),
    Run(
        "a step of 24 tokens",
        pool(40, 160, max_num_batched_tokens=24, max_num_seqs=8, **UNCACHED),
        tuple(alone(*pair) for pair in ((40, 10), (47, 3), (48, 3), (100, 1))),
    ),
)
"""One request alone: in which step is each of its blocks granted?"""

ADA: Prompt = ((20, 16), (21, 10))
HITS = (
    Run("8 copies of 6 tokens", pool(60, 160), (alike(8, ((20, 6),)),)),
    Run("4 copies of 31 tokens", pool(60, 160), (alike(4, ((20, 31),)),)),
    Run("4 copies of 32 tokens", pool(60, 160), (alike(4, ((20, 32),)),)),
    Run("4 copies of 33 tokens", pool(60, 160), (alike(4, ((20, 33),)),)),
    Run("8 copies of 100 tokens, block 128", pool(20, 160, block_size=128), (alike(8, ((20, 100),)),)),
    Run(
        "alike in part",
        pool(60, 160),
        (
            (Ask("ada", ADA), Ask("bo", ((20, 16), (22, 32)))),
            (Ask("ada-late", ((99, 1), *ADA)), Ask("bo-again", ((20, 16), (22, 32)))),
            (Ask("cy", ((21, 10), (20, 16))), Ask("ada-longer", ((20, 16), (21, 30)))),
        ),
    ),
    Run(
        "waiting and looking",
        pool(6, 80),
        ((Ask("ada", ((20, 64),), 6), Ask("bo", ((30, 64),), 1)),),
    ),
    Run(
        "waiting and finding",
        pool(8, 112),
        ((Ask("ada", ((20, 80),), 6), Ask("bo", ((20, 32), (30, 64)), 1)),),
    ),
)  # fmt: skip
"""What the prefix cache finds, and how often it was asked."""


def crowd() -> tuple[Ask, ...]:
    """Sixteen requests with common beginnings, too many for the pool."""
    rng = random.Random(5)
    asks = []
    for i in range(16):
        prompt = ((20 + rng.randrange(2), 16 * rng.randrange(3)), (40 + i, rng.randint(1, 50)))
        some = tuple(pair for pair in prompt if pair[1])
        asks.append(Ask(f"r{i:02}", some, rng.randint(1, 12), rng.randrange(20)))
    return tuple(asks)


def pair(
    name: str, lifted: str, settings: dict[str, Any], asks: tuple[Ask, ...], steps: int, **lift: Any
) -> tuple[Run, Run]:
    """A run in which somebody waits, and the same with one setting changed."""
    return (
        Run(name, settings, (asks,), steps),
        Run(lifted, settings | lift, (asks,), steps, lifts=name),
    )


LONG = (Ask("ada", ((20, 96),)), Ask("bo", ((30, 96),)))
STEPWISE = pool(7, 112, long_prefill_token_threshold=16)
AFTER_ADA = (
    Ask("ada", ((20, 48),)),
    Ask("cy", ((50, 32),), 8, after=1),
    Ask("bo", ((20, 48), (30, 33)), after=2),
)
BESIDE_ADA = (
    Ask("ada", ((20, 48),), 8),
    Ask("bo", ((20, 48), (30, 33)), after=2),
)
QUEUE = (
    Ask("ada", ((20, 32),), 8),
    Ask("bo", ((30, 96),), after=1),
    Ask("cy", ((40, 16),), after=1),
)
MOMENTS = (
    *pair("two seats", "three seats", pool(40, 64, max_num_seqs=2),
          (Ask("ada", ((20, 16),), 4), Ask("bo", ((30, 16),), 4), Ask("cy", ((40, 16),), 4)), 9,
          max_num_seqs=3),
    *pair("32 tokens a step", "64 tokens a step",
          pool(40, 64, max_num_batched_tokens=32, max_num_seqs=8),
          (Ask("ada", ((20, 32),), 2), Ask("bo", ((30, 16),), 2)), 9, max_num_batched_tokens=64),
    *pair("the whole prompt", "the chunk alone", STEPWISE, LONG, 24,
          scheduler_reserve_full_isl=False),
    *pair("4 blocks", "5 blocks", pool(4, 64), (Ask("ada", ((20, 60),)),), 4,
          num_gpu_blocks_override=5),
    Run("4 blocks, chunk by chunk",
        pool(4, 64, max_num_batched_tokens=32, max_num_seqs=8, scheduler_reserve_full_isl=False),
        ((Ask("ada", ((20, 60),)),),), 6),
    *pair("hits that are free", "two blocks more", pool(8, 112), AFTER_ADA, 30,
          num_gpu_blocks_override=10),
    Run("hits that are held", pool(8, 112), (BESIDE_ADA,), 30),
    Run("cy behind bo", pool(7, 112), (QUEUE,), 30),
    Run("cy before bo", pool(7, 112), ((QUEUE[0], QUEUE[2], QUEUE[1]),), 30, lifts="cy behind bo"),
    Run("no reservation", STEPWISE, ((Ask("ada", ((20, 64),)), Ask("bo", ((30, 64),))),), 24),
    Run("1.00x, and three run", pool(5, 80),
        (tuple(Ask(name, ((20 + i, 16),), 48) for i, name in enumerate(("ada", "bo", "cy"))),)),
    Run("a crowd", pool(11, 128, max_num_seqs=4, max_num_batched_tokens=48,
                        long_prefill_token_threshold=32), (crowd(),)),
    Run("a crowd, chunk by chunk",
        pool(11, 128, max_num_seqs=4, max_num_batched_tokens=48,
             long_prefill_token_threshold=32, scheduler_reserve_full_isl=False), (crowd(),)),
)  # fmt: skip
"""Who waits, what stands in the way, and who is let in when it is taken away."""

KINDS = {
    "start": STARTS, "at_once": AT_ONCE, "grants": GRANTS, "hits": HITS, "moments": MOMENTS,
}  # fmt: skip
