"""The Llama cut at attention: pieces that a CUDA graph can hold for any batch, attention between them.

Upstream the compiler cuts: it traces the model into one graph of operations and splits it at those named in
`splitting_ops` (`vllm/compilation/backends.py:548 split_graph`). Here the model's own layers say where
(`llama.py`, `before_attention` and `after_attention`), so the cut is made by hand, once, and can be read.

A model of L layers has L + 1 pieces. Whether a piece has 40 rows of 40 requests or of one prompt makes
no difference to it, because no row of it looks at another. Attention does look, and between two pieces it
runs as always, with the write of K and V before it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from mini_vllm.gpu.backend import AttentionMetadata
from mini_vllm.gpu.llama import LlamaForCausalLM

Rows = tuple[Tensor, ...]
"""What a piece hands on: hidden states, cos, sin, query, key, value, and room for attention's result; the
last one, hidden states after the norm and before it."""


class SplitLlama:
    """`LlamaForCausalLM.forward` in pieces.

    Args:
        model: whose weights and layers are used.
        wrap: what each piece is put into, a `CUDAGraphWrapper` for instance; None: nothing.
    """

    def __init__(
        self, model: LlamaForCausalLM, wrap: Callable[[Callable[..., Any]], Any] | None = None
    ) -> None:
        self.model = model
        between = [partial(self._between, i) for i in range(1, len(model.layers))]
        pieces: list[Callable[..., Any]] = [self._first, *between, self._last]
        self.pieces = [piece if wrap is None else wrap(piece) for piece in pieces]

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        kv_caches: list[Tensor],
        attn_metadata: AttentionMetadata | None,
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        """As `LlamaForCausalLM.forward`.

        Where there are more rows than the metadata has, the others are padding: attention leaves them as they
        are. Without metadata there is no attention at all, as in upstream's dummy runs.
        """
        first, *rest = self.pieces
        rows: Rows = first(input_ids, positions)
        aux_layers = self.model.aux_hidden_state_layers
        aux_hidden_states: list[Tensor] = []
        for i, (piece, kv_cache) in enumerate(zip(rest, kv_caches, strict=True)):
            hidden_states, cos, sin, query, key, value, attn_output = rows
            if i in aux_layers:  # a copy: a later piece may have been given this memory
                aux_hidden_states.append(hidden_states.clone())
            if attn_metadata is not None:
                self.model.attention.forward(
                    query, key, value, kv_cache, attn_metadata, attn_output
                )
            rows = piece(hidden_states, cos, sin, attn_output)
        hidden_states, before_norm = rows
        if not aux_layers:
            return hidden_states
        if len(self.model.layers) in aux_layers:
            aux_hidden_states.append(before_norm)
        return hidden_states, aux_hidden_states

    def _first(self, input_ids: Tensor, positions: Tensor) -> Rows:
        hidden_states, (cos, sin) = self.model.embed(input_ids, positions)
        return self._before(0, hidden_states, cos, sin)

    def _between(
        self, i: int, hidden_states: Tensor, cos: Tensor, sin: Tensor, attn_output: Tensor
    ) -> Rows:
        """From attention of layer i - 1 to attention of layer i."""
        hidden_states = self.model.layers[i - 1].after_attention(hidden_states, attn_output)
        return self._before(i, hidden_states, cos, sin)

    def _before(self, i: int, hidden_states: Tensor, cos: Tensor, sin: Tensor) -> Rows:
        qkv = self.model.layers[i].before_attention((cos, sin), hidden_states)
        # Room for attention's result is part of the piece, so that the next one finds it where it was.
        room = qkv[0].new_empty(len(qkv[0]), qkv[0].shape[1] * qkv[0].shape[2])
        return hidden_states, cos, sin, *qkv, room

    def _last(self, hidden_states: Tensor, cos: Tensor, sin: Tensor, attn_output: Tensor) -> Rows:
        hidden_states = self.model.layers[-1].after_attention(hidden_states, attn_output)
        return self.model.norm(hidden_states), hidden_states
