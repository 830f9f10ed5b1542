"""Linear layers of quantised checkpoints in torch: what `linear.py` and `scaled.py` of
`layers/quantization/` do in numpy.

Mirrors the `apply` half of the methods in `vllm/model_executor/layers/quantization/`. Reading, checking and
bringing in order is done once, by numpy's layer; here its arrays become tensors on the device.

With `attention="triton"` weight-only layers go through the Triton kernel (`kernels/wna16.py`), which
computes from the packed words. Elsewhere a product dequantises all weights first, as
`vllm/model_executor/layers/quantization/awq.py:262 AWQLinearMethod.apply` does from 256 tokens on. Layers
that quantise activations as well are computed plainly on every device; upstream has integer and FP8
kernels for them, left out here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mini_vllm.config.checks import CheckpointError
from mini_vllm.layers.linear import Linear as NumpyLinear
from mini_vllm.layers.quantization.base import UnquantizedLinearMethod
from mini_vllm.layers.quantization.float_formats import E4M3
from mini_vllm.layers.quantization.linear import WNA16LinearMethod
from mini_vllm.layers.quantization.scaled import (
    EXACT,
    SMALLEST_FP8_SCALE,
    SMALLEST_NORMAL,
    Fp8LinearMethod,
    W8A8Int8LinearMethod,
)


class PlainLinear:
    """A layer that is not quantised, of a checkpoint that is."""

    def __init__(self, layer: Any, dtype: torch.dtype, device: torch.device) -> None:
        self.weight = torch.tensor(layer.weight, dtype=dtype, device=device)

    def __call__(self, x: Tensor) -> Tensor:
        """`[n, in]` to `[n, out]`."""
        return F.linear(x, self.weight)


class WNA16Linear:
    """Weights of 4 or 8 bits in words, activations as they are.

    Args:
        layer: numpy's, its tensors in order: see `quantization.linear.WNA16LinearMethod`.
        dtype: of activations, result and scales.
        device: where the weights lie.
        kernel: whether the Triton kernel computes, on packed words; else torch does, on all weights at once.

    Raises CheckpointError where the kernel cannot take the layer's groups.
    """

    def __init__(
        self, layer: Any, dtype: torch.dtype, device: torch.device, *, kernel: bool
    ) -> None:
        self.bits = layer.quant_method.num_bits
        self.weight_packed = torch.tensor(layer.weight_packed, dtype=torch.int32, device=device)
        # The scales of many outputs side by side, because that is how a tile of the kernel reads them.
        scale = torch.tensor(layer.weight_scale, dtype=dtype, device=device)
        self.weight_scale = scale.T.contiguous().T
        self.zero_point: Tensor | None = None
        if layer.weight_zero_point is not None:
            zero = torch.tensor(layer.weight_zero_point, dtype=torch.uint8, device=device)
            self.zero_point = zero.T.contiguous().T
        perm = layer.perm
        self.perm = None if perm is None else torch.tensor(perm, device=device)
        self.kernel = None
        if kernel:
            from mini_vllm.gpu import ops
            from mini_vllm.gpu.kernels.wna16 import check_inputs

            # While the model is loaded, as upstream looks for a kernel, and not in the first step.
            nothing = torch.empty(0, layer.input_size, dtype=dtype, device=device)
            try:
                check_inputs(
                    nothing, self.weight_packed, self.weight_scale, self.bits, self.zero_point
                )
            except ValueError as error:
                raise CheckpointError(
                    f"{layer.names[0]}: the Triton kernel cannot take it: {error}; attention='torch' can"
                ) from error
            self.kernel = ops.wna16_gemm
        self.shift = torch.arange(0, 32, self.bits, dtype=torch.int32, device=device)

    def __call__(self, x: Tensor) -> Tensor:
        """`[n, in]` to `[n, out]` in x's dtype."""
        if self.perm is not None:
            x = x[:, self.perm]
        if self.kernel is None:
            return F.linear(x, self.dequantize())
        output = x.new_empty(len(x), len(self.weight_packed))
        self.kernel(x, self.weight_packed, self.weight_scale, self.zero_point, self.bits, output)
        return output

    def dequantize(self) -> Tensor:
        """All weights, `[out, in]` in the dtype of the scales, columns in the order of the groups."""
        codes = (self.weight_packed[:, :, None] >> self.shift) & (2**self.bits - 1)
        codes = codes.reshape(*self.weight_scale.shape, -1)  # [out, groups, inputs of a group]
        zero = 2 ** (self.bits - 1) if self.zero_point is None else self.zero_point[:, :, None]
        weight = (codes - zero).to(self.weight_scale.dtype) * self.weight_scale[:, :, None]
        return weight.flatten(1)


