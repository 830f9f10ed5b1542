"""JSON Schema in the native backend: what is enforced, what is refused and by which name, and its bounds."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mini_vllm
from mini_vllm.structured_output.automata.limits import Limits, RuleTooLarge, UnsupportedRule
from mini_vllm.structured_output.automata.pushdown import Pushdown
from mini_vllm.structured_output.automata.schema import parse_schema
from mini_vllm.structured_output.automata.tokens import TokenAutomaton, TokenTrie
from mini_vllm.structured_output.backend_native import NativeBackend, NativeGrammar
from mini_vllm.structured_output.backend_types import BackendConfig, StructuredOutputOptions
from mini_vllm.tokenizer.tokenizer import Tokenizer
from tests.engine.helpers.thorough import either
from tests.engine.structured_output.random_rules import json_vocabulary
from tests.engine.structured_output.random_schemas import RandomSchemas, write_randomly

TINY = Path(mini_vllm.__file__).parent / "checkpoints" / "tiny-llama"
INT, TEXT = {"type": "integer"}, {"type": "string"}
TICKET = {
    "type": "object",
    "properties": {
        "item": {"type": "string", "maxLength": 12},
        "urgent": {"type": "boolean"},
        "days": INT,
    },
    "required": ["item", "urgent", "days"],
    "additionalProperties": False,
}


def compiled(schema: Any, blanks: bool = True, limits: Limits | None = None) -> Pushdown:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return Pushdown(*parse_schema(text, blanks, limits or Limits()), limits or Limits())


def takes(automaton: Pushdown, document: str) -> bool:
    return automaton.accepts(automaton.advance(automaton.start, document.encode()))


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (TICKET, ['{"item": "fan", "urgent": true, "days": 3}'],
         ['{"item": "fan", "urgent": true}', '{"urgent": true, "item": "fan", "days": 3}',
          '{"item": "a longer name", "urgent": true, "days": 3}',
          '{"item": "fan", "urgent": true, "days": 3, "more": 1}',
          '{"item": "fan", "urgent": 1, "days": 3}']),
        ({"type": ["string", "null"]}, ['"a"', "null"], ["1"]),
        (True, ["1", '{"a": [null]}'], ["", "nul"]),
        ({"enum": ['q"', 1, {"k": [1, "é"]}]}, [r'"q\""', "1", '{"k":[1,"é"]}'], ["2", '{"k":[1]}']),
        ({"const": 5.0}, ["5"], ["5.0", "4"]),
        ({"type": "integer", "minimum": -12, "exclusiveMaximum": 105}, ["-12", "-9", "0", "99", "104"],
         ["-13", "105", "1000", "-0", "05", "1.5"]),
        ({"type": "integer", "exclusiveMinimum": 9.5}, ["10", "4711"], ["9", "-10"]),
        ({"type": "integer", "maximum": -100}, ["-100", "-4711"], ["-99", "0", "100"]),
        ({"type": "number", "minimum": -0.25, "maximum": 1.5},
         ["-0.25", "-0.2", "0", "1.5", "1.50", "1.499", "1"],
         ["-0.26", "1.51", "2", "1e-1", "-1"]),
        ({"type": "number", "exclusiveMinimum": 1}, ["1.01", "2", "10.0"], ["1", "1.0", "1.00", "0.9"]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"é€😀"'], ['"a"', '"abcd"']),
        ({"type": "string", "pattern": r'^[a-c]+"\\$'}, [r'"abc\"\\"'], [r'"abc"', r'"abc\"\\x"']),
        ({"type": "string", "pattern": "^[a-z]+$", "maxLength": 2}, ['"a"', '"ab"'], ['""', '"abc"', '"A"']),
        ({"type": "string", "format": "date"}, ['"2024-02-29"', '"1999-12-31"'],
         ['"2023-02-29"', '"1900-02-29"', '"2024-04-31"', '"2024-13-01"']),
        ({"type": "string", "format": "date-time"},
         ['"2024-02-29T23:59:59.5+01:00"', '"2024-01-01T00:00:00Z"'],
         ['"2024-02-29"', '"2024-01-01T24:00:00Z"']),
        ({"type": "string", "format": "ipv4"},
         ['"127.0.0.1"', '"255.255.255.255"'], ['"256.0.0.1"', '"01.0.0.1"']),
        ({"type": "string", "format": "email"}, ['"bo.k+a@help.desk.org"'], ['"bo"', '"a@b"', '"a..b@c.de"']),
        ({"type": "string", "format": "uuid"}, ['"01234567-89ab-CDEF-0123-456789abcdef"'], ['"0123"']),
        ({"type": "array", "items": INT, "minItems": 1, "maxItems": 3}, ["[1]", "[1, 2, 3]"],
         ["[]", "[1,2,3,4]", '["a"]']),
        ({"type": "array", "prefixItems": [INT, TEXT], "items": {"type": "null"}, "minItems": 1},
         ["[1]", '[1,"a"]', '[1,"a",null,null]'], ["[]", "[1,null]", '[1,"a",1]']),
        ({"type": "array", "prefixItems": [INT, TEXT], "maxItems": 1}, ["[]", "[1]"], ['[1,"a"]']),
        ({"type": "object", "additionalProperties": INT, "maxProperties": 2, "minProperties": 1},
         ['{"a":1}', '{"a":1,"b":2}'], ["{}", '{"a":1,"b":2,"c":3}', '{"a":"b"}']),
        ({"type": "object", "properties": {"a": INT, "aé": INT}, "additionalProperties": TEXT},
         ['{"a":1,"b":"x"}', '{"":"x"}', '{"aéé":"x"}', r'{"\u0062":"x"}', "{}"],
         ['{"a":"x"}', r'{"\u0061":"x"}', r'{"a\u00e9":"x"}', '{"b":"x","a":1}']),
        ({"properties": {'k"\n😀': INT}, "required": ['k"\n😀'], "additionalProperties": True},
         [r'{"k\"\n😀":1}', r'{"k\"\n😀":1,"k\"":2}'],
         [r'{"k\"\n😀":"a"}', r'{"k\"\n😀":1,"k\"\u000a😀":2}', r'{"k\"\n😀":1,"k\"\n\ud83d\ude00":2}']),
        ({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": INT},
         ['{"b":1}', "{}"], ['{"c":1}', '{"a":"x"}']),
        ({"type": "object", "patternProperties": {"^x-[a-z]+$": INT}, "minProperties": 1},
         ['{"x-a":1}', '{"x-a":1,"x-bc":2}'], ["{}", '{"x-":1}', '{"x-a":null}', '{"y":1}']),
        ({"type": "object", "properties": {"a": False, "b": INT}}, ['{"b":1}', "{}"], ['{"a":1}']),
        ({"required": ["b", "a"], "properties": {"a": INT}},
         ['{"a":1,"b":null}', "7"], ['{"a":1}', '{"b":1}']),
        ({"anyOf": [INT, {"type": "object", "properties": {"a": INT}}], "minimum": 5},
         ["5", '{"a":1}'], ["4", '{"a":"b"}']),
        ({"oneOf": [{"type": "object", "properties": {"k": {"const": i}}, "required": ["k"]} for i in "ab"]},
         ['{"k":"a"}', '{"k":"b"}'], ['{"k":"c"}', "{}"]),
        ({"allOf": [{"type": "object", "properties": {"a": INT}, "required": ["a"]},
                    {"properties": {"a": {"minimum": 3}, "b": TEXT}}]},
         ['{"a":3}', '{"a":4,"b":"x"}'], ['{"a":2}', '{"b":"x"}', '{"a":3,"c":1}']),
        ({"allOf": [{"type": "object", "properties": {"a": INT}, "additionalProperties": False},
                    {"properties": {"b": INT}}]}, ['{"a":1}'], ['{"b":1}']),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {
            "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}, "required": ["next"]}}},
         ['{"next":{"next":{"next":null}}}'], ['{"next":{}}', "{}"]),
        ({"$ref": "#/$defs/a%25~1b", "maximum": 3, "$defs": {"a%/b": INT}}, ["3"], ["4", '"a"']),
        ({"title": "t", "x-unit": "mm", "type": "integer", "default": 3}, ["3"], ["true"]),
        ({"minimum": 5}, ["5", "5.5", '"a"', "null", "{}"], ["4"]),
    ],
)  # fmt: skip
def test_a_schema_is_obeyed(schema: Any, good: list[str], bad: list[str]) -> None:
    automaton = compiled(schema)
    assert [document for document in good if not takes(automaton, document)] == []
    assert [document for document in bad if takes(automaton, document)] == []


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"properties": {"item": {"pattern": "a(?=b)"}}},
         r"^properties.item.pattern: regex, character 2: look-ahead is not supported$"),
        ({"pattern": "a$b"}, "^pattern: regex, character 2: an anchor inside"),
        ({"pattern": "(^a)"}, "^pattern: regex, character 2: an anchor inside"),
        ({"pattern": "a|b", "maxLength": 3}, "^pattern: beside a length only one set of characters"),
        ({"format": "date", "minLength": 3}, "^format: beside pattern or a length"),
        ({"allOf": [{"format": "date"}, {"maxLength": 3}]}, "^format: beside pattern or a length"),
        ({"format": "uri"}, "^format: 'uri' is not supported: there are date"),
        ({"items": {"multipleOf": 3}}, "^items.multipleOf: this keyword is not supported"),
        ({"$defs": {"n": {"not": {}}}, "items": {"$ref": "#/$defs/n"}}, r"^\$defs.n.not: this keyword"),
        ({"uniqueItems": True}, "^uniqueItems: this keyword is not supported"),
        ({"minlength": 3}, "^minlength: unknown keyword"),
        ({"nullable": True}, "^nullable: of OpenAPI"),
        ({"items": [{}]}, "^items: a list is of older drafts: here it is prefixItems"),
        ({"exclusiveMinimum": True}, "^exclusiveMinimum: a number is expected, got True"),
        ({"minimum": 1e300}, "^minimum: a bound of more than 40 digits"),
        ({"type": "text"}, "^type: 'text' is no type"),
        ({"type": []}, "^type: an empty list"),
        ({"enum": []}, "^enum: an empty list: nothing fits"),
        ({"minItems": 3, "maxItems": 2}, "^minItems: more than maxItems: nothing fits"),
        ({"minLength": -1}, "^minLength: a whole number from 0 on"),
        ({"required": ["a", 1]}, "^required: a list of texts"),
        ({"properties": {"a": 3}}, "^properties.a: a schema, an object or a truth value, is expected, got 3"),
        ({"anyOf": []}, "^anyOf: a list of schemas"),
        ({"oneOf": [INT, {"type": "number"}]}, "^oneOf: a value may fit both 0 and 1; anyOf is supported"),
        ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "^two different pattern at once"),
        ({"enum": ["a", "bb"], "minLength": 2}, "^enum: beside minLength is not supported"),
        ({"properties": {"a": INT}, "propertyNames": {}}, "^propertyNames: beside properties"),
        ({"patternProperties": {"a": {}, "b": {}}}, "^patternProperties: more than one"),
        ({"patternProperties": {"a(": {}}}, "^patternProperties: regex, character 2"),
        ({"allOf": [{"patternProperties": {"a": INT}}, {"additionalProperties": False}]},
         "^patternProperties and other properties at once"),
        ({"type": "object", "additionalProperties": False, "minProperties": 1}, "no document fits"),
        ({"type": "object", "minProperties": 2}, "^minProperties: is not supported here"),
        ({"properties": {"a": INT, "b": INT}, "maxProperties": 1}, "^maxProperties: beside properties"),
        ({"$ref": "other.json"}, r"^\$ref: 'other.json' does not begin with '#/'"),
        ({"$ref": "#/$defs/n"}, r"^\$ref: '#/\$defs/n' leads to no schema"),
        ({"properties": {"a": {"$id": "b"}}}, r"^properties.a.\$id: only the whole schema"),
        ({"$schema": "https://example.com/my"}, r"^\$schema: the dialect"),
        ({"$ref": "#"}, "it leads to itself before anything is written"),
        ({"anyOf": [INT, {"$ref": "#"}]}, "it leads to itself before anything is written"),
        ({"allOf": [{"$ref": "#"}]}, "it leads to itself before anything is written"),
        (False, "no document fits this schema"),
        ({"type": "string", "const": 3}, "no document fits this schema; enum: no value is of the type"),
        ({"allOf": [INT, TEXT]}, "no document fits this schema"),
        ({"type": "integer", "minimum": 7, "maximum": 5}, "no document fits this schema"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "no document fits"),
        ({"type": "array", "items": False, "minItems": 1}, "no document fits this schema"),
        ('{"type": "string", "type": "null"}', "the key 'type' stands twice"),
        ('{"const": NaN}', "NaN is not JSON"),
        ('{"const": 1e999}', "the number '1e999' is too large"),
        ('{"const": "\\ud800"}', "a surrogate"),
        ("[]", "a schema, an object or a truth value, is expected"),
        ("{", "not JSON"),
        ("[" * 5000, "not JSON"),
    ],
)  # fmt: skip
def test_a_schema_is_refused_by_its_place_and_reason(schema: Any, named: str) -> None:
    with pytest.raises(UnsupportedRule, match=named):
        compiled(schema)


def nested(depth: int) -> dict[str, Any]:
    return {"items": nested(depth - 1)} if depth else {}


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        (nested(150), "more than 100 levels"),
        ({"maxLength": 10**9}, "50000 states"),
        ({"items": INT, "maxItems": 10**9}, "50000 states"),
        ({"anyOf": [{"const": number} for number in range(2100)]}, "more than 2000 schemas"),
        ({"enum": ["a" * 60_000]}, "characters are more than"),
        ({"allOf": [{"anyOf": [{"const": 20 * i + j} for j in range(20)]} for i in range(3)]},
         "^allOf: more than 200 options of anyOf"),
        ({"allOf": [{"enum": list(range(n, n + 400))} for n in (0, 300)]}, "400 and 400 values are too many"),
        ({"oneOf": [{"const": number} for number in range(201)]}, "^oneOf: more than 200 options"),
        ({"$ref": "#/$defs/0", "$defs": {
            str(n): {"title": "", "$ref": f"#/$defs/{n + 1}"} for n in range(900)} | {"900": INT}},
         "more than 100 references"),
    ],
)  # fmt: skip
def test_a_huge_schema_is_refused(schema: Any, named: str) -> None:
    with pytest.raises(RuleTooLarge, match=named):
        compiled(schema)


def test_without_blanks_there_is_one_behind_comma_and_colon() -> None:
    tokenizer = Tokenizer.from_folder(TINY)
    backend = NativeBackend(tokenizer, 264, BackendConfig(disable_any_whitespace=True))
    value = {"item": "é 😀", "urgent": False, "days": -3}
    for text, taken in (
        (json.dumps(value, ensure_ascii=False), True),
        (json.dumps(value, ensure_ascii=False, indent=1), False),
    ):
        grammar = backend.compile_grammar(StructuredOutputOptions.JSON, json.dumps(TICKET))
        tokens = tokenizer.encode(text, add_special_tokens=False)
        assert grammar.accept_tokens("r", [*tokens, 2]) == taken, text


def test_a_byte_is_always_left_and_a_way_back_too() -> None:
    """Random schemas: no state without an allowed token but the last; rolled back, every row is the same."""
    rng = random.Random(3)
    draw = RandomSchemas(rng, shared=False).draw
    vocabulary = json_vocabulary(rng, 200)
    trie, row = TokenTrie(vocabulary, [0]), np.empty((1, -(-len(vocabulary) // 32)), dtype=np.int32)
    schemas = 0
    while schemas < either(40, 1000):
        try:
            over_bytes = compiled(draw(), limits=Limits(dfa_states=rng.choice([4, 20_000])))
        except UnsupportedRule:
            continue
        except RuleTooLarge:
            over_bytes = compiled(draw())
        schemas += 1
        automaton = TokenAutomaton(over_bytes, trie, len(vocabulary))
        grammar, rows, path = NativeGrammar(automaton), list[bytes](), list[int]()
        for _ in range(25):
            grammar.fill_bitmask(row, 0)
            rows.append(row.tobytes())
            allowed = np.flatnonzero(np.unpackbits(row[0].view(np.uint8), bitorder="little"))
            assert len(allowed)
            token = int(rng.choice(list(allowed)))
            if not grammar.accept_tokens("r", [token]) or token == 0:
                break
            path.append(token)
        while path:
            steps = rng.randint(1, min(3, len(path)))
            grammar.reset()
            del path[-steps:], rows[len(path) + 1 :]
            assert grammar.accept_tokens("r", path) or not path
            automaton._rows.clear()
            grammar.fill_bitmask(row, 0)
            assert row.tobytes() == rows[-1]


def test_readings_that_multiply_are_given_up_and_the_rest_is_sound() -> None:
    """Two lists that differ at their ends alone: each that is opened doubles the stacks."""
    side = lambda end: {"type": "array", "prefixItems": [{"$ref": "#/$defs/n"}, end]}  # noqa: E731
    schema = {"$ref": "#/$defs/n", "$defs": {"n": {"anyOf": [INT, side(INT), side(TEXT)]}}}
    automaton = compiled(schema, limits=Limits(stacks=100))
    state = automaton.start
    for _ in range(40):
        state = automaton.advance(state, b"[")
        assert 0 < len(state) <= 100 + 30
    for _ in range(40):  # whatever is still allowed leads to an end
        state = automaton.advance(state, b"1" if automaton.advance(state, b"1") else b"")
        end = b",1]" if automaton.advance(state, b",1]") else b"]"
        state = automaton.advance(state, end)
    assert automaton.accepts(state)
    assert takes(compiled(schema), '[[1,"a"],2]')
    assert not takes(compiled(schema), '[[1,"a"],null]')


def test_a_long_document_costs_no_recursion() -> None:
    automaton = compiled({"type": "object", "properties": {"n": {"$ref": "#"}}})
    state = automaton.advance(automaton.start, b'{"n":' * 3000 + b"{" + b"}" * 3001)
    assert automaton.accepts(state)
    assert takes(
        compiled({"properties": {"a" * 100: INT}, "additionalProperties": True}), '{"a":1}'
    )


def broken(rng: random.Random, value: Any) -> Any:
    """The same with a part somewhere replaced, renamed or left out."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        name = rng.choice(list(value))
        changed = {key: inner for key, inner in value.items() if key != name}
        if rng.random() < 0.8:
            place = name if rng.random() < 0.7 else rng.choice(WORDS)
            changed[place] = broken(rng, value[name])
        return changed
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], broken(rng, value[at]), *value[at + 1 :]]
    return rng.choice([*JUNK, value])


