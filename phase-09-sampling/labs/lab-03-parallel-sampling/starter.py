"""Lab 09-03: n completions of one prompt, as n ordinary requests. Your work: every NotImplementedError.

Child i of a request is its completion with index i. P is the number of tokens in the prompt.
"""

from __future__ import annotations

import copy  # noqa: F401
from dataclasses import dataclass
from typing import Any

from mini_vllm.outputs import CompletionOutput
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Case:
    """Given: a request with n completions, and the server that it comes to.

    No other request is served, there are enough blocks, and prompts may be computed in chunks.

    Attributes:
        num_prompt_tokens: P.
        n: how many completions are asked for.
        max_num_seqs: this many requests run at once. The others wait until one finishes.
        max_num_batched_tokens: the token budget of a step, at least `max_num_seqs`.
        served_before: another request had the same prompt and has finished. Else the cache is empty.
        prompt_logprobs: the request asks for them. It reads nothing from the cache, because a token's
            logprob comes from the row of the token before it, which must be computed. It writes to the cache
            as any other does.
    """

    num_prompt_tokens: int
    n: int
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 512
    served_before: bool = False
    prompt_logprobs: bool = False


def predictions() -> dict[str, Any]:
    """Your answers to the README's five questions, under the names given there."""
    raise NotImplementedError


# ---- the children --------------------------------------------------------------------------------


def child_params(params: SamplingParams, index: int) -> SamplingParams:
    """The parameters of child `index`: an ordinary request with one completion.

    A seed, if there is one, becomes seed + index. All else is as in `params`, which stay as they are.
    """
    raise NotImplementedError


def same_children(first: SamplingParams, second: SamplingParams) -> list[tuple[int, int]]:
    """Which children of two requests with one prompt are sure to give the same text.

    Args:
        first, second: they differ at most in `n` and `seed`, and draw: their temperature is above 0. A
            request without a seed draws from a stream that all such requests share.

    Returns:
        Pairs (i, j), sorted: child i of the first and child j of the second.
    """
    raise NotImplementedError


# ---- what they share -----------------------------------------------------------------------------


def cached_tokens(case: Case) -> list[int]:
    """The prompt tokens that each child finds in the prefix cache, by index. The README has the rules."""
    raise NotImplementedError


def cached_share(case: Case) -> float:
    """What share of the children's n * P prompt tokens comes from the cache, from 0 to 1."""
    raise NotImplementedError


def first_step(case: Case) -> list[int]:
    """The prompt tokens that the engine's first step computes, for each child that is in it.

    Children are admitted by index, until the slots or the budget are used up. Each gets what its prompt
    lacks after the cache, or what is left of the budget. A child that gets nothing is not in the list.
    """
    raise NotImplementedError


# ---- their outputs -------------------------------------------------------------------------------


class Parent:
    """Merges the outputs of n children into one request's answer.

    Args:
        n: how many children there are.
        output_kind: with FINAL_ONLY the caller gets one list, when all have finished; with the other
            kinds, each output as it comes.
    """

    def __init__(self, n: int, output_kind: RequestOutputKind) -> None:
        """All n children are running, and none has given any output."""
        raise NotImplementedError

    def take(self, output: CompletionOutput) -> tuple[list[CompletionOutput], bool]:
        """What to pass on now, and whether the request has finished: all its children have.

        FINAL_ONLY: nothing until every child has finished, and then the last output of each, by index. What
        happens after that is not tested.
        The other kinds: only this output; but if a child's end comes again, it is not passed on.

        Args:
            output: one child's; `output.index` says whose, `output.finished()` whether it ends the child.
        """
        raise NotImplementedError
