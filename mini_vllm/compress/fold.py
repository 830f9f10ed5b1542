"""Scales that move between a linear layer's inputs and its weights without changing the model.

`(x / s) @ (W * s)ᵀ = x @ Wᵀ` for any s above 0, one number for each channel of x. AWQ and SmoothQuant both
choose such an s before they round. Nothing is divided at run time, because whatever makes x has weights
of its own, and 1/s goes into those:

- the RMSNorm before q, k and v, or before gate and up: its weight is divided;
- `up_proj` before `down_proj`: `silu(gate) * up` is linear in up, so the rows of `up_proj` are divided;
- `v_proj` before `o_proj`: attention is a weighted mean of V, so its rows are divided. With grouped-query
  attention a row of V feeds one channel of each query head of its group, and those must share their s.

What `down_proj` needs cannot go into `gate_proj`, because silu lies between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.config.model import LlamaConfig

Array = NDArray[np.float32]
Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Fold:
    """A source that can take 1/s, and the linear layers that take s.

    Attributes:
        source: name in the checkpoint of a norm or a linear layer, without `.weight`.
        linears: names of the layers that get the source's output, and nothing else does.
        head_dim, group: of `v_proj`, numbers a head and query heads to a KV head; None and 1 elsewhere.
    """

    source: str
    linears: tuple[str, ...]
    head_dim: int | None = None
    group: int = 1

    def share(self, values: Floats) -> Floats:
        """`values` `[in]`, one for each input channel, made equal, as their mean, where s must be.

        Only for `o_proj` under grouped-query attention is that anything else than `values`.
        """
        if self.group == 1 or self.head_dim is None:
            return values
        heads = values.reshape(-1, self.group, self.head_dim)
        shared = np.broadcast_to(heads.mean(axis=1, keepdims=True), heads.shape)
        return shared.reshape(-1)

    def apply(self, weights: Mapping[str, Array], s: Floats) -> dict[str, Array]:
        """All tensors of `weights`, those of the fold changed.

        Args:
            s: `[in]`, above 0, shared as `share` does it.
        """
        scale = np.asarray(s, np.float32)
        changed = dict(weights)
        for name in self.linears:
            changed[f"{name}.weight"] = weights[f"{name}.weight"] * scale
        if self.head_dim is not None:  # one s for each row of v_proj
            scale = scale.reshape(-1, self.group, self.head_dim)[:, 0].reshape(-1)
        for name in (f"{self.source}.weight", f"{self.source}.bias"):
            if name in weights:
                tensor = weights[name]
                changed[name] = tensor / (scale if tensor.ndim == 1 else scale[:, None])
        return changed


def norm_folds(config: LlamaConfig) -> list[Fold]:
    """The norms before q, k, v and before gate, up, layer by layer: what SmoothQuant smooths."""
    folds = []
    for i in range(config.num_hidden_layers):
        layer = f"model.layers.{i}"
        attn, mlp = f"{layer}.self_attn", f"{layer}.mlp"
        folds += [
            Fold(f"{layer}.input_layernorm", tuple(f"{attn}.{p}_proj" for p in "qkv")),
            Fold(f"{layer}.post_attention_layernorm", (f"{mlp}.gate_proj", f"{mlp}.up_proj")),
        ]
    return folds


def all_folds(config: LlamaConfig) -> list[Fold]:
    """Those of `norm_folds`, and `v_proj` before `o_proj`, `up_proj` before `down_proj`: AWQ's."""
    folds = norm_folds(config)
    group = config.num_attention_heads // config.num_key_value_heads
    for i in range(config.num_hidden_layers):
        attn, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
        folds += [
            Fold(f"{attn}.v_proj", (f"{attn}.o_proj",), config.head_dim, group),
            Fold(f"{mlp}.up_proj", (f"{mlp}.down_proj",)),
        ]
    return folds