WORDS = [
    "type", "enum", "const", "allOf", "oneOf", "anyOf", "$ref", "properties", "required", "items", "pattern",
    "prefixItems", "minItems", "maxLength", "minimum", "additionalProperties", "format", "$defs", "$id",
    "not", "",
]  # fmt: skip
JUNK = [
    None, True, False, -1, 0, 2.5, 10**30, "", "#", "#/$defs/m", "string", "a(", [], {}, [[]], {"": {}},
    [{"$ref": "#"}], {"type": "integer"}, "\ud800", {"$ref": "#/$defs/n/anyOf/0"}, ["a", "a"],
]  # fmt: skip


def test_a_broken_schema_is_refused_or_can_be_obeyed() -> None:
    """Nothing but a refusal is ever raised, and what is compiled leads to no dead end."""
    rng = random.Random(5)
    draw = RandomSchemas(rng, shared=False).draw
    refused = obeyed = 0
    while refused + obeyed < either(150, 5000):
        schema = draw()
        for _ in range(rng.randint(1, 3)):
            schema = broken(rng, schema)
        try:
            automaton = compiled(schema)
        except (UnsupportedRule, RuleTooLarge):
            refused += 1
            continue
        obeyed += 1
        write_randomly(rng, automaton, 60)
    assert min(refused, obeyed) > 40
