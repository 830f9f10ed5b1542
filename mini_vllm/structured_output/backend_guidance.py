"""Rules compiled by the library llguidance (extra `grammar`).

Mirrors `vllm/v1/structured_output/backend_guidance.py`. The library is loaded when the first backend is made.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from mini_vllm.structured_output.backend_types import (
    BackendConfig,
    Bitmask,
    StructuredOutputBackend,
    StructuredOutputGrammar,
    StructuredOutputOptions,
)
from mini_vllm.structured_output.features import close_objects
from mini_vllm.structured_output.request import describe_rule
from mini_vllm.utils.extras import how_to_get
from mini_vllm.utils.untrusted import one_line

_LOG_LEVEL = 0  # what it would print comes back as an error here
_PLAIN_KINDS = {
    StructuredOutputOptions.REGEX: "regex",
    StructuredOutputOptions.GRAMMAR: "grammar",
    StructuredOutputOptions.CHOICE: "choice",
}


def _library() -> Any:
    try:
        import llguidance
        import llguidance.numpy
    except ImportError as error:
        raise ImportError(
            f"the structured-output backend 'guidance' needs llguidance, which is not installed: "
            f"{how_to_get('grammar')}"
        ) from error
    return llguidance


@dataclass
class GuidanceBackend(StructuredOutputBackend):
    """The library's view of one tokenizer; nothing compiled is kept
    (`vllm/v1/structured_output/backend_guidance.py:87 GuidanceBackend`)."""

    def __post_init__(self) -> None:
        width = max(self.vocab_size, len(self.tokenizer))
        self.ll_tokenizer = _library().LLTokenizer(
            self.tokenizer.read_file(), n_vocab=width, eos_token=self.tokenizer.eos_token_id
        )

    def compile_grammar(
        self, request_type: StructuredOutputOptions, grammar_spec: str
    ) -> GuidanceGrammar:
        """Compile a rule
        (`vllm/v1/structured_output/backend_guidance.py:103 GuidanceBackend.compile_grammar`).

        Upstream logs what the library has against a rule and goes on with a matcher whose masks allow
        the end alone; here that is an error.
        """
        serialized = serialize_guidance_grammar(request_type, grammar_spec, self.config)
        matcher = _library().LLMatcher(self.ll_tokenizer, serialized, log_level=_LOG_LEVEL)
        if error := matcher.get_error():
            raise _refusal(request_type, grammar_spec, error)
        return GuidanceGrammar(matcher, self.ll_tokenizer.eos_token)

    def allocate_token_bitmask(self, max_num_seqs: int) -> Bitmask:
        """Rows as wide as the library's vocabulary, which may be the tokenizer's."""
        rows: Bitmask = _library().numpy.allocate_token_bitmask(
            max_num_seqs, self.ll_tokenizer.vocab_size
        )
        return rows

    def destroy(self) -> None:
        pass


class GuidanceGrammar(StructuredOutputGrammar):
    """A matcher and its state
    (`vllm/v1/structured_output/backend_guidance.py:138 GuidanceGrammar`).

    The library stops by itself once nothing can follow, before the end-of-sequence token is accepted. That
    token is then counted here alone, and `_lag` takes it out of a rollback again.
    """

    def __init__(self, matcher: Any, eos_token: int) -> None:
        self.ll_matcher = matcher
        self._eos_token = eos_token
        self._terminated = False
        self._lag = 0

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        stopped = self.ll_matcher.is_stopped()
        if self._eos_token in tokens:
            if stopped and not self._terminated:
                self._lag = 1
            self._terminated = True
        # A stopped matcher takes anything, as upstream's does.
        return stopped or bool(self.ll_matcher.consume_tokens(tokens))

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        if not tokens or self.ll_matcher.is_stopped():
            return []
        return tokens[: self.ll_matcher.validate_tokens(tokens)]

    def rollback(self, num_tokens: int) -> None:
        if num_tokens > 0:
            self.ll_matcher.rollback(num_tokens - self._lag)
            self._terminated = False
            self._lag = 0

    def fill_bitmask(self, bitmask: Bitmask, batch_index: int) -> None:
        """A stopped matcher, or one in error, allows the end-of-sequence token alone."""
        _library().numpy.fill_next_token_bitmask(self.ll_matcher, bitmask, batch_index)

    def is_terminated(self) -> bool:
        return self._terminated

    def reset(self) -> None:
        self.ll_matcher.reset()
        self._terminated = False
        self._lag = 0


def serialize_guidance_grammar(
    kind: StructuredOutputOptions, spec: str, config: BackendConfig | None = None
) -> str:
    """A rule in the library's notation
    (`vllm/v1/structured_output/backend_guidance.py:219 serialize_guidance_grammar`).

    Raises ValueError that names the rule.
    """
    settings = config or BackendConfig()
    _library()  # that it is missing is no fault of the rule
    try:
        return _serialize(kind, spec, settings)
    except Exception as error:  # a tag's JSON may lack any key, and the library raises ValueError
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise _refusal(kind, spec, reason) from error


def _serialize(kind: StructuredOutputOptions, spec: str, config: BackendConfig) -> str:
    llguidance = _library()
    if kind is StructuredOutputOptions.JSON:
        return _schema_grammar(spec, config, config.disable_additional_properties)
    if kind is StructuredOutputOptions.JSON_OBJECT:
        return _schema_grammar('{"type": "object"}', config, False)
    if kind is not StructuredOutputOptions.STRUCTURAL_TAG:
        return str(llguidance.grammar_from(_PLAIN_KINDS[kind], spec))
    tag = json.loads(spec)
    triggers = tag["triggers"]
    tags = []
    for part in tag["structures"]:
        begin = part["begin"]
        trigger = next((t for t in triggers if begin.startswith(t)), None)
        if trigger is None:
            raise ValueError(f"no trigger of {triggers} begins {begin!r}")
        schema = json.dumps(part["schema"])
        grammar = _schema_grammar(schema, config, config.disable_additional_properties)
        tags.append(
            llguidance.StructTag(trigger=trigger, begin=begin, grammar=grammar, end=part["end"])
        )
    if not tags:
        raise ValueError("it holds no structures")
    return str(llguidance.StructTag.to_grammar(tags))


def _schema_grammar(schema: str, config: BackendConfig, closed: bool) -> str:
    if closed:
        parsed = json.loads(schema)
        close_objects(parsed)
        schema = json.dumps(parsed)
    defaults = {"whitespace_flexible": not config.disable_any_whitespace}
    return str(_library().LLMatcher.grammar_from_json_schema(schema, defaults=defaults))


def _refusal(kind: StructuredOutputOptions, spec: str, reason: str) -> ValueError:
    return ValueError(
        f"{describe_rule((kind, spec))}: llguidance refuses it: {one_line(reason.strip())}"
    )


def validate_guidance_grammar(kind: StructuredOutputOptions, spec: str) -> None:
    """Refuse what llguidance cannot do
    (`vllm/v1/structured_output/backend_guidance.py:288 validate_guidance_grammar`).

    Raises ValueError that names the rule.
    """
    serialized = serialize_guidance_grammar(kind, spec)
    if error := _library().LLMatcher.validate_grammar(serialized, None):
        raise _refusal(kind, spec, error)
