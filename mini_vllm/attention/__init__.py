"""Paged attention in numpy: write K and V by slot, read them back through the block table.

Mirrors `vllm/v1/attention/`: `metadata.py` says what a step looks like, `paged.py` is the backend to
read, `tiled.py` the one that runs by default, and `online.py` goes over the keys tile by tile as a GPU's
kernel does; tests hold the three equal. `layers/quantization/kv_cache.py` puts a cache in 8 bits
around any of them.
`paged.py` and `tiled.py` know sliding windows (`AttentionMetadata.sliding_window`).
Left out: ALiBi, soft caps, encoder and cross attention, cascade attention.

Invariants, which the tests check by name:

- **table-only**: a request sees a past token only through its row of the block table.
- **write-then-read**: a step stores its own K and V before any row attends, so a token sees itself,
  and a request sees what another request of the same step wrote into a shared block.
- **causal-offset**: query `j` of a request with `s` tokens and `n` queries stands at position
  `s - n + j` and attends to positions `0 .. s - n + j`, with a window of w to the last w of them.
- **nothing-outside**: entries of the table past a request's last block, and offsets past its last
  token, cannot reach a result, not even when they hold NaN.
"""

from __future__ import annotations

from mini_vllm.attention.metadata import AttentionMetadata
from mini_vllm.attention.online import OnlineAttention
from mini_vllm.attention.paged import PagedAttention
from mini_vllm.attention.tiled import TiledAttention

__all__ = ["AttentionMetadata", "OnlineAttention", "PagedAttention", "TiledAttention"]
