"""What vLLM 0.22.1's CPU build does with a KV cache in 8 bits: blocks, greedy tokens, bytes of a page.

    python -m tests.engine.helpers.quantization.kv_cache_vllm FOLDER    one JSON object;
                                                      FOLDER: a checkpoint with scales

Its FP8 kernel cuts what it writes toward zero, where a GPU's rounds, and wants blocks of 32 tokens or a
multiple. The per-token-head kinds have no CPU
kernel, so of them there is the size of a page alone, from the class that a GPU's engine asks too.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[4]
MODEL = ROOT / "mini_vllm" / "checkpoints" / "tiny-llama"
BYTES = 2**23
PROMPTS = [
    "Paged attention keeps",
    "The scheduler gives each request",
    "A block is full when",
    "What a GPU does in a step is",
    "Ada asks why the cache",
    "Prefix caching means that",
    "When there are no free blocks",
    "The next token is chosen by",
]
NUM_TOKENS = 40
SHAPES = [(16, 2, 32, 4), (16, 8, 128, 32), (32, 8, 64, 16), (128, 1, 96, 3)]
"""block_size, num_kv_heads, head_size, layers."""


SCALES = {"k_scale": 0.05, "v_scale": 0.011}


def write_scaled(folder: Path) -> None:
    """The shipped checkpoint, saying that its KV cache is in E4M3 with these scales in every layer."""
    import numpy as np
    from safetensors.numpy import load_file, save_file

    shutil.copytree(MODEL, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    scheme = {
        "num_bits": 8,
        "type": "float",
        "strategy": "tensor",
        "symmetric": True,
        "dynamic": False,
    }
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "dense", "config_groups": {}, "ignore": [],
        "kv_cache_scheme": scheme,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = load_file(folder / "model.safetensors")
    for layer in range(config["num_hidden_layers"]):
        for name, scale in SCALES.items():
            tensors[f"model.layers.{layer}.self_attn.{name}"] = np.array([scale], np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def pages() -> dict[str, list[int]]:
    """Bytes of a page of all layers, by dtype, for each of `SHAPES`."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, get_kv_quant_mode

    found = {}
    dtypes = {"auto": torch.float32, "int8_per_token_head": torch.int8}
    for kind in (
        "auto",
        "fp8",
        "fp8_e4m3",
        "fp8_e5m2",
        "int8_per_token_head",
        "fp8_per_token_head",
    ):
        specs = [
            FullAttentionSpec(
                block_size=block, num_kv_heads=heads, head_size=size,
                dtype=dtypes.get(kind, torch.uint8), kv_quant_mode=get_kv_quant_mode(kind),
            )
            for block, heads, size, _ in SHAPES
        ]  # fmt: skip
        found[kind] = [
            spec.page_size_bytes * layers for spec, (*_, layers) in zip(specs, SHAPES, strict=True)
        ]
    return found


def has_fp8_kernel() -> bool:
    """Whether vLLM attends to a cache in FP8 on this processor: with AVX-512 or AMX alone
    (`vllm/v1/attention/backends/cpu_attn.py:536 _get_attn_isa`)."""
    import torch
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    try:
        _get_attn_isa(torch.float32, 32, 32, "fp8")
    except NotImplementedError:
        return False
    return True


def run(kind: str, model: Path = MODEL) -> dict[str, Any]:
    """One engine: how many blocks it has, and what it says."""
    from vllm import LLM, SamplingParams
    from vllm.v1.executor import UniProcExecutor

    llm = LLM(
        str(model), dtype="float32", enforce_eager=True, block_size=32, kv_cache_memory_bytes=BYTES,
        kv_cache_dtype=kind, distributed_executor_backend=UniProcExecutor, max_num_seqs=16,
        enable_prefix_caching=False,
    )  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=1)
    outputs = [output.outputs[0] for output in llm.generate(PROMPTS, params, use_tqdm=False)]
    return {
        "num_gpu_blocks": llm.llm_engine.vllm_config.cache_config.num_gpu_blocks,
        "tokens": [list(output.token_ids) for output in outputs],
        "logprobs": [round(output.cumulative_logprob, 4) for output in outputs],
    }


if __name__ == "__main__":
    scaled = Path(sys.argv[1])
    write_scaled(scaled)
    answer: dict[str, Any] = {"pages": pages(), "auto": run("auto")}
    if has_fp8_kernel():
        answer |= {kind: run(kind) for kind in ("fp8", "fp8_e5m2")} | {
            "scaled": run("auto", scaled)
        }
    print("\n" + json.dumps(answer))
