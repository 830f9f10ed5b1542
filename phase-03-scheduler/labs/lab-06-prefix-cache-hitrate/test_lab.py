"""Lab 03-06, from prompts, salts and answers: what is found, what is computed, how full the cache is."""

from __future__ import annotations

from types import ModuleType

import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)


def found(lab: ModuleType, visits: list[object], want: list[int], why: str) -> None:
    """`found_tokens` says `want` of these visits, in blocks of 4."""
    got = lab.found_tokens(visits, 4, True)
    assert got == want, f"in blocks of 4: {want}, got {got}. {why}"


def test_the_predictions_hold(lab: ModuleType) -> None:
    """The seven predictions are what vLLM's capture says."""
    said = lab.predictions()
    record = {
        name: support.named(name)["said"] for name in ("in line", "prompt logprobs", "in pieces")
    }
    record |= {
        name: support.named(name, "caching on")["said"]
        for name in ("noon", "four copies", "one document")
    }
    early = support.named("preempted before the first token")["said"]
    paper = record["one document"]
    facts = {
        "found, noon": sum(record["noon"]["num_cached_tokens"].values()),
        "found, four copies": sum(record["four copies"]["num_cached_tokens"].values()),
        "queries, in line": record["in line"]["sent"]["queries"],
        "queries, prompt logprobs": record["prompt logprobs"]["sent"]["queries"],
        "offline queries, in pieces": record["in pieces"]["counters"]["vllm:prefix_cache_queries"],
        "local_cache_hit, preempted before the first token": early["counters"][
            support.predictions.source("local_cache_hit")
        ],
        "blocks held, one document": round(paper["usage"][0] * (paper["num_gpu_blocks"] - 1)),
    }
    ask = {
        "found, noon": "How many of the 44 tokens that two of them share are in full blocks of 16?",
        "found, four copies": "One token must run. In which block is it, and can that block be found?",
        "queries, in line": "How often is Hal looked up before he gets in, and does each time count?",
        "queries, prompt logprobs": "Is somebody looked up who wants the logprobs of the whole prompt?",
        "offline queries, in pieces": "Does anybody get a token in the steps that look somebody up?",
        "local_cache_hit, preempted before the first token": "What of her own does Fay find when she comes "
        "back, and which of her blocks has Eve taken?",
        "blocks held, one document": "How many blocks does the first reader hold, and how many of these do "
        "the other seven hold as well?",
    }
    missing, unknown = sorted(facts.keys() - said.keys()), sorted(said.keys() - facts.keys())
    assert not missing, (
        f"no guess under the names {missing}: take them from the README as they stand"
    )
    assert not unknown, f"the README does not ask for {unknown}: it has seven questions"
    for name, fact in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask[name]}"


def test_full_blocks_from_the_start(lab: ModuleType) -> None:
    """A block is found only if everything before it is the same, too."""
    one = support.visit
    found(
        lab,
        [
            one(lab, text)
            for text in ("abcdefgh-", "abcdefgh!", "abcdefg", "xbcdefgh-", "efgh-", "abcd")
        ],
        [0, 8, 4, 0, 0, 0],
        "What is found are full blocks, from the first token to the first difference",
    )


def test_one_token_is_computed(lab: ModuleType) -> None:
    """A prompt that is cached as a whole recomputes its last block."""
    one = support.visit
    found(
        lab,
        [one(lab, "abcdefgh"), one(lab, "abcdefgh"), one(lab, "abcdefghi"), one(lab, "abcd")],
        [0, 4, 8, 0],
        "The last token of a prompt must be computed, and hits are full blocks",
    )
    found(
        lab,
        [one(lab, text) for text in ("abc", "abcd", "vwxyabc", "vwxyabcd")],
        [0, 0, 0, 4],
        "A block that is one token short of full is not in the cache",
    )


