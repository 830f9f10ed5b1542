"""Rows of bits applied to logits, and rules written in another notation.

Mirrors `vllm/v1/structured_output/utils.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mini_vllm.structured_output.backend_types import Bitmask


@dataclass(slots=True)
class GrammarOutput:
    """A step's rows for the requests with a rule (`vllm/v1/core/sched/output.py:259 GrammarOutput`).

    It goes to the worker, which may be another process, and puts itself on the logits there.

    Attributes:
        structured_output_request_ids: whose rows they are, in their order.
        grammar_bitmask: as many rows for each of them as it has logits.
        spec_tokens: the drafts of each request of the plan, where it has any.
    """

    structured_output_request_ids: list[str]
    grammar_bitmask: Bitmask
    spec_tokens: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def apply(self, logits: NDArray[np.float32], req_ids: Iterable[str]) -> NDArray[np.float32]:
        """The logits of these requests, with -inf for what is barred."""
        if not logits.flags.writeable:
            logits = logits.copy()
        apply_grammar_bitmask(
            logits,
            req_ids,
            self.spec_tokens,
            self.structured_output_request_ids,
            self.grammar_bitmask,
        )
        return logits


def apply_grammar_bitmask(
    logits: NDArray[np.float32],
    req_ids: Iterable[str],
    spec_tokens: Mapping[str, Sequence[int]],
    structured_output_request_ids: Iterable[str],
    grammar_bitmask: Bitmask,
) -> None:
    """Set the logits of all barred tokens to -inf, in place
    (`vllm/v1/structured_output/utils.py:44 apply_grammar_bitmask`).

    Args:
        logits: of the batch: a request's draft tokens have a row each, and one more follows.
        req_ids: the batch's order.
        spec_tokens: a request's draft tokens in this step, where it has any.
        structured_output_request_ids: the mask's order, which may differ.
        grammar_bitmask: as many rows for each of these as it has logits. A row of -1 bars nothing.

    A request of the mask that is not in the batch is passed over, with its rows.
    """
    first_row: dict[str, int] = {}
    row = 0
    for req_id in req_ids:
        first_row[req_id] = row
        row += 1 + len(spec_tokens.get(req_id, ()))

    sources: list[int] = []
    targets: list[int] = []
    source = 0
    for req_id in structured_output_request_ids:
        count = 1 + len(spec_tokens.get(req_id, ()))
        if (start := first_row.get(req_id)) is not None:
            sources += range(source, source + count)
            targets += range(start, start + count)
        source += count

    for source, target in zip(sources, targets, strict=True):
        words = grammar_bitmask[source]
        if (words != -1).any():  # a free row stays as it is, to the last bit
            barred = ~unpack_row(words, logits.shape[1])
            logits[target, : len(barred)][barred] = -np.inf


def unpack_row(words: NDArray[np.int32], vocab_size: int) -> NDArray[np.bool_]:
    """Which tokens a row allows, up to the end of the row: past it nothing is barred."""
    little_endian = np.ascontiguousarray(words, dtype="<i4").view(np.uint8)
    return np.unpackbits(little_endian, bitorder="little")[:vocab_size].astype(np.bool_)


_PLAIN = re.compile(r"[ !#-\[\]-~]")  # printable ASCII without the quote and the backslash


def choice_as_grammar(choice: Iterable[str]) -> str:
    """EBNF for one of these texts (`vllm/v1/structured_output/utils.py:451 choice_as_grammar`).

    At the pin only quotes and backslashes are escaped, so a line break in a choice makes the grammar
    invalid. Here every character but plain ASCII is escaped.
    """
    return "root ::= " + " | ".join(f'"{_escape(text)}"' for text in choice)


def _escape(text: str) -> str:
    return "".join(
        c if _PLAIN.match(c) else f"\\{c}" if c in '"\\' else f"\\U{ord(c):08X}" for c in text
    )


def grammar_is_likely_lark(grammar: str) -> bool:
    """Whether a grammar is Lark: it has a line that is no comment, and none with `::=`
    (`vllm/v1/structured_output/utils.py:289 grammar_is_likely_lark`)."""
    lines = [re.sub(r"(#|//).*$", "", line).strip() for line in grammar.splitlines()]
    return any(lines) and not any("::=" in line for line in lines)
