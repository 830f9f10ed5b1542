"""A Mistral decoder in numpy: a Llama's arithmetic, each token attending to a window.

Mirrors `vllm/model_executor/models/mistral.py`. The window is not the model's affair but its attention's: it
comes with the step, in `AttentionMetadata.sliding_window`.
"""

from __future__ import annotations

from mini_vllm.models.llama import LlamaForCausalLM


class MistralForCausalLM(LlamaForCausalLM):
    """The model (`vllm/model_executor/models/mistral.py:230 MistralForCausalLM`)."""
