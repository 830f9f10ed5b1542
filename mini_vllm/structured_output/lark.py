"""Grammars in Lark's notation, rewritten as EBNF for backends that read nothing else."""

from __future__ import annotations

import re

_RULE = re.compile(r"\s*\?*([A-Za-z_]\w*)\??\s*:(.*)", re.DOTALL)
_PART = re.compile(
    r"""(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<comment>\#.*|//.*)|(?P<quote>["'])"""
    r"""|(?P<class>\[(?:[^\]\\]|\\.)*\])|(?P<name>[A-Za-z_]\w*)|(?P<other>.)""",
    re.DOTALL,
)


def convert_lark_to_ebnf(grammar: str) -> str:
    """The part of Lark that has a counterpart: rules, alternatives, texts, `*`, `+`, `?`, groups
    (`vllm/v1/structured_output/utils.py:321 convert_lark_to_ebnf`).

    Rules may go on in lines that begin with `|`. The root is `start`, or else the first rule. Unlike
    upstream it knows a comment from a `#` within quotes.

    Raises ValueError naming the line: no rule, a quote that is never closed, an undefined rule, or a line
    that is neither a rule nor an alternative.
    """
    rules: dict[str, list[str]] = {}
    referenced: set[str] = set()
    current = ""
    for number, line in enumerate(grammar.splitlines(), 1):
        text, names = _translate(line, number)
        if not text:
            continue
        if text.startswith("|") and current:
            rules[current].append(text[1:].strip())
            referenced |= names
        elif (rule := _RULE.match(text)) is not None:
            current = rule[1]
            rules[current] = [rule[2].strip()]
            # The rule's own name was read as a reference; it is one only if it stands again.
            referenced |= _translate(rule[2], number)[1]
        else:
            raise ValueError(f"line {number} of a Lark grammar is no rule: {line.strip()!r:.80}")
    if not rules:
        raise ValueError("a Lark grammar needs a rule, and this one has none")
    if unknown := referenced - rules.keys() - {"root"}:
        raise ValueError(f"a Lark grammar refers to undefined rules: {', '.join(sorted(unknown))}")
    root = "start" if "start" in rules else next(iter(rules))
    lines = [f"{name} ::= {' | '.join(parts)}" for name, parts in rules.items()]
    return "\n".join([f"root ::= {root}", *lines])


def _translate(line: str, number: int) -> tuple[str, set[str]]:
    """A line without its comment and with double quotes, and the names in it."""
    text, names = "", set()
    for part in _PART.finditer(line):
        kind, found = part.lastgroup, part[0]
        if kind == "comment":
            break
        if kind == "quote":
            raise ValueError(f"line {number} of a Lark grammar has a quote that is not closed")
        if kind == "text" and found[0] == "'":
            inside = found[1:-1].replace("\\'", "'")
            found = '"' + re.sub(r'(?<!\\)"', r"\"", inside) + '"'
        if kind == "name":
            names.add(found)
        text += found
    return text.strip(), names
