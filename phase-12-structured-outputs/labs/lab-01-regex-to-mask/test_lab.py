"""Lab 12-01: the predictions, the automaton over bytes, the rows over tokens, the tiny Llama."""

from __future__ import annotations

import random
import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
RECORDED = support.recorded()


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your answers to the README's questions hold, before anything is run."""
    facts: dict[str, tuple[Any, str]] = {
        "states and rows": (
            [7, 5],
            "After which texts may the same come next, and after which is the whole rest the same?",
        ),
        "the end": (["CD42", "CD-42", "CD-423"], "Is the text so far a match, whatever else may follow?"),
        "after C": (
            ["A", "D-", "D-4", "D42", "D-423"],
            "Spell C and the token together. Is that a match, or the beginning of one?",
        ),
        "chosen": (1, "At which letters do the three words part? What may follow a whole word?"),
        "inside é": ([1, 2, 2], "How many bytes does é have, and which of them does it share with è?"),
        "bytes of a row": (16032, "How many words of 32 bits do so many tokens take?"),
    }  # fmt: skip
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, f"six questions; the README and your answers do not both have these: {apart}"
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- over bytes ------------------------------------------------------------------------------------

KINDS = [
    "a",
    "ab",
    "a|ab",
    "()",
    "(a|)b",
    "(|a)b",
    "a?b",
    "a*",
    "a+b",
    "a{0}b",
    "a{2}",
    "a{2,}",
    "a{1,3}",
    "(ab|a){0,2}",
]
AROUND = [
    "(a|ab)(c|bcd)*",
    "(a*|b)a",
    "(a*b)*",
    "(a*)*b",
    "(ab+)?c",
    "((ab?)*c){2}",
    "(a{0,2}b){2}",
]


def check_texts(lab: ModuleType, rule: str, texts: list[str]) -> None:
    """What the automaton accepts of these is what matches, a false state has nothing to follow."""
    automaton = lab.ByteAutomaton(support.read_rule(lab, rule))
    pattern = re.compile(rule)
    matches = [text for text in texts if pattern.fullmatch(text)]
    for text in texts:
        state = support.read_text(automaton, text.encode())
        want = text in matches
        found = bool(state) and bool(automaton.accepts(state))
        assert found == want, (
            f"rule {rule}: {text!r} is {'a' if want else 'no'} match; yours "
            f"{'accepts' if found else 'refuses'} it"
        )
        # to be true a state needs a match that begins so; the shortest is at most 3 letters longer
        begins = any(match.startswith(text) for match in matches)
        assert bool(state) or not begins, (
            f"rule {rule}: a match begins with {text!r}; your state is empty"
        )
        if state and len(text) < len(texts[-1]) - 3:
            assert begins, f"rule {rule}: no match begins with {text!r}; your state is not empty"


@pytest.mark.parametrize("rule", KINDS)
def test_each_kind_of_part(lab: ModuleType, rule: str) -> None:
    """All texts of a and b up to six letters, against `re.fullmatch`."""
    check_texts(lab, rule, list(support.texts("ab", 6)))


@pytest.mark.parametrize("rule", AROUND)
def test_parts_inside_parts(lab: ModuleType, rule: str) -> None:
    """All texts of a, b, c and d up to six letters: what is around a part must not come into it."""
    check_texts(lab, rule, list(support.texts("abcd" if "d" in rule else "abc", 6)))


def test_a_state_holds_all_places(lab: ModuleType) -> None:
    """Without reading: one free edge after another, round loops, and from every place at once."""
    automaton = lab.ByteAutomaton(lab.Bytes(97, 97))
    automaton.free[:] = [[1], [2, 0], [], [4], []]
    automaton.edges[:] = [[], [(97, 99, 0), (99, 99, 3)], [(99, 100, 2)], [], []]
    for places, want in (({2}, {2}), ({0}, {0, 1, 2}), ({1, 3}, {0, 1, 2, 3, 4}), ((), ())):
        found = automaton.settle(places)
        assert found == frozenset(want), (
            f"free edges {automaton.free}: from {sorted(places)} one may be in {sorted(want)}; yours "
            f"{sorted(found)}"
        )
    for byte, want in ((97, {0, 1, 2}), (99, {0, 1, 2, 3, 4}), (100, {2}), (96, ())):
        found = automaton.step(frozenset({0, 1, 2}), byte)
        assert isinstance(found, frozenset), (
            f"a state is a frozenset; yours is a {type(found).__name__}"
        )
        assert found == frozenset(want), (
            f"edges {automaton.edges}, free edges {automaton.free}: from 0, 1 and 2 byte {byte} leads to "
            f"{sorted(want)}; yours {sorted(found)}"
        )


