"""Lab 12-03: the predictions, and your functions beside what real vLLM was recorded to do."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)


def words_of(value: Any) -> str:
    return value.words() if isinstance(value, support.Asked) else ""


OUTPUTS = pytest.mark.parametrize(("asked", "output"), support.outputs(), ids=words_of)
DOCUMENTS = pytest.mark.parametrize(
    ("asked", "output"),
    [pair for pair in support.outputs() if support.complete_in_xgrammars_style(*pair)],
    ids=words_of,
)


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your answers to the eight questions hold, before anything is run."""
    facts: dict[str, tuple[Any, str]] = {
        "no longest": (["days"], "Of which field could you write one that is longer still?"),
        "after the brace": (5, "Which characters are blanks in JSON? What else may come there?"),
        "forty tokens": ("blanks", "What may the model write, as often as it likes, before the first name?"),
        "starts": (
            ["guidance", "xgrammar"], "Does `auto` know which backend a request will get?",
        ),
        "exactly enough": (
            ("length", "valid"), "Is the end token one of max_tokens? Is anything missing from the text?",
        ),
        "key order": ("cold", "Is the text that reaches the cache the same?"),
        "free row": (-1, "Which number of 32 bits has all of them set?"),
        "free tokens": ("the same", "Which logits does a row of ones change?"),
    }  # fmt: skip
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"eight questions; these stand in one of the README and your answers only: {apart}"
    )
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- what a schema allows --------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["xgrammar", "guidance"])
@pytest.mark.parametrize("name", support.SCHEMAS)
def test_lengths(lab: ModuleType, name: str, backend: str) -> None:
    """The shortest and the longest document, as vLLM's own grammars allow them."""
    want = tuple(support.recorded()["lengths"][backend][name])
    found = tuple(lab.lengths(support.SCHEMAS[name], getattr(lab, backend.upper())))
    assert found == want, f"`{name}`, {backend}: shortest and longest {want}; yours {found}"


def test_one_bound_is_no_longest_value(lab: ModuleType) -> None:
    """With a maximum alone, a number may have as many digits as it likes behind its sign."""
    for schema in ({"type": "integer", "maximum": 99}, {"type": "integer", "minimum": 5}):
        found = tuple(lab.lengths(schema, lab.XGRAMMAR))
        assert found == (1, None), f"{schema}: one digit, and no longest; yours {found}"


@pytest.mark.parametrize("name", support.SCHEMAS)
def test_safe_max_tokens(lab: ModuleType, name: str) -> None:
    """With one token less, the longest document would not end by itself."""
    longest = support.recorded()["lengths"]["xgrammar"][name][1]
    want = None if longest is None else longest + 1
    found = lab.safe_max_tokens(support.SCHEMAS[name], lab.XGRAMMAR)
    assert found == want, f"`{name}`: a longest document of {longest} tokens; {want}, yours {found}"


@DOCUMENTS
def test_forced_steps(lab: ModuleType, asked: Any, output: dict[str, Any]) -> None:
    """Step by step, where the row of the real grammar allowed one token."""
    want = [count == 1 for count in output["allowed"]]
    document = output["text"]
    found = list(lab.forced(support.SCHEMAS[asked.schema], document))
    assert len(found) == len(want), (
        f"{document}: {len(document.encode())} tokens and the end token, so {len(want)} steps; yours "
        f"{len(found)}"
    )
    for number, (mine, theirs) in enumerate(zip(found, want, strict=True)):
        before = document.encode()[:number].decode(errors="replace")
        assert mine == theirs, (
            f"`{asked.schema}`, after {before}: vLLM's row allowed {output['allowed'][number]} tokens; "
            f"forced is {theirs}, yours {mine}"
        )


def test_a_character_of_several_bytes(lab: ModuleType) -> None:
    """`maxLength` counts characters; a token is a byte."""
    for document, parts in (
        ('{"first": "é", "last": "zz"}', ["1" * 11, "00", "1" * 12, "00", "111"]),
        ('{"first": "", "last": "é"}', ["1" * 11, "", "0" + "1" * 11, "00", "011"]),
    ):
        want = "".join(parts)
        found = "".join("01"[bool(f)] for f in lab.forced(support.SCHEMAS["initials"], document))
        assert found == want, (
            f"{document}, where é is two tokens: forced, as 0 and 1, is {want}, and yours {found}"
        )


@pytest.mark.parametrize(
    ("document", "want"), [("13", "000"), ("99", "001"), ("130", "0001"), ("-5", "001")]
)
def test_behind_a_number(lab: ModuleType, document: str, want: str) -> None:
    """The end token is a choice if a digit could have come in its place."""
    found = "".join("01"[bool(f)] for f in lab.forced(support.SCHEMAS["range"], document))
    assert found == want, (
        f"{document}, of -5 to 130: forced, as 0 and 1, with the end token, is {want}; yours {found}"
    )


