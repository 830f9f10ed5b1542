"""What a logits processor is, and what it is told of the batch.

Mirrors `vllm/v1/sample/logits_processor/interface.py`. A row of the batch has no name: a processor that keeps
something for a request must follow it from row to row, and forget it when it leaves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np
import numpy.typing as npt

from mini_vllm.sampling_params import SamplingParams


class MoveDirectionality(Enum):
    """Whether a row that moves leaves its place empty, or changes places with another
    (`vllm/v1/sample/logits_processor/interface.py:17 MoveDirectionality`).

    Equal to vLLM's of the same name, with which a processor that was written for vLLM compares.
    """

    UNIDIRECTIONAL = auto()
    SWAP = auto()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Enum) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


RemovedRequest = int
"""The row."""
AddedRequest = tuple[int, SamplingParams, list[int] | None, list[int]]
"""Row, parameters, the prompt's token ids, and the output's: the live list, which grows."""
MovedRequest = tuple[int, int, MoveDirectionality]
"""From, to."""


@dataclass(frozen=True)
class BatchUpdate:
    """What changed in the batch since the last step
    (`vllm/v1/sample/logits_processor/interface.py:37 BatchUpdate`).

    To be applied in this order: `removed`, `added`, `moved`. What is added to a row replaces what was
    there, and so does a move in one direction.

    Attributes:
        batch_size: rows now.
    """

    batch_size: int
    removed: Sequence[RemovedRequest]
    added: Sequence[AddedRequest]
    moved: Sequence[MovedRequest]


class LogitsProcessor(ABC):
    """Changes the logits of a batch (`vllm/v1/sample/logits_processor/interface.py:60 LogitsProcessor`).

    Args:
        vllm_config: the engine's settings, here an `EngineConfig`.
        device: here always "cpu".
        is_pin_memory: here always False.
    """

    @classmethod  # noqa: B027  a processor need not look
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise ValueError for parameters that this processor cannot serve. Asked of each request before
        it enters the engine."""

    @abstractmethod
    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None: ...

    @abstractmethod
    def apply(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The logits to go on with, [n, V]; the array given may be written to."""

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """True if the likeliest token always stays so. Then greedy rows need not wait for it, and it
        comes after the temperature; else it comes before the penalties."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Called before each step; None: the same requests in the same rows."""
