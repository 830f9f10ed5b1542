"""Lab 05-03: the list of capture sizes, what it costs and what it wastes. The reference solution."""

from __future__ import annotations

from bisect import bisect_left
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
    """The README's nine questions."""
    return {
        "rungs for 256 people": 51,
        "captures for 256 people": 86,
        "captures for Kim alone": 3,
        "top rung for 21 people": 40,
        "top rung for a maximum of 42": 40,
        "top rung for steps of 300 tokens": 300,
        "33 tokens run as": 40,
        "513 tokens run as": 513,
        "rungs that the night steps on": 42,
    }


def capture_sizes(
    max_num_seqs: int,
    max_num_batched_tokens: int,
    *,
    max_cudagraph_capture_size: int | None = None,
    cudagraph_capture_sizes: Sequence[int] | None = None,
    uniform_decode_query_len: int = 1,
    performance_mode: str = "balanced",
) -> list[int]:
    """The ladder that vLLM 0.22.1 makes of these settings, rising."""
    top = max_cudagraph_capture_size
    if top is None:
        top = min(2 * max_num_seqs * uniform_decode_query_len, 512)
    top = min(top, max_num_batched_tokens)
    if top < 1:
        raise ValueError(f"max_cudagraph_capture_size must be at least 1, got {top}")
    if cudagraph_capture_sizes is not None:
        if not cudagraph_capture_sizes:
            raise ValueError("cudagraph_capture_sizes is empty: it must hold at least one size")
        sizes = {size for size in cudagraph_capture_sizes if size <= max_num_batched_tokens}
        largest = max(sizes, default=0)
        if max_cudagraph_capture_size not in (None, largest):
            raise ValueError(
                f"max_cudagraph_capture_size is {max_cudagraph_capture_size}, and the largest of "
                f"cudagraph_capture_sizes is {largest}: they must agree"
            )
        return sorted(sizes)
    low = range(1, 33) if performance_mode == "interactivity" else (1, 2, 4)
    sizes = {*low, *range(8, 256, 8), *range(256, 1 + top, 16)}
    if top == max_num_batched_tokens:
        sizes.add(top)
    return sorted(size for size in sizes if size <= top)


def padded(num_tokens: int, sizes: Sequence[int]) -> int:
    """The count of rows that a step of `num_tokens` is computed as."""
    place = bisect_left(sizes, num_tokens)
    return sizes[place] if place < len(sizes) else num_tokens


def captures(
    sizes: Sequence[int], max_num_seqs: int, uniform_decode_query_len: int = 1
) -> tuple[int, int]:
    """How many graphs a start captures under FULL_AND_PIECEWISE: pieces, and FULL ones."""
    longest = max_num_seqs * uniform_decode_query_len
    full = [size for size in sizes if uniform_decode_query_len <= size <= longest]
    return len(sizes), len(full)


def waste(steps: Sequence[int], sizes: Sequence[int]) -> Waste:
    """What the ladder makes of steps with these counts of tokens."""
    top = sizes[-1] if sizes else 0
    fits = [num_tokens for num_tokens in steps if num_tokens <= top]
    rows = sum(padded(num_tokens, sizes) for num_tokens in fits)
    return Waste(len(fits), len(steps) - len(fits), sum(fits), rows - sum(fits))


def visited(steps: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """The rungs that are stepped on, in the order of the first time."""
    top = sizes[-1] if sizes else 0
    rungs = [padded(num_tokens, sizes) for num_tokens in steps if num_tokens <= top]
    return list(dict.fromkeys(rungs))


def pays_after(num_captures: int, capture_us: int, saved_us: int) -> int:
    """After how many steps the captures have paid for themselves."""
    if saved_us <= 0:
        raise ValueError(f"a step must save something, got {saved_us} us: it never pays")
    return -(-num_captures * capture_us // saved_us)