def test_the_answer_is_found_too(lab: ModuleType) -> None:
    """Answers are in the cache just as prompts are."""
    first = support.visit(lab, "abcdef", answer=tuple(map(ord, "ghijkl")))
    again = support.visit(lab, "abcdefghijklmn")
    found(
        lab,
        [first, again],
        [0, 8],
        "Prompt and answer lie in the same blocks: of 'abcdefghijkl' all but the last was computed, 11 "
        "tokens, two full blocks",
    )


def test_the_last_token_of_an_answer_is_nowhere(lab: ModuleType) -> None:
    """The last token of an answer is not in the cache: it is sampled, and never computed."""
    first = support.visit(lab, "abcdef", answer=tuple(map(ord, "gh")))
    again = support.visit(lab, "abcdefghij")
    found(
        lab, [first, again], [0, 4], "'h' was sampled and never computed, so its block is not full"
    )


def test_salts_keep_apart(lab: ModuleType) -> None:
    """A request with another salt, or with none, finds nothing of a salted one's."""
    salts = ("east", "west", None, "east", None)
    found(
        lab,
        [support.visit(lab, "abcdefghi", salt=salt) for salt in salts],
        [0, 0, 0, 8, 8],
        f"The salts are {salts}: each sees its own only, and no salt is one as well",
    )
    salted = (("abcdefghi", "east"), ("abcdwxyz!", "west"), ("abcdefghi", "west"))
    found(
        lab,
        [support.visit(lab, text, salt=salt) for text, salt in salted],
        [0, 0, 4],
        f"The texts and their salts are {salted}: 'efgh' was never said under 'west'. The salt is in the "
        "first block's hash, and through it in all that follow",
    )


def test_a_request_that_does_not_read_writes(lab: ModuleType) -> None:
    """A request that does not read the cache finds nothing, but later requests find what it computed."""
    one = support.visit
    found(
        lab,
        [
            one(lab, "abcdefghi", reads=False),
            one(lab, "abcdefghi"),
            one(lab, "abcdefghi", reads=False),
        ],
        [0, 8, 0],
        "Who wants logprobs of the prompt computes all of it, and leaves it in the cache",
    )


def test_off_is_off(lab: ModuleType) -> None:
    """With caching off nothing is found."""
    visits = [support.visit(lab, "abcdefghi")] * 3
    got = lab.found_tokens(visits, 4, False)
    assert got == [0, 0, 0], f"caching is off: [0, 0, 0], got {got}"
    assert lab.found_tokens([], 4, True) == [], "nobody asked, so there are no numbers"


def test_vllm_found_the_same(lab: ModuleType) -> None:
    """vLLM found the same: `num_cached_tokens` of every request in 22 workloads with room for all."""
    support.same_as_vllm(lab, "num_cached_tokens", "The texts stand in runs.py.")


def test_vllm_computed_the_same(lab: ModuleType) -> None:
    """vLLM says that it computed the same number of prompt tokens."""
    support.same_as_vllm(lab, "prompt tokens computed", "Prompts without what was found.")


def test_usage_counts_a_shared_block_once(lab: ModuleType) -> None:
    """Usage is held blocks over usable blocks, and a shared block counts once."""
    for lengths, hits, blocks, want, why in [
        ([9, 9], [0, 8], 11, 0.4, "three blocks of 4, and one more: two are shared"),
        ([9, 9], [0, 0], 11, 0.6, "three and three"),
        ([8], [0], 5, 0.5, "two of four; the null block is no usable block"),
        ([16], [0], 5, 1.0, "four of four; the null block is no usable block"),
        ([], [], 5, 0.0, "nobody"),
    ]:
        got = lab.usage(lengths, hits, blocks, 4)
        assert got == pytest.approx(want), (
            f"prompts of {lengths}, found {hits}, {blocks} blocks of 4: {want}, got {got:.4f}: {why}"
        )


def test_vllm_used_as_much(lab: ModuleType) -> None:
    """vLLM's gauge says the same in three workloads, with caching on and off."""
    support.same_as_vllm(lab, "KV cache usage", "That is the gauge after the first step.")
