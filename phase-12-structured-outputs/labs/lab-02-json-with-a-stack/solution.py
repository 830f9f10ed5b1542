"""Lab 12-02: JSON with a stack, the reference solution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

DIGITS = "0123456789"
TEXT = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) not in '"\\')
Row = NDArray[np.int32]


class State(NamedTuple):
    """Where one is in a document."""

    mode: str
    stack: str


def predictions() -> dict[str, Any]:
    """The answers to the README's questions."""
    return {
        "allowed": ["}", "}]", "},", "},{", ",", ',"', "0"],
        "to ask": ["}]", "},", "},{"],
        "in a string": ["}", '"}', '","', "{"],
        "counter": 2,
        "after the match": [1, False],
        "kept": 23,
        "share": "under a tenth",
    }


# ---- over bytes ------------------------------------------------------------------------------------


class JsonAutomaton:
    """JSON without blanks, byte by byte."""

    start = State("value", "")

    def step(self, state: State, byte: int) -> State | None:
        """The state after one more byte, or None."""
        mode, stack = state
        char = chr(byte)
        if mode in ("string", "in key"):
            if char == '"':
                return State("end" if mode == "string" else "colon", stack)
            return state if char in TEXT else None
        if mode == "digits" and char in DIGITS:
            return state
        if mode in ("zero", "digits"):
            mode = "end"  # the number is over, and the byte belongs to what follows
        if mode == "colon":
            return State("value", stack) if char == ":" else None
        if mode in ("member", "key") and char == '"':
            return State("in key", stack)
        if mode in ("value", "first"):
            if char == "{":
                return State("member", stack + "{")
            if char == "[":
                return State("first", stack + "[")
            if char in '"-':
                return State("string" if char == '"' else "minus", stack)
        if mode in ("value", "first", "minus") and char in DIGITS:
            return State("zero" if char == "0" else "digits", stack)
        if mode in ("first", "member", "end") and stack:
            if char == ("}" if stack[-1] == "{" else "]"):
                return State("end", stack[:-1])
            if char == "," and mode == "end":
                return State("key" if stack[-1] == "{" else "value", stack)
        return None

    def accepts(self, state: State) -> bool:
        """Whether the document may end here."""
        return not state.stack and state.mode in ("zero", "digits", "end")


# ---- over tokens -----------------------------------------------------------------------------------


class JsonMask:
    """JSON over tokens."""

    def __init__(
        self, automaton: JsonAutomaton, tokens: Sequence[bytes], stop: int, vocab_size: int
    ) -> None:
        self.automaton = automaton
        self.tokens = tokens
        self.stop = stop
        self.vocab_size = vocab_size
        self.kept: dict[tuple[str, str], tuple[list[int], list[int]]] = {}

    @property
    def start(self) -> State:
        """The state before anything is written."""
        return self.automaton.start

    def accepts(self, state: State) -> bool:
        """Whether the output may end here."""
        return self.automaton.accepts(state)

    def is_stop(self, token: int) -> bool:
        """Whether this is the end token."""
        return token == self.stop

    def advance(self, state: State, token: int) -> State | None:
        """The state after a token, or None."""
        if not 0 <= token < len(self.tokens) or self.is_stop(token) or not self.tokens[token]:
            return None
        after: State | None = state
        for byte in self.tokens[token]:
            after = None if after is None else self.automaton.step(after, byte)
        return after

    def split(self, mode: str, innermost: str) -> tuple[list[int], list[int]]:
        """The tokens allowed whatever is below, and those that depend on it."""
        always, ask = [], []
        for token, spelled in enumerate(self.tokens):
            if self.advance(State(mode, innermost), token) is not None:
                always.append(token)
            elif (
                innermost
                and not self.is_stop(token)
                and self._under_some(State(mode, innermost), spelled)
            ):
                ask.append(token)
        return always, ask

    def _under_some(self, state: State, data: bytes) -> bool:
        """Whether `data` can be read with some stack below that of `state`."""
        for place, byte in enumerate(data):
            after = self.automaton.step(state, byte)
            if after is None:
                looks_below = state == State("end", "")
                rest = data[place:]
                return looks_below and any(self._under_some(State("end", b), rest) for b in "{[")
            state = after
        return len(data) > 0

    def row(self, state: State) -> Row:
        """The tokens that a state allows."""
        key = (state.mode, state.stack[-1:])
        if key not in self.kept:
            self.kept[key] = self.split(*key)
        always, ask = self.kept[key]
        bits = np.zeros(-(-self.vocab_size // 32) * 32, dtype=np.bool_)
        bits[always] = True
        bits[[token for token in ask if self.advance(state, token) is not None]] = True
        bits[self.stop] = self.accepts(state)
        return np.packbits(bits, bitorder="little").view(np.int32)


# ---- a request -------------------------------------------------------------------------------------


class JsonGrammar:
    """One request's place in its document."""

    def __init__(self, mask: JsonMask) -> None:
        self.mask = mask
        self.states = [mask.start]
        self.terminated = False

    def is_terminated(self) -> bool:
        """Whether the end token was accepted."""
        return self.terminated

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Move on by these tokens."""
        if self.terminated:
            return False
        for token in tokens:
            state = self.states[-1]
            ends = self.mask.is_stop(token) and self.mask.accepts(state)
            after = state if ends else self.mask.advance(state, token)
            if after is None or self.terminated:
                return False
            self.states.append(after)
            self.terminated = ends
        return True

    def rollback(self, num_tokens: int) -> None:
        """Go back to where the last `num_tokens` tokens were not accepted yet."""
        if not 0 <= num_tokens < len(self.states):
            raise ValueError(f"{num_tokens} tokens of {len(self.states) - 1} cannot be rolled back")
        if num_tokens:
            del self.states[-num_tokens:]
            self.terminated = False

    def fill_bitmask(self, bitmask: Row, batch_index: int) -> None:
        """Write the row of the present state into row `batch_index`."""
        bitmask[batch_index] = -1 if self.terminated else self.mask.row(self.states[-1])

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """The longest beginning of `tokens` that is allowed."""
        taken = 0
        while taken < len(tokens) and self.accept_tokens("", [tokens[taken]]):
            taken += 1
        self.rollback(taken)
        return tokens[:taken]