class W8A8Int8Linear:
    """int8 weights and int8 activations, multiplied as whole numbers held by floats."""

    def __init__(self, layer: Any, dtype: torch.dtype, device: torch.device) -> None:
        exact = layer.largest_input * 128 * layer.input_size <= EXACT
        self.weight = torch.tensor(layer.weight, dtype=torch.int8, device=device)
        self.weight_scale = torch.tensor(layer.weight_scale, device=device)
        self.kind = torch.float32 if exact else torch.float64
        self.input_scale = _scale_on(device, layer)
        self.zero_point = layer.input_zero_point
        self.input_symmetric = layer.quant_method.input_symmetric

    def __call__(self, x: Tensor) -> Tensor:
        """`[n, in]` to `[n, out]` in x's dtype. Each row of x is scaled to -127 to 127, or all rows by the
        file's scale."""
        x32, scale, zero = x.float(), self.input_scale, self.zero_point
        if scale is None and self.input_symmetric:
            scale = x32.abs().amax(1, keepdim=True) / 127
        elif scale is None:
            low, high = x32.aminmax(dim=1, keepdim=True)
            one = low == high
            low = torch.where(one, low.clamp(max=0), low)
            high = torch.where(one, high.clamp(min=0), high)
            scale = ((high - low) / 255).clamp(min=float(SMALLEST_NORMAL))
            zero = (-128 - low / scale).round()
        inverse = 1 / scale.clamp(min=float(SMALLEST_NORMAL))
        codes = (x32 * inverse + zero).round().clamp(-128, 127).to(self.kind) - zero
        sums = F.linear(codes, self.weight.to(self.kind)).float()
        return (sums * scale * self.weight_scale).to(x.dtype)


class Fp8Linear:
    """FP8 weights, and FP8 activations where the checkpoint says so."""

    def __init__(self, layer: Any, dtype: torch.dtype, device: torch.device) -> None:
        codes = torch.tensor(layer.weight, dtype=torch.uint8, device=device)
        self.weight = codes.view(torch.float8_e4m3fn)
        self.weight_scale = torch.tensor(layer.weight_scale, device=device)
        self.quantize_activations = layer.quant_method.quantize_activations
        self.input_scale = _scale_on(device, layer)

    def __call__(self, x: Tensor) -> Tensor:
        """`[n, in]` to `[n, out]` in x's dtype. Each row of x is scaled to -448 to 448, or all rows by the
        file's scale."""
        x32 = x.float()
        scale = torch.ones_like(x32[:, :1])
        if self.quantize_activations:
            own = x32.abs().amax(1, keepdim=True) / E4M3.max
            scale = own.clamp(min=float(SMALLEST_FP8_SCALE))
            if self.input_scale is not None:
                scale = self.input_scale
            scaled = (x32 * (1 / scale)).clamp(-E4M3.max, E4M3.max)
            x32 = scaled.to(torch.float8_e4m3fn).float()
        sums = F.linear(x32, self.weight.float())
        return (sums * scale * self.weight_scale).to(x.dtype)


def _scale_on(device: torch.device, layer: Any) -> Tensor | None:
    """The activations' scale, where the file has one."""
    return None if layer.input_scale is None else torch.tensor(layer.input_scale, device=device)


class QuantizedLinear:
    """A layer of a quantised checkpoint, called as `mini_vllm.gpu.llama.Linear` is.

    Args:
        layer: numpy's layer, read and checked. Its arrays are copied.
        dtype: of activations and result.
        device: where the weights lie.
        kernel: see `WNA16Linear`.
    """

    def __init__(
        self, layer: NumpyLinear, dtype: torch.dtype, device: torch.device, *, kernel: bool
    ) -> None:
        self.quant_method = layer.quant_method
        self.apply = _make(layer, dtype, device, kernel)
        bias = layer.bias
        self.bias = None if bias is None else torch.tensor(bias, dtype=dtype, device=device)

    def __call__(self, x: Tensor) -> Tensor:
        """`[n, in]` to `[n, out]`."""
        y: Tensor = self.apply(x)
        return y if self.bias is None else y + self.bias


def _make(layer: Any, dtype: torch.dtype, device: torch.device, kernel: bool) -> Any:
    method = layer.quant_method
    if isinstance(method, WNA16LinearMethod):
        return WNA16Linear(layer, dtype, device, kernel=kernel)
    if isinstance(method, W8A8Int8LinearMethod):
        return W8A8Int8Linear(layer, dtype, device)
    if isinstance(method, Fp8LinearMethod):
        return Fp8Linear(layer, dtype, device)
    if isinstance(method, UnquantizedLinearMethod):
        return PlainLinear(layer, dtype, device)
    raise ValueError(f"{', '.join(layer.names)}: torch has no product for {method}")
