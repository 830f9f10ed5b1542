"""JSON as rules that call each other (RFC 8259), as xgrammar has it."""

from __future__ import annotations

from mini_vllm.structured_output.automata.regex import parse_regex
from mini_vllm.structured_output.automata.syntax import (
    Call,
    Either,
    Joined,
    Node,
    Repeated,
    literal,
)

STRING = r'"([^\x00-\x1f"\\]|\\(["\\/bfnrt]|u[0-9A-Fa-f]{4}))*"'
NUMBER = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+\-]?[0-9]+)?"


def json_rules(any_whitespace: bool) -> dict[str, Node]:
    """The rules `value`, `object`, `array`, `string` and `number`.

    Args:
        any_whitespace: blanks are allowed between any two parts, without end. Otherwise there is
            one behind each comma and colon, and no other.
    """
    blanks = parse_regex(r"[ \n\r\t]*" if any_whitespace else "")
    after = blanks if any_whitespace else literal(" ")
    comma = Joined((blanks, literal(","), after))
    member = Joined((Call("string"), blanks, literal(":"), after, Call("value")))

    def listed(opening: str, item: Node, closing: str) -> Node:
        items = Joined((item, Repeated(Joined((comma, item)), 0, None), blanks))
        contents = Either((items, Joined(())))
        return Joined((literal(opening), blanks, contents, literal(closing)))

    words = tuple(literal(word) for word in ("true", "false", "null"))
    calls = tuple(Call(rule) for rule in ("object", "array", "string", "number"))
    return {
        "value": Either(calls + words),
        "object": listed("{", member, "}"),
        "array": listed("[", Call("value"), "]"),
        "string": parse_regex(STRING),
        "number": parse_regex(NUMBER),
    }
