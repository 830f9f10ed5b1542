"""The backend in numpy: regular expressions, choices, JSON objects and JSON Schema, for reading.

What it allows is what `XgrammarBackend` allows for the same rule (`backend_xgrammar.py`), row for
row; of a schema it refuses what it cannot enforce, where xgrammar passes over it. A rule becomes a tree
(`automata/regex.py`, `automata/schema.py`), the tree an automaton over bytes (`automata/nfa.py`,
`automata/dfa.py`; for JSON, which nests, one with a stack, `automata/pushdown.py`), and that one over the
vocabulary's tokens (`automata/tokens.py`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, cast

from mini_vllm.structured_output.automata.dfa import Dfa
from mini_vllm.structured_output.automata.json_rules import json_rules
from mini_vllm.structured_output.automata.limits import (
    DEFAULT_LIMITS,
    Limits,
    RuleTooLarge,
    UnsupportedRule,
    check_length,
)
from mini_vllm.structured_output.automata.pushdown import Pushdown, Stacks
from mini_vllm.structured_output.automata.regex import parse_regex
from mini_vllm.structured_output.automata.schema import parse_schema
from mini_vllm.structured_output.automata.syntax import Call, Either, Node, literal
from mini_vllm.structured_output.automata.tokens import (
    ByteAutomaton,
    TokenAutomaton,
    TokenTrie,
)
from mini_vllm.structured_output.backend_types import (
    Bitmask,
    StructuredOutputBackend,
    StructuredOutputGrammar,
    StructuredOutputOptions,
)

_MOST_RULES = 16
"""Kept at once. With the usual limits a rule takes 20 MB and its rows 16 MiB at most."""


class NativeGrammar(StructuredOutputGrammar):
    """One request's place in an automaton.

    The states after each accepted token are kept, so going back is forgetting the last ones. As in
    xgrammar the output is terminated once a stop token is accepted, not when the rule is matched: a
    match may go on, and one that cannot allows the stop tokens alone.
    """

    def __init__(self, automaton: TokenAutomaton[Any]) -> None:
        self._automaton = automaton
        self._states: list[Hashable] = [automaton.start]
        self._terminated = False

    @property
    def num_processed_tokens(self) -> int:
        """Tokens accepted and not rolled back, stop tokens included."""
        return len(self._states) - 1

    @property
    def state(self) -> Hashable:
        """The automaton's state: a number, or stacks."""
        return self._states[-1]

    def _accept(self, token: int) -> bool:
        if self._terminated:
            return False
        if self._automaton.is_stop(token):
            if not self._automaton.accepts(self.state):
                return False
            self._terminated = True
            self._states.append(self.state)
            return True
        after = self._automaton.advance(self.state, token)
        if after is None:
            return False
        self._states.append(after)
        return True

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """See `StructuredOutputGrammar.accept_tokens`."""
        return not self._terminated and all(self._accept(token) for token in tokens)

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """See `StructuredOutputGrammar.validate_tokens`."""
        accepted = 0
        while accepted < len(tokens) and self._accept(tokens[accepted]):
            accepted += 1
        self.rollback(accepted)
        return tokens[:accepted]

    def rollback(self, num_tokens: int) -> None:
        """See `StructuredOutputGrammar.rollback`.

        Raises:
            ValueError: fewer tokens were accepted.
        """
        if not 0 <= num_tokens <= self.num_processed_tokens:
            raise ValueError(
                f"cannot roll back {num_tokens} tokens of {self.num_processed_tokens} accepted"
            )
        if num_tokens:
            del self._states[-num_tokens:]
            self._terminated = False  # only the last token can have been a stop token

    def fill_bitmask(self, bitmask: Bitmask, batch_index: int) -> None:
        """See `StructuredOutputGrammar.fill_bitmask`. Once terminated everything is allowed: what
        comes is thrown away. xgrammar raises there; vLLM never asks
        (`vllm/v1/structured_output/__init__.py:186 StructuredOutputManager._fill_bitmasks`)."""
        bitmask[batch_index] = -1 if self._terminated else self._automaton.row(self.state)

    def is_terminated(self) -> bool:
        """See `StructuredOutputGrammar.is_terminated`."""
        return self._terminated

    def describe_state(self) -> str:
        """See `StructuredOutputGrammar.describe_state`: the automaton's state, or the deepest stack."""
        if isinstance(self.state, int):
            return f"in state {self.state}"
        return f"with a stack of {max(map(len, cast(Stacks, self.state)))}"

    def reset(self) -> None:
        """See `StructuredOutputGrammar.reset`."""
        del self._states[1:]
        self._terminated = False


