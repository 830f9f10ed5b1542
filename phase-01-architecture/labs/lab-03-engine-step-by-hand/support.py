"""Lab 01-03: what its tests share: decisions and states made by hand, a model that is watched, the rules."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from mini_vllm import SamplingParams
from mini_vllm.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

ARRAYS = ("input_ids", "positions", "slot_mapping", "query_start_loc", "seq_lens", "block_table")
GREEDY = SamplingParams(temperature=0, max_tokens=8)
RULES = {
    "req_ids": "Rows come in the order of num_scheduled_tokens, and nobody else is in them.",
    "input_ids": "The token at position p is token_ids[p], prompt and output in one list.",
    "positions": "A request goes on where it stopped: num_computed_tokens, num_computed_tokens + 1, "
    "…. RoPE turns by the place in the sequence, not in the step.",
    "slot_mapping": "Position p goes to slot block_ids[p // 4] * 4 + p % 4 (block size 4), with the "
    "request's own table.",
    "query_start_loc": "It starts with 0 and then has the running sum of the requests' tokens.",
    "seq_lens": "Tokens in the cache after the step: num_computed_tokens plus those of this step.",
    "block_table": "Row i is the table of request i, filled up with 0.",
    "logits_indices": "The last row of each request: one less than where the next one begins.",
    "discard_request_mask": "True where seq_lens < num_tokens: tokens are left to compute, so that "
    "what the last row predicts is known already.",
}


def decisions(
    scheduled: dict[str, int],
    new: list[NewRequestData] | None = None,
    cached: dict[str, tuple[list[int] | None, int]] | None = None,
    resumed: tuple[str, ...] = (),
    finished: tuple[str, ...] = (),
) -> SchedulerOutput:
    """A SchedulerOutput; `cached` has, by request id, its new block ids and its computed tokens."""
    cached = cached or {}
    changes = CachedRequestData(
        list(cached), set(resumed), [b for b, _ in cached.values()], [n for _, n in cached.values()]
    )
    total = sum(scheduled.values())
    return SchedulerOutput(new or [], changes, scheduled, total, set(), set(finished))


def state(
    lab: ModuleType, req_id: str, prompt: list[int], blocks: list[int], computed: int,
    outputs: tuple[int, ...] = (),
) -> Any:  # fmt: skip
    made = lab.CachedRequestState(req_id, prompt, GREEDY, blocks, computed)
    made.output_token_ids.extend(outputs)
    return made


class Watched:
    """The shipped model, noting the arrays of every pass. `during(i)` runs inside of pass i."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.passes: list[dict[str, np.ndarray]] = []
        self.rows_of_logits: list[int] = []
        self.during: Callable[[int], None] = lambda i: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, input_ids: Any, positions: Any, kv_caches: Any, metadata: Any) -> Any:
        taken = {"input_ids": input_ids, "positions": positions}
        taken |= {name: getattr(metadata, name) for name in ARRAYS[2:]}
        self.passes.append({name: np.array(value) for name, value in taken.items()})
        self.during(len(self.passes) - 1)
        return self._model.forward(input_ids, positions, kv_caches, metadata)

    def compute_logits(self, hidden: Any) -> Any:
        self.rows_of_logits.append(len(hidden))
        return self._model.compute_logits(hidden)


def check_array(name: str, got: Any, want: Any, rule: str) -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert got.tolist() == want.tolist(), (
        f"{name} is {got.tolist()}, should be {want.tolist()}. {rule}"
    )


def first_difference(name: str, got: np.ndarray, want: np.ndarray) -> str:
    """Where two arrays part, in one line."""
    if got.shape != want.shape:
        return f"{name} has the shape {got.shape}, the engine's {want.shape}"
    at = next(iter(np.argwhere(got != want)))
    place = ", ".join(map(str, at))
    return f"{name}[{place}] is {got[tuple(at)]}, the engine's {want[tuple(at)]}"


def free(temperature: float = 0.0, most: int | None = 8, **kwargs: Any) -> SamplingParams:
    """Parameters under which a request runs to `most` tokens, whatever it says."""
    return SamplingParams(temperature=temperature, max_tokens=most, ignore_eos=True, **kwargs)
