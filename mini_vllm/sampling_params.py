"""What one request asks of the sampler, checked when it is built.

Mirrors `vllm/sampling_params.py`: field names, order, defaults, what the constructor normalises
and what it refuses. What is accepted here, vLLM accepts too, with the same fields afterwards. The
other way round does not hold, on purpose:

* Parameters the miniature does not act on (those in `surface.json`) pass at values that ask for nothing.
* vLLM checks few types. It takes `temperature=nan`, `max_tokens=1.5`, `seed="a"` or
  `ignore_eos="no"` and fails later or means something odd. All of that is an error here.
* A seed must fit torch's generator (64 bits), and stop token ids must lie in the vocabulary: vLLM
  finds out about either in the middle of a step.
"""

from __future__ import annotations

import difflib
import logging
import os
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Protocol

from mini_vllm.utils import values
from mini_vllm.utils.params import BeamSearchParams as BeamSearchParams
from mini_vllm.utils.params import RepetitionDetectionParams as RepetitionDetectionParams
from mini_vllm.utils.params import RequestOutputKind as RequestOutputKind
from mini_vllm.utils.params import SamplingType as SamplingType
from mini_vllm.utils.params import check_rule
from mini_vllm.utils.surface import entries, is_harmless, refusal
from mini_vllm.utils.untrusted import shorten_repr

if TYPE_CHECKING:
    from mini_vllm.utils.structured_params import (
        StructuredOutputsParams as StructuredOutputsParams,
    )

logger = logging.getLogger(__name__)

SAMPLING_EPS = 1e-5
"""Below this temperature a request is greedy; a min_p up to it counts as none
(`vllm/sampling_params.py:25 _SAMPLING_EPS`)."""
_MAX_TEMP = 1e-2
"""The least positive temperature; lower ones are raised to it
(`vllm/sampling_params.py:26 _MAX_TEMP`)."""


MAX_LOGPROB_TOKEN_IDS = 128
"""Longest `logprob_token_ids` (`vllm/sampling_params.py:28 MAX_LOGPROB_TOKEN_IDS`)."""


class _Encoder(Protocol):
    def encode(self, text: str, add_special_tokens: bool) -> list[int]: ...


