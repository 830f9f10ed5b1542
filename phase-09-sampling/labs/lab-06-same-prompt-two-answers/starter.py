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
        neighbours: one request per entry, which comes before ours in the batch and stays as long as ours.
            A number is its seed, None: it has none, "greedy": its temperature is 0.
        warm: the same prompt was served before, so its full blocks are in the prefix cache.
        token_budget: `max_num_batched_tokens`; a prompt that does not fit into a step is computed in chunks.
        cpu_path: the sampler is that of vLLM's CPU build. It uses seeds if every row of the batch draws
            and has a seed. Otherwise it ignores all of them, and draws from a stream that all rows share.
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
    """Your answers to the README's six questions, under the names given there."""
    raise NotImplementedError


def parts_at(a: Run, b: Run) -> int | None:
    """The first position at which both answers have a token and the tokens differ; None: nowhere."""
    raise NotImplementedError


def draws(run: Run, at: int) -> bool:
    """Could another random number give another token at position `at`?

    No below a temperature of 1e-5. No with top_k 1, unless the two likeliest tokens have equal logprobs
    there: top_k keeps every token that is as likely as the last one kept. Else yes; top_p is not looked at.
    A seed says which number comes, and the question is whether another one would matter.
    """
    raise NotImplementedError


def layer(a: Run, b: Run, at: int) -> str:
    """Which layer the difference at position `at`, the first one, comes from.

    Returns:
        "sampler": the model gave both runs the same two logprobs there.
        "model": they differ in a bit, and in neither run could another random number give another token.
        "either": they differ in a bit, and in one run at least another random number could.
    """
    raise NotImplementedError


def suspects(a: Run, b: Run) -> set[str]:
    """The differences between two runs that may be why they part, by name.

    In the model, unless the layer is the sampler:
        "prefix hit": they had different numbers of tokens in the cache.
        "chunks": they cut the prompt at different places. A cut is the number of prompt tokens before it,
            and counts if it is greater than `cached` of both runs: what was not computed was not cut.
        "batch": different numbers of requests in the step of a token, up to the first differing one.
    In the sampler, unless the layer is the model:
        "knobs", if one run at least draws there: different temperature, top_k or top_p.
        "seed", if both draw there: their seeds differ, or neither has one.
        "neighbours", if both draw there and have the same seed: in one run at least the sampler ignores it,
            because of the requests beside it (see `cpu_path`). The neighbours themselves may be equal.

    If the runs do not part, nothing is suspected.
    """
    raise NotImplementedError


def prove(play: Callable[[Situation], Run], a: Run, b: Run) -> dict[str, Proof]:
    """For each setting in which the situations differ, what moving it alone does.

    Args:
        play: serves a situation on a fresh engine.

    An answer is given again if all its tokens are the same; logprobs may differ. First both runs are
    repeated: if one does not give its logged answer again, something other than a setting has moved, and
    nothing can be proved.

    Raises:
        ValueError: a repeated run gives other tokens.
    """
    raise NotImplementedError
