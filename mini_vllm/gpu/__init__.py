"""What runs on a GPU: torch and Triton, in the one place of the engine that may import them.

Importing this package imports neither. The engine comes here by name, `EngineConfig(attention="torch")`
or `"triton"`, over the paths in `mini_vllm/attention/registry.py`:

    llama.py, model_runner.py    the model and its runner, on a GPU where torch sees one
    backend.py                   the two attention backends
    attention.py                 attention over a paged cache in torch, to hold the kernels against
    quantization.py              linear layers of quantised checkpoints
    cudagraph.py                 the model under CUDA graphs, whole or in the pieces of split_llama.py
    graph_standin.py             what stands in for them on a CPU, and refuses what a GPU cannot do
    ops.py                       the kernels as operations of torch
    kernels/                     Triton kernels, and `entry.py`, the one call in front of them

All need torch, and `kernels/` needs Triton. A laptop without a GPU runs everything, the kernels under
Triton's interpreter:

    TRITON_INTERPRET=1 mini-vllm generate --attention triton ...     # set before triton is imported

Mirrors `vllm/v1/attention/backends/triton_attn.py` and `vllm/v1/attention/ops/`, where vLLM keeps its
Triton kernels.

A kernel here sees the cache as vLLM's Triton backend does: K and V are two tensors,
`[num_blocks, block_size, num_kv_heads, head_size]`. The numpy engine keeps both in one array, with the pair
as its third axis (`mini_vllm/attention/paged.py`); `cache[:, :, 0]` and `cache[:, :, 1]` are the two views.
"""
