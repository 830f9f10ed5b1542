"""Drafts from the request's own text: the longest n-gram, then the earliest; and who drafts at all."""

from __future__ import annotations

import numpy as np
import pytest

from mini_vllm.config.engine import EngineConfig
from mini_vllm.spec_decode.ngram_proposer import (
    NgramProposer,
    find_ngram,
    find_ngram_plainly,
)
from tests.engine.helpers.real_vllm.ngram_beside import compare, make_proposer, random_cases
from tests.engine.helpers.thorough import either


def proposer(k: int, min_n: int, max_n: int, max_model_len: int = 64) -> NgramProposer:
    spec = {"method": "ngram", "num_speculative_tokens": k}
    spec |= {"prompt_lookup_min": min_n, "prompt_lookup_max": max_n}
    return NgramProposer(EngineConfig(speculative_config=spec, max_model_len=max_model_len))


def look_up(tokens: list[int], **settings: int) -> list[int]:
    return proposer(**settings).propose_for(np.array(tokens, np.int32))


def test_of_equally_long_matches_the_earliest_is_taken() -> None:
    """The tokens 5 6 stand there twice."""
    assert look_up([5, 6, 7, 1, 5, 6, 8, 2, 5, 6], k=2, min_n=2, max_n=2) == [7, 1]


def test_a_longer_match_wins_over_an_earlier_one() -> None:
    """1 5 6 comes after 5 6 does, and is longer."""
    text = [5, 6, 7, 9, 1, 5, 6, 8, 2, 1, 5, 6]
    assert look_up(text, k=2, min_n=2, max_n=3) == [8, 2]
    assert look_up(text, k=2, min_n=2, max_n=2) == [7, 9], "3 tokens are longer than the longest"


def test_a_match_below_the_shortest_length_counts_for_nothing() -> None:
    """And a text shorter than that has none."""
    assert look_up([5, 7, 1, 5], k=2, min_n=2, max_n=3) == []
    assert look_up([5], k=2, min_n=2, max_n=3) == []
    assert look_up([], k=2, min_n=1, max_n=3) == []


def test_drafts_end_where_the_text_does() -> None:
    """A match may overlap the suffix itself."""
    assert look_up([4, 4, 4], k=5, min_n=2, max_n=2) == [4]
    assert look_up([1, 2, 3, 1, 2, 3, 1, 2], k=5, min_n=2, max_n=2) == [3, 1, 2, 3, 1]


def test_no_draft_reaches_past_max_model_len() -> None:
    """10 tokens: the 11th and 12th are all there may be."""
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    drafts = {
        most: look_up(text, k=4, min_n=2, max_n=2, max_model_len=most) for most in range(9, 16)
    }
    assert {most: len(found) for most, found in drafts.items()} == {
        9: 0, 10: 0, 11: 1, 12: 2, 13: 3, 14: 4, 15: 4,
    }  # fmt: skip


def test_who_drafts() -> None:
    """Not who has sampled nothing, and not who is at max_model_len. Beyond its tokens a row holds others'."""
    row = np.array([1, 2, 3, 1, 2, 3, 9, 9], np.int32)
    rows = np.stack([row] * 4)
    drafts = proposer(2, 2, 2, max_model_len=8).propose(
        [[2], [], [9], [1, 2]], np.array([5, 5, 8, 5]), rows
    )
    assert drafts == [[3, 1], [], [], [3, 1]]
    assert drafts == proposer(2, 2, 2, max_model_len=8).propose(
        [[2], [], [9], [1, 2]], [5, 5, 8, 5], list(rows)
    )


def test_the_fast_look_up_finds_what_the_plain_one_does() -> None:
    """On random texts."""
    for case in random_cases(either(2000, 20_000)):
        plain = find_ngram_plainly(case.tokens.tolist(), case.min_n, case.max_n)
        assert find_ngram(case.tokens, case.min_n, case.max_n) == plain, case


@pytest.mark.vllm
def test_vllm_drafts_the_same() -> None:
    """Its own function, on random texts; a proposer of its own, on a batch."""
    drafted, differ = compare(2000, seed=1)
    assert drafted > 500, "most look-ups find something"
    assert not differ


@pytest.mark.vllm
def test_the_same_requests_draft_in_vllm() -> None:
    """Its `propose`, on batches in which some rows have sampled nothing and some are full."""
    from types import SimpleNamespace

    from vllm.v1.spec_decode.ngram_proposer import NgramProposer as Upstream

    rng = np.random.RandomState(5)
    for case in random_cases(20, seed=6):
        mine = make_proposer(case)
        theirs = Upstream(
            SimpleNamespace(
                speculative_config=SimpleNamespace(
                    prompt_lookup_min=mine.min_n,
                    prompt_lookup_max=mine.max_n,
                    num_speculative_tokens=mine.k,
                ),
                model_config=SimpleNamespace(max_model_len=mine.max_model_len),
                scheduler_config=SimpleNamespace(max_num_seqs=1024),
                parallel_config=SimpleNamespace(tensor_parallel_size=1),
            )
        )
        rows = rng.randint(0, 3, size=(16, mine.max_model_len)).astype(np.int32)
        lengths = rng.randint(1, mine.max_model_len + 1, size=16).astype(np.int32)
        sampled = [[1] * int(rng.randint(0, 3)) for _ in range(16)]
        assert mine.propose(sampled, lengths, rows) == theirs.propose(sampled, lengths, rows), case