# ---- over tokens -----------------------------------------------------------------------------------


class Countdown:
    """A stand-in for an automaton: the text may have `most` bytes, all of them x, and end when an even number
    is left. A state is how many are left, and one more. It counts how often it is asked."""

    def __init__(self, most: int) -> None:
        self.start = most + 1
        self.asked = 0

    def step(self, state: int, byte: int) -> int:
        self.asked += 1
        return state - 1 if byte == 120 and state > 1 else 0

    def accepts(self, state: int) -> bool:
        self.asked += 1
        return state % 2 == 1


@pytest.mark.parametrize("vocab_size", [31, 32, 33, 64, 70])
def test_bits_and_words(lab: ModuleType, vocab_size: int) -> None:
    """Where a token's bit is, and that no bit without a token is 1."""
    tokens = [b"x" if i % 3 == 1 else b"y" for i in range(30)] + [b"</s>"]
    row = lab.TokenMask(Countdown(1), tokens, 30, vocab_size).row(2)
    words = -(-vocab_size // 32)
    assert isinstance(row, np.ndarray), f"a row is an array; yours a {type(row).__name__}"
    found, want = f"{row.dtype} {list(row.shape)}", f"int32 [{words}]"
    assert found == want, f"a row of {vocab_size} tokens is {want}; yours {found}"
    ids = list(range(1, 30, 3))
    bits = support.allowed(row)
    assert bits == ids, f"vocabulary {vocab_size}: bits {ids} are 1; in yours {bits}"


def test_a_token_may_end_anywhere(lab: ModuleType) -> None:
    """Allowed is what leads on, all of it, and not only what completes a match."""
    tokens = [b"x", b"xx", b"xxx", b"xxxx", b"xy", b"yx", b"", b"</s>"]
    mask = lab.TokenMask(Countdown(3), tokens, 7, 8)
    for state, want in ((4, [0, 1, 2]), (3, [0, 1, 7]), (2, [0]), (1, [7])):
        found = support.allowed(mask.row(state))
        assert found == want, (
            f"{state - 1} more x may follow: of {tokens} allowed are {[tokens[i] for i in want]}; yours "
            f"{[tokens[i] for i in found]}"
        )


def test_the_end_token_is_no_text(lab: ModuleType) -> None:
    """It is allowed where the rule has matched, whatever it spells."""
    for spelled in (b"x", b"", b"y"):
        mask = lab.TokenMask(Countdown(3), [spelled, b"x"], 0, 2)
        for state, want in ((4, [1]), (3, [0, 1]), (1, [0])):
            found = support.allowed(mask.row(state))
            assert found == want, (
                f"the end token spells {spelled!r}, and the rule has{'' if 0 in want else ' not'} matched: "
                f"bits {want} are 1; in yours {found}"
            )
        after = mask.advance(3, 0)
        assert after is None, (
            f"the end token, spelled {spelled!r}, leads to no state; yours to {after}"
        )


def test_advance(lab: ModuleType) -> None:
    """The state after a token, or None."""
    tokens = [b"x", b"xx", b"xy", b"", b"yx", b"</s>", b"x"]
    mask = lab.TokenMask(Countdown(3), tokens, 5, 40)
    cases = {0: 3, 1: 2, 2: None, 3: None, 4: None, 6: 3, 7: None, 39: None, -1: None, -7: None}
    for token, want in cases.items():
        found = mask.advance(4, token)
        spelled = repr(tokens[token]) if 0 <= token < 7 else "no token"
        assert found == want, f"token {token}, {spelled}: the state is {want}; yours {found}"


def test_rows_are_kept(lab: ModuleType) -> None:
    """A state that comes again costs nothing, and a row is a rule's own."""
    tokens = [b"x", b"xx", b"</s>"]
    automaton = Countdown(1000)
    mask = lab.TokenMask(automaton, tokens, 2, 3)
    first = mask.row(501)
    asked = automaton.asked
    again = mask.row(500 + 1)
    assert again is first, (
        "the row of a state that was asked for before is the same array; yours is another"
    )
    assert automaton.asked == asked, (
        f"the automaton was asked {automaton.asked - asked} more times for a row that is kept"
    )
    assert mask.row(2).tolist() != first.tolist(), (
        "1 more x may follow, and then 500: two states, two rows"
    )
    assert mask.row(501) is first, (
        "after the row of another state, a row that was kept is the same array; yours is another"
    )
    other = lab.TokenMask(Countdown(1000), [b"y", b"x", b"</s>"], 2, 3)
    found = support.allowed(other.row(501))
    assert found == [1, 2], (
        f"another rule with a state of the same name: bits [1, 2] are 1; in yours {found}"
    )


def test_forced(lab: ModuleType) -> None:
    """The only token of a row, in the lowest and in the highest bit of a word. A full word forces none."""
    cases: tuple[tuple[list[int], int | None], ...] = (
        ([0], 0), ([31], 31), ([32], 32), ([95], 95), ([], None), ([3, 64], None), ([31, 32], None),
        ([30, 31], None), (list(range(32)), None),
    )  # fmt: skip
    for ids, want in cases:
        row = np.zeros(3, dtype=np.uint32)
        for i in ids:
            row[i // 32] |= np.uint32(1 << i % 32)
        found = lab.forced(row.view(np.int32))
        assert found == want, f"bits {ids} of a row are 1: {want} is forced; yours says {found}"


# ---- beside xgrammar -------------------------------------------------------------------------------


@pytest.mark.parametrize("group", RECORDED["walks"])
def test_rows_are_xgrammars(lab: ModuleType, group: str) -> None:
    """Along recorded walks, bit for bit: over bytes, over tokens of several characters, and over such as
    begin or end inside a character."""
    for walk in RECORDED["walks"][group]:
        apart = support.first_difference(lab, walk)
        assert not apart, apart


def test_finished_texts_match(lab: ModuleType) -> None:
    """Whatever is written by your rows and ended by the end token matches, says Python's `re`."""
    rng = random.Random(12)
    finished = 0
    for walk in RECORDED["walks"]["several characters"]:
        vocabulary = walk.vocabulary
        mask = support.make_mask(lab, walk.rule, vocabulary)
        for _ in range(2):
            state, text = mask.start, b""
            for _ in range(12):
                onward = support.allowed(mask.row(state))
                if not onward or (token := rng.choice(onward)) == vocabulary.stop:
                    break
                state, text = mask.advance(state, token), text + vocabulary.tokens[token]
            if vocabulary.stop in support.allowed(mask.row(state)):
                finished += 1
                matches = re.fullmatch(
                    walk.rule, text.decode("utf-8", "replace"), re.ASCII | re.DOTALL
                )
                assert matches, f"rule {walk.rule}: your rows let {text!r} end, which is no match"
    assert finished > 30, (
        f"of 80 texts only {finished} could end: the end token is missing somewhere"
    )


@pytest.mark.parametrize("rule", RECORDED["runs"])
def test_the_tiny_llama_obeys(lab: ModuleType, rule: str) -> None:
    """In the engine, bound by your rows: the tokens of real vLLM, greedily. And at random, still the rule."""
    mask = support.make_mask(lab, rule, support.tiny())
    answer = support.generate(mask)
    want = RECORDED["runs"][rule]
    assert list(answer.tokens) == want, (
        f"rule {rule}: vLLM's tokens are {want}; with your rows {list(answer.tokens)}, {answer.text!r}"
    )
    wild = support.generate(mask, temperature=5.0, seed=3)
    if wild.tokens[-1] == support.tiny().stop:
        assert re.fullmatch(rule, wild.text), f"rule {rule}: the answer was {wild.text!r}"
