"""Lab 03-06, nothing found: the reason, by hand and for every zero of the capture."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support

support = load_support(__file__)

LATER = "gil"
REASONS = {
    ("caching on", "noon", "fay"): ("LITTLE", 1),
    ("caching on", "noon", "hal"): ("SHORT", 1),
    ("caching on", "a few words", LATER): ("SHORT", 9),
    ("caching on", "16 tokens", LATER): ("SHORT", 16),
    ("caching on", "the clock in front", LATER): ("MOVED", 5),
    ("caching on", "the name in front", LATER): ("MOVED", 1),
    ("caching on", "one word more in front", LATER): ("MOVED", 1),
    ("caching on", "a short beginning", LATER): ("LITTLE", 15),
    ("caching on", "strangers", LATER): ("LITTLE", 1),
    ("caching on", "tenants", LATER): ("SALT", 0),
    ("caching on", "tenants", "hal"): ("SALT", 0),
    ("caching on", "prompt logprobs", LATER): ("NO_READ", 78),
    ("caching on", "prompt logprobs first", "fay"): ("NO_READ", 0),
    ("caching off", "noon", LATER): ("OFF", 44),
    ("caching off", "one document", "reader-7"): ("OFF", 314),
    ("the default block", "100 tokens", LATER): ("SHORT", 100),
    ("the default block", "the library, and 200 tokens more", LATER): ("LITTLE", 73),
    ("eight blocks", "somebody between", LATER): ("EVICTED", 60),
    ("the long wait", "the long wait", LATER): ("EVICTED", 1008),
}  # fmt: skip
"""Zeros of the capture, by group, workload and name."""


def why(
    lab: ModuleType, visits: list[Any], reason: str | None, common: int, hint: str, **more: Any
) -> None:
    """The last of `visits` found nothing in blocks of 4, for this reason."""
    given = {"found": 0, "block_size": 4, "caching": True} | more
    got = lab.diagnose(visits, len(visits) - 1, **given)
    want = lab.Diagnosis(getattr(lab, reason) if reason else None, common)
    texts = [
        "".join(map(chr, one.tokens)) + (f" under {one.salt!r}" if one.salt else "")
        for one in visits
    ]
    assert tuple(got) == tuple(want), f"{texts}, {given}: {tuple(want)}, got {tuple(got)}. {hint}"


def asked(lab: ModuleType, *texts: str, **last: Any) -> list[Any]:
    """Visits without a salt; `last` is for the last of them."""
    *before, final = texts
    return [support.visit(lab, text) for text in before] + [support.visit(lab, final, **last)]


def test_who_found_something_needs_no_reason(lab: ModuleType) -> None:
    """A request that found something gets no reason, whatever else is true of it."""
    why(lab, asked(lab, "abcdefgh", "abcdefgh"), None, 8, "It found 4 tokens.", found=4)


def test_settings_first(lab: ModuleType) -> None:
    """The first reasons to check are caching, then reading, then length."""
    hint = "The reasons are asked in the order in which the file names them"
    why(lab, asked(lab, "abc", "abc", reads=False), "OFF", 3, hint, caching=False)
    why(lab, asked(lab, "abc", "abc", reads=False), "NO_READ", 3, hint)
    why(lab, asked(lab, "abc", "abc"), "SHORT", 3, hint)


def test_a_full_block_and_one_token(lab: ModuleType) -> None:
    """The shortest prompt that can find anything has a full block and one more token."""
    hint = "A block is found only if a token is left to compute behind it"
    why(lab, asked(lab, "abcd", "abcd"), "SHORT", 4, hint)
    why(lab, asked(lab, "abcde", "abcde"), "EVICTED", 5, hint)


def test_gone(lab: ModuleType) -> None:
    """A prompt's first block is gone if it was there once, from a prompt or from an answer."""
    hint = "Somebody wrote its first block under its salt, so it was there once"
    why(lab, asked(lab, "abcdxyz", "abcdefg"), "EVICTED", 4, hint)
    answered = support.visit(lab, "abc", answer=tuple(map(ord, "def")))
    why(lab, [answered, support.visit(lab, "abcdefg")], "EVICTED", 5, hint)
    answered = support.visit(lab, "abc", answer=(ord("d"),))
    why(lab, [answered, support.visit(lab, "abcdefg")], "LITTLE", 3, "The 'd' was never computed")
    unread = support.visit(lab, "abcdefg", reads=False)
    hint = "The first does not read, and writes all the same"
    why(lab, [unread, support.visit(lab, "abcdefg")], "EVICTED", 7, hint)


