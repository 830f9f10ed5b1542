"""Rules compiled by the library xgrammar (extra `grammar`).

Mirrors `vllm/v1/structured_output/backend_xgrammar.py`. The library is loaded when the first backend is made.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import Any

from mini_vllm.structured_output.backend_types import (
    Bitmask,
    StructuredOutputBackend,
    StructuredOutputGrammar,
    StructuredOutputOptions,
)
from mini_vllm.structured_output.features import unsupported_by_xgrammar
from mini_vllm.structured_output.lark import convert_lark_to_ebnf
from mini_vllm.structured_output.request import describe_rule
from mini_vllm.structured_output.utils import choice_as_grammar, grammar_is_likely_lark
from mini_vllm.utils.extras import how_to_get
from mini_vllm.utils.untrusted import one_line

_CACHE_BYTES = 512 * 1024**2  # `VLLM_XGRAMMAR_CACHE_MB`
_THREADS = max(1, min(8, (os.cpu_count() or 1) // 2))
"""Upstream's are 8 on any machine. On two cores that compiles no faster, and held another thread up for 0.8
seconds at a time, where one thread holds it up for 0.03."""
_WHERE = re.compile(r"^\[[\d:]+\] \S+:\d+: ")  # the library puts the time and its source line first


def _library() -> Any:
    try:
        import xgrammar
    except ImportError as error:
        raise ImportError(
            f"the structured-output backend 'xgrammar' needs xgrammar, which is not installed: "
            f"{how_to_get('grammar')}"
        ) from error
    return xgrammar


@dataclass
class XgrammarBackend(StructuredOutputBackend):
    """The compiler for one tokenizer, with a cache of its own
    (`vllm/v1/structured_output/backend_xgrammar.py:35 XgrammarBackend`)."""

    def __post_init__(self) -> None:
        xgr = _library()
        vocab = self.tokenizer.convert_ids_to_tokens(range(self.vocab_size))
        # How tokens are spelled (byte level, byte fallback) the library reads from the file's decoder,
        # as it does for a tokenizer of Hugging Face's.
        metadata = xgr.TokenizerInfo._detect_metadata_from_hf(self.tokenizer.read_file())
        eos = self.tokenizer.eos_token_id
        info = xgr.TokenizerInfo(
            ["" if token is None else token for token in vocab],
            vocab_type=metadata["vocab_type"],
            vocab_size=self.vocab_size,
            stop_token_ids=None if eos is None else [eos],
            add_prefix_space=metadata["add_prefix_space"],
        )
        self.compiler = xgr.GrammarCompiler(
            info, max_threads=_THREADS, cache_enabled=True, cache_limit_bytes=_CACHE_BYTES
        )

    def compile_grammar(
        self, request_type: StructuredOutputOptions, grammar_spec: str
    ) -> XgrammarGrammar:
        """Compile a rule
        (`vllm/v1/structured_output/backend_xgrammar.py:77 XgrammarBackend.compile_grammar`).

        A choice and a grammar in Lark become EBNF here. Upstream does that in the front end's check, so
        that its backend knows no choice. A schema's features are not looked at, as there: `validate` does.
        """
        try:
            context = self._compile(request_type, grammar_spec)
        except Exception as error:  # the library raises RuntimeError; a tag's JSON may lack any key
            raise _refusal(request_type, grammar_spec, error) from error
        # Upstream passes a limit for rollbacks, which the library no longer heeds: there is none.
        matcher = _library().GrammarMatcher(context)
        return XgrammarGrammar(matcher, -(-self.vocab_size // 32))

    def _compile(self, kind: StructuredOutputOptions, spec: str) -> Any:
        blanks = not self.config.disable_any_whitespace
        if kind is StructuredOutputOptions.JSON:
            return self.compiler.compile_json_schema(spec, any_whitespace=blanks)
        if kind is StructuredOutputOptions.JSON_OBJECT:
            return self.compiler.compile_json_schema('{"type": "object"}', any_whitespace=blanks)
        if kind is StructuredOutputOptions.REGEX:
            return self.compiler.compile_regex(spec)
        if kind is StructuredOutputOptions.STRUCTURAL_TAG:
            return self.compiler.compile_structural_tag(*_tag_arguments(spec))
        return self.compiler.compile_grammar(_as_ebnf(kind, spec))

    def destroy(self) -> None:
        del self.compiler


class XgrammarGrammar(StructuredOutputGrammar):
    """A matcher and its state
    (`vllm/v1/structured_output/backend_xgrammar.py:132 XgrammarGrammar`).

    Whether it has ended is kept beside the matcher, as upstream keeps it; `reset` clears that as well,
    which upstream's forgets.
    """

    def __init__(self, matcher: Any, words: int) -> None:
        self.matcher = matcher
        self._words = words
        self.num_processed_tokens = 0
        self._is_terminated = False

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        if self._is_terminated:
            return False
        for token in tokens:
            if not self.matcher.accept_token(token):
                return False
            self.num_processed_tokens += 1
        self._is_terminated = self.matcher.is_terminated()
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        count = 0
        for token in tokens:
            if not self.matcher.accept_token(token):
                break
            count += 1
        if count:
            self.matcher.rollback(count)
        return tokens[:count]

    def rollback(self, num_tokens: int) -> None:
        self.matcher.rollback(num_tokens)
        self.num_processed_tokens -= num_tokens
        self._is_terminated = self.matcher.is_terminated()

    def fill_bitmask(self, bitmask: Bitmask, batch_index: int) -> None:
        # The library wants rows of its own width; another backend may need wider ones.
        row = bitmask[batch_index : batch_index + 1, : self._words]
        self.matcher.fill_next_token_bitmask(row, 0)

    def is_terminated(self) -> bool:
        return self._is_terminated

    def reset(self) -> None:
        self.matcher.reset()
        self.num_processed_tokens = 0
        self._is_terminated = False


def _as_ebnf(kind: StructuredOutputOptions, spec: str) -> str:
    if kind is StructuredOutputOptions.CHOICE:
        return choice_as_grammar(json.loads(spec))
    return convert_lark_to_ebnf(spec) if grammar_is_likely_lark(spec) else spec


def _tag_arguments(spec: str) -> tuple[Any, ...]:
    """A structural tag, in the library's form or in the older one, with `structures` and `triggers`."""
    tag = json.loads(spec)
    if "structures" not in tag:
        return (spec,)
    item = _library().StructuralTagItem
    items = [
        item(begin=s["begin"], schema=json.dumps(s["schema"]), end=s["end"])
        for s in tag["structures"]
    ]
    return items, tag["triggers"]


