"""The native backend's rows of JSON schemas against xgrammar's, and its documents against a validator.

What differs from xgrammar, beside tokens of which its own row and its `accept_token` say different things,
has one of these reasons:

* It takes raw control characters in a string with a length, where JSON has none.
* Beside additional properties it takes a declared one again if its name is not ASCII, of which it reads the
  bytes as characters, or is written with an escape; and where a declared name has a backslash, it takes
  any character behind one.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any, ClassVar

import pytest

from mini_vllm.structured_output.automata.limits import RuleError
from mini_vllm.structured_output.automata.pushdown import Pushdown
from mini_vllm.structured_output.automata.schema import parse_schema
from mini_vllm.structured_output.automata.tokens import TokenAutomaton, TokenTrie
from mini_vllm.structured_output.backend_native import NativeGrammar
from tests.engine.helpers.thorough import either
from tests.engine.structured_output.json_suite import FORMATS_CHECKED, is_valid
from tests.engine.structured_output.random_rules import json_vocabulary
from tests.engine.structured_output.random_schemas import NAMES, RandomSchemas, write_randomly
from tests.engine.structured_output.test_native_vllm import Walk

pytestmark = pytest.mark.vllm


class SchemaWalk(Walk):
    """A walk that knows what was written."""

    reasons: ClassVar[Counter[str]] = Counter()

    def __init__(self, schema: Any, compiled: Any, blanks: bool, vocabulary: list[bytes]) -> None:
        import xgrammar

        self._schema = schema
        self._over_bytes = Pushdown(*parse_schema(json.dumps(schema), blanks))
        automaton = TokenAutomaton(self._over_bytes, TokenTrie(vocabulary, [0]), len(vocabulary))
        matcher = xgrammar.GrammarMatcher(compiled)
        super().__init__(NativeGrammar(automaton), matcher, len(vocabulary))
        self._vocabulary = vocabulary
        self._tokens: list[int] = []

    def step(self, token: int) -> None:
        super().step(token)
        self._tokens.append(token)

    def back(self, steps: int) -> None:
        super().back(steps)
        del self._tokens[-steps:]

    def explain(self, token: int) -> bool:
        read = b"".join(self._vocabulary[t] for t in self._tokens)
        state = self._over_bytes.advance(self._over_bytes.start, read)
        for at, byte in enumerate(self._vocabulary[token]):
            after = self._over_bytes.advance(state, bytes([byte]))
            if not after:
                reason = self._explain_byte(read + self._vocabulary[token][:at], byte)
                SchemaWalk.reasons[reason] += 1
                return bool(reason)
            state = after
        return False

    def _explain_byte(self, before: bytes, byte: int) -> str:
        text = json.dumps(self._schema)
        if byte < 0x20 and "Length" in text:
            return "a raw control character"
        # The text of the string that is open.
        opened = before.replace(rb"\\", b"__").replace(rb"\"", b"__").rfind(b'"') + 1
        inside = before[opened:]
        rare = [name.encode() for name in NAMES if not name.isascii()]
        if "additionalProperties" in text:
            if b"\\" in inside:
                return "an escape in a name beside declared ones"
            if any(name.startswith(inside) for name in rare):
                return "a declared name that is not ASCII"
        return ""


def test_rows_of_random_schemas_along_random_walks(capsys: pytest.CaptureFixture[str]) -> None:
    import xgrammar

    wanted = either(600, 10_000)
    Walk.rows = Walk.contradictions = Walk.barred = schemas = refused = 0
    SchemaWalk.reasons.clear()
    rng = random.Random(12)
    draw = RandomSchemas(rng, shared=True).draw
    while Walk.rows < wanted:
        vocabulary = json_vocabulary(rng, 400)
        info = xgrammar.TokenizerInfo(
            vocabulary, xgrammar.VocabType.RAW, vocab_size=len(vocabulary), stop_token_ids=[0]
        )
        compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        for _ in range(20):
            schema, blanks = draw(), rng.random() < 0.7
            try:
                parse_schema(json.dumps(schema), blanks)
            except RuleError:  # a reference that leads to itself
                refused += 1
                continue
            compiled = compiler.compile_json_schema(json.dumps(schema), any_whitespace=blanks)
            walk = SchemaWalk(schema, compiled, blanks, vocabulary)
            walk.run(rng, json.dumps(schema), 25)
            schemas += 1
    assert refused < schemas / 5
    with capsys.disabled():
        print(
            f"\n{schemas} schemas, {Walk.rows} rows: equal, but for {Walk.contradictions} tokens of which "
            f"xgrammar's row and its accept_token differ (the row bars {Walk.barred} of them), "
            f"and {dict(SchemaWalk.reasons)}"
        )


@pytest.mark.parametrize(
    ("schema", "document", "native", "valid"),
    [
        # A list or an object of any kind, behind a reference or beside definitions: only the empty one.
        ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "array"}}}, "[1]", True, True),
        ({"type": "object", "$defs": {}}, '{"a":1}', True, True),
        # A required property that is not listed.
        ({"type": "object", "properties": {"a": True}, "required": ["b"]}, '{"a":1}', False, False),
        ({"type": "string", "maxLength": 3}, '"\t"', False, False),
        ({"type": "string", "pattern": 'a"b'}, '"a"b"', False, False),
        ({"type": "string", "pattern": "a", "maxLength": 0}, '"a"', None, False),
        ({"type": "string", "pattern": r"a\sb"}, '"a\u00a0b"', True, True),
        ({"type": "integer", "enum": [1, 2], "minimum": 2}, "1", None, False),
        ({"$ref": "#/$defs/n", "maximum": 3, "$defs": {"n": {"type": "integer"}}}, "4", False, False),
        ({"type": "object", "properties": {"é": {"type": "null"}}, "additionalProperties": True},
         '{"é":1}', False, False),
        ({"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": True},
         r'{"\u0061":1}', False, False),
        ({"type": "object", "properties": {"\\": {"type": "null"}}, "additionalProperties": True},
         r'{"\x":1}', False, False),
        ({"type": "string", "format": "date"}, '"2023-02-31"', False, False),
    ],
)  # fmt: skip
def test_what_xgrammar_reads_otherwise(
    schema: Any, document: str, native: bool | None, valid: bool
) -> None:
    """What it does with a document, beside what the native backend does (None: it refuses the schema)."""
    import xgrammar

    vocabulary = [b"<eos>", *(bytes([byte]) for byte in range(256))]
    info = xgrammar.TokenizerInfo(
        vocabulary, xgrammar.VocabType.RAW, vocab_size=257, stop_token_ids=[0]
    )
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(json.dumps(schema)))
    theirs = all(matcher.accept_token(byte + 1) for byte in document.encode())
    theirs = theirs and matcher.accept_token(0)
    try:
        ours = Pushdown(*parse_schema(json.dumps(schema), True))
        taken: bool | None = ours.accepts(ours.advance(ours.start, document.encode()))
    except RuleError:
        taken = None
    assert (theirs, taken) == (not valid, native)
    try:
        assert is_valid(schema, document, FORMATS_CHECKED) == valid
    except ValueError:
        assert not valid  # no JSON


def test_no_document_is_written_that_a_validator_rejects(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Random schemas of all that is supported; documents along random walks over bytes, which always find
    a byte to go on with, and end."""
    rng = random.Random(13)
    draw = RandomSchemas(rng, shared=False).draw
    compiled, written, refused = 0, 0, Counter[str]()
    while written < either(300, 3000):
        schema = draw()
        try:
            automaton = Pushdown(*parse_schema(json.dumps(schema), rng.random() < 0.5))
        except RuleError as error:
            refused[str(error).rpartition(": ")[2][:40]] += 1
            continue
        compiled += 1
        for _ in range(6):
            document = write_randomly(rng, automaton)
            if document is not None:
                written += 1
                assert is_valid(schema, document, FORMATS_CHECKED), (schema, document)
    with capsys.disabled():
        print(f"\n{compiled} schemas, {written} documents, all valid; refused: {refused.total()}")
