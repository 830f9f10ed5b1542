"""A Phi 3 decoder in numpy: a Llama whose checkpoint holds q, k and v side by side, and gate and up.

Mirrors `vllm/model_executor/models/phi3.py`. What is different, `config/phi3.py` says: the names, and
`longrope`.
"""

from __future__ import annotations

from mini_vllm.models.llama import LlamaForCausalLM


class Phi3ForCausalLM(LlamaForCausalLM):
    """The model (`vllm/model_executor/models/phi3.py:10 Phi3ForCausalLM`)."""
