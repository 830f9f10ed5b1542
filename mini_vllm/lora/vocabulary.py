"""Adapters of the embedding and of the LM head.

Mirrors `vllm/lora/layers/vocal_parallel_embedding.py` (spelled so) and `logits_processor.py`. A tied model
has one matrix for both, and still an adapter of the one changes nothing of the other, as upstream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mini_vllm.lora.layers import LinearWithLoRA
from mini_vllm.lora.ops import LoRAMapping

if TYPE_CHECKING:
    from mini_vllm.attention.backend import Array
    from mini_vllm.lora.lora_model import LoRALayerWeights, LoRAModel
    from mini_vllm.models.llama import LlamaForCausalLM
    from mini_vllm.worker.forward import ModelForward
    from mini_vllm.worker.gpu_input_batch import Ints

EMBEDDING, HEAD = "model.embed_tokens", "lm_head"


class VocabParallelEmbeddingWithLoRA:
    """The embedding's rows, with the adapters' added
    (`vllm/lora/layers/vocal_parallel_embedding.py:96 VocabParallelEmbeddingWithLoRA.forward`).

    Here A is looked up, not multiplied with: a column of it for each token.

    Args:
        base_layer: `[vocab_size, hidden_size]`, or what is indexed like that.
        mapping: the step's.
    """

    def __init__(self, base_layer: Any, mapping: LoRAMapping) -> None:
        self.base_layer = base_layer
        self.mapping = mapping
        self.slots: dict[int, LoRALayerWeights | None] = {}

    def set_lora(self, index: int, lora: LoRAModel) -> None:
        self.slots[index] = lora.loras.get(EMBEDDING)

    def __getitem__(self, input_ids: Ints) -> Array:
        y: Array = self.base_layer[input_ids]
        for slot, rows in self.mapping.groups.items():
            pair = self.slots.get(slot)
            if pair is not None:
                y[rows] += pair.lora_a.T[input_ids[rows]] @ pair.lora_b.T
        return y


def add_vocabulary_layers(
    model: LlamaForCausalLM, mapping: LoRAMapping
) -> tuple[VocabParallelEmbeddingWithLoRA, LinearWithLoRA]:
    """Put wrappers around the two of a model that is a copy already, and give them back."""
    embedding = VocabParallelEmbeddingWithLoRA(model.embed_tokens, mapping)
    head = LinearWithLoRA(model.lm_head, mapping, names=(HEAD,))
    # The model only indexes the one and calls the other; heads and drafters, which borrow them, are refused.
    model.embed_tokens, model.lm_head = embedding, head  # type: ignore[assignment]
    return embedding, head


def tell_sampled_rows(forward: ModelForward, mapping: LoRAMapping, head: LinearWithLoRA) -> None:
    """Let the head know whose rows it gets: those that are sampled from, or scored, not the whole step's
    (`vllm/lora/punica_wrapper/punica_base.py:259 PunicaWrapperBase.sampler_indices`)."""
    compute_logits = forward.compute_logits

    def compute_logits_of(hidden_states: Any, rows: Ints) -> Array:
        if not any(head.slots.values()):
            with mapping.select(rows[:0]):
                return compute_logits(hidden_states, rows)
        with mapping.select(rows):
            return compute_logits(hidden_states, rows)

    forward.compute_logits = compute_logits_of  # type: ignore[method-assign]
