"""Lab 09-04: beam search over an engine that knows nothing of beams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mini_vllm import SamplingParams

Answer = dict[int, float]
"""A sequence's next tokens, each with its log probability."""
Ask = Callable[[list[list[int]], int], list[Answer]]
"""`ask(sequences, num_candidates)`: the likeliest next tokens of each sequence."""


@dataclass(frozen=True)
class Beam:
    """A sequence in the search.

    Attributes:
        tokens: prompt and output.
        cum_logprob: the log probability of the output.
    """

    tokens: list[int]
    cum_logprob: float = 0.0


def predictions() -> dict[str, Any]:
    """Answers to the README's five questions."""
    return {
        "requests": 37,
        "computed": 20,
        "winner": ["B", "A"],
        "candidates": 6,
        "enough": 4,
    }


def num_candidates(beam_width: int) -> int:
    """How many tokens the search asks for per beam."""
    return 2 * beam_width


def score(tokens: Sequence[int], cum_logprob: float, eos: int, length_penalty: float) -> float:
    """What beams are ranked by; higher is better."""
    length = len(tokens)
    if tokens[-1] == eos:
        length -= 1
    return cum_logprob / length**length_penalty


def ask_engine(llm: Any, sequences: list[list[int]], num_candidates: int) -> list[Answer]:
    """Ask a `mini_vllm.LLM`: one request for one token per sequence."""
    params = SamplingParams(max_tokens=1, logprobs=num_candidates, temperature=0)
    prompts = [{"prompt_token_ids": tokens} for tokens in sequences]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [
        {token: said.logprob for token, said in output.outputs[0].logprobs[0].items()}
        for output in outputs
    ]


def extend(
    beams: Sequence[Beam], answers: Sequence[Answer], eos: int, ignore_eos: bool
) -> tuple[list[Beam], list[Beam]]:
    """Every beam by each of its candidates: those that go on, and those that end."""
    going_on, ended = [], []
    for beam, answer in zip(beams, answers, strict=True):
        for token, logprob in answer.items():
            longer = Beam([*beam.tokens, token], beam.cum_logprob + logprob)
            if token == eos and not ignore_eos:
                ended.append(longer)
            else:
                going_on.append(longer)
    return going_on, ended


def beam_search(
    ask: Ask,
    prompt: list[int],
    beam_width: int,
    max_tokens: int,
    eos: int,
    length_penalty: float = 1.0,
    ignore_eos: bool = False,
) -> list[Beam]:
    """The best `beam_width` beams that the search finds, best first."""

    def best(some: list[Beam]) -> list[Beam]:
        some = sorted(
            some,
            key=lambda beam: score(beam.tokens, beam.cum_logprob, eos, length_penalty),
            reverse=True,
        )
        return some[:beam_width]

    beams, ended = [Beam(prompt)], list[Beam]()
    for _ in range(max_tokens):
        if not beams:
            break
        answers = ask([beam.tokens for beam in beams], num_candidates(beam_width))
        going_on, ends = extend(beams, answers, eos, ignore_eos)
        beams = best(going_on)
        ended += ends
    return best(ended + beams)


def find_worse(
    make_ask: Callable[[int], Ask], num_tables: int, widths: Sequence[int], max_tokens: int
) -> tuple[int, int, int] | None:
    """The first random model on which a wider search ends worse: its number, a width, a wider one."""
    for number in range(num_tables):
        ask = make_ask(number)
        found = [
            (width, beam_search(ask, [0], width, max_tokens, eos=-1)[0].cum_logprob)
            for width in widths
        ]
        for i, (narrow, before) in enumerate(found):
            for wide, after in found[i + 1 :]:
                if after < before:
                    return number, narrow, wide
    return None
