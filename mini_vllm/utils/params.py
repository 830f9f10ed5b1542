"""What stands beside `SamplingParams` in vLLM's `sampling_params.py`; ours hands it on under that name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from mini_vllm.utils import values
from mini_vllm.utils.untrusted import shorten_repr


class SamplingType(IntEnum):
    """How a request's tokens are chosen (`vllm/sampling_params.py:33 SamplingType`)."""

    GREEDY = 0
    RANDOM = 1
    RANDOM_SEED = 2


class RequestOutputKind(Enum):
    """What each `RequestOutput` of a request carries
    (`vllm/sampling_params.py:151 RequestOutputKind`)."""

    CUMULATIVE = 0
    """Everything generated so far."""
    DELTA = 1
    """What is new since the last output."""
    FINAL_ONLY = 2
    """Nothing until the request has finished."""


@dataclass
class RepetitionDetectionParams:
    """When an output repeats itself so much that it ends
    (`vllm/sampling_params.py:115 RepetitionDetectionParams`).

    Attributes:
        max_pattern_size: the longest pattern to look for, in tokens; 0 is off.
        min_pattern_size: the shortest; 0 is 1.
        min_count: so many times in a row, at least 2.

    Raises ValueError for a negative size, a longest pattern below the shortest, or a count below 2.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.min_pattern_size <= self.max_pattern_size:
            raise ValueError(
                "repetition_detection needs 0 <= min_pattern_size <= max_pattern_size, got "
                f"{shorten_repr(self.min_pattern_size)} and {shorten_repr(self.max_pattern_size)}."
            )
        if self.max_pattern_size > 0 and self.min_count < 2:
            raise ValueError(
                "repetition_detection needs a min_count of at least 2, got "
                f"{shorten_repr(self.min_count)}."
            )


@dataclass
class BeamSearchParams:
    """A beam search (`vllm/sampling_params.py:977 BeamSearchParams`).

    Attributes:
        beam_width: beams that are kept, and returned.
        max_tokens: most output tokens.
        ignore_eos: EOS ends no beam.
        temperature: with which each step draws its token. Log probabilities are the model's own, so that
            matters only where that token is not among the likeliest.
        length_penalty: above 0 the length counts in a beam's favour; 0: the sum of log probabilities ranks.
        include_stop_str_in_output: keep EOS in what the server answers.

    Raises ValueError for a width or a number of tokens below 1, TypeError or ValueError for a penalty or a
    temperature that is no finite number.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        for name in ("beam_width", "max_tokens"):
            value = getattr(self, name)
            if not values.is_int(value) or value < 1:
                raise ValueError(
                    f"{name} must be an integer of at least 1, got {shorten_repr(value)}."
                )
        self.length_penalty = values.number("length_penalty", self.length_penalty)
        self.temperature = values.number("temperature", self.temperature)


def check_rule(value: object) -> None:
    """Raises TypeError unless it is a rule. A run without rules loads none of their module."""
    from mini_vllm.utils.structured_params import StructuredOutputsParams

    if not isinstance(value, StructuredOutputsParams):
        raise values.wrong_type("structured_outputs", "StructuredOutputsParams", value)
