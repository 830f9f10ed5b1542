"""The n-gram proposer beside vLLM's own, on random texts of few different tokens.

    python -m tests.engine.helpers.real_vllm.ngram_beside [20000]   how many look-ups come out differently

Needs vLLM 0.22.1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mini_vllm.config.engine import EngineConfig
from mini_vllm.spec_decode.ngram_proposer import NgramProposer


@dataclass
class Case:
    """A text, and how it is to be looked up."""

    tokens: NDArray[np.int32]
    min_n: int
    max_n: int
    max_model_len: int
    k: int


def random_cases(number: int, seed: int = 0) -> Iterator[Case]:
    """Texts of 1 to 40 tokens over two to six different ones; every fourth ends near `max_model_len`."""
    rng = np.random.RandomState(seed)
    for index in range(number):
        length = rng.randint(1, 41)
        min_n, max_n = sorted(rng.randint(1, 6, size=2).tolist())
        near = length + rng.randint(0, 4) if index % 4 == 0 else 64
        tokens = rng.randint(0, rng.randint(2, 7), size=length).astype(np.int32)
        yield Case(tokens, min_n, max_n, near, int(rng.randint(1, 7)))


def make_proposer(case: Case) -> NgramProposer:
    """The engine's proposer with this case's settings."""
    spec = {
        "method": "ngram",
        "num_speculative_tokens": case.k,
        "prompt_lookup_min": case.min_n,
        "prompt_lookup_max": case.max_n,
    }
    return NgramProposer(EngineConfig(speculative_config=spec, max_model_len=case.max_model_len))


def vllm_drafts(case: Case) -> list[int]:
    """What vLLM's function proposes."""
    from vllm.v1.spec_decode import ngram_proposer

    found: list[int] = ngram_proposer._find_longest_matched_ngram_and_propose_tokens(
        case.tokens, case.min_n, case.max_n, case.max_model_len, case.k
    ).tolist()
    return found


def compare(number: int, seed: int = 0) -> tuple[int, list[Case]]:
    """In how many cases vLLM drafts something, and those in which the two differ."""
    drafted, differ = 0, []
    for case in random_cases(number, seed):
        expected = vllm_drafts(case)
        drafted += bool(expected)
        if make_proposer(case).propose_for(case.tokens) != expected:
            differ.append(case)
    return drafted, differ


def main() -> None:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    drafted, differ = compare(number)
    print(
        f"{number:,} look-ups, of which {drafted:,} draft something: {len(differ)} differ from vLLM's"
    )
    for case in differ[:3]:
        print(f"  {case}: {vllm_drafts(case)}, not {make_proposer(case).propose_for(case.tokens)}")


if __name__ == "__main__":
    main()
