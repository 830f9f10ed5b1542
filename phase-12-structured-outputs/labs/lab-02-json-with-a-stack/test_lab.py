"""Lab 12-02: the predictions, the language, what depends on the stack, and a request's way there and back."""

from __future__ import annotations

import json
import random
import tracemalloc
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
        "allowed": (
            ["}", "}]", "},", "},{", ",", ',"', "0"],
            "Which two brackets are open, which was opened last, and may the number be over?",
        ),
        "to ask": (
            ["}]", "},", "},{"],
            "What does a token meet once it has closed the brace? Is its first byte wrong already?",
        ),
        "in a string": (
            ["}", '"}', '","', "{"],
            "Where does the string end? What is before that is text.",
        ),
        "counter": (2, "A counter knows how many are open. What does it not know of the last one?"),
        "after the match": (
            [1, False],
            "May anything follow the last bracket? What ends an output?",
        ),
        "kept": (23, "Take mode by mode: inside which brackets can one be in it? Inside none?"),
        "share": ("under a tenth", "Which of the vocabulary's tokens close a bracket and go on?"),
    }
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"seven questions; the README and your answers do not both have these: {apart}"
    )
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- over bytes ------------------------------------------------------------------------------------

_RIGHT = """
0 -0 7 120 -12 "" "a_b" "}" "[{,:" [] {} [[]] [{}] {"":[]} [0] [0,0] [-1,[2],"3"] {"a":0} {"a":{"b":[1,{}]}}
{"a":1,"a":2} [[[[[[[[]]]]]]]] {"{":"}"} [{"a":[{"b":[]}]},7]
"""
RIGHT = _RIGHT.split()
WRONG = {
    "00": "leading zeros", "01": "leading zeros", "-01": "leading zeros", "[00": "leading zeros",
    "[-]": "a minus without digits", "--": "two minuses", "1-": "a minus after a digit",
    "[}": "a bracket of the other kind", "{]": "a bracket of the other kind",
    "[[]}": "a bracket of the other kind",
    '{"a":1]': "a bracket of the other kind", '[{"a":1]': "a bracket of the other kind",
    '{"a":[1}': "a bracket of the other kind", "]": "nothing is open", "[]]": "nothing is open any more",
    "[],": "nothing is open any more", "1,": "nothing is open", "{}{": "one document, not two",
    "[,": "a value must come first", "[1,]": "a value must come after a comma", "[1,,": "two commas",
    "{,": "a key must come first", '{"a":1,}': "a key must come after a comma", "{1": "a key is a string",
    '{"a":1,2': "a key is a string", '{"a"}': "a key needs a value", '{"a",': "a key needs a value",
    '{"a":}': "a key needs a value", '["a":': "an array has no keys", '{"a":"b":': "one value a key",
    '"a"b': "text after a string", '"a""': "text after a string", " ": "no blanks outside of strings",
    "[1 ": "no blanks outside of strings", '"\\': "no backslash", '"é': "ASCII only",
    '"\n': "no control characters",
    '"\x7f': "no control characters", "²": "not a digit of JSON", "t": "no words",
}  # fmt: skip


@pytest.mark.parametrize("text", RIGHT)
def test_a_document(lab: ModuleType, text: str) -> None:
    """Read to its end, and a document there only where nothing is open."""
    state = support.read_text(lab, text)
    assert state is not None, f"{text} is a document; your step refuses it"
    assert lab.JsonAutomaton().accepts(state), (
        f"{text} is a document; yours may not end there, {state}"
    )
    for end in range(len(text)):
        before = support.read_text(lab, text[:end])
        assert before is not None, f"{text[:end]} begins a document, {text}; your step refuses it"
        want = is_document(text[:end])
        found = lab.JsonAutomaton().accepts(before)
        assert found == want, (
            f"{text[:end] or 'nothing'} is {'a' if want else 'no'} document; yours "
            f"{'may' if found else 'may not'} end there, {before}"
        )


