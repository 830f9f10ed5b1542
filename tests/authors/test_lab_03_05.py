"""Lab 03-05: turns, salts and a pool that shrinks, which the lab gives, against the engine."""

from __future__ import annotations

from types import ModuleType

import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module

LAB = ROOT / "phase-03-scheduler/labs/lab-05-prefix-cache-savings"
support = load_module(LAB / "support.py", "test_lab_03_05_support")


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    return load_module(LAB / "solution.py", "test_lab_03_05_solution")


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("abcd", "abxy", 2),
        ("abcd", "abcd", 4),
        ("abc", "abcdef", 3),
        ("abcdef", "abc", 3),
        ("abcd", "xbcd", 0),
        ("abxcd", "abycd", 2),
    ],
)
def test_common_prefix(lab: ModuleType, a: str, b: str, expected: int) -> None:
    """Up to the first difference, or the end of the shorter one."""
    got = lab.common_prefix([*map(ord, a)], [*map(ord, b)])
    assert got == expected, (
        f"{a} and {b} have {expected} in common from the beginning to the first difference, not {got}"
    )


@pytest.mark.parametrize(
    ("turns", "expected", "why"),
    [
        ([(9, 4)], [12], "one turn is a request like any other"),
        (
            [(9, 4), (3, 4)],
            [12, 7],
            "16 tokens, 12 of them computed by the first turn and so found: 4 of prompt, 3 of answer",
        ),
        (
            [(8, 4), (1, 2)],
            [11, 6],
            "the first 8 are found. The answer fills the third block, but its last token was never "
            "computed: 5 of prompt and 1 of answer",
        ),
        ([(8, 5), (1, 2)], [12, 3], "one token more, and the third block was computed"),
        (
            [(1, 1), (1, 1), (3, 1)],
            [1, 3, 7],
            "3 tokens are computed when the third turn comes: no block is full",
        ),
        (
            [(4, 1), (3, 1), (1, 1)],
            [4, 4, 2],
            "4 of 8 in the second turn: its last token must run, and does so with the block around it",
        ),
    ],
)
def test_conversation(
    lab: ModuleType, turns: list[tuple[int, int]], expected: list[int], why: str
) -> None:
    """Each turn finds what the one before has computed, in full blocks."""
    got = list(lab.conversation(turns, 4, True))
    assert got == expected, f"{turns}, blocks of 4: {why}: {expected}, not {got}"


def test_a_conversation_without_caching(lab: ModuleType) -> None:
    """Every turn pays for all turns before it."""
    got = list(lab.conversation([(9, 4), (3, 4), (3, 4)], 4, False))
    assert got == [12, 19, 26], f"9, 16 and 23 of prompt with 3 of answer each, not {got}"


def test_ten_turns(lab: ModuleType) -> None:
    """30 tokens of question and 70 of answer, ten times: a sum that grows, and one that does not."""
    for caching, total, why in (
        (False, 5490, "99, 199, and so on to 999"),
        (True, 1074, "99, and then a turn's own 100 less one, with what was left over in a block"),
    ):
        got = sum(lab.conversation([(30, 70)] * 10, 16, caching))
        assert got == total, f"blocks of 16, caching={caching}: {why}: {total}, not {got}"


def test_price_of_salts(lab: ModuleType) -> None:
    """One system prompt more for each tenant after the first."""
    people = support.system_and_tail(lab)
    for tenants, price in ((1, 0), (2, 64), (4, 192), (8, 448)):
        salted = [ask._replace(salt=f"t{i % tenants}") for i, ask in enumerate(people)]
        got = lab.price_of_salts(salted, 4)
        assert got == price, (
            f"{tenants} tenants compute the system prompt once each, 64 tokens, {tenants - 1} times more "
            f"than needed: {price}, not {got}"
        )
    assert lab.price_of_salts(people, 4) == 0, "nobody has a salt: 0"


@pytest.mark.parametrize(
    ("arguments", "expected", "why"),
    [
        ((16, 100, 22), 16, "62 blocks were never used"),
        ((16, 38, 22), 16, "16 and 22 are 38: it just fits"),
        ((16, 37, 22), 15, "one block short: the last of the prefix was at the front of the queue"),
        ((16, 23, 22), 1, "what is left is the beginning"),
        ((16, 22, 22), 0, "the others had all there is"),
        ((16, 30, 44), 0, "the others had it more than once"),
        ((3, 20, 0), 3, "nobody was there"),
    ],
)
def test_blocks_left(
    lab: ModuleType, arguments: tuple[int, int, int], expected: int, why: str
) -> None:
    """What is left of a prefix is its beginning, until the others have had the whole pool."""
    got = lab.blocks_left(*arguments)
    assert got == expected, f"blocks_left{arguments}: {why}: {expected}, not {got}"


def test_the_pool_shrinks(lab: ModuleType) -> None:
    """Somebody with the system prompt, two strangers of 11 blocks, somebody with the system prompt."""
    first, second = support.system_and_tail(lab, people=2)
    for usable in range(17, 41):
        scheduler = support.make_scheduler(num_gpu_blocks=usable + 1)
        support.count(scheduler, [first])
        for number in (20, 21):
            support.count(scheduler, [lab.Ask(support.words(number, 40), 4)])
        [served] = support.count(scheduler, [second])
        got = lab.blocks_left(16, usable, 22)
        assert got * 4 == served.cached, (
            f"with {usable} usable blocks the engine finds {served.cached // 4}, you say {got}"
        )


def test_four_tenants_in_turn(lab: ModuleType) -> None:
    """Each has 16 blocks of system prompt and one of its own, and the others' 51 lie between."""
    for usable in range(49, 69):
        scheduler = support.make_scheduler(num_gpu_blocks=usable + 1)
        found = []
        for visit in range(8):
            prompt = support.words(visit % 4, 64) + support.words(20 + visit, 1)
            [served] = support.count(scheduler, [lab.Ask(prompt, 4)])
            found.append(served.cached // 4)
        got = lab.blocks_left(16, usable, 3 * 17)
        assert [got] * 4 == found[4:], (
            f"with {usable} usable blocks the engine finds {found[4:]} blocks for the four, you say {got}"
        )
