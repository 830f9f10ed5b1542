"""Given for lab 05-03: what vLLM said, the steps of the night, and a message for the first difference."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
in_vllm = load_module(HERE / "in_vllm.py", "lab_05_03_in_vllm")
steps = load_module(HERE / "steps.py", "lab_05_03_steps")
grid = load_module(ROOT / "tests/engine/helpers/cudagraph_grid.py", "lab_05_03_grid")


@cache
def asked() -> dict[str, dict[str, Any]]:
    """vLLM's answers to the cases of in_vllm.py, from a whole `VllmConfig`."""
    return dict(in_vllm.recorded())


@cache
def night() -> list[int]:
    """Tokens of each step of the night."""
    return [step.num_tokens for step in steps.night()]


@cache
def ladders() -> list[tuple[dict[str, Any], str]]:
    """Settings, and the ladder that vLLM made of them as a text, or `error`: 11,280 of them."""
    _, theirs = grid.load()
    asked_for = [
        {
            "max_num_seqs": one.max_num_seqs,
            "max_num_batched_tokens": one.max_num_batched_tokens,
            "max_cudagraph_capture_size": one.maximum,
            "cudagraph_capture_sizes": None if one.sizes is None else list(one.sizes),
            "uniform_decode_query_len": one.query_len,
            "performance_mode": one.performance_mode,
        }
        for one in grid.ladders()
    ]
    return list(zip(asked_for, theirs["ladders"], strict=True))


def told(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def same_as_vllm(lab: ModuleType, wanted: Any, rule: str) -> None:
    """`lab.capture_sizes` says what vLLM says wherever `wanted(settings)` holds."""
    count, wrong, first = 0, 0, ""
    for settings, theirs in ladders():
        if not wanted(settings):
            continue
        count += 1
        try:
            got = lab.capture_sizes(**settings)
            kind = type(got).__name__
            assert kind == "list", f"{told(settings)}: a ladder is a list, and yours a {kind}"
            yours = " ".join(map(str, got))
        except ValueError:
            yours = "error"
        if yours != theirs:
            wrong += 1
            first = first or f"{told(settings)}: vLLM has {short(theirs)}, you {short(yours)}"
    assert count, "the record has no such question: do not change it"
    assert not wrong, f"{wrong} of {count} ladders are not the same. The first: {first}. {rule}"


def short(ladder: str) -> str:
    """A ladder in short."""
    return ladder if ladder == "error" else f"[{in_vllm.ladder([int(x) for x in ladder.split()])}]"


def least_padding(values: list[int], n: int) -> int:
    """The least padding of at most `n` rungs, by trying all sets of them."""
    found = sorted(set(values))
    return min(
        sum(min(rung for rung in (*some, found[-1]) if rung >= value) - value for value in values)
        for some in itertools.combinations(found[:-1], min(n, len(found)) - 1)
    )


def grid_padded(num_tokens: int, sizes: list[int]) -> int:
    """The lowest of `sizes` that holds `num_tokens`."""
    return next(size for size in sizes if size >= num_tokens)


def best_sizes(steps: Sequence[int], n: int) -> list[int]:
    """The list of at most `n` sizes, rising, that holds every one of `steps` and adds the least padding.

    Each size is one of the counts, because a size between two counts can be lowered to the next count and
    pads no more. Raises ValueError if `n` is below 1.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    counts = sorted(Counter(steps).items())
    # least[j]: the least padding of the j smallest counts, the last of them a size, and those sizes.
    least: list[tuple[int, list[int]]] = [(0, [])]
    reach = [least[0]] + [(2**62, list[int]()) for _ in counts]
    for _ in range(min(n, len(counts))):
        least, reach = reach, [reach[0]]
        for end, (size, _) in enumerate(counts, 1):
            choices, added = [least[end]], 0
            for start in range(end - 1, -1, -1):
                num_tokens, times = counts[start]
                added += (size - num_tokens) * times
                choices.append((least[start][0] + added, [*least[start][1], size]))
            reach.append(min(choices))
    return reach[-1][1]
