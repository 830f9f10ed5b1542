"""What a grammar and a backend can do.

Mirrors `vllm/v1/structured_output/backend_types.py`, with numpy rows where it has tensors, and with the
settings that backends read in the place of the whole configuration.

A row of a bit mask is int32, `ceil(vocab_size / 32)` words long. Bit `i` of word `w` stands for token
`32 * w + i`; 1 allows it. A row of -1 allows everything.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mini_vllm.tokenizer.tokenizer import Tokenizer

Bitmask = NDArray[np.int32]


class StructuredOutputOptions(enum.Enum):
    """The kinds of rules (`vllm/v1/structured_output/backend_types.py:19 StructuredOutputOptions`)."""

    JSON = enum.auto()
    JSON_OBJECT = enum.auto()
    REGEX = enum.auto()
    GRAMMAR = enum.auto()
    CHOICE = enum.auto()
    STRUCTURAL_TAG = enum.auto()


StructuredOutputKey = tuple[StructuredOutputOptions, str]
"""A rule: its kind, and its text (`vllm/v1/structured_output/backend_types.py:28 StructuredOutputKey`)."""


class StructuredOutputGrammar(ABC):
    """One request's automaton and the state that it is in
    (`vllm/v1/structured_output/backend_types.py:31 StructuredOutputGrammar`)."""

    @abstractmethod
    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Move on by these tokens. False where one of them is barred: what comes before it was taken."""

    @abstractmethod
    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """The longest beginning of `tokens` that is allowed. The state stays as it is."""

    @abstractmethod
    def rollback(self, num_tokens: int) -> None:
        """Go back to the state before the last `num_tokens` tokens."""

    @abstractmethod
    def fill_bitmask(self, bitmask: Bitmask, batch_index: int) -> None:
        """Write the tokens allowed next into row `batch_index`."""

    @abstractmethod
    def is_terminated(self) -> bool:
        """Whether the end-of-sequence token was accepted. After a full match alone it was not: then only
        that token is allowed."""

    def describe_state(self) -> str:
        """Where the grammar is, in words, for a trace. Upstream has nothing of the kind."""
        return "at the end" if self.is_terminated() else "on its way"

    @abstractmethod
    def reset(self) -> None:
        """Go back to the beginning."""


@dataclass(frozen=True)
class BackendConfig:
    """The settings that a backend reads.

    Attributes:
        disable_any_whitespace: JSON without blanks between its parts.
        disable_additional_properties: an object whose schema lists properties has no others (guidance only).
        num_speculative_tokens: how many tokens may be rolled back at once.
    """

    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    num_speculative_tokens: int = 0


@dataclass
class StructuredOutputBackend(ABC):
    """What compiles rules for one tokenizer
    (`vllm/v1/structured_output/backend_types.py:99 StructuredOutputBackend`).

    Attributes:
        tokenizer: the checkpoint's.
        vocab_size: of the model: its logits, and so the rows, may be wider than the tokenizer's vocabulary.
        config: see there.
    """

    tokenizer: Tokenizer
    vocab_size: int
    config: BackendConfig = field(default_factory=BackendConfig)

    @abstractmethod
    def compile_grammar(
        self, request_type: StructuredOutputOptions, grammar_spec: str
    ) -> StructuredOutputGrammar:
        """A grammar in its first state. Raises ValueError that names the rule."""

    def allocate_token_bitmask(self, max_num_seqs: int) -> Bitmask:
        """Rows that allow everything."""
        return np.full((max_num_seqs, -(-self.vocab_size // 32)), -1, dtype=np.int32)

    @abstractmethod
    def destroy(self) -> None:
        """Give up what the backend holds."""
