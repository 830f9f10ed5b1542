"""What a model asks of its attention, whichever backend it is.

Mirrors `vllm/v1/attention/backend.py`. Left out: builders, support matrices, what a backend says of graphs
(`gpu/backend.py` has that).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention.metadata import AttentionMetadata

Array = NDArray[np.float32]


class AttentionBackend(Protocol):
    """What the model asks of its attention; see `mini_vllm.attention`."""

    def get_kv_cache_shape(
        self, num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, ...]: ...

    def forward(
        self,
        query: Array,
        key: Array,
        value: Array,
        kv_cache: Array,
        attn_metadata: AttentionMetadata,
    ) -> Array: ...
