"""Linear layers that add adapters' products to their own, and a model that is made of them.

Mirrors `vllm/lora/layers/` and the wrapping in `vllm/lora/model_manager.py`. Upstream puts the wrappers into
the model, with a buffer for each slot at the greatest rank; here the model is copied, weights excepted,
because several engines may share one, and a slot refers to the adapter's own arrays: nothing needs a fixed
shape.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mini_vllm.layers.linear import Linear
from mini_vllm.lora.ops import LoRAMapping, Piece, add_lora_grouped
from mini_vllm.models.llama import MLP_ROWS, LlamaForCausalLM, LlamaMLP

if TYPE_CHECKING:
    from mini_vllm.attention.backend import Array
    from mini_vllm.lora.lora_model import LoRAModel, Shapes

AddLoRA = Callable[..., None]
WITH_EMBEDDING_MODULES = ("LlamaForCausalLM",)
"""Whose embedding and head may be adapted, too
(`vllm/model_executor/models/llama.py:510 in LlamaForCausalLM`). Upstream Qwen3 is another; Mistral, Qwen2 and
Gemma are not (`vllm/model_executor/models/mistral.py:232 in MistralForCausalLM`)."""


class LinearWithLoRA:
    """A linear layer: the base's product first, then the adapters', in place
    (`vllm/lora/layers/base_linear.py:206 BaseLinearLayerWithLoRA._apply_lora_to_output`).

    Args:
        base_layer: as it was; its weights may be quantized, the adapters' never are.
        mapping: the step's.
        add_lora: one of the forms in `ops.py`.
        names: of its projections, where adapters call them otherwise than the checkpoint.
    """

    def __init__(
        self,
        base_layer: Linear,
        mapping: LoRAMapping,
        add_lora: AddLoRA = add_lora_grouped,
        names: Sequence[str] | None = None,
    ) -> None:
        self.base_layer = base_layer
        self.names = base_layer.names if names is None else names
        self.mapping = mapping
        self.add_lora = add_lora
        self.slots: dict[int, list[Piece]] = {}

    def set_lora(self, index: int, lora: LoRAModel) -> None:
        """Fill a slot with what the adapter has for this layer: of q, k and v side by side, maybe one
        (`vllm/lora/layers/base_linear.py:157 BaseLinearLayerWithLoRA.set_lora`)."""
        pieces: list[Piece] = []
        start = 0
        for name, size in zip(self.names, self.base_layer.output_sizes, strict=True):
            if (pair := lora.loras.get(name)) is not None:
                pieces.append(Piece(start, pair.lora_a, pair.lora_b))
            start += size
        self.slots[index] = pieces

    def __call__(self, x: Array) -> Array:
        y = self.base_layer(x)
        if self.mapping.runs:
            self.add_lora(y, x, self.mapping, self.slots)
        return y


def get_lora_modules(model: Any) -> Shapes:
    """What of the model can be adapted: by name, numbers of a row that comes in and of one that goes out.

    Raises ValueError for a model that adapters are not made for here.
    """
    layers = getattr(model, "layers", ())
    if not isinstance(model, LlamaForCausalLM) or not all(
        isinstance(layer.mlp, LlamaMLP) for layer in layers
    ):
        architecture = getattr(model.config, "architecture", type(model).__name__)
        raise ValueError(
            f"enable_lora is not supported for this {architecture}: only for models for numpy without experts"
        )
    modules = {
        name: (linear.input_size, size)
        for layer in layers
        for half in (layer.self_attn, layer.mlp)
        for linear in vars(half).values()
        if isinstance(linear, Linear)
        for name, size in zip(linear.names, linear.output_sizes, strict=True)
    }
    config = model.config
    if config.architecture in WITH_EMBEDDING_MODULES:
        modules["model.embed_tokens"] = (config.vocab_size, config.hidden_size)
        modules["lm_head"] = (config.hidden_size, config.vocab_size)
    return modules


def add_lora_layers(
    model: LlamaForCausalLM, mapping: LoRAMapping
) -> tuple[LlamaForCausalLM, list[LinearWithLoRA]]:
    """The model with a wrapper around each linear layer of its halves, and the wrappers
    (`vllm/lora/model_manager.py:375 LoRAModelManager._create_lora_modules`)."""
    model = copy.copy(model)
    wrappers: list[LinearWithLoRA] = []
    layers = []
    for layer in map(copy.copy, model.layers):
        layer.self_attn, layer.mlp = copy.copy(layer.self_attn), copy.copy(layer.mlp)
        for half in (layer.self_attn, layer.mlp):
            for name, linear in list(vars(half).items()):
                if isinstance(linear, Linear):
                    wrappers.append(LinearWithLoRA(linear, mapping))
                    setattr(half, name, wrappers[-1])
        _tell_rows(layer.mlp, mapping)
        layers.append(layer)
    model.layers = layers
    return model, wrappers


def _tell_rows(mlp: Any, mapping: LoRAMapping) -> None:
    """Let the mapping know which rows an MLP works on, which takes a large step in pieces (`MLP_ROWS`)."""
    inner: Callable[[Array], Array] = mlp.forward

    def forward(x: Array) -> Array:
        if len(x) <= MLP_ROWS or not mapping.runs:
            return inner(x)
        pieces = []
        for start in range(0, len(x), MLP_ROWS):
            with mapping.window(start, start + MLP_ROWS):
                pieces.append(inner(x[start : start + MLP_ROWS]))
        return np.concatenate(pieces)

    mlp.forward = forward