@dataclass
class NativeBackend(StructuredOutputBackend):
    """Compiles regular expressions, choices, `json_object` and JSON schemas for one tokenizer.

    Attributes:
        limits: bounds on one rule. Where it passes them, compiling raises `RuleTooLarge`; a grammar
            that was compiled cannot fail.
    """

    limits: Limits = DEFAULT_LIMITS
    _trie: TokenTrie = field(init=False, repr=False)
    _compiled: dict[tuple[StructuredOutputOptions, str], TokenAutomaton[Any]] = field(
        init=False, repr=False, default_factory=dict
    )
    _lock: threading.Lock = field(init=False, repr=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        ids = range(min(self.vocab_size, len(self.tokenizer)))
        stop = self.tokenizer.eos_token_id
        self._trie = TokenTrie(
            [self.tokenizer.token_bytes(token_id) for token_id in ids],
            () if stop is None else (stop,),
        )

    def compile_grammar(
        self, request_type: StructuredOutputOptions, grammar_spec: str
    ) -> NativeGrammar:
        """A grammar in its first state. A rule compiled before is shared.

        Args:
            request_type: `REGEX`, `CHOICE` with the list of choices as JSON, `JSON_OBJECT`, or `JSON`
                with a schema.
            grammar_spec: the rule; of no meaning for `JSON_OBJECT`.

        Raises:
            UnsupportedRule: it is malformed, or of another kind, or has syntax that is not supported.
            RuleTooLarge: its automaton passes the limits.
        """
        key = (request_type, grammar_spec)
        automaton = self._compiled.get(key)
        if automaton is None:
            # Two threads may compile the same rule at once: then it is compiled twice, no more.
            over_bytes = self._compile(request_type, grammar_spec)
            automaton = TokenAutomaton(over_bytes, self._trie, self.vocab_size)
            with self._lock:
                if len(self._compiled) >= _MOST_RULES:
                    del self._compiled[next(iter(self._compiled))]
                self._compiled[key] = automaton
        return NativeGrammar(automaton)

    def _compile(
        self, request_type: StructuredOutputOptions, grammar_spec: str
    ) -> ByteAutomaton[Any]:
        if request_type is StructuredOutputOptions.REGEX:
            return Dfa(parse_regex(grammar_spec, self.limits), self.limits)
        if request_type is StructuredOutputOptions.CHOICE:
            return Dfa(parse_choice(grammar_spec, self.limits), self.limits)
        blanks = not self.config.disable_any_whitespace
        if request_type is StructuredOutputOptions.JSON:
            try:
                return Pushdown(*parse_schema(grammar_spec, blanks, self.limits), self.limits)
            except RecursionError as error:
                raise RuleTooLarge("json: its schemas are nested too deep") from error
        if request_type is StructuredOutputOptions.JSON_OBJECT:
            return Pushdown(Call("object"), json_rules(blanks), self.limits)
        raise UnsupportedRule(
            f"the native backend has no rules of the kind {request_type.name.lower()}: "
            "it has regex, choice, json_object and json"
        )

    def destroy(self) -> None:
        """Forget the compiled rules."""
        self._compiled.clear()


def parse_choice(grammar_spec: str, limits: Limits = DEFAULT_LIMITS) -> Node:
    """The tree of a choice: each text as it stands, line ends and quotes included.

    vLLM turns a choice into a grammar, in which a line end is an error
    (`vllm/v1/structured_output/utils.py:451 choice_as_grammar`).

    Args:
        grammar_spec: the texts, as a JSON list.

    Raises:
        UnsupportedRule: it is something else, or empty, or a text has a lone surrogate.
        RuleTooLarge: it is longer than its automaton may be.
    """
    check_length("choice", grammar_spec, limits)
    try:
        choices = json.loads(grammar_spec)
    except (ValueError, RecursionError) as error:
        raise UnsupportedRule(f"choice: not a JSON list: {error}") from error
    if not isinstance(choices, list) or not choices:
        raise UnsupportedRule("choice: a list of at least one text is expected")
    for choice in choices:
        if not isinstance(choice, str):
            raise UnsupportedRule(f"choice: {choice!r} is no text")
        if any(0xD800 <= ord(char) <= 0xDFFF for char in choice):
            raise UnsupportedRule(f"choice: {choice!r} has a surrogate, which is no character")
    return Either(tuple(literal(choice) for choice in choices))


def validate_native_grammar(request_type: StructuredOutputOptions, grammar_spec: str) -> None:
    """Read a rule as `compile_grammar` does. Raises `UnsupportedRule` where that is not possible. What can be
    read may still turn out too large."""
    if request_type is StructuredOutputOptions.REGEX:
        parse_regex(grammar_spec, DEFAULT_LIMITS)
    elif request_type is StructuredOutputOptions.CHOICE:
        parse_choice(grammar_spec, DEFAULT_LIMITS)
    elif request_type is StructuredOutputOptions.JSON:
        parse_schema(grammar_spec, True, DEFAULT_LIMITS)
    elif request_type in (StructuredOutputOptions.GRAMMAR, StructuredOutputOptions.STRUCTURAL_TAG):
        raise UnsupportedRule(
            f"the native backend has no rules of the kind {request_type.name.lower()}: use xgrammar or "
            "guidance (extra grammar)"
        )
