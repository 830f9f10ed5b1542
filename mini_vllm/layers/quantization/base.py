"""What a linear layer asks of what keeps its weights: which tensors, what becomes of them, the product.
With the plainest answer, weights as they are: a run without quantisation loads nothing else of this package.

Mirrors `vllm/model_executor/layers/quantization/base_config.py` and the method half of
`vllm/model_executor/layers/linear.py`. Left out: tensor parallelism, experts, quantised embeddings,
the choice of a kernel, which upstream makes in `create_weights`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mini_vllm.config.checks import CheckpointError
from mini_vllm.utils.blas import has_small_matrix_kernels
from mini_vllm.utils.threads import in_pieces
from mini_vllm.utils.untrusted import shorten_repr

Array = NDArray[Any]
Float = NDArray[np.float32]


class Parameter(NamedTuple):
    """A tensor that a checkpoint must hold of a projection.

    Attributes:
        shape: of one projection's tensor.
        dtypes: numpy's names, any of which will do. 16-bit floats have been widened to float32 when they
            are read; `uint8` are the bytes of FP8.
        output_dim: the axis along which projections of one layer stand side by side. None: the tensor
            has no such axis, and a layer keeps one of each projection, stacked.
        optional: whether a file may leave it out.

    Source: the classes of `vllm/model_executor/parameter.py:31 BasevLLMParameter`.
    """

    shape: tuple[int, ...]
    dtypes: tuple[str, ...] = ("float32",)
    output_dim: int | None = 0
    optional: bool = False


class LinearMethod(ABC):
    """How a linear layer's weights are stored, and its product from them. Equal methods are equal objects.

    Source: `vllm/model_executor/layers/linear.py:141 LinearMethodBase`.
    """

    @abstractmethod
    def create_weights(self, input_size: int, output_size: int) -> dict[str, Parameter]:
        """The tensors of a projection, by the last part of their name
        (`vllm/model_executor/layers/linear.py:145 LinearMethodBase.create_weights`).

        Raises ValueError where the format has no place for such a size.
        """

    @abstractmethod
    def process_weights_after_loading(self, layer: Any) -> None:
        """Bring the tensors, by now attributes of the layer, into the form that `apply` wants.

        Args:
            layer: a `mini_vllm.layers.linear.Linear`: it has `names`, `input_size` and `output_sizes`.

        Raises CheckpointError for values that no writer of the format makes.
        """

    @abstractmethod
    def apply(self, layer: Any, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """The product with the layer's weights: float32 `[n, in]` to float32 `[n, out]`
        (`vllm/model_executor/layers/linear.py:171 LinearMethodBase.apply`)."""


def turn(weight: Float) -> Float:
    """`np.ascontiguousarray(weight.T)`, some rows at a time, so that what is written to stays in the caches:
    151,936 by 1,024 took 0.7 s instead of 3.9."""
    turned = np.empty(weight.shape[::-1], weight.dtype)
    for row in range(0, len(weight), 64):
        turned[:, row : row + 64] = weight[row : row + 64].T
    return turned


SMALL_WEIGHT = 2**17
"""Numbers in a matrix below which it lies better as `[in, out]` for any kernels."""


@dataclass(frozen=True)
class UnquantizedLinearMethod(LinearMethod):
    """The weights as they are (`vllm/model_executor/layers/linear.py:182 UnquantizedLinearMethod`).

    `layer.weight` is `[out, in]`, as in the file. In which order it lies in memory depends on the BLAS: with
    few rows a product spends most of its time on the weights, because OpenBLAS copies them into another
    order first. Its AVX2 kernels copy faster from `[in, out]`, so there the weights are turned once (576 by
    3,072, 4 rows, an AMD EPYC: 1.06 against 1.58 ms); its AVX-512 kernels multiply a matrix from the left
    without a copy (576 by 1,536, 4 rows, an Intel Xeon: 0.63 against 1.39 ms). Small ones they multiply from
    both sides, and what comes from the left has to be turned (128 by 768, 4 rows, an AMD EPYC: 24 and 8 us).
    """

    def create_weights(self, input_size: int, output_size: int) -> dict[str, Parameter]:
        return {"weight": Parameter((output_size, input_size))}

    def process_weights_after_loading(self, layer: Any) -> None:
        if not has_small_matrix_kernels() or layer.weight.size < SMALL_WEIGHT:
            layer.weight = turn(layer.weight).T

    def apply(self, layer: Any, x: Float) -> Float:
        """`x @ weight.T`, in pieces of columns where that pays (`utils/threads.py`)."""
        weight, rows = layer.weight, len(x)
        # One row is a matrix and a vector, which need no copy in either order.
        turned = rows > 1 and weight.flags.c_contiguous
        y: Float = np.empty((len(weight), rows) if turned else (rows, len(weight)), np.float32)

        def compute(start: int, stop: int) -> None:
            if turned:
                np.matmul(weight[start:stop], x.T, out=y[start:stop])
            else:
                np.matmul(x, weight[start:stop].T, out=y[:, start:stop])

        in_pieces(compute, len(weight), weight.size, rows)
        return np.ascontiguousarray(y.T) if turned else y


class QuantizationConfig(ABC):
    """What a checkpoint says of its weights, under `quantization_config` in config.json.

    Attributes:
        kv_cache_dtype: how K and V are kept where `EngineConfig.kv_cache_dtype` is `auto`.

    Source: `vllm/model_executor/layers/quantization/base_config.py:70 QuantizationConfig`.
    """

    kv_cache_dtype: str = "auto"

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, Any]) -> QuantizationConfig:
        """Check what stands under `quantization_config`. Raises CheckpointError."""

    @abstractmethod
    def get_quant_method(self, name: str) -> LinearMethod:
        """The method of one projection, by its Hugging Face name. Raises CheckpointError."""


@dataclass(frozen=True)
class NoQuantizationConfig(QuantizationConfig):
    """Nothing is quantised."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> NoQuantizationConfig:
        return cls()

    def get_quant_method(self, name: str) -> LinearMethod:
        return UnquantizedLinearMethod()


