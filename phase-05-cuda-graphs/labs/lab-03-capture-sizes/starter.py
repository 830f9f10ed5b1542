"""Lab 05-03: the list of capture sizes, what it costs and what it wastes. Your work: every
NotImplementedError."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Waste(NamedTuple):
    """What a list of capture sizes makes of a run.

    Attributes:
        replayed: steps that a graph was replayed for.
        above: steps with more tokens than the largest size.
        tokens: tokens of the replayed steps.
        padding: rows that were added to those steps.
    """

    replayed: int
    above: int
    tokens: int
    padding: int


def predictions() -> dict[str, int]:
    """Your answers to the README's nine questions, under its names."""
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
    """The list that vLLM 0.22.1 makes of these settings: sizes in tokens, rising, each once.

    The highest size wanted is `max_cudagraph_capture_size`. If the user gave none, it is twice the tokens
    of the largest decode batch, but at most 512. In either case it is lowered to what a step can have.

    The sizes are 1, 2 and 4, then multiples of 8, and from 256 on multiples of 16, up to the highest
    wanted. With `interactivity` every number up to 32 is a size. The highest wanted is itself a size only
    if it is one of these, or if it is `max_num_batched_tokens`.

    Sizes that the user gives replace all this. Those that no step can have are dropped, whatever the maximum,
    perhaps all of them. If the user also gives a maximum, it must, as given, equal the largest size left.

    With speculative tokens the sizes are not yet in whole requests: that is done later, in lab 05-04.

    Args:
        max_num_seqs: most requests in a step.
        max_num_batched_tokens: most tokens in a step.
        max_cudagraph_capture_size: the user's, or None.
        cudagraph_capture_sizes: the user's, each at least 1, in any order, some perhaps twice; or None.
        uniform_decode_query_len: tokens of a decoding request in a step, 1 plus its speculative tokens.
        performance_mode: `balanced`, `interactivity` or `throughput`.

    Raises ValueError if the highest size wanted is below 1, if the user's sizes are empty, and if they
    disagree with the user's maximum (naming both numbers).
    """
    raise NotImplementedError


def padded(num_tokens: int, sizes: Sequence[int]) -> int:
    """How many rows a step of `num_tokens` tokens, at least 1, is computed as.

    It is the smallest size that holds the step. Above the largest no graph is replayed, so nothing is padded.
    """
    raise NotImplementedError


def captures(
    sizes: Sequence[int], max_num_seqs: int, uniform_decode_query_len: int = 1
) -> tuple[int, int]:
    """How many captures a start makes under FULL_AND_PIECEWISE, the default: in pieces, and FULL ones.

    Each size is captured in pieces once, for mixed batches. FULL graphs are for decode batches alone, so a
    size gets one only if it is no larger than the largest decode batch, and no smaller than one request.

    Args:
        sizes: the capture sizes.
        max_num_seqs: most requests in a step.
        uniform_decode_query_len: tokens of a decoding request.
    """
    raise NotImplementedError


def waste(steps: Sequence[int], sizes: Sequence[int]) -> Waste:
    """What the capture sizes make of a run.

    Args:
        steps: tokens of each step.
        sizes: the capture sizes; the list may be empty, as with `enforce_eager`.
    """
    raise NotImplementedError


def visited(steps: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """The sizes that a run uses, in the order of first use.

    A server with one kind of graphs would make this many captures if it captured late, at each first use.
    """
    raise NotImplementedError


def pays_after(num_captures: int, capture_us: int, saved_us: int) -> int:
    """The fewest steps that together save at least the time that the captures took.

    Args:
        num_captures: how many captures the start made.
        capture_us: microseconds that one takes.
        saved_us: microseconds that a graph saves per step.

    Raises ValueError, with the number, if a step saves nothing, even if nothing was captured.
    """
    raise NotImplementedError
