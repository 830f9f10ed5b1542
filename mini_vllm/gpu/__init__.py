"""What runs on a GPU: torch and Triton, in the one place of the engine that may import them.

Importing this package imports neither. `attention.py` needs torch, `kernels/` needs torch and Triton;
a laptop without a GPU runs both, the kernels under Triton's interpreter:

    TRITON_INTERPRET=1 python ...          # set it before triton is imported

Mirrors `vllm/v1/attention/ops/`, where vLLM keeps its Triton kernels.

A kernel here sees the cache as vLLM's Triton backend does: K and V are two tensors,
`[num_blocks, block_size, num_kv_heads, head_size]`. The numpy engine keeps both in one array, with the pair
as its third axis (`mini_vllm/attention/paged.py`); `cache[:, :, 0]` and `cache[:, :, 1]` are the two views.
"""
