"""A stage of the pipeline: some of a model's layers, between the stage before and the one behind.

Mirrors `vllm/model_executor/models/utils.py:617 make_layers` and the two ends of
`vllm/model_executor/models/llama.py:395 LlamaModel.forward`. As there, two arrays go on, what the last half
layer has made and what it is added to, and the next stage adds them.

Left out: layers of several kinds, a tied head that is kept on one stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.config.model import LlamaConfig
from mini_vllm.config.moe import MoeConfig
from mini_vllm.distributed.parallel_state import Pipeline
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.models.registry import MODELS

Array = NDArray[Any]
_PREFIX = "model.layers."


def check_pipeline_parallel(config: LlamaConfig, size: int) -> None:
    """Raises ValueError, naming the setting of either that does not fit, where `size` stages cannot share the
    model."""
    layers = config.num_hidden_layers
    if size > layers:
        raise ValueError(
            f"pipeline_parallel_size ({size}) must be at most num_hidden_layers ({layers}): each stage has "
            "one at least"
        )
    same = not isinstance(config, MoeConfig) or all(map(config.has_experts, range(layers)))
    plain = MODELS[config.architecture].forward is LlamaForCausalLM.forward
    if len(set(config.sliding_windows)) > 1 or not same or not plain:
        raise ValueError(
            f"pipeline_parallel_size {size} does not go with this {config.architecture}: its layers are not "
            "all alike, or its embedding is scaled"
        )


class WeightsOfStage(Mapping[str, Array]):
    """A checkpoint's tensors, whose first layer is the stage's first."""

    def __init__(self, weights: Mapping[str, Array], layers: range) -> None:
        self._weights = weights
        self._layers = layers

    def _rename(self, name: str) -> str:
        if not name.startswith(_PREFIX):
            return name
        number, _, rest = name.removeprefix(_PREFIX).partition(".")
        return f"{_PREFIX}{self._layers[int(number)]}.{rest}"

    def __getitem__(self, name: str) -> Array:
        return self._weights[self._rename(name)]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._rename(name) in self._weights

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


class ReceivedHiddenStates:
    """In the place of the embedding: what the stage before has made of these tokens."""

    def __init__(self, pipeline: Pipeline, hidden_size: int) -> None:
        self.pipeline = pipeline
        self.hidden_size = hidden_size

    def __getitem__(self, input_ids: Array) -> Array:
        shape = (len(input_ids), self.hidden_size)
        hidden_states = self.pipeline.receive(shape)
        residual = self.pipeline.receive(shape)
        return residual + hidden_states


class HeldBack:
    """The last half layer of a stage: its result is kept, and nothing added, since the next stage adds it."""

    def __init__(self, half: Any) -> None:
        self.half = half
        self.hidden_states: Array | None = None

    def forward(self, x: Array) -> Array:
        self.hidden_states = self.half.forward(x)
        return np.zeros((), np.float32)


class SentHiddenStates:
    """In the place of the last norm: hands on what the stage has made."""

    def __init__(self, pipeline: Pipeline, last: HeldBack) -> None:
        self.pipeline = pipeline
        self.last = last

    def __call__(self, residual: Array) -> Array:
        assert self.last.hidden_states is not None
        self.pipeline.send(self.last.hidden_states, residual)
        return residual


def put_into_pipeline(model: Any, pipeline: Pipeline) -> None:
    """Join a model that has a stage's layers to the stages beside it."""
    if not pipeline.is_first:
        model.embed_tokens = ReceivedHiddenStates(pipeline, model.config.hidden_size)
    if not pipeline.is_last:
        last = model.layers[-1]
        last.mlp = HeldBack(last.mlp)
        model.norm = SentHiddenStates(pipeline, last.mlp)
        model.lm_head = None  # the last stage has it
