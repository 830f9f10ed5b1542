"""Lab 12-01 beside xgrammar and vLLM: what is recorded, the predictions, and rules drawn afresh."""

from __future__ import annotations

import random
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_module
from tests.engine.helpers.thorough import either
from tests.engine.structured_output.random_rules import random_rule, random_vocabulary

LAB = Path(__file__).resolve().parents[2] / "phase-12-structured-outputs/labs/lab-01-regex-to-mask"
pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def in_vllm() -> ModuleType:
    return load_module(LAB / "in_vllm.py", "lab_12_01_in_vllm")


@pytest.fixture(scope="module")
def solution() -> ModuleType:
    return load_module(LAB / "solution.py", "lab_12_01_solution_vllm")


def test_what_is_recorded(in_vllm: Any) -> None:
    raw = in_vllm.json.loads(in_vllm.support.RECORDED.read_text("utf-8"))
    assert raw["walks"] == in_vllm.record_all_walks()
    assert raw["runs"] == in_vllm.run_vllm()


class Probe:
    """What xgrammar allows after a text, a token a byte."""

    def __init__(self, in_vllm: Any, rule: str) -> None:
        self._theirs = in_vllm.Xgrammar(in_vllm.support.tiny())
        self._allowed = in_vllm.support.allowed
        self._rule = rule
        spelled = enumerate(self._theirs.vocabulary.tokens)
        self._id_of = {token: i for i, token in spelled if len(token) == 1}

    def after(self, text: bytes) -> frozenset[bytes]:
        """The bytes that may come next, and b"" where the end token may."""
        matcher = self._theirs.start(self._rule)
        for byte in text:
            assert matcher.accept_token(self._id_of[bytes([byte])]), (self._rule, text)
        ids = self._allowed(self._theirs.row(matcher))
        ends = [b""] * (self._theirs.vocabulary.stop in ids)
        return frozenset([byte for byte, token in self._id_of.items() if token in ids] + ends)

    def begins(self, letters: bytes) -> list[bytes]:
        """All texts of these letters that begin a match, the shortest first."""
        found = [b""]
        for text in found:
            found += [text + bytes([byte]) for byte in letters if bytes([byte]) in self.after(text)]
        return found


def test_the_predictions(in_vllm: Any, solution: Any) -> None:
    """By xgrammar's rows. One letter and one digit stand for all of a rule's."""
    told = solution.predictions()
    shelf = Probe(in_vllm, in_vllm.support.SHELF)
    rest_of: dict[bytes, Any] = {}
    for text in reversed(shelf.begins(b"C4-")):
        onward = [(b, rest_of[text + b]) for b in (b"C", b"4", b"-") if text + b in rest_of]
        rest_of[text] = (tuple(sorted(shelf.after(text))), tuple(onward))
    rows = {shelf.after(text) for text in rest_of}
    assert told["states and rows"] == [len(set(rest_of.values())), len(rows)]
    asked = ("CD", "CD-", "CD4", "CD42", "CD-4", "CD-42", "CD-423")
    assert told["the end"] == [text for text in asked if b"" in shelf.after(text.encode())]

    support = in_vllm.support
    last = len(support.LONGER)
    longer = support.Vocabulary((*support.LONGER, b"C"), last - 1, last + 1)
    theirs = in_vllm.Xgrammar(longer)
    matcher = theirs.start(support.SHELF)
    assert matcher.accept_token(last)
    row = [i for i in support.allowed(theirs.row(matcher)) if i != last]
    assert told["after C"] == [longer.tokens[i].decode() for i in row]

    words = Probe(in_vllm, "hinge|handle|hose")
    assert told["chosen"] == sum(len(words.after(b"handle"[:n])) > 1 for n in range(7))
    letters = Probe(in_vllm, "(é|è)+")
    assert told["inside é"] == [len(letters.after("é".encode()[:n])) for n in range(3)]
    import xgrammar

    assert told["bytes of a row"] == xgrammar.allocate_token_bitmask(1, 128_256).numpy().nbytes


def test_fresh_rules(in_vllm: Any, solution: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Rules of the engine's whole dialect, over vocabularies whose tokens are cut inside characters.

    A row of xgrammar's may allow a token that its `accept_token` refuses; there the latter's verdict counts.
    """
    support = in_vllm.support
    rng = random.Random(121)
    rules = rows = contradictions = 0
    while rules < either(60, 2800):
        spelled = random_vocabulary(rng, 250)
        vocabulary = support.Vocabulary(tuple(spelled), 0, len(spelled) + rng.randrange(40))
        theirs = in_vllm.Xgrammar(vocabulary)
        for _ in range(20):
            rule, _ = random_rule(rng)
            rules += 1
            mask = support.make_mask(solution, rule, vocabulary)
            matcher, state = theirs.start(rule), mask.start
            for _ in range(6):
                mine, right = mask.row(state), theirs.row(matcher)
                rows += 1
                for token in set(support.allowed(mine)) ^ set(support.allowed(right)):
                    assert token in support.allowed(right), (rule, token)
                    assert not matcher.accept_token(token), (rule, token)
                    contradictions += 1
                onward = [token for token in support.allowed(mine) if token]
                if not onward:
                    break
                token = rng.choice(onward)
                assert matcher.accept_token(token), (rule, token)
                state = mask.advance(state, token)
    with capsys.disabled():
        print(
            f"\n{rules} rules, {rows} rows: equal, but for {contradictions} tokens xgrammar takes back"
        )


def test_finished_texts_of_fresh_rules(in_vllm: Any, solution: Any) -> None:
    """What ends, matches; and what `re` takes and the automaton does too, it may end."""
    support = in_vllm.support
    rng = random.Random(122)
    for _ in range(either(150, 3000)):
        rule = support.random_rule(rng)
        pattern = re.compile(rule, re.ASCII | re.DOTALL)
        automaton = solution.ByteAutomaton(support.read_rule(solution, rule))
        for _ in range(10):
            text = "".join(rng.choice("ab09-é€😀.c") for _ in range(rng.randint(0, 5)))
            state = support.read_text(automaton, text.encode())
            found = bool(state) and automaton.accepts(state)
            assert found == bool(pattern.fullmatch(text)), (rule, text)
