"""Given: what is asked of real vLLM. Settings, people and texts, nothing else.

A group is one start of vLLM on the shipped checkpoint. Its workloads follow one another, each with an empty
prefix cache. A workload has rounds: the requests of a round are added together, and the next round begins
when all of them are done. A token of the shipped checkpoint is a byte, and one more token begins each text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ask:
    """One request.

    Attributes:
        name: who asks.
        text: the prompt. With `follows`, what is said next.
        max_tokens: the length of the answer; nobody stops earlier.
        salt: `cache_salt`.
        prompt_logprobs: whether logprobs of the prompt are asked for.
        follows: somebody of an earlier round. Prompt and answer of that request stand before the text.
    """

    name: str
    text: str
    max_tokens: int = 1
    salt: str | None = None
    prompt_logprobs: bool = False
    follows: str | None = None


@dataclass(frozen=True)
class Workload:
    """Rounds of requests."""

    name: str
    rounds: tuple[tuple[Ask, ...], ...]


@dataclass(frozen=True)
class Group:
    """One start of vLLM, and what it is asked."""

    name: str
    settings: dict[str, Any]
    workloads: tuple[Workload, ...]


def pool(blocks: int, max_model_len: int, **more: Any) -> dict[str, Any]:
    """Settings of a pool of so many blocks of 16, the null block among them."""
    named = {"num_gpu_blocks_override": blocks, "max_model_len": max_model_len}
    return named | {"kv_cache_memory_bytes": 2**26, "block_size": 16} | more


def text(num_tokens: int, seed: str = "Shelf by shelf, row by row. ") -> str:
    """A text that has so many tokens, with the one that begins it."""
    return (seed * num_tokens)[: num_tokens - 1]


def one_by_one(name: str, *asks: Ask) -> Workload:
    """Each asks when the one before has the answer."""
    return Workload(name, tuple((ask,) for ask in asks))


DOCUMENT = "A scheduler decides who runs in each step."
LIBRARY = "You answer for the city library. Be brief, be kind, and name the shelf. "

NOON = Workload(
    "noon",
    (
        (
            Ask("eve", "Why now?", 20),
            Ask("fay", f"{DOCUMENT} So?", 6),
            Ask("gil", f"{DOCUMENT} Who?", 6),
            Ask("hal", "The seat", 5),
        ),
    ),
)
PAPER = Workload(
    "one document",
    (tuple(Ask(f"reader-{i}", f"{text(304)} Question {i}: why?", 4) for i in range(8)),),
)
COPIES = Workload("four copies", (tuple(Ask(f"copy-{i}", text(64), 2) for i in range(4)),))

STORIES = (
    one_by_one(
        "the second turn",
        Ask("fay", f"{DOCUMENT} So?", 24),
        Ask("fay-again", " And then?", 1, follows="fay"),
    ),
    one_by_one("a few words", Ask("fay", "Why now?"), Ask("gil", "Why now?")),
    one_by_one("16 tokens", Ask("fay", text(16)), Ask("gil", text(16))),
    one_by_one("17 tokens", Ask("fay", text(17)), Ask("gil", text(17))),
    one_by_one(
        "the clock in front",
        Ask("fay", f"12:03. {LIBRARY}Where are the maps?"),
        Ask("gil", f"12:04. {LIBRARY}Where are the maps?"),
    ),
    one_by_one(
        "the clock behind",
        Ask("fay", f"{LIBRARY}It is 12:03. Where are the maps?"),
        Ask("gil", f"{LIBRARY}It is 12:04. Where are the maps?"),
    ),
    one_by_one(
        "the name in front",
        Ask("fay", f"Fay asks. {LIBRARY}Where are the maps?"),
        Ask("gil", f"Gil asks. {LIBRARY}Where are the maps?"),
    ),
    one_by_one(
        "one word more in front",
        Ask("fay", f"{LIBRARY}Where are the maps?"),
        Ask("gil", f"Please! {LIBRARY}Where are the maps?"),
    ),
    one_by_one(
        "a short beginning",
        Ask("fay", "You are kind. Where do I find maps of the old harbour?"),
        Ask("gil", "You are kind. Until when is the reading room open today?"),
    ),
    one_by_one("strangers", Ask("fay", text(40)), Ask("gil", text(40, "Maps of the old harbour. "))),
    one_by_one(
        "tenants",
        Ask("fay", f"{LIBRARY}Maps?", salt="east"),
        Ask("gil", f"{LIBRARY}Maps?", salt="west"),
        Ask("hal", f"{LIBRARY}Maps?"),
        Ask("eve", f"{LIBRARY}Maps?", salt="east"),
    ),
    one_by_one(
        "prompt logprobs",
        Ask("fay", f"{LIBRARY}Maps?"),
        Ask("gil", f"{LIBRARY}Maps?", prompt_logprobs=True),
        Ask("hal", f"{LIBRARY}Maps?"),
    ),
    one_by_one(
        "prompt logprobs first",
        Ask("fay", f"{LIBRARY}Maps?", prompt_logprobs=True),
        Ask("gil", f"{LIBRARY}Maps?"),
    ),
)  # fmt: skip
"""Who finds what, and above all who finds nothing."""

ROOMY = pool(201, 512)
GROUPS = (
    Group("caching on", ROOMY, (NOON, PAPER, COPIES, *STORIES)),
    Group("caching off", ROOMY | {"enable_prefix_caching": False}, (NOON, PAPER, COPIES)),
    Group(
        "the default block",
        {"max_model_len": 512, "kv_cache_memory_bytes": 2**26},  # a CPU's default is 128 tokens
        (
            one_by_one("100 tokens", Ask("fay", text(100)), Ask("gil", text(100))),
            one_by_one("200 tokens", Ask("fay", text(200)), Ask("gil", text(200))),
            one_by_one(
                "the library, and 200 tokens more",
                Ask("fay", LIBRARY + text(200)),
                Ask("gil", LIBRARY + text(200, "Maps of the old harbour. ")),
            ),
        ),
    ),
    Group(
        "eight blocks",
        pool(9, 128),
        (
            one_by_one(
                "somebody between",
                Ask("fay", text(60)),
                Ask("eve", text(113, "Maps of the old harbour. ")),
                Ask("gil", text(60)),
            ),
            Workload(
                "preempted",
                (
                    (
                        Ask("eve", text(40), 40),
                        Ask("fay", text(40, "Maps of the old harbour. "), 40),
                    ),
                ),
            ),
        ),
    ),
    Group(
        "the line",
        pool(6, 80),
        (
            Workload(
                "in line",
                ((Ask("eve", text(64), 6), Ask("hal", text(64, "Maps of the old harbour. "))),),
            ),
        ),
    ),
    Group(
        "the line, in pieces",
        pool(7, 112, max_num_batched_tokens=16),
        (
            Workload(
                "in pieces",
                ((Ask("eve", text(96)), Ask("hal", text(96, "Maps of the old harbour. "))),),
            ),
        ),
    ),
    Group(
        "no reservation",
        pool(7, 112, long_prefill_token_threshold=16),
        (
            Workload(
                "preempted before the first token",
                ((Ask("eve", text(64)), Ask("fay", text(64, "Maps of the old harbour. "))),),
            ),
        ),
    ),
    Group(
        "the long wait",
        pool(65, 1024),
        (
            Workload(
                "the long wait",
                (
                    (Ask("fay", text(1008)),),
                    (Ask("eve", text(16, "Maps of the old harbour. "), 1000), Ask("gil", text(1010))),
                ),
            ),
        ),
    ),
)  # fmt: skip
"""All starts."""
