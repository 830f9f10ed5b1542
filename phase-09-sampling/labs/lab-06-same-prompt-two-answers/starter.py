"""Lab 09-06: two answers to one prompt: which layer moved, and the proof. Your work: every
NotImplementedError.

Positions in an answer are counted from 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace  # noqa: F401
from typing import Any


@dataclass(frozen=True)
class Situation:
    """Given: a request and how it is served.

    Attributes:
        prompt: its token ids.
        temperature, top_k, top_p, seed: as in `SamplingParams`; top_k 0: off, seed None: it has none.
        neighbours: a request for each, which stands before ours in the batch and stays as long as it. A
            number is its seed, None: it has none, "greedy": its temperature is 0.
        warm: the same prompt was served before, so its full blocks are in the prefix cache.
        token_budget: `max_num_batched_tokens`; a prompt that does not fit into a step comes in chunks.
        cpu_path: the sampler is that of vLLM's CPU build. It uses seeds in batches where every row draws and
            has a seed, and otherwise ignores all of them.
    """

    prompt: tuple[int, ...] = ()
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    neighbours: tuple[int | str | None, ...] = ()
    warm: bool = False
    token_budget: int = 256
    cpu_path: bool = False


@dataclass(frozen=True)
class Run:
    """Given: what was logged of a request.

    Attributes:
        situation: as it was asked and served.
        tokens: the answer.
        best: per token of the answer, the logprobs of the two likeliest tokens there, the larger first. Raw:
            as the model gave them, before temperature and every other knob.
        cached: prompt tokens found in the prefix cache.
        chunks: how many prompt tokens each step computed; the cached ones are in none of them.
        batches: per token of the answer, how many requests were in its step.
    """

    situation: Situation
    tokens: tuple[int, ...]
    best: tuple[tuple[float, float], ...]
    cached: int
    chunks: tuple[int, ...]
    batches: tuple[int, ...]


@dataclass(frozen=True)
class Proof:
    """Given: what moving one setting does.

    Attributes:
        enough: run a with this setting of b, and all else its own, gives b's answer.
        needed: run b with this setting of a, and all else its own, gives a's answer.
    """

    enough: bool
    needed: bool


def predictions() -> dict[str, Any]:
    """Your answers to the README's six questions, under the names that stand there."""
    raise NotImplementedError


def parts_at(a: Run, b: Run) -> int | None:
    """The first position at which both answers have a token and the tokens differ; None: nowhere."""
    raise NotImplementedError


def draws(run: Run, at: int) -> bool:
    """Could another random number give another token at position `at`?

    Not below a temperature of 1e-5. With top_k 1 neither, unless the two likeliest tokens have equal
    logprobs: top_k keeps every token that is as likely as the last one kept.
    """
    raise NotImplementedError


def layer(a: Run, b: Run, at: int) -> str:
    """Where the difference at position `at`, the first one, came in.

    Returns:
        "sampler": the model gave both runs the same logprobs.
        "model": it did not, and no random number could move either of the tokens.
        "either": it did not, and the sampler may have moved them as well.
    """
    raise NotImplementedError


def suspects(a: Run, b: Run) -> set[str]:
    """What differs between two runs and can be why they part, as names:

    In the model, unless the layer is the sampler:
        "prefix hit": other numbers of cached tokens.
        "chunks": the prompt is cut at other places. Only cuts behind the tokens that either run had in the
            cache count: what was not computed cannot have been cut.
        "batch": another number of requests in the step of a token, up to the first differing one.
    In the sampler, unless the layer is the model:
        "knobs": another temperature, top_k or top_p. A run that does not draw there has no knobs at all.
        "seed", if both draw there: other seeds, or no seed at all.
        "neighbours", if both draw there and have the same seed: it is ignored in one of them (`cpu_path`).

    Where the runs do not part, nothing is suspected.
    """
    raise NotImplementedError


def prove(play: Callable[[Situation], Run], a: Run, b: Run) -> dict[str, Proof]:
    """For each setting in which the situations differ, what it does when it alone is moved.

    Args:
        play: serves a situation on a fresh engine.

    First both runs are repeated: where one does not give its logged tokens again, something that is no
    setting has moved, and nothing can be proved.

    Raises:
        ValueError: a repeated run gives other tokens.
    """
    raise NotImplementedError
