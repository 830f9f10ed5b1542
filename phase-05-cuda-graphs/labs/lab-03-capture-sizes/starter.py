"""Lab 05-03: the ladder of capture sizes, what it costs and what it wastes. Your work: every
NotImplementedError."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Waste(NamedTuple):
    """What a ladder makes of a run.

    Attributes:
        replayed: steps that a graph was replayed for.
        above: steps with more tokens than the top rung.
        tokens: tokens of the replayed steps.
        padding: rows that were added to them.
    """

    replayed: int
    above: int
    tokens: int
    padding: int


def predictions() -> dict[str, int]:
    """Your answers to the README's nine questions, under the names that stand there."""
    raise NotImplementedError


def capture_sizes(
    max_num_seqs: int,
    max_num_batched_tokens: int,
    *,
    max_cudagraph_capture_size: int | None = None,
    cudagraph_capture_sizes: Sequence[int] | None = None,
    uniform_decode_query_len: int = 1,
    performance_mode: str = "balanced",
) -> list[int]:
    """The ladder that vLLM 0.22.1 makes of these settings: sizes in tokens, rising, each once.

    The highest that is wanted is `max_cudagraph_capture_size`. Where nobody gave one, it is twice the tokens
    of the largest decode batch, and at most 512. In either case it is lowered to what a step can have.

    Rungs stand at 1, 2 and 4, then at multiples of 8, and from 256 on at multiples of 16, up to the highest
    that is wanted. With `interactivity` there is one at each count up to 32. The highest that is wanted is a
    rung only if it is one of these, or if it is `max_num_batched_tokens`.

    Sizes that the user gives replace all this. Those that no step can have are dropped, whatever the maximum,
    perhaps all of them. If a maximum is given as well, it must be, as it was given, the largest that is left.

    With drafts the rungs are not yet in whole requests: that is done later, in lab 05-04.

    Args:
        max_num_seqs: most requests in a step.
        max_num_batched_tokens: most tokens in a step.
        max_cudagraph_capture_size: the user's, or None.
        cudagraph_capture_sizes: the user's, each at least 1, in any order, some perhaps twice; or None.
        uniform_decode_query_len: tokens of a decoding request in a step, 1 and its drafts.
        performance_mode: `balanced`, `interactivity` or `throughput`.

    Raises ValueError if the highest that is wanted is below 1, if the user's sizes are empty, and if they
    disagree with the user's maximum (naming both numbers).
    """
    raise NotImplementedError


def padded(num_tokens: int, sizes: Sequence[int]) -> int:
    """The count of rows that a step of `num_tokens` tokens, at least 1, is computed as.

    It is the lowest rung that holds the step. Above the top rung no graph is replayed, so nothing is padded.
    """
    raise NotImplementedError


def captures(
    sizes: Sequence[int], max_num_seqs: int, uniform_decode_query_len: int = 1
) -> tuple[int, int]:
    """How many captures a start makes under FULL_AND_PIECEWISE, the default: in pieces, and FULL ones.

    Each rung is captured in pieces once, for mixed batches. FULL graphs are for decode batches alone, so a
    rung gets one only if it is no larger than the largest decode batch, and no smaller than one request.

    Args:
        sizes: the ladder.
        max_num_seqs: most requests in a step.
        uniform_decode_query_len: tokens of a decoding request.
    """
    raise NotImplementedError


def waste(steps: Sequence[int], sizes: Sequence[int]) -> Waste:
    """What the ladder makes of a run.

    Args:
        steps: tokens of each step.
        sizes: the ladder; it may be empty, as with `enforce_eager`.
    """
    raise NotImplementedError


def visited(steps: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """The rungs that a run steps on, in the order of the first time.

    A server with one kind of graphs would capture so many, if it captured each size when it first comes up.
    """
    raise NotImplementedError


def pays_after(num_captures: int, capture_us: int, saved_us: int) -> int:
    """The least number of steps after which what they have saved is no less than what the captures took.

    Args:
        num_captures: how many captures the start made.
        capture_us: microseconds that one takes.
        saved_us: microseconds that a step is shorter with a graph.

    Raises ValueError, with the number, if a step saves nothing, even where nothing was captured.
    """
    raise NotImplementedError