def choose_linear_method(config: QuantizationConfig, names: Sequence[str]) -> LinearMethod:
    """The method of projections that are one product, which all of them must have.

    Raises CheckpointError where they have not; upstream refuses it too where only some of them are ignored
    (`vllm/model_executor/layers/quantization/compressed_tensors/utils.py:50 should_ignore_layer`).
    """
    methods = [config.get_quant_method(name) for name in names]
    for name, method in zip(names, methods, strict=True):
        if method != methods[0]:
            raise CheckpointError(
                f"{names[0]} and {name} are one product, and must be quantised alike: "
                f"quantization_config makes them {methods[0]} and {method}"
            )
    return methods[0]


def load_parameters(layer: Any, weights: Mapping[str, Array]) -> None:
    """Give the layer its method's tensors as attributes, those of all its projections together.

    Args:
        layer: has `names`, `input_size`, `output_sizes` and `quant_method`.
        weights: every tensor of the checkpoint, checked against `create_weights`.
    """
    wanted = layer.quant_method.create_weights(layer.input_size, layer.output_sizes[0])
    for suffix, parameter in wanted.items():
        tensors = [weights[key] for n in layer.names if (key := f"{n}.{suffix}") in weights]
        value: Array | None = None
        if len(tensors) == len(layer.names):
            if parameter.output_dim is None:
                value = np.stack([tensor.reshape(parameter.shape) for tensor in tensors])
            elif len(tensors) == 1:
                value = tensors[0]  # the checkpoint's own array: a tied head is the embedding
            else:
                value = np.concatenate(tensors, axis=parameter.output_dim)
        setattr(layer, suffix, value)


def require_shared_scale(layer: Any, suffix: str) -> Array:
    """The one value of a tensor that every projection of the layer has its own copy of, stacked by
    `load_parameters`. Raises CheckpointError where the copies differ."""
    stacked: Array = getattr(layer, suffix)
    for name, each in zip(layer.names, stacked, strict=True):
        if not np.array_equal(each, stacked[0]):
            raise CheckpointError(
                f"{layer.names[0]}.{suffix} and {name}.{suffix} must be equal, because the two are one "
                f"product of the same input; they are {shorten_repr(stacked[0].tolist())} and "
                f"{shorten_repr(each.tolist())}"
            )
    first: Array = stacked[0]
    return first
