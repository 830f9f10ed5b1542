"""A request's rule and the grammar that is made of it.

Mirrors `vllm/v1/structured_output/request.py`, without reasoning parsers, and with one difference. There the
exception of a failed compile comes out of whatever asks whether the grammar is ready, which is the scheduler
(`vllm/v1/structured_output/request.py:42 StructuredOutputRequest._check_grammar_completion`), and ends the
engine. Here it is kept: the request alone ends by it.
"""

from __future__ import annotations

import functools
import json
from concurrent.futures import Future
from dataclasses import dataclass

from mini_vllm.structured_output.backend_types import (
    StructuredOutputGrammar,
    StructuredOutputKey,
    StructuredOutputOptions,
)
from mini_vllm.utils.structured_params import StructuredOutputsParams
from mini_vllm.utils.untrusted import shorten_repr


@dataclass
class StructuredOutputRequest:
    """A rule on its way to a grammar
    (`vllm/v1/structured_output/request.py:22 StructuredOutputRequest`).

    Attributes:
        params: the rule.
    """

    params: StructuredOutputsParams
    _error: ValueError | None = None
    _grammar: Future[StructuredOutputGrammar] | StructuredOutputGrammar | None = None

    def _poll(self) -> None:
        """Take the future's result if there is one. Upstream waits up to 100 us for it, in every step and
        for every request that waits; this does not."""
        if not isinstance(self._grammar, Future) or not self._grammar.done():
            return
        future, self._grammar = self._grammar, None
        if future.cancelled():
            self._error = ValueError("the grammar's compilation was cancelled")
        elif (error := future.exception()) is not None:
            self._error = error if isinstance(error, ValueError) else ValueError(str(error))
        else:
            self._grammar = future.result()

    @property
    def future(self) -> Future[StructuredOutputGrammar] | None:
        """What is waited for; None: nothing."""
        return self._grammar if isinstance(self._grammar, Future) else None

    @property
    def error(self) -> ValueError | None:
        """Why there will be no grammar; None as long as there may be one."""
        self._poll()
        return self._error

    @property
    def is_grammar_ready(self) -> bool:
        """Whether there is a grammar. False while it is compiled, and for ever after `error`."""
        return self.grammar is not None

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to wait for: a grammar is there, or an error."""
        return self.is_grammar_ready or self.error is not None

    @property
    def grammar(self) -> StructuredOutputGrammar | None:
        """The grammar, once it is compiled."""
        self._poll()
        return self._grammar if isinstance(self._grammar, StructuredOutputGrammar) else None

    @grammar.setter
    def grammar(self, grammar: StructuredOutputGrammar | Future[StructuredOutputGrammar]) -> None:
        self._grammar = grammar

    @functools.cached_property
    def structured_output_key(self) -> StructuredOutputKey:
        """The rule as a backend compiles it."""
        return get_structured_output_key(self.params)


def get_structured_output_key(params: StructuredOutputsParams) -> StructuredOutputKey:
    """The kind and the text of a rule
    (`vllm/v1/structured_output/request.py:77 get_structured_output_key`).

    Nothing is normalised: a schema with its keys in another order is another text.
    """
    if params.json is not None:
        schema = params.json if isinstance(params.json, str) else json.dumps(params.json)
        return StructuredOutputOptions.JSON, schema
    if params.json_object:
        return StructuredOutputOptions.JSON_OBJECT, ""
    if params.regex is not None:
        return StructuredOutputOptions.REGEX, params.regex
    if params.choice is not None:
        return StructuredOutputOptions.CHOICE, json.dumps(params.choice)
    if params.grammar is not None:
        return StructuredOutputOptions.GRAMMAR, params.grammar
    if params.structural_tag is not None:
        return StructuredOutputOptions.STRUCTURAL_TAG, params.structural_tag
    raise ValueError(f"structured_outputs holds no rule: {params!r}")


def describe_rule(key: StructuredOutputKey) -> str:
    """A rule for an error message: the field and its value, in one line."""
    kind, text = key
    return (
        f"structured_outputs.{kind.name.lower()} {shorten_repr(text)}"
        if text
        else (f"structured_outputs.{kind.name.lower()}")
    )
