"""Lab 12-02 beside xgrammar and vLLM: what is recorded, the predictions, and fresh walks, there and back."""

from __future__ import annotations

import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_module
from tests.engine.helpers.thorough import either

LAB = (
    Path(__file__).resolve().parents[2]
    / "phase-12-structured-outputs/labs/lab-02-json-with-a-stack"
)
pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def in_vllm() -> ModuleType:
    return load_module(LAB / "in_vllm.py", "lab_12_02_in_vllm")


@pytest.fixture(scope="module")
def solution() -> ModuleType:
    return load_module(LAB / "solution.py", "lab_12_02_solution_vllm")


def test_what_is_recorded(in_vllm: Any) -> None:
    raw = in_vllm.json.loads(in_vllm.support.RECORDED.read_text("utf-8"))
    assert raw["walks"] == {group: in_vllm.record_walks(group) for group in in_vllm.GROUPS}
    assert raw["runs"] == in_vllm.run_vllm()


def allowed_after(in_vllm: Any, text: str, tokens: list[str]) -> list[str]:
    """Which of the tokens, of which the last ends the output, xgrammar allows after a text."""
    support = in_vllm.support
    first = len(tokens)
    spelled = (*tokens[:-1], *text, tokens[-1])
    theirs = in_vllm.Xgrammar(support.listed(spelled))
    grammar = theirs.start()
    assert grammar.accept_tokens("bo", [first - 1 + i for i in range(len(text))]), text
    ids = support.allowed(theirs.row(grammar))
    return [tokens[i] for i in range(first - 1) if i in ids] + tokens[-1:] * (
        len(spelled) - 1 in ids
    )


def test_the_predictions(in_vllm: Any, solution: Any) -> None:
    """By xgrammar's rows; the places by what random documents reach."""
    support = in_vllm.support
    told = solution.predictions()
    tokens = support.AFTER_A_NUMBER
    here = allowed_after(in_vllm, '[{"a":1', tokens)
    assert told["allowed"] == here
    others = ('{"a":1', '{"b":{"a":1', '[[{"a":1', '{"b":[{"a":1', '[{"b":{"a":1')
    verdicts = [allowed_after(in_vllm, text, tokens) for text in ('[{"a":1', *others)]
    asking = [t for t in tokens if len({t in one for one in verdicts}) == 2]
    assert told["to ask"] == asking
    assert told["in a string"] == allowed_after(in_vllm, '{"a":"x', support.IN_A_STRING)
    assert told["after the match"][0] == len(
        allowed_after(in_vllm, "[1]", [*'[]{},:"01a-', "</s>"])
    )
    theirs = in_vllm.Xgrammar(support.tiny())
    grammar = theirs.start()
    grammar.accept_tokens("bo", [support.tiny().tokens.index(bytes([byte])) for byte in b"[1]"])
    assert told["after the match"][1] == grammar.is_terminated()
    grammar.accept_tokens("bo", [support.tiny().stop])
    assert grammar.is_terminated()

    automaton = solution.JsonAutomaton()
    places = set()
    seen = pending = [automaton.start]
    for state in pending:
        places.add((state.mode, state.stack[-1:]))
        after = {automaton.step(state, byte) for byte in b'{}[]",:-01a'} - {None, *seen}
        pending += [one for one in after if len(one.stack) < 5]
    assert told["kept"] == len(places)
    assert places == set(support.PAIRS)
    mask = support.make_mask(solution, support.pieces())
    asked = sum(len(mask.split(*place)[1]) for place in places)
    assert told["share"] == "under a tenth"
    assert asked / len(places) / len(support.pieces().tokens) < 0.1


def test_the_counters_shortest_error(in_vllm: Any, solution: Any) -> None:
    """By breadth: the first text that a counter lets end, and xgrammar does not let begin a document."""

    def counted(text: str) -> bool:
        opened = 0
        for char in text:
            opened += (char in "{[") - (char in "}]")
            if opened < 0:
                return False
        return opened == 0 and text[:1] in ("{", "[")

    theirs = in_vllm.Xgrammar(in_vllm.support.listed([*"{}[]", "</s>"]))
    for length in range(1, 4):
        for number in range(4**length):
            ids = [number // 4**i % 4 for i in range(length)]
            if counted("".join("{}[]"[i] for i in ids)) and not theirs.start().accept_tokens(
                "bo", ids
            ):
                assert solution.predictions()["counter"] == length
                return
    pytest.fail("a counter is as good as a stack")


def test_fresh_walks(in_vllm: Any, solution: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows, and what accept, validate, rollback and is_terminated say: vLLM's grammar object, the lab's."""
    support = in_vllm.support
    rng = random.Random(122)
    rows = backs = 0
    while rows < either(600, 12_000):
        pieces = [*'{}[]",:-07a', '"}', "}]", "],", "é", "12"]
        tokens = {bytes([byte]) for byte in range(0x20, 0x7F)}
        tokens |= {"".join(rng.choices(pieces, k=rng.randint(2, 5))).encode() for _ in range(150)}
        spelled = (b"</s>", *sorted(tokens), b"")
        vocabulary = support.Vocabulary(spelled, 0, len(spelled) + rng.randrange(40))
        theirs = in_vllm.Xgrammar(vocabulary)
        mask = support.make_mask(solution, vocabulary)
        for _ in range(8):
            mine, right = solution.JsonGrammar(mask), theirs.start()
            taken = 0
            for _ in range(40):
                row = theirs.row(right)
                apart = support.compare_rows(
                    vocabulary, support.row_of(mine, vocabulary), row.tolist()
                )
                assert not apart, apart
                rows += 1
                drafts = [
                    in_vllm.choose(vocabulary, support.allowed(row), rng),
                    rng.randrange(len(spelled)),
                ]
                assert mine.validate_tokens(drafts) == right.validate_tokens(drafts)
                token = drafts[rng.random() < 0.1]
                if token not in support.allowed(row):
                    continue
                assert mine.accept_tokens("bo", [token])
                assert right.accept_tokens("bo", [token])
                taken += 1
                assert mine.is_terminated() == right.is_terminated()
                if mine.is_terminated() or rng.random() < 0.25:
                    back = rng.randint(1, min(taken, 8))
                    mine.rollback(back)
                    right.rollback(back)
                    assert mine.is_terminated() == right.is_terminated()
                    taken -= back
                    backs += 1
    with capsys.disabled():
        print(f"\n{rows} rows, {backs} times rolled back: equal")
