"""What attention is told about a step (`vllm/v1/attention/backend.py:353 CommonAttentionMetadata`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass
class AttentionMetadata:
    """What attention must know about one step, shared by all layers.

    Build a new object for every step and do not change it: backends keep work that all layers share
    in `plan`. Fields are those of `vllm/v1/attention/backend.py:353 CommonAttentionMetadata`.

    Attributes:
        query_start_loc: int32 `[num_reqs + 1]`; request `i` has the rows of the flat batch from
            `query_start_loc[i]` to `query_start_loc[i + 1]`.
        seq_lens: int32 `[num_reqs]`; tokens of each request in the KV cache after this step.
        block_table: int32 `[num_reqs, max_blocks]`; row `i` is valid in its first
            `ceil(seq_lens[i] / block_size)` entries.
        slot_mapping: int64 `[num_tokens]`; where each token's K and V go:
            `block_id * block_size + offset`.
        block_size: tokens per block.
        max_query_len: longest query of the step; computed when 0.
        max_seq_len: longest context of the step; computed when 0.
        sliding_window: a query attends to so many tokens at most, itself among them; None: to all. Entries
            of the table before the first query's window are not read.
        layers: where layers differ (KV cache groups), the metadata of each; empty: this serves them all.
    """

    query_start_loc: NDArray[np.int32]
    seq_lens: NDArray[np.int32]
    block_table: NDArray[np.int32]
    slot_mapping: NDArray[np.int64]
    block_size: int
    max_query_len: int = 0
    max_seq_len: int = 0
    sliding_window: int | None = None
    layers: Sequence[AttentionMetadata] = field(default=(), repr=False)
    plan: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.max_query_len:
            self.max_query_len = int(np.diff(self.query_start_loc).max(initial=0))
        if not self.max_seq_len:
            self.max_seq_len = int(self.seq_lens.max(initial=0))
