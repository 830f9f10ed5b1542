"""What the linear layers of a model get to see: the statistics that GPTQ, AWQ and SmoothQuant ask for.

A method that chooses codes by their effect must know what the weights are multiplied with. So some
documents go through the unquantised model, and each linear layer notes its input. Upstream has no such code:
vLLM reads checkpoints that llm-compressor, AutoGPTQ or AutoAWQ have made.

Left out: inputs as the layers *before*, already quantised, would give them. GPTQ's own program goes
through the model layer by layer so that a layer sees those; here all statistics come from one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.compress.evaluate import Document, check_documents, hidden_states
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.utils.threads import shared_products

Array = NDArray[np.float32]
Floats = NDArray[np.float64]

ROWS = 512
"""Rows of input that are kept of each linear layer."""

FUSED = {
    ("self_attn", "qkv_proj"): ("q_proj", "k_proj", "v_proj"),
    ("self_attn", "o_proj"): ("o_proj",),
    ("mlp", "gate_up_proj"): ("gate_proj", "up_proj"),
    ("mlp", "down_proj"): ("down_proj",),
}
"""The linear layers of a decoder layer, and the projections of the checkpoint that each holds."""


@dataclass
class LayerInput:
    """What one linear layer got as its input X, one row a token.

    Attributes:
        hessian: float64 `[in, in]`, 2/n XᵀX: what GPTQ calls H, the second derivative of the mean
            squared error of an output by the weights of its row.
        absmax: float32 `[in]`, the largest magnitude of each input channel.
        absmean: float64 `[in]`, its mean magnitude.
        rows: float32 `[up to ROWS, in]`, inputs spread over the documents.
        tokens: n.
    """

    hessian: Floats
    absmax: Array
    absmean: Floats
    rows: Array
    tokens: int

    def error(self, change: NDArray[Any]) -> float:
        """Mean squared change of the outputs, summed over them, if `change` is added to the weight.

        Args:
            change: `[out, in]`. E = tr(change H changeᵀ) / 2.
        """
        change = np.asarray(change, np.float64)
        return float(np.einsum("oi,oi->", change @ self.hessian, change) / 2)


class Recorder:
    """Stands in the place of a linear layer: adds up what comes in, and lets the layer compute.

    Args:
        linear: the layer.
        stride: one row in so many is kept.
    """

    def __init__(self, linear: Any, stride: int) -> None:
        self.linear = linear
        self.stride = stride
        self.tokens = 0
        self.products: Any = 0
        self.absmax: Any = 0
        self.abssum: Any = 0
        self.rows: list[Array] = []

    def __call__(self, x: Array) -> Array:
        self.rows.append(x[-self.tokens % self.stride :: self.stride].copy())
        self.tokens += len(x)
        wide = x.astype(np.float64)
        self.products += wide.T @ wide
        magnitude = np.abs(x)
        self.absmax = np.maximum(self.absmax, magnitude.max(axis=0))
        self.abssum += magnitude.sum(axis=0, dtype=np.float64)
        y: Array = self.linear(x)
        return y

    def seen(self) -> LayerInput:
        """The statistics of everything that came in."""
        n = self.tokens
        rows = np.concatenate(self.rows)
        return LayerInput(self.products * (2 / n), self.absmax, self.abssum / n, rows, n)


def calibrate(model: LlamaForCausalLM, documents: Sequence[Document]) -> dict[str, LayerInput]:
    """Run `documents` through the model; what each linear layer saw, by its name in the checkpoint.

    Projections that share an input, such as q, k and v, share one `LayerInput`. The model is left as it was.

    Args:
        model: unquantised, a `LlamaForCausalLM` in numpy.
        documents: token ids.

    Returns:
        By names such as `model.layers.0.self_attn.q_proj`, without `.weight`.

    Raises:
        ValueError: see `check_documents`; or numbers have become too large for float32 on the way to a layer.
    """
    check_documents(model, documents)
    stride = -(-sum(map(len, documents)) // ROWS)
    recorders: dict[str, Recorder] = {}
    try:
        for i, layer in enumerate(model.layers):
            for (block, linear), names in FUSED.items():
                part = getattr(layer, block)
                recorder = Recorder(getattr(part, linear), stride)
                setattr(part, linear, recorder)
                recorders |= {f"model.layers.{i}.{block}.{name}": recorder for name in names}
        with shared_products():
            for _ in hidden_states(model, documents):
                pass
    finally:
        for layer in model.layers:
            for block, linear in FUSED:
                part = getattr(layer, block)
                replaced = getattr(part, linear)
                if isinstance(replaced, Recorder):
                    setattr(part, linear, replaced.linear)
    seen = {id(recorder): recorder.seen() for recorder in recorders.values()}
    for name, recorder in recorders.items():
        if not np.isfinite(seen[id(recorder)].hessian).all():
            raise ValueError(
                f"what comes into {name} is not finite, so no statistics can be made of it"
            )
    return {name: seen[id(recorder)] for name, recorder in recorders.items()}
