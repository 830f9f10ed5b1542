"""A Gemma decoder in numpy: what it does otherwise than a Llama.

Mirrors `vllm/model_executor/models/gemma.py`. Embeddings come out times the root of their size, norms scale
by one more than is stored, and the MLP has another activation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention import AttentionMetadata
from mini_vllm.attention.backend import Array
from mini_vllm.layers.activation import gelu_tanh_and_mul
from mini_vllm.layers.layernorm import GemmaRMSNorm
from mini_vllm.models.llama import MLP_ROWS, LlamaDecoderLayer, LlamaForCausalLM, LlamaMLP


class GemmaMLP(LlamaMLP):
    """Another activation (`vllm/model_executor/models/gemma.py:90 GemmaMLP`)."""

    def forward(self, x: Array) -> Array:
        if len(x) > MLP_ROWS:
            return super().forward(x)
        return self.down_proj(gelu_tanh_and_mul(self.gate_up_proj(x)))


class GemmaDecoderLayer(LlamaDecoderLayer):
    """Source: `vllm/model_executor/models/gemma.py:204 GemmaDecoderLayer`."""

    mlp_cls = GemmaMLP
    norm_cls = GemmaRMSNorm


class GemmaForCausalLM(LlamaForCausalLM):
    """The model (`vllm/model_executor/models/gemma.py:366 GemmaForCausalLM`)."""

    decoder_layer = GemmaDecoderLayer

    @np.errstate(over="ignore", invalid="ignore")
    def forward(
        self,
        input_ids: NDArray[np.integer[Any]],
        positions: NDArray[np.integer[Any]],
        kv_caches: list[Array],
        attn_metadata: AttentionMetadata,
        aux_hidden_states: list[Array] | None = None,
    ) -> Array:
        """As `LlamaForCausalLM.forward`; `attn_metadata.layers` has each layer's own, where they differ.

        Source: `vllm/model_executor/models/gemma.py:298 GemmaModel.forward`.
        """
        normalizer = np.float32(self.config.hidden_size**0.5)
        hidden_states: Array = self.embed_tokens[input_ids] * normalizer
        cos_sins = self.get_layer_cos_sins(positions)
        per_layer = attn_metadata.layers or [attn_metadata] * len(self.layers)
        for i, (layer, cos_sin, kv_cache, metadata) in enumerate(
            zip(self.layers, cos_sins, kv_caches, per_layer, strict=True)
        ):
            if aux_hidden_states is not None and i in self.aux_hidden_state_layers:
                aux_hidden_states.append(hidden_states)
            hidden_states = layer.forward(
                cos_sin, hidden_states, self.attention, kv_cache, metadata
            )
        if aux_hidden_states is not None and len(self.layers) in self.aux_hidden_state_layers:
            aux_hidden_states.append(hidden_states)
        return self.norm(hidden_states)

    def get_layer_cos_sins(
        self, positions: NDArray[np.integer[Any]]
    ) -> Sequence[tuple[Array, Array]]:
        """Each layer's turns of this step's positions."""
        return [self.get_cos_sin(positions)] * len(self.layers)