def is_document(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("text", WRONG)
def test_no_document_begins_so(lab: ModuleType, text: str) -> None:
    """Refused at the last byte, and not before."""
    for end in range(1, len(text)):
        assert support.read_text(lab, text[:end]) is not None, (
            f"{text[:end]!r} begins a document; your step refuses it"
        )
    state = support.read_text(lab, text)
    assert state is None, (
        f"no document begins with {text!r} ({WRONG[text]}); yours goes on, {state}"
    )


def test_states_are_what_is_said(lab: ModuleType) -> None:
    """Mode and stack after a text."""
    for text, mode, stack in (
        ("", "value", ""), ("[", "first", "["), ("{", "member", "{"), ('{"', "in key", "{"),
        ('{"a"', "colon", "{"), ('{"a":', "value", "{"), ('{"a":[', "first", "{["),
        ('{"a":[{', "member", "{[{"),
        ('{"a":[0', "zero", "{["), ('{"a":[0,', "value", "{["), ('{"a":[-', "minus", "{["),
        ('{"a":["', "string", "{["),
        ('{"a":[]', "end", "{"), ('{"a":[],', "key", "{"), ('[{"a":12', "digits", "[{"),
        ('[{"a":12}', "end", "["), ('[{"a":12}]', "end", ""),
    ):  # fmt: skip
        state = support.read_text(lab, text)
        assert state == lab.State(mode, stack), f"after {text}: {mode}, {stack!r}; yours {state}"


# ---- over tokens -----------------------------------------------------------------------------------


def show(vocabulary: Any, ids: list[int]) -> str:
    return vocabulary.show(sorted(ids), 6) or "none"


@pytest.mark.parametrize(("mode", "innermost"), support.PAIRS)
def test_what_the_stack_must_be_asked(lab: ModuleType, mode: str, innermost: str) -> None:
    """Token by token under all stacks of up to four brackets: allowed under all, under some, under none."""
    vocabulary = support.pieces()
    mask = support.make_mask(lab, vocabulary)
    always, ask = mask.split(mode, innermost)
    facts = under_all_stacks(lab, vocabulary, mode, innermost)
    both = set(always) & set(ask)
    assert not both, (
        f"{mode} inside {innermost or 'nothing'}: both always and to ask: {show(vocabulary, [*both])}"
    )
    for title, mine, want in (
        ("allowed whatever is below", set(always), facts[0]),
        ("allowed under some stacks only", set(ask), facts[1]),
    ):
        assert mine == want, (
            f"{mode} inside {innermost or 'nothing'}, {title}: {len(want)} tokens; yours lacks "
            f"{show(vocabulary, [*want - mine])}, and has too many: {show(vocabulary, [*mine - want])}"
        )


def under_all_stacks(
    lab: ModuleType, vocabulary: Any, mode: str, innermost: str
) -> tuple[set[int], set[int]]:
    """By brute force, with your `step`: no token of the vocabulary closes more than three brackets."""
    belows = [""]
    if innermost:
        for below in belows:
            belows += [bracket + below for bracket in "{["] if len(below) < 3 else []
    automaton = lab.JsonAutomaton()
    always, some = set(), set()
    for token, spelled in enumerate(vocabulary.tokens):
        if token == vocabulary.stop or not spelled:
            continue
        verdicts = set()
        for below in belows:
            state = lab.State(mode, below + innermost)
            for byte in spelled:
                state = automaton.step(state, byte)
                if state is None:
                    break
            verdicts.add(state is not None)
        if verdicts == {True}:
            always.add(token)
        elif True in verdicts:
            some.add(token)
    return always, some


def test_no_depth_is_enough(lab: ModuleType) -> None:
    """A token may close more brackets than one cares to try."""
    closing = ["]]]]]]]]", "]]]]]]]],", "]]]]]]]]}", '}}}}}}}},"', "0]]]]]]]]]]"]
    vocabulary = support.listed([*closing, "0]", "]]]]]]]]0", "</s>"])
    always, ask = support.make_mask(lab, vocabulary).split("digits", "[")
    assert (sorted(always), sorted(ask)) == ([5], [0, 1, 2, 4]), (
        f"digits inside [, of {show(vocabulary, [*range(7)])} always allowed is 0], and to ask are "
        f"{show(vocabulary, [0, 1, 2, 4])}; yours {show(vocabulary, always)}, and "
        f"{show(vocabulary, ask)}"
    )


def test_tokens_that_cross_a_boundary(lab: ModuleType) -> None:
    """One token under two stacks whose innermost bracket is the same."""
    for before, other, token in (
        ('[{"a":1', '{"b":{"a":1', "}]"), ('{"b":{"a":1', '[{"a":1', "}}"), ('[{"a":1', '{"a":1', "},"),
        ("[[1", '{"a":[1', "],["), ('[{"a":"', '{"b":{"a":"', '"},{'), ("[[", '{"b":[', "],0"),
        ("[[[1", "[[1", "]]]"),
    ):  # fmt: skip
        vocabulary = support.listed([token, "0", "</s>"])
        mask = support.make_mask(lab, vocabulary)
        for text, want in ((before, True), (other, False)) * 2:
            found = 0 in support.allowed(mask.row(support.read_text(lab, text)))
            assert found == want, (
                f"after {text} the token {token} is {'allowed' if want else 'barred'}; yours "
                f"{'allows' if found else 'bars'} it (rows asked for: after {before}, and after {other})"
            )


def test_a_known_place_costs_little(lab: ModuleType) -> None:
    """The second row of a mode and innermost bracket reads no token but those that must ask the stack."""

    class Counting(lab.JsonAutomaton):  # type: ignore[misc,name-defined]
        read = 0

        def step(self, state: Any, byte: int) -> Any:
            Counting.read += 1
            return super().step(state, byte)

    vocabulary = support.pieces()
    mask = lab.JsonMask(Counting(), vocabulary.tokens, vocabulary.stop, vocabulary.vocab_size)
    first, deeper = lab.State("digits", "{"), lab.State("digits", "[[{[{")
    mask.row(first)
    _, ask = mask.split("digits", "{")
    Counting.read = 0
    mask.row(deeper)
    most = sum(len(vocabulary.tokens[token]) for token in ask)
    assert Counting.read <= most, (
        f"{len(ask)} of {len(vocabulary.tokens)} tokens must ask the stack, {most} bytes; yours read "
        f"{Counting.read} for a deeper stack with the same innermost bracket"
    )


def test_nothing_is_kept_for_a_whole_stack(lab: ModuleType) -> None:
    """There are infinitely many stacks, and a server runs for weeks."""
    mask = support.make_mask(lab, support.pieces())
    mask.row(lab.State("digits", "[{"))
    tracemalloc.start()
    try:
        for depth in range(400):
            mask.row(lab.State("digits", "[" * depth + "{"))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 80_000, (
        f"the rows of 400 stacks with the same innermost bracket were asked for; your mask has kept "
        f"{kept // 1000} kB of them. Keep what mode and innermost bracket decide, and no more"
    )


def test_the_shape_of_a_row(lab: ModuleType) -> None:
    """int32, 32 tokens a word; the end token by what may end, and no bit without a token."""
    vocabulary = support.pieces()
    mask = lab.JsonMask(lab.JsonAutomaton(), vocabulary.tokens, vocabulary.stop, 330)
    for text, ends in (("[]", True), ("7", True), ('["a"', False), ('"a"', True), ("-", False)):
        row = mask.row(support.read_text(lab, text))
        shape = f"{row.dtype} {list(row.shape)}"
        assert shape == "int32 [11]", f"a row of 330 tokens is int32 [11]; yours {shape}"
        ids = support.allowed(row)
        assert (vocabulary.stop in ids) == ends, (
            f"after {text} the end token is {'allowed' if ends else 'barred'}; in your row it is not so"
        )
        beyond = [token for token in ids if token > vocabulary.stop]
        assert not beyond, f"after {text}: bits {beyond} are of no token, or of one without bytes"


def test_a_row_is_its_callers(lab: ModuleType) -> None:
    """The next row, of the same mode and innermost bracket or of others, does not change it."""
    mask = support.make_mask(lab, support.pieces())
    for text, next_text in (('[{"a":1', '{"b":{"a":1'), ("[", "{")):
        row = mask.row(support.read_text(lab, text))
        before = support.allowed(row)
        mask.row(support.read_text(lab, next_text))
        after = support.allowed(row)
        assert after == before, (
            f"the row after {text} allowed {len(before)} tokens; since you were asked for the row after "
            f"{next_text}, the same array allows {len(after)}, not all of them the same"
        )
        row[:] = 0
        again = support.allowed(mask.row(support.read_text(lab, text)))
        assert again == before, (
            f"the caller has overwritten the row after {text}; asked for again it allows {len(again)} "
            f"tokens, not {len(before)}"
        )


# ---- a request -------------------------------------------------------------------------------------


def grammar_of(lab: ModuleType, tokens: list[str]) -> Any:
    return lab.JsonGrammar(support.make_mask(lab, support.listed(tokens)))


def test_the_end_is_accepted_not_reached(lab: ModuleType) -> None:
    """After a full match only the end token is allowed; accepting it terminates the grammar."""
    spelled = ["[", "]", "1", "],", "the end token"]
    grammar = grammar_of(lab, spelled)
    row = np.full((2, 1), -1, dtype=np.int32)
    grammar.fill_bitmask(row, 1)
    assert row[:, 0].tolist() == [-1, 5], (
        f"after nothing: row 1, full of -1 before, is 5 ([ and 1), row 0 is left alone; yours {row[:, 0]}"
    )
    text = ""
    for tokens, taken, done in (
        ([0, 4], False, False), ([2], True, False), ([4], False, False), ([1], True, False),
        ([1], False, False), ([], True, False), ([4], True, True), ([1], False, True),
        ([4], False, True), ([], False, True),
    ):  # fmt: skip
        found = (grammar.accept_tokens("bo", tokens), grammar.is_terminated())
        said = " ".join(spelled[token] for token in tokens) or "no tokens"
        assert found == (taken, done), (
            f"after {text or 'nothing'}, {said}: accept_tokens and is_terminated are {(taken, done)}; "
            f"yours {found}"
        )
        text += f"{said} ({'accepted' if taken else 'refused'}) "
    row = np.zeros((2, 1), dtype=np.int32)
    grammar.fill_bitmask(row, 1)
    assert row[:, 0].tolist() == [0, -1], (
        f"terminated: row 1 is -1, row 0 is left alone; yours {row[:, 0]}"
    )


def test_what_comes_before_a_barred_token_is_taken(lab: ModuleType) -> None:
    """As in vLLM: False, and the tokens before it count."""
    grammar = grammar_of(lab, ["[", "]", "1", "0", "</s>"])
    found = grammar.accept_tokens("bo", [0, 3, 2, 1])
    assert found is False, "`[01]`: the 1 is barred after a leading zero; yours accepts it"
    row = support.allowed(support.row_of(grammar, support.listed(["[", "]", "1", "0", "</s>"])))
    assert row == [1], f"then `[0` is written, and only `]` may come, bit 1; in yours {row}"
    for tokens in ([0, 1, 4, 4], [0, 1, 4, 1]):
        other = grammar_of(lab, ["[", "]", "1", "0", "</s>"])
        found = other.accept_tokens("bo", tokens)
        assert found is False, f"`[]`, the end token, and one token more: refused; yours {found}"


def test_rolled_back_rows_are_the_same(lab: ModuleType) -> None:
    """There and back along xgrammar's walks, bit for bit: brackets that were closed are open again."""
    mask = support.make_mask(lab, support.pieces())
    for number, walk in enumerate(RECORDED["walks"]["several characters"][:12]):
        apart = support.first_difference(lab, mask, walk, random.Random(number))
        assert not apart, apart


def test_roll_back_everything(lab: ModuleType) -> None:
    """Over the end token, to the very beginning, by nothing, and by too much."""
    vocabulary = support.listed(["[", "]", "[{", "},", "</s>"])
    grammar = lab.JsonGrammar(support.make_mask(lab, vocabulary))
    rows = [support.row_of(grammar, vocabulary).tolist()]
    for token in (0, 2, 3, 0, 1, 1, 1, 4):
        grammar.accept_tokens("bo", [token])
        rows.append(support.row_of(grammar, vocabulary).tolist())
    for back, at in ((0, 8), (1, 7), (0, 7), (3, 4), (4, 0)):
        grammar.rollback(back)
        row = support.row_of(grammar, vocabulary).tolist()
        found = (row, grammar.is_terminated())
        assert found == (rows[at], at == 8), (
            f"back by {back}, {at} tokens are left: row {rows[at]}, terminated {at == 8}; yours {found}"
        )
    grammar.accept_tokens("bo", [0] * 150)
    grammar.rollback(150)
    row = support.row_of(grammar, vocabulary).tolist()
    assert row == rows[0], (
        f"150 tokens there and back: row {rows[0]}, as at the beginning; yours {row}"
    )
    for tokens in ([], [0, 2]):
        grammar.accept_tokens("bo", tokens)
        for back in (len(tokens) + 1, -1):
            try:
                grammar.rollback(back)
            except ValueError:
                row = support.row_of(grammar, vocabulary).tolist()
                assert row == rows[len(tokens)], (
                    f"{len(tokens)} tokens are accepted: rollback({back}) is a ValueError and changes "
                    f"nothing, row {rows[len(tokens)]}; yours {row}"
                )
                continue
            pytest.fail(
                f"{len(tokens)} tokens are accepted: rollback({back}) is a ValueError; yours lets it pass"
            )


def test_validate_leaves_the_state(lab: ModuleType) -> None:
    """Draft tokens are tried with your accept_tokens and rollback, and the row is as before."""
    tokens = ["[", "]", "1", ",", "</s>"]
    grammar = grammar_of(lab, tokens)
    grammar.accept_tokens("bo", [0, 2])
    row = support.row_of(grammar, support.listed(tokens)).tolist()
    for drafts, want in (
        ([3, 2, 1, 4], 4),
        ([3, 3], 1),
        ([4], 0),
        ([1, 1], 1),
        ([2, 2, 1, 4, 1], 4),
    ):
        found = grammar.validate_tokens(drafts)
        text = " ".join(tokens[token] for token in drafts)
        assert found == drafts[:want], (
            f"after [1 the first {want} of {text} are allowed; yours {found}"
        )
        after = support.row_of(grammar, support.listed(tokens)).tolist()
        assert after == row, (
            f"after validate_tokens of {text} the row is {after}; before it was {row}"
        )


def test_requests_do_not_meet(lab: ModuleType) -> None:
    """Two requests with one mask, in turns."""
    tokens = ["[", "{", "]", "}", "</s>"]
    mask = support.make_mask(lab, support.listed(tokens))
    one, two = lab.JsonGrammar(mask), lab.JsonGrammar(mask)
    one.accept_tokens("bo", [0])
    two.accept_tokens("ada", [1])
    rows = [support.allowed(support.row_of(g, support.listed(tokens))) for g in (one, two)]
    assert rows == [[0, 1, 2], [3]], (
        f"one has written `[`, the other `{{`: bits [0, 1, 2] and [3]; in yours {rows}"
    )


# ---- beside xgrammar -------------------------------------------------------------------------------


@pytest.mark.parametrize("group", RECORDED["walks"])
def test_rows_are_xgrammars(lab: ModuleType, group: str) -> None:
    """Along recorded walks, bit for bit: over the tiny Llama's tokens, and over longer ones."""
    mask = support.make_mask(lab, support.vocabulary_of(group))
    for walk in RECORDED["walks"][group]:
        apart = support.first_difference(lab, mask, walk)
        assert not apart, apart


def test_the_tiny_llama_obeys(lab: ModuleType) -> None:
    """In the engine, bound by your rows: the tokens of real vLLM. What was ended, `json.loads` reads."""
    mask = support.make_mask(lab, support.tiny())
    for name, want in RECORDED["runs"].items():
        answer = support.generate(lab.JsonGrammar(mask), support.sampling(name))
        assert list(answer.tokens) == want, (
            f"{name}: with your rows {answer.text!r}; vLLM says {support.tiny().text(want)!r}"
        )
        if answer.tokens[-1] == support.tiny().stop:
            assert is_document(answer.text), f"{name}: ended, and no JSON: {answer.text!r}"
