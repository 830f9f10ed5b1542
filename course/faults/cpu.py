"""Three faults of vLLM's CPU build, each by a run of it: a mixture of experts, a cache in FP8, a silent log.

    python -m course.faults.cpu

Needs vLLM 0.22.1's CPU build.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CONFIGURE_LOGGING": "0",
}
SCHEME = {
    "num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False,
}  # fmt: skip


def start(folder: Path, **more: Any) -> Any:
    from vllm import LLM
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    return LLM(
        str(folder), dtype="float32", enforce_eager=True, block_size=32, max_model_len=64,
        distributed_executor_backend=UniProcExecutor, **more,
    )  # fmt: skip


def mixture(folder: Path, intermediate_size: int) -> str:
    """A tiny random Mixtral, its experts of that size, and one token of it."""
    from vllm import SamplingParams

    folder.mkdir()
    config = {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 264,
        "hidden_size": 128, "intermediate_size": intermediate_size, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "num_local_experts": 4, "num_experts_per_tok": 2, "torch_dtype": "float32",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    try:
        llm = start(folder, load_format="dummy", skip_tokenizer_init=True)
        prompt = {"prompt_token_ids": [1, 5, 6, 7]}
        params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, detokenize=False)
        [output] = llm.generate([prompt], params, use_tqdm=False)
    except (AssertionError, RuntimeError) as error:
        # The kernel's own sentence begins with a time and a rank.
        said = str(error).rpartition("] ")[2].partition(". ")[0].partition(" (")[0]
        return f"dies at the first forward, {type(error).__name__}: {said}"
    return f"{len(output.outputs[0].token_ids)} tokens"


def written(value: float) -> tuple[float, float]:
    """What the CPU build's kernel writes of a number into a cache in FP8, and torch's conversion of it."""
    import torch
    import vllm._custom_ops as ops

    row = torch.full((1, 1, 64), value)
    keys, values = torch.zeros(2, 1, 1, 32, 64, dtype=torch.uint8)  # a block of 32 slots
    ops.cpu_attn_reshape_and_cache(
        row, row, keys, values, torch.zeros(1, dtype=torch.int64), "vec", kv_cache_dtype="fp8"
    )
    [code] = {int(code) for code in values.flatten().tolist() if code}
    cut = torch.tensor([code], dtype=torch.uint8).view(torch.float8_e4m3fn).float().item()
    return cut, torch.tensor(value).to(torch.float8_e4m3fn).float().item()


def silence(folder: Path) -> list[str]:
    """A checkpoint that asks for a cache in FP8: what the log says of the cache, and what it is."""
    from mini_vllm.config.engine import DEFAULT_MODEL

    shutil.copytree(DEFAULT_MODEL, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "dense", "config_groups": {}, "ignore": [],
        "kv_cache_scheme": SCHEME,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("vllm")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    llm = start(folder)
    said = sorted(set(re.findall(r"kv_cache_dtype=\w+", "\n".join(lines))))
    spoken = [line for line in lines if re.search(r"(?i)fp8|scaling", line)]
    layers = llm.llm_engine.vllm_config.compilation_config.static_forward_context.values()
    kinds = sorted({layer.kv_cache_dtype for layer in layers})
    return [f"the log says {', '.join(said)}", f"the layers have {', '.join(kinds)}",
            f"lines that name FP8 or a scale: {len(spoken)}", *spoken]  # fmt: skip


def main() -> None:
    os.environ |= SETTINGS
    topics = sys.argv[1:] or ["mixture", "cache", "silence"]
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        if "mixture" in topics:
            for size in (64, 48, 40):
                print(f"experts of {size}: {mixture(Path(name, f'experts-{size}'), size)}")
        if "cache" in topics:
            for value in (1.0, 1.12, 3.7, 310.0, float("nan")):
                cut, rounded = written(value)
                print(f"{value} is written as {cut}, rounded it would be {rounded}")
        if "silence" in topics:
            print("\n".join(silence(Path(name, "asks"))))


if __name__ == "__main__":
    main()
