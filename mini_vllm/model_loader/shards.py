"""A rank's share of a model: which rows and columns it reads, and where the ranks add up or gather.

Mirrors the weight loaders of `vllm/model_executor/layers/linear.py` and
`vllm/model_executor/layers/vocab_parallel_embedding.py`. Upstream each layer has a class for each way to be
cut. Here the model's own classes are built with a rank's sizes: half the heads, half the MLP. How a
tensor is cut follows from its two shapes; the sums and gathers are wrapped around the finished layers.

    embedding      rows of the vocabulary   a token that is another rank's gives zeros; all-reduce
    q, k, v        rows, so whole heads     nothing: each rank attends with its own heads
    o_proj         columns                  each has a part of every sum; all-reduce
    gate, up       rows                     nothing
    down_proj      columns                  all-reduce
    norms          whole on each rank       nothing
    LM head        rows of the vocabulary   gather
    experts        some whole, or a part of each; all-reduce

Other than upstream: a prompt that is not finished in the step gets no logits, so fewer rows are gathered in
its steps. Left out: quantised weights, draft models.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.config.model import LlamaConfig
from mini_vllm.config.moe import MoeConfig
from mini_vllm.distributed.communicator import Communicator
from mini_vllm.distributed.parallel_state import RankGroups, get_pp_indices
from mini_vllm.model_loader.stages import WeightsOfStage, put_into_pipeline
from mini_vllm.utils.math import cdiv

Array = NDArray[Any]
Ints = NDArray[np.integer[Any]]

VOCAB_PADDING = 64
"""The vocabulary is padded to a multiple of it
(`vllm/model_executor/layers/vocab_parallel_embedding.py:32 DEFAULT_VOCAB_PADDING_SIZE`)."""
_OF_VOCABULARY = ("model.embed_tokens.weight", "lm_head.weight")


def check_tensor_parallel(config: LlamaConfig, size: int, expert_parallel: bool = False) -> None:
    """Raises ValueError, naming the setting of either that does not fit, where `size` ranks cannot share the
    model."""
    if config.quantization_config:
        raise ValueError(
            "this model's quantization_config does not go with ranks (tensor_parallel_size, "
            "pipeline_parallel_size, distributed_executor_backend): quantised weights are not cut"
        )
    if expert_parallel and isinstance(config, MoeConfig) and config.num_experts < size:
        raise ValueError(
            f"num_experts ({config.num_experts}) must be at least tensor_parallel_size ({size}) with "
            "enable_expert_parallel: each rank has one"
        )
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if heads % size:
        raise ValueError(
            f"num_attention_heads ({heads}) must be divisible by tensor_parallel_size ({size})"
        )
    if max(kv_heads, size) % min(kv_heads, size):
        raise ValueError(
            f"num_key_value_heads ({kv_heads}) and tensor_parallel_size ({size}): one must be divisible by "
            "the other"
        )
    for name in _sizes_to_cut(config, expert_parallel):
        if getattr(config, name) % size:
            raise ValueError(
                f"{name} ({getattr(config, name)}) must be divisible by tensor_parallel_size ({size})"
            )
    if padded_vocab_size(config.vocab_size) % size:
        raise ValueError(
            f"vocab_size ({config.vocab_size}), padded to {padded_vocab_size(config.vocab_size)}, must be "
            f"divisible by tensor_parallel_size ({size})"
        )


def _sizes_to_cut(config: LlamaConfig, expert_parallel: bool) -> list[str]:
    names = ["intermediate_size"]
    if isinstance(config, MoeConfig):
        layers = range(config.num_hidden_layers)
        names = [] if all(map(config.has_experts, layers)) else names
        names += [] if expert_parallel else ["moe_intermediate_size"]
    if hasattr(config, "shared_expert_intermediate_size"):
        names.append("shared_expert_intermediate_size")
    return names


def padded_vocab_size(vocab_size: int) -> int:
    """Source: `vllm/model_executor/layers/vocab_parallel_embedding.py:81 pad_vocab_size`."""
    return cdiv(vocab_size, VOCAB_PADDING) * VOCAB_PADDING


def get_experts_of_rank(num_experts: int, rank: int, size: int) -> range:
    """Neighbours stay together; the first ranks have one more where they do not come out even
    (`vllm/model_executor/layers/fused_moe/expert_map_manager.py:22 determine_expert_map`)."""
    base, more = divmod(num_experts, size)
    start = rank * base + min(rank, more)
    return range(start, start + base + (rank < more))


def get_rank_config(
    config: LlamaConfig, size: int, rank: int = 0, expert_parallel: bool = False
) -> LlamaConfig:
    """The settings of a model with the heads and the MLP that one of `size` ranks has; the vocabulary stays.

    Where there are more ranks than KV heads, each has one, and some have the same
    (`vllm/model_executor/layers/linear.py:1028 in QKVParallelLinear.__init__`).
    """
    cut = _sizes_to_cut(config, expert_parallel)
    sizes: dict[str, Any] = {name: getattr(config, name) // size for name in cut}
    if isinstance(config, MoeConfig) and expert_parallel:
        sizes["experts_of_rank"] = get_experts_of_rank(config.num_experts, rank, size)
    return dataclasses.replace(
        config,
        num_attention_heads=config.num_attention_heads // size,
        num_key_value_heads=max(1, config.num_key_value_heads // size),
        **sizes,
    )


class ShardedWeights(Mapping[str, Array]):
    """A checkpoint's tensors, each cut to what a rank keeps of it.

    Args:
        weights: tensors by Hugging Face name.
        config, rank_config: the whole model's, and this rank's.
        communicator: says which rank of how many.
    """

    def __init__(
        self,
        weights: Mapping[str, Array],
        config: LlamaConfig,
        rank_config: LlamaConfig,
        communicator: Communicator,
    ) -> None:
        self._weights = weights
        self._config, self._rank_config = config, rank_config
        self._rank, self._size = communicator.rank, communicator.world_size

    def __getitem__(self, name: str) -> Array:
        weight = self._weights[name]
        if name in _OF_VOCABULARY:
            return self._cut_vocabulary(weight)
        layer, projection, kind = _split(name)
        if projection is None or kind not in ("weight", "bias"):
            return weight
        whole = _shapes(self._config, layer).get(projection)
        mine = _shapes(self._rank_config, layer).get(projection)
        if whole is None or mine is None or whole == mine:
            return weight
        if whole[0] != mine[0]:
            return self._cut_rows(projection, weight)
        if kind == "bias":  # of a sum that the ranks add up: one of them adds it
            return weight if self._rank == 0 else np.zeros_like(weight)
        columns = mine[1]
        return np.ascontiguousarray(weight[:, self._rank * columns : (self._rank + 1) * columns])

    def __contains__(self, name: object) -> bool:
        return name in self._weights

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def _cut_vocabulary(self, weight: Array) -> Array:
        """A rank's rows; those past the vocabulary are zeros."""
        rows = padded_vocab_size(self._config.vocab_size) // self._size
        mine = weight[self._rank * rows : (self._rank + 1) * rows]
        padding = np.zeros((rows - len(mine), weight.shape[1]), weight.dtype)
        return np.concatenate([mine, padding])

    def _cut_rows(self, projection: str, weight: Array) -> Array:
        """A rank's rows of each of the projections that lie in this tensor one behind the other."""
        whole, mine = self._config, self._rank_config
        heads = whole.num_attention_heads * whole.head_dim
        kv_heads = whole.num_key_value_heads * whole.head_dim
        name = projection.rpartition(".")[2]
        parts = {
            "qkv_proj": [heads, kv_heads, kv_heads],
            "gate_up_proj": [len(weight) // 2] * 2,
        }.get(name, [len(weight)])
        found, start = [], 0
        for part in parts:
            is_kv = name in ("k_proj", "v_proj") or (name == "qkv_proj" and start > 0)
            rows = mine.num_key_value_heads * mine.head_dim if is_kv else part // self._size
            # Ranks that share a KV head follow each other.
            place = self._rank * (part // rows) // self._size if is_kv else self._rank
            found.append(weight[start + place * rows : start + (place + 1) * rows])
            start += part
        return np.concatenate(found) if len(found) > 1 else np.ascontiguousarray(found[0])


def _split(name: str) -> tuple[int, str | None, str]:
    """`model.layers.3.mlp.up_proj.weight`: 3, `mlp.up_proj`, `weight`. No projection outside the layers."""
    head, _, kind = name.rpartition(".")
    words = head.split(".", 3)
    if words[:2] != ["model", "layers"] or len(words) < 4:
        return 0, None, kind
    return int(words[2]), words[3], kind


def _shapes(config: LlamaConfig, layer: int) -> dict[str, tuple[int, int]]:
    return {name: (out, inp) for name, out, inp, _ in config.linears(layer)}


class VocabParallelEmbedding:
    """A rank's rows of the embedding, asked for tokens of the whole vocabulary
    (`vllm/model_executor/layers/vocab_parallel_embedding.py:470 VocabParallelEmbedding.forward`)."""

    def __init__(self, weight: Array, communicator: Communicator) -> None:
        self.weight = weight
        self.start = communicator.rank * len(weight)
        self.communicator = communicator

    def __getitem__(self, input_ids: Ints) -> Array:
        places = input_ids - self.start
        here = (places >= 0) & (places < len(self.weight))
        found = self.weight[places * here]
        found[~here] = 0
        return self.communicator.all_reduce(found)


class AllReduced:
    """What gives each rank a part of every sum: a linear layer with some of the columns, or the half layer
    that ends with one (`vllm/model_executor/layers/linear.py:1540 RowParallelLinear.forward`)."""

    def __init__(self, part: Any, communicator: Communicator) -> None:
        self.part = part
        self.communicator = communicator

    def __call__(self, x: Array) -> Array:
        return self.communicator.all_reduce(self.part(x))

    def forward(self, x: Array) -> Array:
        return self.communicator.all_reduce(self.part.forward(x))


class GatheredHead:
    """The LM head: each rank's logits, put side by side
    (`vllm/model_executor/layers/logits_processor.py:75 LogitsProcessor._gather_logits`)."""

    def __init__(self, head: Callable[[Array], Array], vocab_size: int, communicator: Communicator):
        self.head = head
        self.vocab_size = vocab_size
        self.communicator = communicator

    def __call__(self, hidden_states: Array) -> Array:
        return self.communicator.all_gather(self.head(hidden_states))[:, : self.vocab_size]


def make_shard(
    model_cls: Callable[..., Any],
    config: LlamaConfig,
    weights: Mapping[str, Array],
    attention: Any,
    groups: RankGroups,
) -> Any:
    """A rank's model, of numpy arrays or torch tensors as its class has them. A rank of the last stage
    computes logits for the whole vocabulary.

    Args:
        model_cls: called with a rank's config and weights.
        config: the whole model's.
    """
    tensor, pipeline = groups.tensor, groups.pipeline
    size, expert_parallel = tensor.world_size, groups.expert_parallel
    rank_config = get_rank_config(config, size, tensor.rank, expert_parallel)
    if groups.data is not None:
        from mini_vllm.model_loader.experts import get_expert_place, join_engines

        assert isinstance(config, MoeConfig)
        experts = get_experts_of_rank(config.num_experts, *get_expert_place(groups))
        rank_config = dataclasses.replace(rank_config, experts_of_rank=experts)  # type: ignore[call-arg]
    if pipeline.size > 1:
        layers = get_pp_indices(config.num_hidden_layers, pipeline.rank, pipeline.size)
        weights = WeightsOfStage(weights, layers)
        rank_config = dataclasses.replace(rank_config, num_hidden_layers=len(layers))
    rows = padded_vocab_size(config.vocab_size) // size
    model = model_cls(
        dataclasses.replace(rank_config, vocab_size=rows),
        ShardedWeights(weights, config, rank_config, tensor),
        attention,
    )
    model.config = rank_config
    model.embed_tokens = VocabParallelEmbedding(model.embed_tokens, tensor)
    if hasattr(model, "embed_input_ids"):  # the torch model's way to it
        model.embed_input_ids = model.embed_tokens.__getitem__
    if groups.data is not None:
        join_engines(model, groups.data)
    for layer in model.layers:
        layer.self_attn.o_proj = AllReduced(layer.self_attn.o_proj, tensor)
        layer.mlp = AllReduced(layer.mlp, tensor)
    model.lm_head = GatheredHead(model.lm_head, config.vocab_size, tensor)
    put_into_pipeline(model, pipeline)
    return model
