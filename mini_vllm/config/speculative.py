"""What is to be guessed, by which method, and how the guesses are judged: `speculative_config`.

Mirrors the part of `vllm/config/speculative.py:74 SpeculativeConfig` that the miniature acts on. Left out:
Medusa, suffix decoding, MTP, `ngram_gpu`, DFlash, drafting in parallel, a drafter split over devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mini_vllm.utils.surface import refusal, reject_unsupported
from mini_vllm.utils.untrusted import shorten_repr

METHODS = ("ngram", "draft_model", "eagle", "eagle3")
MAX_SPEC_LEN = 128
"""Most drafts a request that the rejection sampler takes
(`vllm/v1/sample/rejection_sampler.py:34 MAX_SPEC_LEN`)."""


def acceptance_length_to_rates(length: float, num_speculative_tokens: int) -> tuple[float, ...]:
    """The rates by position that give this mean acceptance length with the least variance: ones, then the
    fraction, then zeros (`vllm/config/speculative.py:212 SpeculativeConfig._acceptance_length_to_rates`)."""
    num_drafts = length - 1
    num_full = int(num_drafts)
    rates = [1.0] * num_full + [num_drafts - num_full]
    rates += [0.0] * (num_speculative_tokens - num_full - 1)
    return tuple(rates[:num_speculative_tokens])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def merge_shorthands(
    settings: Mapping[str, Any] | SpeculativeConfig | None,
    method: str | None,
    model: str | None,
    num_tokens: int | None,
) -> Mapping[str, Any] | SpeculativeConfig | None:
    """`speculative_config` with what `--spec-method`, `--spec-model` and `--spec-tokens` say
    (`vllm/engine/arg_utils.py:1660 EngineArgs.create_speculative_config`).

    Raises ValueError where the same is said twice.
    """
    given = {
        "method": ("--spec-method", method),
        "model": ("--spec-model", model),
        "num_speculative_tokens": ("--spec-tokens", num_tokens),
    }
    given = {name: (flag, value) for name, (flag, value) in given.items() if value is not None}
    if not given:
        return settings
    if isinstance(settings, SpeculativeConfig):
        settings = {field.name: getattr(settings, field.name) for field in fields(settings)}
    merged = dict(settings or {})
    for name, (flag, value) in given.items():
        if merged.get(name) is not None:
            raise ValueError(
                f"{flag} {shorten_repr(value)}: speculative_config has a {name} already"
            )
        merged[name] = value
    return merged


@dataclass(frozen=True)
class SpeculativeConfig:
    """Settings of speculative decoding.

    Attributes:
        method: `ngram`, `draft_model`, `eagle` or `eagle3`. None: as the model's name says, which is
            `ngram`, or holds `eagle-` or `eagle3`; else `draft_model`. A draft model with such a name is
            taken for a head even where the method says `draft_model`, as in vLLM.
        model: the drafter's checkpoint folder; not for `ngram`.
        num_speculative_tokens: most drafts a request and step.
        prompt_lookup_max, prompt_lookup_min: longest and shortest n-gram that is looked up; None: as the
            other, or 5 where both are.
        draft_sample_method: `greedy`: drafts are the drafter's argmax, and judged as if it had been
            certain of them. `probabilistic`: drafts are drawn, and judged by the drafter's probabilities.
        rejection_sample_method: `standard`, or `synthetic`: accept by given rates, whatever the
            drafts, to try what a better drafter would bring. The text is then not the model's.
        synthetic_acceptance_rates: for each position, the share of drafts in which it and all before it
            are accepted; never rising.
        synthetic_acceptance_length: instead of rates, accepted tokens a draft plus one.
        max_model_len: longest sequence that the drafter drafts for; None: as the model's.

    Raises ValueError naming the field, its value and the rule.
    """

    num_speculative_tokens: int | None = None
    method: str | None = None
    model: str | Path | None = None
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None
    draft_sample_method: str = "greedy"
    rejection_sample_method: str = "standard"
    synthetic_acceptance_rates: Sequence[float] | None = None
    synthetic_acceptance_length: float | None = None
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        self._check_method()
        self._check_int("num_speculative_tokens", MAX_SPEC_LEN)
        if self.max_model_len is not None:
            self._check_int("max_model_len")
        self._check_choice("draft_sample_method", ("greedy", "probabilistic"))
        self._check_choice("rejection_sample_method", ("standard", "synthetic"))
        for name in ("prompt_lookup_min", "prompt_lookup_max"):
            if getattr(self, name) is not None:
                self._check_int(name)
        if self.method == "ngram":
            self._check_prompt_lookup()
        self._check_synthetic()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_method(self) -> None:
        if self.model is not None and not isinstance(self.model, str | Path):
            raise ValueError(
                f"speculative_config: model must be a checkpoint folder, got {shorten_repr(self.model)}"
            )
        self._set("method", self._detect_method())
        if self.method not in METHODS:
            refused = isinstance(self.method, str) and refusal(
                "methods", self.method, f"method={self.method!r}"
            )
            raise ValueError(
                f"speculative_config: {refused}"
                if refused
                else f"speculative_config: method must be one of {', '.join(METHODS)}, got "
                f"{shorten_repr(self.method)}"
            )
        if self.method != "ngram" and self.model is None:
            raise ValueError(
                f"speculative_config: method {self.method!r} needs a model, the drafter's checkpoint, "
                "got None"
            )

    def _detect_method(self) -> str | None:
        """What the method is, by what is given of method and model
        (`vllm/config/speculative.py:516 SpeculativeConfig.__post_init__`)."""
        method, model = self.method, self.model
        if isinstance(model, str) and "." in model and "/" not in model:
            return "custom_class"  # vLLM takes such a name for a class of the caller's
        if method is None:
            method = "ngram" if model in ("ngram", "[ngram]") else "draft_model"
        if method == "draft_model" and model is not None:
            name = str(model).lower()
            for part, found in (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash")):
                if part in name:
                    return found
        return method

    def _check_int(self, name: str, most: int = 2**31 - 1) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ValueError(
                f"speculative_config: {name} must be an integer from 1 to {most}, got {shorten_repr(value)}"
            )

    def _check_choice(self, name: str, choices: tuple[str, ...]) -> None:
        if getattr(self, name) not in choices:
            raise ValueError(
                f"speculative_config: {name} must be {' or '.join(map(repr, choices))}, got "
                f"{shorten_repr(getattr(self, name))}"
            )

    def _check_prompt_lookup(self) -> None:
        if self.prompt_lookup_min is None and self.prompt_lookup_max is None:
            self._set("prompt_lookup_min", 5)
            self._set("prompt_lookup_max", 5)
        elif self.prompt_lookup_min is None:
            self._set("prompt_lookup_min", self.prompt_lookup_max)
        elif self.prompt_lookup_max is None:
            self._set("prompt_lookup_max", self.prompt_lookup_min)
        assert self.prompt_lookup_min is not None and self.prompt_lookup_max is not None
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError(
                f"speculative_config: prompt_lookup_min ({self.prompt_lookup_min}) must not be above "
                f"prompt_lookup_max ({self.prompt_lookup_max})"
            )

    def _check_synthetic(self) -> None:
        rates, length = self.synthetic_acceptance_rates, self.synthetic_acceptance_length
        n = self.num_speculative_tokens
        assert n is not None
        if self.rejection_sample_method != "synthetic":
            if rates is not None or length is not None:
                raise ValueError(
                    "speculative_config: synthetic_acceptance_rates and synthetic_acceptance_length are "
                    "only for rejection_sample_method 'synthetic', which is "
                    f"{self.rejection_sample_method!r}"
                )
            return
        if (rates is None) == (length is None):
            raise ValueError(
                "speculative_config: rejection_sample_method 'synthetic' needs exactly one of "
                f"synthetic_acceptance_rates ({rates}) and synthetic_acceptance_length ({length})"
            )
        if length is not None:
            if not _is_number(length) or not 1 <= length <= n + 1:
                raise ValueError(
                    f"speculative_config: synthetic_acceptance_length must be from 1 to {n + 1}, got "
                    f"{shorten_repr(length)}"
                )
            self._set("synthetic_acceptance_rates", acceptance_length_to_rates(length, n))
            self._set("synthetic_acceptance_length", None)
            return
        assert rates is not None
        good = isinstance(rates, list | tuple) and len(rates) == n and all(map(_is_number, rates))
        if not good or any(a < b for a, b in zip([1, *rates], [*rates, 0], strict=True)):
            raise ValueError(
                f"speculative_config: synthetic_acceptance_rates must be {n} numbers from 0 to 1 that "
                f"never rise, got {shorten_repr(rates)}"
            )
        self._set("synthetic_acceptance_rates", tuple(rates))

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> SpeculativeConfig:
        """From the dictionary that vLLM's `LLM` and `--speculative-config` take.

        Keys of vLLM's that are none of the fields pass where they ask for what happens anyway. Raises
        ValueError where they ask for more, and for a key that vLLM has not either.
        """
        known = [field.name for field in fields(cls)]
        others = {name: value for name, value in settings.items() if name not in known}
        try:
            reject_unsupported("speculative", others, "it", known)
        except (TypeError, ValueError) as error:
            raise ValueError(f"speculative_config: {error}") from None
        return cls(**{name: value for name, value in settings.items() if name in known})

    @property
    def num_spec_tokens(self) -> int:
        """`num_speculative_tokens`, which is set."""
        assert self.num_speculative_tokens is not None
        return self.num_speculative_tokens

    def use_eagle(self) -> bool:
        """The drafter reads the model's hidden states
        (`vllm/config/speculative.py:1059 SpeculativeConfig.use_eagle`)."""
        return self.method in ("eagle", "eagle3")

    def uses_draft_model(self) -> bool:
        """The drafter is a whole model
        (`vllm/config/speculative.py:1065 SpeculativeConfig.uses_draft_model`)."""
        return self.method == "draft_model"

    @property
    def num_lookahead_tokens(self) -> int:
        """Slots past a step's tokens for the drafter's own forward passes: `num_speculative_tokens` for a
        drafter with a KV cache, else 0 (`vllm/v1/core/sched/scheduler.py:213`). A draft model may need all
        of them, an EAGLE head one less, because its first pass stands at the step's own positions."""
        return self.num_spec_tokens if self.method != "ngram" else 0

    @property
    def max_num_new_slots_for_drafting(self) -> int:
        """Rows a request that drafting adds to the batch: 1 for a draft model, whose first pass takes the
        new token beside those of the step; an EAGLE head takes it in the place of the first
        (`vllm/config/speculative.py:1036 SpeculativeConfig.max_num_new_slots_for_drafting`)."""
        return int(self.uses_draft_model())
