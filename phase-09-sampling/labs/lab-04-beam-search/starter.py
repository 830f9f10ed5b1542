"""Lab 09-04: beam search over an engine that knows nothing of beams. Your work: every NotImplementedError."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mini_vllm import SamplingParams  # noqa: F401

Answer = dict[int, float]
"""A sequence's next tokens, each with its log probability."""
Ask = Callable[[list[list[int]], int], list[Answer]]
"""`ask(sequences, num_candidates)`: the likeliest next tokens of each sequence, from an engine or a table."""


@dataclass(frozen=True)
class Beam:
    """Given: a sequence in the search.

    Attributes:
        tokens: prompt and output.
        cum_logprob: the log probability of the output.
    """

    tokens: list[int]
    cum_logprob: float = 0.0


def predictions() -> dict[str, Any]:
    """Your answers to the README's five questions, under the names given there."""
    raise NotImplementedError


def num_candidates(beam_width: int) -> int:
    """How many tokens the search asks for per beam: vLLM's number, the README's K of `candidates`."""
    raise NotImplementedError


def score(tokens: Sequence[int], cum_logprob: float, eos: int, length_penalty: float) -> float:
    """What ranks beams: the log probability over the length to the power of `length_penalty`.

    Args:
        tokens: all the beam's tokens, the prompt's too. Their number is the length; an EOS in the last
            position does not count, even in a search that ignores EOS.
        eos: the EOS token's id.

    Returns: the higher the better.
    """
    raise NotImplementedError


def ask_engine(llm: Any, sequences: list[list[int]], num_candidates: int) -> list[Answer]:
    """Ask the engine what may come next: one request for one token per sequence, all in one `generate`.

    Args:
        llm: a `mini_vllm.LLM`. Its `generate` takes prompts as {"prompt_token_ids": tokens}, and keyword
            `use_tqdm=False`. `SamplingParams(logprobs=k)` asks for k tokens' log probabilities. They are in
            `output.outputs[0].logprobs`: one dict per output token, from token to an object with `.logprob`.
        num_candidates: how many tokens' log probabilities to ask for, at temperature 0.

    Returns: per sequence, those tokens and their log probabilities, as floats.
    """
    raise NotImplementedError


def extend(
    beams: Sequence[Beam], answers: Sequence[Answer], eos: int, ignore_eos: bool
) -> tuple[list[Beam], list[Beam]]:
    """Extend every beam by each of its candidates.

    Args:
        answers: one per beam.
        ignore_eos: EOS is a token like others, and ends nothing.

    Returns: those that go on, and those that end by EOS, which stays in their tokens.
    """
    raise NotImplementedError


def beam_search(
    ask: Ask,
    prompt: list[int],
    beam_width: int,
    max_tokens: int,
    eos: int,
    length_penalty: float = 1.0,
    ignore_eos: bool = False,
) -> list[Beam]:
    """The best beams that the search finds.

    It begins with the prompt as its only beam. In each of `max_tokens` steps all beams are extended, and the
    best `beam_width` of those that go on, by `score`, are the next beams. It ends early if there are none.
    Beams that have ended only wait for the end, when all compete.

    Returns: the best `beam_width` of those that ended and those that the last step left, best first.
    """
    raise NotImplementedError


def find_worse(
    make_ask: Callable[[int], Ask], num_tables: int, widths: Sequence[int], max_tokens: int
) -> tuple[int, int, int] | None:
    """The first random model on which a wider search ends worse.

    Search each with `beam_search` from the prompt [0] with `eos=-1`, which is no token's id. All outputs are
    equally long then, so compare the best beams' `cum_logprob`.

    Args:
        make_ask: gives the random model with a number. Search models 0, 1, ... `num_tables` - 1, in order.
        widths: to be tried, in ascending order.

    Returns: the model's number, a width, and any wider one whose best beam is less likely; None: there is
        none.
    """
    raise NotImplementedError
