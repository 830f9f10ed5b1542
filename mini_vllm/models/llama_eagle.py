"""The EAGLE head of a Llama: one decoder layer that guesses the target's next hidden state.

Mirrors `vllm/model_executor/models/llama_eagle.py`. What differs from `models/llama.py`: every row joins a
token's embedding and the target's hidden state of the token before it, layer 0 has no norm before
attention and no norm comes last, and embedding and LM head are the target's where the checkpoint has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention import AttentionMetadata, TiledAttention
from mini_vllm.attention.backend import Array, AttentionBackend
from mini_vllm.layers.linear import Linear
from mini_vllm.layers.quantization import get_quantization_config
from mini_vllm.layers.quantization.base import NoQuantizationConfig
from mini_vllm.layers.rotary_embedding import rope_inv_freq, rope_mscale
from mini_vllm.models.interfaces_base import ModelForTextGeneration
from mini_vllm.models.llama import LlamaDecoderLayer, LlamaForCausalLM

if TYPE_CHECKING:
    from mini_vllm.config.eagle import EagleLlamaConfig
    from mini_vllm.config.model import LlamaConfig


class EagleLlamaDecoderLayer(LlamaDecoderLayer):
    """Source: `vllm/model_executor/models/llama_eagle.py:33 LlamaDecoderLayer`."""

    def make_input_layernorm(
        self, config: LlamaConfig, weights: Mapping[str, Array], prefix: str
    ) -> Callable[[Array], Array]:
        if prefix == "model.layers.0":
            return lambda hidden_states: hidden_states
        return super().make_input_layernorm(config, weights, prefix)


class EagleLlamaForCausalLM(LlamaForCausalLM):
    """The head (`vllm/model_executor/models/llama_eagle.py:164 EagleLlamaForCausalLM`).

    Args:
        config: of the head.
        weights: tensors by vLLM's names: the checkpoint's, all but the LM head's after `model.`.
        target: the model whose tokens it guesses.
        attention: backend; a `TiledAttention` when None.
    """

    decoder_layer: type[LlamaDecoderLayer] = EagleLlamaDecoderLayer
    config: EagleLlamaConfig

    def __init__(
        self,
        config: EagleLlamaConfig,
        weights: Mapping[str, Array],
        target: ModelForTextGeneration,
        attention: AttentionBackend | None = None,
    ) -> None:
        self.config = config
        self.quant_config = get_quantization_config(config.quantization_config)
        self.attention = TiledAttention() if attention is None else attention
        if "model.embed_tokens.weight" in weights:
            self.embed_tokens = weights["model.embed_tokens.weight"]
        else:
            self.embed_tokens = target.lend_embed_tokens()
        sizes = {name: shape for name, shape, _ in config.other_tensors()}
        self.fc = self._linear(weights, "model.fc", sizes)
        self.layers = [
            self.decoder_layer(config, weights, f"model.layers.{i}", self.quant_config)
            for i in range(config.num_hidden_layers)
        ]
        if "lm_head.weight" in weights:
            self.lm_head = self._linear(weights, "lm_head", sizes)
        else:
            self.lm_head = target.lend_lm_head()
        self.inv_freq, self.mscale = rope_inv_freq(config), rope_mscale(config)
        self.aux_hidden_state_layers = ()

    def _linear(
        self, weights: Mapping[str, Array], name: str, sizes: Mapping[str, tuple[int, ...]]
    ) -> Linear:
        out, inp = sizes[f"{name}.weight"]
        return Linear(weights, inp, {name: out}, False, NoQuantizationConfig())

    @np.errstate(over="ignore", invalid="ignore")
    def forward(  # type: ignore[override]
        self,
        input_ids: NDArray[np.integer[Any]],
        positions: NDArray[np.integer[Any]],
        kv_caches: list[Array],
        attn_metadata: AttentionMetadata,
        hidden_states: Array,
    ) -> tuple[Array, Array]:
        """One pass over a flat batch.

        Args:
            input_ids: `[n]`, for each row the token after the one whose hidden state it has.
            positions: `[n]`, place of the token whose hidden state it is.
            kv_caches: the head's own, one for each of its layers.
            attn_metadata: which rows and which blocks belong to which request.
            hidden_states: `[n, hidden_size]`, the target's after its last norm, or the head's own.

        Returns:
            What the LM head reads, and what the next pass takes as hidden states: here the same.

        Source: `vllm/model_executor/models/llama_eagle.py:100 LlamaModel.forward`.
        """
        hidden_states = self.fc(
            np.concatenate((self.embed_tokens[input_ids], hidden_states), axis=-1)
        )
        cos_sin = self.get_cos_sin(positions)
        for layer, kv_cache in zip(self.layers, kv_caches, strict=True):
            hidden_states = layer.forward(
                cos_sin, hidden_states, self.attention, kv_cache, attn_metadata
            )
        return hidden_states, hidden_states