def _refusal(kind: StructuredOutputOptions, spec: str, error: Exception) -> ValueError:
    reason = str(error).strip() if not isinstance(error, KeyError) else f"{error} is missing"
    reason = _WHERE.sub("", reason)
    return ValueError(f"{describe_rule((kind, spec))}: xgrammar refuses it: {one_line(reason)}")


def validate_xgrammar_grammar(kind: StructuredOutputOptions, spec: str) -> None:
    """Refuse what xgrammar cannot parse, and schemas with features that vLLM does not trust it with
    (`vllm/v1/structured_output/backend_xgrammar.py:268 validate_xgrammar_grammar`).

    It parses, without a vocabulary; compiling may still fail. Raises ValueError that names the rule.
    """
    grammar = _library().Grammar
    if kind is StructuredOutputOptions.JSON:
        schema = json.loads(spec)
        if named := unsupported_by_xgrammar(schema):
            raise ValueError(
                f"{describe_rule((kind, spec))} contains features not supported by xgrammar: "
                f"{', '.join(named)}"
            )
    try:
        if kind is StructuredOutputOptions.JSON:
            grammar.from_json_schema(spec)
        elif kind is StructuredOutputOptions.REGEX:
            grammar.from_regex(spec)
        elif kind is StructuredOutputOptions.STRUCTURAL_TAG:
            grammar.from_structural_tag(*_tag_arguments(spec))
        elif kind is not StructuredOutputOptions.JSON_OBJECT:
            grammar.from_ebnf(_as_ebnf(kind, spec))
    except Exception as error:
        raise _refusal(kind, spec, error) from error
