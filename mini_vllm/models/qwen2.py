"""A Qwen 2 decoder in numpy: a Llama whose q, k and v have a bias.

Mirrors `vllm/model_executor/models/qwen2.py`. The bias is a matter of the settings: `config/qwen.py`.
"""

from __future__ import annotations

from mini_vllm.models.llama import LlamaForCausalLM


class Qwen2ForCausalLM(LlamaForCausalLM):
    """The model (`vllm/model_executor/models/qwen2.py:494 Qwen2ForCausalLM`)."""