class SamplingParams:
    """Sampling parameters of one request (`vllm/sampling_params.py:168 SamplingParams`).

    Args:
        n: completions to generate for the prompt; at least 1 and at most `VLLM_MAX_N_SEQUENCES`
            (16384 where that is unset).
        presence_penalty: taken off the logit of every token in the output so far, once;
            in [-2, 2], 0 is off.
        frequency_penalty: taken off once per occurrence in the output so far; in [-2, 2], 0 is off.
        repetition_penalty: divides the positive and multiplies the other logits of every token in
            the prompt or the output; above 0, 1 is off.
        temperature: the logits are divided by it. 0 is greedy and switches `top_p`, `top_k`
            and `min_p` off; a value in (0, 0.01) is raised to 0.01.
        top_p: keep the likeliest tokens that together hold this probability; in (0, 1], 1 is off.
        top_k: keep this many of the likeliest tokens; 0 (or -1) is off.
        min_p: keep tokens with at least this share of the top token's probability;
            in [0, 1], 0 is off.
        seed: gives the request a random stream of its own; -1 means none.
        stop: string or strings that end the generation.
        stop_token_ids: token ids that end the generation.
        ignore_eos: go on after the end-of-sequence token.
        bad_words: words that are not to be generated: of a word of several tokens, the last is barred
            where the others stand before it.
        repetition_detection: end the request, with the reason `repetition`, when the end of its output
            is one pattern again and again.
        max_tokens: tokens to generate at most, at least 1; None leaves it to `max_model_len`.
        min_tokens: no token that would end the generation is drawn before so many tokens.
        logprobs: return the log probabilities of so many likeliest tokens and of the token drawn;
            -1 is the whole vocabulary, None is off, True is 1.
        prompt_logprobs: the same for each prompt token.
        logprob_token_ids: return the log probabilities of these tokens, at most 128, in the place of the
            likeliest ones.
        detokenize: turn the token ids into text; stop strings need it.
        skip_special_tokens: leave special tokens out of the text.
        spaces_between_special_tokens: in vLLM, put a space between two special tokens that are kept,
            where the tokenizer's decoder does. The decoders here put none, so it changes nothing.
        include_stop_str_in_output: end the text with the stop string that was hit.
        output_kind: what the outputs on the way carry.
        structured_outputs: a rule that the output obeys, such as a regular expression or a JSON schema.
        logit_bias: token id to a number that is added to its logit.
        allowed_token_ids: the only token ids that may be drawn.
        extra_args: what a logits processor of your own reads; nothing else does.
        skip_reading_prefix_cache: compute the whole prompt; where None, True exactly where
            `prompt_logprobs` asks for something.
        unknown: catches every other name, for an error that helps.

    Raises:
        TypeError: a parameter that does not exist, or a value of the wrong type.
        ValueError: a value outside its range, `n > 1` with greedy sampling, a parameter of
            vLLM's that the miniature leaves out. A non-integer `n` or stop token id is a
            ValueError as well, as at the pin.

    After construction `stop` and `stop_token_ids` are lists, `skip_reading_prefix_cache` is a
    bool, and `output_text_buffer_length` says how many characters a stream holds back because
    they may turn out to begin a stop string. Attributes can be set later and are not checked again.
    """

    # fmt: off
    __slots__ = (
        "_all_stop_token_ids", "_bad_words_token_ids", "_eos_token_id", "allowed_token_ids",
        "bad_words", "detokenize", "extra_args", "frequency_penalty", "ignore_eos",
        "include_stop_str_in_output", "logit_bias", "logprob_token_ids", "logprobs", "max_tokens", "min_p",
        "min_tokens", "n", "output_kind", "output_text_buffer_length",
        "presence_penalty", "prompt_logprobs", "repetition_detection", "repetition_penalty", "seed",
        "skip_reading_prefix_cache", "skip_special_tokens", "spaces_between_special_tokens", "stop",
        "stop_token_ids", "structured_outputs", "temperature", "top_k", "top_p",
    )
    # fmt: on

    # Positions are shared with vLLM up to logprob_token_ids. The field after that is left out, so
    # the rest goes by name only: no argument can land in another parameter than it would there.
    def __init__(
        self,
        n: int = 1,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repetition_penalty: float = 1.0,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        seed: int | None = None,
        stop: str | list[str] | None = None,
        stop_token_ids: list[int] | None = None,
        ignore_eos: bool = False,
        max_tokens: int | None = 16,
        min_tokens: int = 0,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        logprob_token_ids: list[int] | None = None,
        *,
        detokenize: bool = True,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        include_stop_str_in_output: bool = False,
        output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE,
        structured_outputs: StructuredOutputsParams | None = None,
        logit_bias: dict[int, float] | None = None,
        allowed_token_ids: list[int] | None = None,
        extra_args: dict[str, Any] | None = None,
        bad_words: list[str] | None = None,
        skip_reading_prefix_cache: bool | None = None,
        repetition_detection: RepetitionDetectionParams | None = None,
        **unknown: Any,
    ) -> None:
        if unknown:
            _refuse_unknown(unknown)
        if not values.is_int(n):
            raise ValueError(
                f"n must be an integer, got {shorten_repr(n)} of type {type(n).__name__}."
            )
        self.n = n
        self.presence_penalty = values.number("presence_penalty", presence_penalty)
        self.frequency_penalty = values.number("frequency_penalty", frequency_penalty)
        self.repetition_penalty = values.number("repetition_penalty", repetition_penalty)
        self.temperature = values.number("temperature", temperature)
        self.top_p = values.number("top_p", top_p)
        self.top_k = values.integer("top_k", top_k)
        self.min_p = values.number("min_p", min_p)
        self.seed = None if seed is None or seed == -1 else values.integer("seed", seed)
        self.stop = values.strings("stop", stop)
        self.stop_token_ids = values.token_ids("stop_token_ids", stop_token_ids) or []
        self.ignore_eos = values.flag("ignore_eos", ignore_eos)
        self.max_tokens = None if max_tokens is None else values.integer("max_tokens", max_tokens)
        self.min_tokens = values.integer("min_tokens", min_tokens)
        self.logprobs = values.count("logprobs", logprobs)
        self.prompt_logprobs = values.count("prompt_logprobs", prompt_logprobs)
        self.logprob_token_ids = values.token_ids("logprob_token_ids", logprob_token_ids)
        self.detokenize = values.flag("detokenize", detokenize)
        self.skip_special_tokens = values.flag("skip_special_tokens", skip_special_tokens)
        spaces = spaces_between_special_tokens
        self.spaces_between_special_tokens = values.flag("spaces_between_special_tokens", spaces)
        hit_stays = include_stop_str_in_output
        self.include_stop_str_in_output = values.flag("include_stop_str_in_output", hit_stays)
        if not isinstance(output_kind, RequestOutputKind):
            raise values.wrong_type("output_kind", "a RequestOutputKind", output_kind)
        self.output_kind = output_kind
        if structured_outputs is not None:
            check_rule(structured_outputs)
        self.structured_outputs = structured_outputs
        self.logit_bias = None if logit_bias is None else values.biases(logit_bias)
        self.allowed_token_ids = values.token_ids("allowed_token_ids", allowed_token_ids)
        self.skip_reading_prefix_cache: bool = (
            self.prompt_logprobs is not None
            if skip_reading_prefix_cache is None
            else values.flag("skip_reading_prefix_cache", skip_reading_prefix_cache)
        )

        if isinstance(bad_words, str):
            raise values.wrong_type("bad_words", "a list of strings", bad_words)
        self.bad_words = values.strings("bad_words", bad_words)
        self._bad_words_token_ids: list[list[int]] | None = None
        if not isinstance(repetition_detection, RepetitionDetectionParams | None):
            raise values.wrong_type(
                "repetition_detection", "RepetitionDetectionParams", repetition_detection
            )
        self.repetition_detection = repetition_detection
        if not isinstance(extra_args, dict | None):
            raise values.wrong_type("extra_args", "a dictionary", extra_args)
        self.extra_args = extra_args

        # Before the greedy test, as at the pin: 1e-6 samples at 0.01, only 0 is greedy.
        if 0 < self.temperature < _MAX_TEMP:
            logger.warning(
                "temperature %s is below %s and was raised to it: dividing the logits by so "
                "little overflows.",
                self.temperature,
                _MAX_TEMP,
            )
            self.temperature = _MAX_TEMP
        self._verify_args()
        if self.temperature < SAMPLING_EPS:
            self.top_p, self.top_k, self.min_p = 1.0, 0, 0.0
            if self.n > 1:
                raise ValueError(
                    f"n must be 1 with greedy sampling (temperature 0), got {shorten_repr(self.n)}: every "
                    "completion would be the same."
                )

        self.output_text_buffer_length = 0
        if self.stop and not self.include_stop_str_in_output:
            self.output_text_buffer_length = max(map(len, self.stop)) - 1
        self._eos_token_id: int | None = None
        self._all_stop_token_ids: set[int] = set(self.stop_token_ids)

    def _verify_args(self) -> None:
        """Refuse values outside their range
        (`vllm/sampling_params.py:452 SamplingParams._verify_args`)."""
        if self.n < 1:
            raise ValueError(f"n must be at least 1, got {shorten_repr(self.n)}.")
        if self.n > 1 and self.n > (limit := int(os.environ.get("VLLM_MAX_N_SEQUENCES", 16384))):
            raise ValueError(
                f"n must be at most {limit} (VLLM_MAX_N_SEQUENCES), got {shorten_repr(self.n)}."
            )
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2.0 <= getattr(self, name) <= 2.0:
                raise ValueError(f"{name} must be in [-2, 2], got {getattr(self, name)}.")
        if self.repetition_penalty <= 0.0:
            raise ValueError(f"repetition_penalty must be above 0, got {self.repetition_penalty}.")
        if self.temperature < 0.0:
            raise ValueError(f"temperature must not be negative, got {self.temperature}.")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}.")
        if self.top_k < -1:
            raise ValueError(
                f"top_k must be 0 (off) or at least 1, got {shorten_repr(self.top_k)}."
            )
        if not 0.0 <= self.min_p <= 1.0:
            raise ValueError(f"min_p must be in [0, 1], got {self.min_p}.")
        if self.seed is not None and not -(2**63) <= self.seed < 2**64:
            raise ValueError(f"seed must be in [-2**63, 2**64), got {shorten_repr(self.seed)}.")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {shorten_repr(self.max_tokens)}.")
        if self.min_tokens < 0:
            raise ValueError(
                f"min_tokens must be greater than or equal to 0, got {shorten_repr(self.min_tokens)}."
            )
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens must be less than or equal to max_tokens={shorten_repr(self.max_tokens)}, "
                f"got {shorten_repr(self.min_tokens)}."
            )
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            if count is not None and count < -1:
                raise ValueError(
                    f"{name} must be at least 0, or -1 for the vocabulary, got {shorten_repr(count)}."
                )
        if self.stop and not self.detokenize:
            raise ValueError(
                f"stop={shorten_repr(self.stop)} needs detokenize=True: stop strings are sought in the text."
            )

    def verify(self, vocab_size: int, max_logprobs: int = 20) -> None:
        """Refuse what this model or this engine cannot serve
        (`vllm/sampling_params.py:665 SamplingParams.verify`).

        Args:
            vocab_size: tokens in the model's vocabulary; valid ids are 0 to `vocab_size - 1`.
            max_logprobs: the engine's limit for `logprobs` and `prompt_logprobs`; -1 is
                `vocab_size`.

        Raises:
            ValueError: too many logprobs, an empty `allowed_token_ids`, or a token id outside
                the vocabulary in `logit_bias`, `allowed_token_ids` or `stop_token_ids`.
        """
        limit = vocab_size if max_logprobs == -1 else min(max_logprobs, vocab_size)
        for name in ("logprobs", "prompt_logprobs"):
            wanted = getattr(self, name)
            if wanted is not None and (vocab_size if wanted == -1 else wanted) > limit:
                raise ValueError(
                    f"{name}={shorten_repr(wanted)} asks for more log probabilities than the allowed {limit} "
                    f"(max_logprobs={max_logprobs}, vocabulary size {vocab_size})."
                )
        if self.logprob_token_ids is not None:
            count = len(self.logprob_token_ids)
            if count > MAX_LOGPROB_TOKEN_IDS:
                raise ValueError(
                    f"logprob_token_ids may hold at most {MAX_LOGPROB_TOKEN_IDS} token ids, got {count}."
                )
            if self.logprobs is not None and self.logprobs != count:
                raise ValueError(
                    f"logprobs must be the number of logprob_token_ids ({count}) where both are set, got "
                    f"{shorten_repr(self.logprobs)}."
                )
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise ValueError("allowed_token_ids must be None or hold a token id, got [].")
        values.check_vocabulary("logit_bias", self.logit_bias or (), vocab_size)
        values.check_vocabulary("allowed_token_ids", self.allowed_token_ids or (), vocab_size)
        values.check_vocabulary("stop_token_ids", self.stop_token_ids, vocab_size)
        values.check_vocabulary("logprob_token_ids", self.logprob_token_ids or (), vocab_size)
        for word in self._bad_words_token_ids or ():
            values.check_vocabulary(f"bad_words={shorten_repr(self.bad_words)}", word, vocab_size)

    def update_from_generation_config(
        self, generation_config: dict[str, Any], eos_token_id: int | None = None
    ) -> None:
        """Take the stop tokens over from the model
        (`vllm/sampling_params.py:556 SamplingParams.update_from_generation_config`).

        Args:
            generation_config: the checkpoint's `generation_config.json`; its `eos_token_id`
                may be an id or a list of ids.
            eos_token_id: the tokenizer's end-of-sequence id.

        With `ignore_eos` none of these ids stops the request, but all of them count as stop
        tokens for `min_tokens`: they are barred until it is reached.
        """
        if not self.ignore_eos:
            self._eos_token_id = eos_token_id
        if eos_token_id is not None:
            self._all_stop_token_ids.add(eos_token_id)
        listed = generation_config.get("eos_token_id")
        if listed is None:
            return
        # The tokenizer's own id has a check and a finish reason of its own.
        others = ({listed} if isinstance(listed, int) else set(listed)) - {eos_token_id}
        self._all_stop_token_ids |= others
        if others and not self.ignore_eos:
            self.stop_token_ids = sorted(others.union(self.stop_token_ids))

    def update_from_tokenizer(self, tokenizer: _Encoder) -> None:
        """Find the token ids of each bad word, as it stands at the beginning of a text and, where that
        makes another first token and no more tokens, after a space
        (`vllm/sampling_params.py:586 SamplingParams.update_from_tokenizer`).

        Raises ValueError for a word of nothing but spaces.
        """
        if not self.bad_words:
            return
        found: list[list[int]] = []
        for bad_word in self.bad_words:
            word = bad_word.lstrip()
            plain = tokenizer.encode(word, add_special_tokens=False)
            if not plain:
                raise ValueError(f"bad_words must hold words, got {shorten_repr(bad_word)}.")
            spaced = tokenizer.encode(" " + word, add_special_tokens=False)
            found.append(plain)
            if spaced[0] != plain[0] and len(spaced) == len(plain):
                found.append(spaced)
        self._bad_words_token_ids = found

    @property
    def num_logprobs(self) -> int | None:
        """Log probabilities to return beside the drawn token's; None: none at all
        (`vllm/sampling_params.py:649 SamplingParams.num_logprobs`)."""
        if self.logprobs is not None:
            return self.logprobs
        return len(self.logprob_token_ids) if self.logprob_token_ids else None

    @property
    def bad_words_token_ids(self) -> list[list[int]] | None:
        """What `update_from_tokenizer` has found; None before."""
        return self._bad_words_token_ids

    @property
    def sampling_type(self) -> SamplingType:
        """GREEDY, RANDOM, or RANDOM_SEED for a row with a stream of its own."""
        if self.temperature < SAMPLING_EPS:
            return SamplingType.GREEDY
        return SamplingType.RANDOM if self.seed is None else SamplingType.RANDOM_SEED

    @property
    def eos_token_id(self) -> int | None:
        """The id that ends this request as end of sequence; None with `ignore_eos`."""
        return self._eos_token_id

    @property
    def all_stop_token_ids(self) -> set[int]:
        """Every id that `min_tokens` bars: the stop token ids and all end-of-sequence ids."""
        return self._all_stop_token_ids

    def clone(self) -> SamplingParams:
        """An independent copy: changing one object's lists leaves the other's alone."""
        copy = object.__new__(type(self))
        for name in SamplingParams.__slots__:
            value = getattr(self, name)
            setattr(copy, name, value.copy() if isinstance(value, list | dict | set) else value)
        if self.structured_outputs is not None:  # a front end's check writes to it
            copy.structured_outputs = deepcopy(self.structured_outputs)
        return copy

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SamplingParams):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in PARAMETERS)
        return f"SamplingParams({fields})"


PARAMETERS: tuple[str, ...] = tuple(
    name for name in SamplingParams.__init__.__annotations__ if name not in ("unknown", "return")
)
"""The constructor's parameters, in order."""


def __getattr__(name: str) -> Any:
    if name != "StructuredOutputsParams":  # which a run without rules does not load
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mini_vllm.utils.structured_params import StructuredOutputsParams

    return StructuredOutputsParams


def _refuse_unknown(unknown: dict[str, Any]) -> None:
    """Raise for the first parameter the miniature cannot honour; return where there is none."""
    for name, value in unknown.items():
        if is_harmless("SamplingParams", name, value):
            continue
        message = refusal("SamplingParams", name, f"{name}={value!r:.100}")
        if message is not None:
            raise ValueError(message)
        near = difflib.get_close_matches(name, [*PARAMETERS, *entries("SamplingParams")], n=1)
        hint = f" Did you mean {near[0]!r}?" if near else f" It takes {', '.join(PARAMETERS)}."
        raise TypeError(f"SamplingParams has no parameter {shorten_repr(name)}.{hint}")
