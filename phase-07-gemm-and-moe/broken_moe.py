"""A layer with experts and what is wrong without one of its parts: set-up for the deep dive.

The layer is `mini_vllm`'s own, as in a Mixtral, with eight random experts. It is small, and computed in a
moment. Errors are in percent: the norm of the difference over the norm of the right output.

    python phase-07-gemm-and-moe/broken_moe.py
"""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import numpy as np
from bill import masked_experts
from numpy.typing import NDArray

import mini_vllm.layers.fused_moe.layer as module
from mini_vllm.config.moe import MixtralConfig
from mini_vllm.layers.fused_moe.fused_moe import fused_experts
from mini_vllm.layers.fused_moe.layer import FusedMoE
from mini_vllm.layers.fused_moe.router import fused_topk

HIDDEN, INNER, TOKENS = 64, 96, 32
CONFIG = MixtralConfig(hidden_size=HIDDEN, moe_intermediate_size=INNER)
Array = NDArray[np.float32]


def tensors() -> dict[str, Array]:
    """A layer's tensors by their names in the file, drawn once."""
    rng = np.random.default_rng(7)
    return {
        f"layer.{name}.weight": (rng.standard_normal((rows, columns)) / columns**0.5).astype(
            np.float32
        )
        for name, rows, columns, _ in CONFIG.mlp_linears(0)
    }


def rows() -> Array:
    return np.random.default_rng(8).standard_normal((TOKENS, HIDDEN)).astype(np.float32)


def off(found: Array) -> float:
    """How far an output is from the right one, in percent."""
    right = FusedMoE(CONFIG, tensors(), "layer").forward(rows())
    return round(float(100 * np.linalg.norm(found - right) / np.linalg.norm(right)), 1)


def gate_and_up_swapped() -> float:
    """w1 is read as up and w3 as gate."""
    swapped = {
        name.replace(".w1.", ".?.").replace(".w3.", ".w1.").replace(".?.", ".w3."): tensor
        for name, tensor in tensors().items()
    }
    return off(FusedMoE(CONFIG, swapped, "layer").forward(rows()))


def not_renormalised() -> float:
    layer = FusedMoE(CONFIG, tensors(), "layer")
    layer.renormalize = False
    return off(layer.forward(rows()))


def not_put_back() -> float:
    """The experts' results stay in the experts' order."""

    def experts(x: Array, w13: Array, w2: Array, weights: Array, ids: NDArray[np.integer]) -> Array:
        ones = np.ones((ids.size, 1), np.float32)
        of_pairs = fused_experts(x.repeat(2, axis=0), w13, w2, ones, ids.reshape(-1, 1))
        in_order = of_pairs[ids.ravel().argsort(kind="stable")].reshape(len(x), 2, -1)
        return np.asarray((in_order * weights[:, :, None]).sum(axis=1))

    return _with_experts(experts)


def one_gpu_of_two() -> float:
    """GPU 0's part, without the all-reduce."""

    def experts(x: Array, w13: Array, w2: Array, weights: Array, ids: NDArray[np.integer]) -> Array:
        return masked_experts(x, w13[:4], w2[:4], weights, ids, LINEAR[0])

    return _with_experts(experts)


LINEAR = np.array([[0, 1, 2, 3, -1, -1, -1, -1], [-1, -1, -1, -1, 0, 1, 2, 3]])
"""Two GPUs' maps of eight experts."""


def both_gpus() -> float:
    def experts(x: Array, w13: Array, w2: Array, weights: Array, ids: NDArray[np.integer]) -> Array:
        parts = [
            masked_experts(x, w13[at : at + 4], w2[at : at + 4], weights, ids, LINEAR[at // 4])
            for at in (0, 4)
        ]
        return np.asarray(parts[0] + parts[1])

    return _with_experts(experts)


def _with_experts(experts: Callable[..., Array]) -> float:
    with patch.object(module, "fused_experts", experts):
        found = FusedMoE(CONFIG, tensors(), "layer").forward(rows())
    return off(found)


def weight_sums() -> list[float]:
    """What the two weights of the first five tokens add up to, if they are not renormalised."""
    layer = FusedMoE(CONFIG, tensors(), "layer")
    weights, _ = fused_topk(rows()[:5] @ layer.gate, 2, renormalize=False)
    return [round(float(s), 2) for s in weights.sum(axis=1)]


if __name__ == "__main__":
    for broken in (gate_and_up_swapped, not_renormalised, not_put_back, one_gpu_of_two, both_gpus):
        print(f"{broken.__name__:20} off by {broken():5.1f} %")