def test_another_salt(lab: ModuleType) -> None:
    """Another salt is the reason only if no request with the same salt had the block."""
    hint = "The same first block, and nobody had it under the salt 'east'"
    one = support.visit
    visits = [
        one(lab, "abcdefgh"),
        one(lab, "abcdefgh", salt="west"),
        one(lab, "abcdefgh", salt="east"),
    ]
    why(lab, visits, "SALT", 0, hint)
    why(lab, visits[::-1], "SALT", 0, "Nobody had it without a salt")
    why(lab, visits[::2], "SALT", 0, "No salt is another one as well")
    moved = [visits[1], one(lab, "--abcdefgh", salt="east"), visits[2]]
    why(
        lab, moved, "SALT", 0, "It was said behind another beginning, too, but the salt comes first"
    )
    hint = "It was there under 'east' as well, so the other salt is not to blame"
    why(lab, [*visits, one(lab, "abcdefgh", salt="east")], "EVICTED", 8, hint)


def test_moved_by_any_number_of_tokens(lab: ModuleType) -> None:
    """A block's worth of tokens in a row counts as moved, wherever they are in the two texts."""
    hint = (
        "A block's worth in a row was said before, behind another beginning; places do not matter"
    )
    why(lab, asked(lab, "12:03 abcdefgh", "12:04 abcdefgh"), "MOVED", 4, hint, block_size=6)
    why(lab, asked(lab, "abcdefgh", "-abcdefgh"), "MOVED", 0, hint)
    why(lab, asked(lab, "--bcde---", "bcdex"), "MOVED", 0, hint)
    why(lab, asked(lab, "abcdefgh", "xyzefgh"), "MOVED", 0, hint)
    why(lab, asked(lab, "abcdefgh", "xyzefg-"), "LITTLE", 0, "Three in a row are less than a block")
    why(
        lab,
        asked(lab, "abcdefgh", "xyz-fgh"),
        "LITTLE",
        0,
        "Three at the end are no more than that",
    )


def test_what_others_say_under_a_salt_does_not_count(lab: ModuleType) -> None:
    """What others say under another salt counts neither as moved nor as common."""
    visits = [support.visit(lab, "abc-efghi", salt="west"), support.visit(lab, "abcxefghi")]
    why(lab, visits, "LITTLE", 0, "What was said under another salt is out of sight")


def test_too_little(lab: ModuleType) -> None:
    """Of all earlier requests, `common` takes the one with the longest common beginning."""
    hint = "The longest common beginning, of all who came before"
    why(lab, asked(lab, "abcxxx", "abxxxx", "abc-efgh"), "LITTLE", 3, hint)
    why(lab, asked(lab, "abcdefgh"), "LITTLE", 0, "Nobody came before it")
    own = asked(lab, "abcdefgh", "abxefg", answer=tuple(map(ord, "h!")))
    why(lab, own, "LITTLE", 2, "Its own answer, 'h!', was not there when it was looked up")
    visits = asked(lab, "abcdefgh", "abcdefgh")
    got = lab.diagnose(visits, 0, 0, 4, True)
    assert tuple(got) == (lab.LITTLE, 0), (
        f"who comes later does not count: {(lab.LITTLE, 0)}, got {got}"
    )


@pytest.mark.parametrize("where", REASONS, ids=lambda where: ", ".join(where))
def test_zeros_of_vllm(lab: ModuleType, where: tuple[str, str, str]) -> None:
    """Each of vLLM's zeros is right, for the reason in the table."""
    group, workload, name = where
    line = support.named(workload, group)
    assert line["said"]["num_cached_tokens"][name] == 0, "a zero of the capture: do not change it"
    reason, common = REASONS[where]
    got = support.predictions.reasons(lab, line)[name]
    want = (getattr(lab, reason), common)
    assert tuple(got) == want, f"{workload}, {name}: {want}, got {tuple(got)}"
