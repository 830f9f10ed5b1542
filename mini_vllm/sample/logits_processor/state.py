"""The processors of an engine, and what they are told when the batch has changed.

Mirrors `vllm/v1/sample/logits_processor/state.py`. Upstream a batch keeps its rows: a new request takes
a free one, the last row moves into the gap that another leaves, and each such event is noted as it happens
(`BatchUpdateBuilder`). Here the rows of a step are the requests that sample in it, in the scheduler's
order; what has happened in between follows from comparing them with those of the step before. A processor
that is right for every `BatchUpdate` cannot tell the two apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from mini_vllm.sample.logits_processor.interface import (
    AddedRequest,
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
    MovedRequest,
)
from mini_vllm.sampling_params import SamplingParams


class BatchRow(Protocol):
    """What a processor hears of a request."""

    @property
    def sampling_params(self) -> SamplingParams: ...
    @property
    def prompt_token_ids(self) -> list[int]: ...
    @property
    def output_token_ids(self) -> list[int]: ...


def make_batch_update(before: Sequence[BatchRow], rows: Sequence[BatchRow]) -> BatchUpdate | None:
    """What turns the one batch into the other; None: they are the same.

    New requests take the lowest rows that others have left, then new ones at the end, as upstream's do.
    Then rows move until each is where it belongs. A row that another request has come into is not called
    removed, as upstream: there a processor may hear of `added` before `removed`, and vLLM's own do
    (`vllm/v1/sample/logits_processor/builtin.py:294 process_dict_updates`).
    """
    if len(before) == len(rows) and all(a is b for a, b in zip(before, rows, strict=True)):
        return None
    wanted, known = {id(row) for row in rows}, {id(row) for row in before}
    places: list[BatchRow | None] = [row if id(row) in wanted else None for row in before]
    removed = [i for i, row in enumerate(places) if row is None]
    free, added = iter(removed), list[AddedRequest]()
    refilled: set[int] = set()
    for row in rows:
        if id(row) in known:
            continue
        place = next(free, len(places))
        if place == len(places):
            places.append(None)
        places[place] = row
        refilled.add(place)
        added.append((place, row.sampling_params, row.prompt_token_ids, row.output_token_ids))
    moved: list[MovedRequest] = []
    for target, row in enumerate(rows):
        if places[target] is row:
            continue
        source = next(i for i, other in enumerate(places) if other is row)
        displaced = places[target]
        if displaced is None:
            refilled.add(target)
            moved.append((source, target, MoveDirectionality.UNIDIRECTIONAL))
        else:
            moved.append((source, target, MoveDirectionality.SWAP))
        places[target], places[source] = row, displaced
    left = [row for row in reversed(removed) if row not in refilled]
    return BatchUpdate(len(rows), left, added, moved)


class LogitsProcessors:
    """The processors, by when they come
    (`vllm/v1/sample/logits_processor/state.py:148 LogitsProcessors`).

    Attributes:
        argmax_invariant: after temperature and min-p, before top-k and top-p.
        non_argmax_invariant: after `min_tokens` and `logit_bias`, before the penalties.
    """

    def __init__(self, logitsprocs: Iterable[LogitsProcessor] = ()) -> None:
        self.argmax_invariant: list[LogitsProcessor] = []
        self.non_argmax_invariant: list[LogitsProcessor] = []
        for processor in logitsprocs:
            invariant = processor.is_argmax_invariant()
            (self.argmax_invariant if invariant else self.non_argmax_invariant).append(processor)
        self._rows: list[BatchRow] = []

    @property
    def all(self) -> list[LogitsProcessor]:
        return self.argmax_invariant + self.non_argmax_invariant

    def __bool__(self) -> bool:
        return bool(self.argmax_invariant or self.non_argmax_invariant)

    def update_state(self, rows: Sequence[BatchRow]) -> None:
        """Tell every processor which requests are in which rows now."""
        batch_update = make_batch_update(self._rows, rows)
        self._rows = list(rows)
        for processor in self.all:
            processor.update_state(batch_update)
