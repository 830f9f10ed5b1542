"""The EAGLE-3 head of a Llama: it reads the target at several depths and guesses tokens, not states.

Mirrors `vllm/model_executor/models/llama_eagle3.py`. What differs from `models/llama_eagle.py`: `fc` makes
the first state of several of the target's; embedding and state are normed apart and attention reads both;
the state that goes on is taken before the last norm; the LM head is the draft's own, over fewer tokens.
Left out: more than one layer, norms before `fc` and of the residual, parallel drafting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention import AttentionMetadata
from mini_vllm.attention.backend import Array, AttentionBackend
from mini_vllm.layers.layernorm import RMSNorm
from mini_vllm.models.llama import LlamaDecoderLayer, LlamaForCausalLM
from mini_vllm.models.llama_eagle import EagleLlamaForCausalLM

if TYPE_CHECKING:
    from mini_vllm.config.eagle import Eagle3LlamaConfig
    from mini_vllm.config.model import LlamaConfig
    from mini_vllm.layers.quantization.base import QuantizationConfig


class Eagle3LlamaDecoderLayer(LlamaDecoderLayer):
    """Source: `vllm/model_executor/models/llama_eagle3.py:38 LlamaDecoderLayer`."""

    def __init__(
        self,
        config: LlamaConfig,
        weights: Mapping[str, Array],
        prefix: str,
        quant_config: QuantizationConfig,
    ) -> None:
        super().__init__(config, weights, prefix, quant_config)
        self.hidden_norm = RMSNorm(weights[f"{prefix}.hidden_norm.weight"], config.rms_norm_eps)

    def forward_with_embeds(
        self,
        cos_sin: tuple[Array, Array],
        embeds: Array,
        hidden_states: Array,
        attn: AttentionBackend,
        kv_cache: Array,
        attn_metadata: AttentionMetadata,
    ) -> Array:
        """Embeddings and states `[n, hidden_size]` to states."""
        residual = hidden_states
        normed = self.input_layernorm(embeds), self.hidden_norm(hidden_states)
        hidden_states = residual + self.self_attn.forward(
            cos_sin, np.concatenate(normed, axis=-1), attn, kv_cache, attn_metadata
        )
        return hidden_states + self.mlp.forward(self.post_attention_layernorm(hidden_states))


class Eagle3LlamaForCausalLM(EagleLlamaForCausalLM):
    """The head (`vllm/model_executor/models/llama_eagle3.py:304 Eagle3LlamaForCausalLM`).

    Args: as for `EagleLlamaForCausalLM`; `d2t` of `weights` says for each draft token how much further its
        id in the target's vocabulary is. Without it they are the target's first ones.
    """

    decoder_layer = Eagle3LlamaDecoderLayer
    config: Eagle3LlamaConfig

    def __init__(
        self,
        config: Eagle3LlamaConfig,
        weights: Mapping[str, Array],
        target: LlamaForCausalLM,
        attention: AttentionBackend | None = None,
    ) -> None:
        super().__init__(config, weights, target, attention)
        self.norm = RMSNorm(weights["model.norm.weight"], config.rms_norm_eps)
        self.draft_token_ids = np.arange(config.draft_vocab_size) + weights.get("d2t", 0)

    def combine_hidden_states(self, hidden_states: Array) -> Array:
        """The target's states side by side, `[n, states * hidden_size]`, to one of the head's."""
        return self.fc(hidden_states)

    @np.errstate(over="ignore", invalid="ignore")
    def forward(  # type: ignore[override]
        self,
        input_ids: NDArray[np.integer[Any]],
        positions: NDArray[np.integer[Any]],
        kv_caches: list[Array],
        attn_metadata: AttentionMetadata,
        hidden_states: Array,
    ) -> tuple[Array, Array]:
        """As `EagleLlamaForCausalLM.forward`; the target's states went through `combine_hidden_states`.

        Source: `vllm/model_executor/models/llama_eagle3.py:230 LlamaModel.forward`.
        """
        (layer,), (kv_cache,) = self.layers, kv_caches
        assert isinstance(layer, Eagle3LlamaDecoderLayer)
        state = layer.forward_with_embeds(
            self.get_cos_sin(positions), self.embed_tokens[input_ids], hidden_states, self.attention,
            kv_cache, attn_metadata,
        )  # fmt: skip
        return self.norm(state), state

    def compute_logits(self, hidden_states: Array) -> Array:
        """float32 `[n, vocab_size]`, with -inf for every token that the head cannot guess."""
        draft_logits = self.lm_head(hidden_states)
        logits = np.full((len(hidden_states), self.config.vocab_size), -np.inf, np.float32)
        logits[:, self.draft_token_ids] = draft_logits
        return logits
