"""Lab 12-02: JSON with a stack. Your work: every NotImplementedError."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

DIGITS = "0123456789"
TEXT = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) not in '"\\')
"""Given: what a string may hold."""
Row = NDArray[np.int32]


class State(NamedTuple):
    """Given: where one is in a document. A state is never changed: each step makes a new one.

    Attributes:
        mode: what is being read, one of
            "value"   a value must begin
            "first"   just after `[`: a value must begin, or the array ends
            "member"  just after `{`: a key must begin, or the object ends
            "key"     after a comma in an object: a key must begin
            "in key"  inside a key, after its first quote
            "colon"   after a key's second quote
            "string"  inside a string that is a value
            "minus"   after the minus of a number
            "zero"    after a number's leading 0, as in 0 and -0
            "digits"  inside any other number, after a digit
            "end"     after a value that has ended: a string, an array or an object
        stack: the open brackets, `{` and `[`, the innermost last.
    """

    mode: str
    stack: str


def predictions() -> dict[str, Any]:
    """Your answers to the README's questions, under the names given there."""
    raise NotImplementedError


# ---- over bytes ------------------------------------------------------------------------------------


class JsonAutomaton:
    """JSON without blanks, byte by byte: the language that the README describes.

    Attributes:
        start: the state before anything is read.
    """

    start = State("value", "")

    def step(self, state: State, byte: int) -> State | None:
        """The state after one more byte, 0 to 255; None if no document can go on with it.

        A closing bracket closes the innermost one, which must be of its kind. A number does not announce its
        end: the first byte that cannot belong to it is read as what comes after a value.
        """
        raise NotImplementedError

    def accepts(self, state: State) -> bool:
        """Whether the document may end here: nothing is open, and a value is complete."""
        raise NotImplementedError


# ---- over tokens -----------------------------------------------------------------------------------


class JsonMask:
    """JSON over tokens. One serves all requests, so it holds no request's state.

    Attributes:
        kept: for you: what `row` has found out once and for all, by mode and innermost bracket.
    """

    def __init__(
        self, automaton: JsonAutomaton, tokens: Sequence[bytes], stop: int, vocab_size: int
    ) -> None:
        """Given.

        Args:
            automaton: yours, or one that a test makes of it.
            tokens: the bytes that each token spells.
            stop: the id of the end token, which is one of `tokens`.
            vocab_size: of the model; at least as many as there are tokens.
        """
        self.automaton = automaton
        self.tokens = tokens
        self.stop = stop
        self.vocab_size = vocab_size
        self.kept: dict[tuple[str, str], tuple[list[int], list[int]]] = {}

    @property
    def start(self) -> State:
        """Given: the state before anything is written."""
        return self.automaton.start

    def accepts(self, state: State) -> bool:
        """Given: whether the output may end here."""
        return self.automaton.accepts(state)

    def is_stop(self, token: int) -> bool:
        """Given: whether this is the end token."""
        return token == self.stop

    def advance(self, state: State, token: int) -> State | None:
        """Given, as in lab 12-01: the state after a token. None if it is barred, the end token, one without
        bytes, or none at all."""
        if not 0 <= token < len(self.tokens) or self.is_stop(token) or not self.tokens[token]:
            return None
        after: State | None = state
        for byte in self.tokens[token]:
            after = None if after is None else self.automaton.step(after, byte)
        return after

    def split(self, mode: str, innermost: str) -> tuple[list[int], list[int]]:
        """The tokens about which mode and innermost bracket say enough, and those about which they do not.

        Args:
            mode: of a state.
            innermost: its innermost bracket, `"{"` or `"["`; `""` if none is open. Only pairs that can
                occur are asked for.

        Returns:
            Two lists of ids. First the tokens that are allowed in every state with this mode and
            this innermost bracket, whatever is open below. Then those that are allowed in some of these
            states and barred in others: they must ask the stack. The stack may be of any depth, and a token
            may close any number of brackets. The end token is in neither list, nor is one without bytes.
        """
        raise NotImplementedError

    def row(self, state: State) -> Row:
        """The tokens that are allowed in a state, as in lab 12-01.

        Returns:
            int32 `[words]`, 32 tokens a word, as many words as `vocab_size` takes; bit i of word w, counted
            from the lowest, is token 32 * w + i. The end token is allowed where the automaton accepts. If the
            state's mode and innermost bracket came before, only the tokens that must ask the stack are read
            again. Unlike in lab 12-01, each call returns a new array, which the caller may change, and
            nothing is kept for a whole stack.
        """
        raise NotImplementedError


# ---- a request -------------------------------------------------------------------------------------


class JsonGrammar:
    """One request's place in its document, with the methods that vLLM calls on a grammar."""

    def __init__(self, mask: JsonMask) -> None:
        """A request that has written nothing. Keep what you need, also to go back to the very beginning."""
        raise NotImplementedError

    def is_terminated(self) -> bool:
        """Whether the end token was accepted, and not rolled back."""
        raise NotImplementedError

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Move on by these tokens, the end token perhaps among them.

        Args:
            request_id: of no use here.

        Returns:
            True if all were taken. False at the first token that is barred; those before it stay accepted.
            After the end token every token is barred. Once terminated, the answer is False even for none.
        """
        raise NotImplementedError

    def rollback(self, num_tokens: int) -> None:
        """Go back to where the last `num_tokens` tokens were not accepted yet, the end token included.

        Raises ValueError if fewer were accepted, or the number is negative; then nothing changes.
        """
        raise NotImplementedError

    def fill_bitmask(self, bitmask: Row, batch_index: int) -> None:
        """Write the row of the present state into row `batch_index` of `bitmask`, int32 `[rows, words]`, and
        into no other. Once terminated, that row is all -1: what is sampled then is thrown away."""
        raise NotImplementedError

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """Given: the longest beginning of `tokens` that is allowed, for draft tokens. The state stays."""
        taken = 0
        while taken < len(tokens) and self.accept_tokens("", [tokens[taken]]):
            taken += 1
        self.rollback(taken)
        return tokens[:taken]
