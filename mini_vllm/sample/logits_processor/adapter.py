"""A processor for each request, kept in a processor for the batch.

Mirrors `AdapterLogitsProcessor` and `RequestLogitsProcessor` of
`vllm/v1/sample/logits_processor/{__init__,interface}.py` and `process_dict_updates` of `builtin.py`.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mini_vllm.sample.logits_processor.interface import (
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
)
from mini_vllm.sampling_params import SamplingParams

RequestLogitsProcessor = Callable[..., npt.NDArray[np.float32]]
"""`(output_ids, logits)` or `(prompt_ids, output_ids, logits)` to logits; one row, [V]."""
T = TypeVar("T")


def process_dict_updates(
    req_entries: dict[int, T],
    batch_update: BatchUpdate | None,
    new_state: Callable[[SamplingParams, list[int] | None, list[int]], T | None],
) -> bool:
    """Keep a dictionary from row to state in step with the batch; True if something changed.

    Source: `vllm/v1/sample/logits_processor/builtin.py:294 process_dict_updates`.
    """
    if batch_update is None:
        return False
    before = dict(req_entries)
    for row in batch_update.removed:
        req_entries.pop(row, None)
    for row, params, prompt_ids, output_ids in batch_update.added:
        state = new_state(params, prompt_ids, output_ids)
        if state is None:
            req_entries.pop(row, None)
        else:
            req_entries[row] = state
    for source, target, direction in batch_update.moved:
        moving, displaced = req_entries.pop(source, None), req_entries.pop(target, None)
        if moving is not None:
            req_entries[target] = moving
        if displaced is not None and direction is MoveDirectionality.SWAP:
            req_entries[source] = displaced
    return before != req_entries


class AdapterLogitsProcessor(LogitsProcessor):
    """Wraps processors that know one request only
    (`vllm/v1/sample/logits_processor/__init__.py:234 AdapterLogitsProcessor`).

    A subclass says `is_argmax_invariant`, and in `new_req_logits_processor` which requests get one.
    """

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self.req_info: dict[int, partial[npt.NDArray[np.float32]]] = {}

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """The processor of a request with these parameters; None: it needs none."""

    def _new_state(
        self, params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]
    ) -> partial[npt.NDArray[np.float32]] | None:
        processor = self.new_req_logits_processor(params)
        if processor is None:
            return None
        takes_prompt = len(inspect.signature(processor).parameters) == 3
        return partial(processor, *([prompt_ids] if takes_prompt else []), output_ids)

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self.req_info, batch_update, self._new_state)

    def apply(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        for row, processor in self.req_info.items():
            logits[row] = processor(logits[row])
        return logits
