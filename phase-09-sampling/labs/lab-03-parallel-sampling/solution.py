"""Lab 09-03: n completions of one prompt, as n ordinary requests. A solution.

Child i of a request is its completion with index i. P is the number of tokens in the prompt.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from mini_vllm.outputs import CompletionOutput
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Case:
    """Given: a request with n completions, and the server that it comes to."""

    num_prompt_tokens: int
    n: int
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 512
    served_before: bool = False
    prompt_logprobs: bool = False


def predictions() -> dict[str, Any]:
    """Your answers to the README's five questions, under the names given there."""
    return {
        "two requests": 4,
        "cached": [0, 112, 112, 112],
        "a haiku": [0, 0, 0, 0],
        "one at a time": [0, 112, 112, 112],
        "the first step": [120, 8],
    }


# ---- the children --------------------------------------------------------------------------------


def child_params(params: SamplingParams, index: int) -> SamplingParams:
    """The parameters of child `index`."""
    child = copy.copy(params)
    child.n = 1
    if child.seed is not None:
        child.seed += index
    return child


def same_children(first: SamplingParams, second: SamplingParams) -> list[tuple[int, int]]:
    """Which children of two requests with one prompt are sure to give the same text."""
    if first.seed is None or second.seed is None:
        return []
    pairs = [(i, j) for i in range(first.n) for j in range(second.n)]
    return [(i, j) for i, j in pairs if first.seed + i == second.seed + j]


# ---- what they share -----------------------------------------------------------------------------


def cached_tokens(case: Case) -> list[int]:
    """The prompt tokens that each child finds in the prefix cache."""
    if case.prompt_logprobs:
        return [0] * case.n
    shared = (case.num_prompt_tokens - 1) // BLOCK_SIZE * BLOCK_SIZE
    return [shared if index or case.served_before else 0 for index in range(case.n)]


def cached_share(case: Case) -> float:
    """Which share of all children's prompt tokens comes from the cache."""
    return sum(cached_tokens(case)) / (case.n * case.num_prompt_tokens)


def first_step(case: Case) -> list[int]:
    """The prompt tokens that the first step computes, for each child that is in it."""
    left = case.max_num_batched_tokens
    computed = []
    for cached in cached_tokens(case)[: case.max_num_seqs]:
        if not left:
            break
        computed.append(min(case.num_prompt_tokens - cached, left))
        left -= computed[-1]
    return computed


# ---- their outputs -------------------------------------------------------------------------------


class Parent:
    """Makes one request's answer of its children's outputs."""

    def __init__(self, n: int, output_kind: RequestOutputKind) -> None:
        self.running = set(range(n))
        self.final_only = output_kind is RequestOutputKind.FINAL_ONLY
        self.outputs: dict[int, CompletionOutput] = {}

    def take(self, output: CompletionOutput) -> tuple[list[CompletionOutput], bool]:
        """What to pass on now, and whether the request has finished."""
        again = output.index not in self.running
        if output.finished():
            self.running.discard(output.index)
        self.outputs[output.index] = output
        finished = not self.running
        if not self.final_only:
            return [] if again else [output], finished
        return [self.outputs[i] for i in sorted(self.outputs)] if finished else [], finished
