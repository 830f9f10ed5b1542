"""Four faults that a GPU would have, shown without one: vLLM's own classes on phase 06's stand-in for cards.

    python -m course.faults.cards

No kernel runs. Needs vLLM 0.22.1; its CPU build will do.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import Any

from course.learner.labs import load_module

ROOT = Path(__file__).resolve().parents[2]
kernels = load_module(ROOT / "phase-06-quantization/vllm_kernels.py", "vllm_kernels_for_faults")


def e5m2() -> str:
    """An attention layer with a cache in E5M2 under TRITON_ATTN, built and called once."""
    with kernels.serving("L4"):
        import torch
        from vllm.config import get_current_vllm_config
        from vllm.model_executor.layers.attention import Attention
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        config = get_current_vllm_config()
        kept = config.cache_config.cache_dtype, config.attention_config.backend
        config.cache_config.cache_dtype = "fp8_e5m2"
        config.attention_config.backend = AttentionBackendEnum.TRITON_ATTN
        try:
            layer = Attention(8, 128, 1.0, cache_config=config.cache_config, prefix="faults.attn")
            row = torch.zeros(1, 8 * 128)
            layer.forward(row, row, row)
        except AssertionError as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            return f"{layer.attn_backend.get_name()} admitted, then {frame.name}: {frame.line}"
        finally:
            config.cache_config.cache_dtype, config.attention_config.backend = kept
    return f"{layer.attn_backend.get_name()} admitted, and computes"


def scheme(raw: dict[str, Any], card: str) -> str:
    """The scheme that a checkpoint gets on a card, or the sentence of its refusal."""
    with kernels.serving(card):
        layer = kernels.tried(raw)
        if isinstance(layer, str):
            return "refused: " + " ".join(layer.split()).partition(". Reasons")[0].rstrip(".")
        return str(kernels.scheme_of(layer))


def query_scale() -> str:
    """The scale of the query, where a checkpoint has scales for keys and values alone."""
    import torch
    from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod

    class Config:
        pass

    method, layer = BaseKVCacheMethod(Config()), torch.nn.Module()
    layer.kv_cache_dtype, layer.calculate_kv_scales = "fp8", False
    for name in ("_q_scale", "_k_scale", "_v_scale", "_prob_scale"):
        setattr(layer, name, torch.tensor(1.0))
        setattr(layer, f"{name}_cpu", torch.tensor(1.0))  # later releases have a copy on the host
    method.create_weights(layer)
    layer.k_scale.data.fill_(0.5)
    layer.v_scale.data.fill_(0.25)
    method.process_weights_after_loading(layer)
    return f"k {layer._k_scale.item()}, v {layer._v_scale.item()}, q {layer._q_scale.item()}"


W4A8_INT = kernels.compressed(
    "pack-quantized",
    kernels.args(4, "group", group_size=128),
    kernels.args(8, "token", dynamic=True),
)
FP8_WEIGHTS = kernels.compressed("float-quantized", kernels.args(8, "channel", type="float"), None)


def main() -> None:
    os.environ |= kernels.topics.ON_PAPER
    print("fp8_e5m2 under TRITON_ATTN:", e5m2())
    for card in ("A100", "L4", "H100", "B200"):
        print(f"W4, int8 activations, {card}:", scheme(W4A8_INT, card))
    for card in ("A100", "L4", "H100", "B200"):
        print(f"FP8 weights alone, {card}:", scheme(FP8_WEIGHTS, card))
    print("scales after loading:", query_scale())


if __name__ == "__main__":
    main()
