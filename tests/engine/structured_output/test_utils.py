"""Rows applied to logits, choices as EBNF, Lark as EBNF."""

from __future__ import annotations

import numpy as np
import pytest

from mini_vllm.structured_output.features import (
    close_objects,
    ignored_by_xgrammar,
    unsupported_by_guidance,
    unsupported_by_xgrammar,
)
from mini_vllm.structured_output.lark import convert_lark_to_ebnf
from mini_vllm.structured_output.utils import (
    apply_grammar_bitmask,
    choice_as_grammar,
    grammar_is_likely_lark,
    unpack_row,
)

VOCAB = 70


def pack(allowed: list[list[int]], words: int = 3) -> np.ndarray:
    rows = np.zeros((len(allowed), words), dtype=np.int32)
    for row, tokens in enumerate(allowed):
        for token in tokens:
            rows.view(np.uint32)[row, token // 32] |= np.uint32(1 << (token % 32))
    return rows


def allowed_in(row: np.ndarray) -> list[int]:
    return np.nonzero(row > -np.inf)[0].tolist()


def test_a_bit_is_a_token() -> None:
    tokens = [0, 31, 32, 63, 64, 69]
    assert np.nonzero(unpack_row(pack([tokens])[0], VOCAB))[0].tolist() == tokens


def test_rows_are_put_into_the_order_of_the_batch() -> None:
    logits = np.arange(5 * VOCAB, dtype=np.float32).reshape(5, VOCAB)
    before = logits.copy()
    # b has two drafts, so three rows; a and c one each. One that is not in the batch comes first in the mask.
    mask = pack([[9], [9], [1], [2], [69], [5]])
    drafts = {"b": [7, 8], "gone": [7]}
    apply_grammar_bitmask(logits, ["a", "b", "c"], drafts, ["gone", "b", "c"], mask)
    assert [allowed_in(row) for row in logits] == [list(range(VOCAB)), [1], [2], [69], [5]]
    kept = logits > -np.inf
    assert np.array_equal(logits[kept], before[kept])


def test_a_free_row_is_not_touched() -> None:
    logits = np.full((2, VOCAB), np.nan, dtype=np.float32)
    mask = np.vstack([np.full((1, 3), -1, np.int32), pack([[3]])])
    apply_grammar_bitmask(logits, ["a", "b"], {}, ["a", "b"], mask)
    assert np.isnan(logits[0]).all()
    assert np.isnan(logits[1]).nonzero()[0].tolist() == [3]


def test_logits_wider_or_narrower_than_the_rows() -> None:
    wide = np.zeros((1, 100), dtype=np.float32)
    apply_grammar_bitmask(wide, ["a"], {}, ["a"], pack([[1]]))
    assert allowed_in(wide[0]) == [1, *range(96, 100)]
    narrow = np.zeros((1, 40), dtype=np.float32)
    apply_grammar_bitmask(narrow, ["a"], {}, ["a"], pack([[1, 45]]))
    assert allowed_in(narrow[0]) == [1]


def test_a_choice_is_escaped_whole() -> None:
    assert choice_as_grammar(["yes", 'a"b\\']) == 'root ::= "yes" | "a\\"b\\\\"'
    assert choice_as_grammar(["a\nb", "é\0"]) == (
        'root ::= "a\\U0000000Ab" | "\\U000000E9\\U00000000"'
    )


def test_lark_is_told_from_ebnf() -> None:
    assert grammar_is_likely_lark('start: "a"')
    assert not grammar_is_likely_lark('root ::= "a"')
    assert not grammar_is_likely_lark("# nothing\n\n// here")


def test_lark_becomes_ebnf() -> None:
    lark = """
    // a comment
    ?start: greeting " " name  # another
    greeting: 'hello' | "hi # there"
        | 'say "hi"'
    name: [a-z]+
    """
    assert convert_lark_to_ebnf(lark).splitlines() == [
        "root ::= start",
        'start ::= greeting " " name',
        'greeting ::= "hello" | "hi # there" | "say \\"hi\\""',
        "name ::= [a-z]+",
    ]


@pytest.mark.parametrize(
    ("lark", "message"),
    [
        ("// nothing", "has none"),
        ("start: 'a", "line 1 .*not closed"),
        ("start: a b\na: 'x'", "undefined rules: b"),
        ("start: 'a'\n+ 'b'", "line 2 .*no rule"),
        ("| 'b'", "line 1 .*no rule"),
    ],
)
def test_bad_lark_names_the_line(lark: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert_lark_to_ebnf(lark)


def test_features_are_named() -> None:
    schema = {
        "type": "object",
        "patternProperties": {"^a": {"type": "integer", "multipleOf": 2}},
        "properties": {"b": {"anyOf": [{"type": "array", "uniqueItems": True}, {"not": {}}]}},
        "allOf": [{"type": "string", "format": "iri"}, {"minLength": 1}],
    }
    assert unsupported_by_xgrammar(schema) == [
        "format 'iri'",
        "multipleOf",
        "patternProperties",
        "uniqueItems",
    ]
    assert ignored_by_xgrammar(schema) == [
        "allOf",
        "format",
        "minLength",
        "not",
        "patternProperties",
        "properties",
        "uniqueItems",
    ]
    assert unsupported_by_guidance(schema) == ["patternProperties"]
    assert unsupported_by_xgrammar({"type": "string", "format": {"a": 1}}) == ["format {'a': 1}"]
    assert unsupported_by_xgrammar(True) == unsupported_by_guidance({"uniqueItems": True}) == []


def test_objects_that_list_properties_are_closed() -> None:
    schema = {"properties": {"a": {"properties": {}}}, "items": [{"patternProperties": {}}, 3]}
    close_objects(schema)
    assert schema == {
        "properties": {"a": {"properties": {}, "additionalProperties": False}},
        "items": [{"patternProperties": {}, "additionalProperties": False}, 3],
        "additionalProperties": False,
    }
