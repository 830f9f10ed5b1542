"""A linear layer, whatever its weights are kept as.

Mirrors `vllm/model_executor/layers/linear.py`. Left out: tensor parallelism, so column, row, merged and QKV
linears are one class; a rank's has fewer rows or columns (`model_loader/shards.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from mini_vllm.layers.quantization.base import choose_linear_method, load_parameters

if TYPE_CHECKING:
    from mini_vllm.attention.backend import Array
    from mini_vllm.layers.quantization.base import QuantizationConfig


class Linear:
    """`x @ weight + bias`, for one projection of the checkpoint or several side by side.

    Which tensors stand for the weight, and what the product is, its `quant_method` says
    (`vllm/model_executor/layers/linear.py:231 LinearBase`).

    Args:
        weights: tensors by Hugging Face name; there a matrix is `[out, in]`.
        input_size: numbers of a row that comes in.
        output_sizes: numbers of a row of each projection, by name; they stand side by side in the result.
        bias: whether they have one.
        quant_config: asked for the method.
    """

    weight: Array

    def __init__(
        self,
        weights: Mapping[str, Array],
        input_size: int,
        output_sizes: Mapping[str, int],
        bias: bool,
        quant_config: QuantizationConfig,
    ) -> None:
        self.names = list(output_sizes)
        self.input_size = input_size
        self.output_sizes = list(output_sizes.values())
        self.output_size = sum(self.output_sizes)
        self.quant_method = choose_linear_method(quant_config, self.names)
        load_parameters(self, weights)
        self.quant_method.process_weights_after_loading(self)
        biases = [weights[f"{name}.bias"] for name in self.names] if bias else []
        self.bias = np.concatenate(biases) if bias else None

    def __call__(self, x: Array) -> Array:
        """float32 `[n, in]` to `[n, out]`."""
        y = self.quant_method.apply(self, x)
        return y if self.bias is None else y + self.bias