# ---- what came back --------------------------------------------------------------------------------


NOT_VALID = {
    "auto, ticket, max_tokens 40, seed 1": "blanks",
    "auto, ticket, max_tokens 40, seed 2": "blanks",
    "auto, ticket, max_tokens 160, seed 1": "blanks",
    "auto, ticket, max_tokens 160, seed 2": "blanks",
    "xgrammar, ticket, max_tokens 40, seed 1": "cut",
    "xgrammar, ticket, max_tokens 160, seed 1": "cut",
    "xgrammar, range, max_tokens 1, seed 3": "cut",
    "xgrammar, bounded, max_tokens 90, seed 1, '\\t' preferred": "not JSON",
}


@OUTPUTS
def test_verdicts(lab: ModuleType, asked: Any, output: dict[str, Any]) -> None:
    """Of each recorded output."""
    want = NOT_VALID.get(asked.words(), "valid")
    found = lab.verdict(output["text"], output["finish_reason"])
    assert found == want, (
        f"{asked.words()}, which ends by {output['finish_reason']}: {output['text'][:60]!r}: {want}, yours "
        f"{found}"
    )


@pytest.mark.parametrize(
    ("text", "finish_reason", "want"),
    [
        ('{"days": 7}', "length", "valid"),
        ("13", "length", "cut"),
        ("13", "stop", "valid"),
        ('"repair"', "stop", "valid"),
        ('{"item": "a                     b", "x": ', "length", "cut"),
        ("{ \t\n\r  ", "length", "blanks"),
        ('{"item": "a\tb"}', "stop", "not JSON"),
        ('{"item": "a\tb"}', "length", "cut"),
        ('{"item": ', "stop", "not JSON"),
        ("   13   ", "length", "blanks"),
        ("{  a", "length", "cut"),
        ('{    "a"', "length", "cut"),
        ('{"days": 7}' + 20 * " ", "length", "valid"),
        ("[1]", "length", "cut"),
        ('"repair"', "length", "cut"),
    ],
    ids=repr,
)
def test_a_verdict(lab: ModuleType, text: str, finish_reason: str, want: str) -> None:
    """Of made-up outputs, at the edges."""
    found = lab.verdict(text, finish_reason)
    assert found == want, f"{text!r}, ended by {finish_reason}: {want}, yours {found}"


# ---- compiling, and rows ---------------------------------------------------------------------------


def test_cold_is_where_xgrammars_cache_grew(lab: ModuleType) -> None:
    """vLLM asked the backend each time; what that then did is seen by its cache."""
    want = [one["grew"] > 0 for one in support.recorded()["compiled"]["xgrammar"]]
    found = list(lab.cold(support.KEYS, "xgrammar"))
    assert len(found) == len(want), f"{len(want)} rules; yours {len(found)}"
    for number, (mine, theirs) in enumerate(zip(found, want, strict=True)):
        kind, text = support.KEYS[number]
        assert mine == theirs, (
            f"xgrammar, request {number}, {kind} {text[:50]}: cold is {theirs}, yours {mine}"
        )


def test_a_text_of_another_kind(lab: ModuleType) -> None:
    """`true` is a regex and a schema, and these are two rules."""
    found = list(lab.cold([("regex", "true"), ("json", "true"), ("regex", "true")], "xgrammar"))
    assert found == [True, True, False], (
        f"the regex `true`, the schema `true`, and the regex again: cold, cold and warm; yours {found}"
    )


def test_guidance_compiles_each_time(lab: ModuleType) -> None:
    """There is no cache to find anything in."""
    found = list(lab.cold(support.KEYS, "guidance"))
    assert found == [True] * len(support.KEYS), f"guidance keeps nothing; yours {found}"


def test_rows_stand_where_vllm_puts_them(lab: ModuleType) -> None:
    """In some steps of a batch of free and bound requests."""
    for step in support.recorded()["steps"]:
        rows = np.array(step["rows"], dtype=np.int32)
        want = np.array(step["placed"], dtype=np.int32)
        found = np.asarray(lab.place_rows(step["req_ids"], step["bound"], rows))
        case = f"batch {' '.join(step['req_ids'])}, rows of {' '.join(step['bound'])}"
        assert found.shape == want.shape, f"{case}: shape {want.shape}, yours {found.shape}"
        assert found.dtype == want.dtype, f"{case}: int32, yours {found.dtype}"
        apart = np.flatnonzero((found != want).any(axis=1)).tolist()
        assert not apart, (
            f"{case}: rows {apart} are not those of vLLM. A free row there begins {want.max()}..., yours at "
            f"{apart[0] if apart else 0} begins {found[apart[0]][:2].tolist() if apart else []}"
        )
