"""An engine whose model is on several ranks: what each of their processes makes, and what the engine knows.

Upstream this is spread over `vllm/v1/executor/multiproc_executor.py:102 MultiprocExecutor` and the worker;
the core there knows no model either.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from mini_vllm.attention.registry import get_backend
from mini_vllm.config.engine import EngineConfig, ResolvedConfig
from mini_vllm.config.model import LlamaConfig
from mini_vllm.config.moe import MoeConfig
from mini_vllm.distributed.parallel_state import (
    DataParallel,
    EnginePlace,
    Pipeline,
    RankGroups,
    get_pp_indices,
)
from mini_vllm.distributed.shm_communicator import SharedMemoryCommunicator
from mini_vllm.engine.parts import DEFAULT_PARTS, EngineParts
from mini_vllm.executor.multiproc_executor import MultiprocExecutor
from mini_vllm.model_loader import load_config, load_model
from mini_vllm.model_loader.shards import check_tensor_parallel, get_rank_config
from mini_vllm.model_loader.stages import check_pipeline_parallel
from mini_vllm.utils.threads import count_cores, limit_threads
from mini_vllm.worker.model_runner import ModelRunner
from mini_vllm.worker.worker import Worker

if TYPE_CHECKING:
    from mini_vllm.models.interfaces_base import ModelForTextGeneration

MakeModelRunner = Callable[[Any, ResolvedConfig, EngineParts], ModelRunner]
"""`mini_vllm.engine.build.make_model_runner`, which is given: it imports this file."""
_OF_RANKS = ("drafter", "rejection_sampler", "attention", "graph_runner", "cudagraph_dispatcher")


class ModelOnRanks:
    """What the engine knows of a model that it does not hold.

    Args:
        folder: the checkpoint, which each rank reads for itself.
        config: the engine's.

    Attributes:
        has_experts: some of its layers have.
        place: the engine's among those that step together; to be set before its ranks are made.
        config: a rank's settings: its heads, its MLP, the layers of the largest stage, the whole vocabulary.

    Raises:
        CheckpointError: as `load_config`.
        ValueError: model and settings do not go together, naming both.
    """

    def __init__(self, folder: str | Path, config: EngineConfig) -> None:
        self.folder = folder
        whole = load_config(folder)
        size, expert_parallel = config.tensor_parallel_size, config.enable_expert_parallel
        if config.has_processes:
            check_settings(config)
            check_tensor_parallel(whole, size, expert_parallel)
        if config.data_parallel_size > 1:
            check_data_parallel(config, whole)
        self.has_experts = isinstance(whole, MoeConfig)
        self.place: EnginePlace | None = None
        if config.pipeline_parallel_size > 1:
            check_pipeline_parallel(whole, config.pipeline_parallel_size)
        stages = config.pipeline_parallel_size
        most = max(len(get_pp_indices(whole.num_hidden_layers, i, stages)) for i in range(stages))
        mine = get_rank_config(whole, size, 0, expert_parallel)
        self.config = dataclasses.replace(mine, num_hidden_layers=most) if stages > 1 else mine
        backend = get_backend(config.attention)
        self.attention = backend.get_attention_cls()()
        self.aux_hidden_state_layers: tuple[int, ...] = ()

    @property
    def layers(self) -> NoReturn:
        raise AttributeError("the layers are on the ranks")

    def set_max_model_len(self, max_model_len: int) -> None:
        """Each rank is told when it makes its model."""

    def _is_elsewhere(self, *_: Any) -> NoReturn:
        raise AttributeError("the model is on the ranks")

    forward = compute_logits = lend_embed_tokens = lend_lm_head = _is_elsewhere
    get_eagle3_default_aux_hidden_state_layers = _is_elsewhere


def check_settings(config: EngineConfig) -> None:
    """Raises ValueError, naming it, for a setting that does not go with several ranks."""
    size = _name_sizes(config)
    if config.pipeline_parallel_size > 1:
        for name, value in (
            ("async_scheduling", config.async_scheduling),
            ("speculative_config", config.speculation is not None),
        ):
            if value:
                raise ValueError(
                    f"{name} does not go with {size}: the first stages are told tokens only "
                    "after the last has sampled them"
                )
    if config.attention != "numpy" and not config.is_launched:
        raise ValueError(
            f"attention {config.attention!r} does not go with {size}: only 'numpy' does, or else "
            "distributed_executor_backend 'external_launcher', under torchrun"
        )
    if config.cudagraph_mode != "NONE":
        raise ValueError(
            f"cudagraph_mode {config.cudagraph_mode!r} does not go with {size}: a graph that is replayed "
            "speaks to no other rank"
        )
    speculation = config.speculation
    if speculation is not None and speculation.method != "ngram":
        raise ValueError(
            f"speculative_config's method {speculation.method!r} does not go with {size}: of the drafters "
            "only 'ngram' needs no model"
        )


def check_data_parallel(config: EngineConfig, whole: LlamaConfig) -> None:
    """Raises ValueError, naming it, for a setting or model that does not go with several engines."""
    size = config.data_parallel_size
    if config.attention != "numpy":
        raise ValueError(
            f"attention {config.attention!r} does not go with data_parallel_size {size}: only 'numpy' does"
        )
    if not isinstance(whole, MoeConfig):
        return
    step = (
        f"data_parallel_size {size} with this {whole.architecture}, whose experts the engines share"
    )
    if not config.enable_expert_parallel:
        raise ValueError(f"{step}, needs enable_expert_parallel: an expert is whole on one rank")
    for name, value, plain in (
        ("pipeline_parallel_size", config.pipeline_parallel_size, 1),
        ("async_scheduling", config.async_scheduling, False),
        ("cudagraph_mode", config.cudagraph_mode, "NONE"),
        ("speculative_config", config.speculation is not None, False),
    ):
        if value != plain:
            raise ValueError(f"{name} does not go with {step}: they step together")
    ranks = size * config.tensor_parallel_size
    if whole.num_experts < ranks:
        raise ValueError(
            f"num_experts ({whole.num_experts}) must be at least data_parallel_size times "
            f"tensor_parallel_size ({ranks}): each rank has one"
        )


def load_launched_rank(
    folder: str | Path | ModelForTextGeneration, config: EngineConfig, parts: EngineParts
) -> ModelForTextGeneration:
    """This process's share of the model, where torchrun has started a process for each rank. All of them run
    the same script, and their schedulers decide the same
    (`vllm/v1/executor/uniproc_executor.py:149 ExecutorWithExternalLauncher`).

    Raises ValueError where model, settings and processes do not go together, naming both.
    """
    from mini_vllm.gpu.torch_communicator import join_launched_ranks

    check_settings(config)
    if not isinstance(folder, str | Path):
        raise ValueError(
            "distributed_executor_backend 'external_launcher' is for a checkpoint folder, of which each rank "
            "reads its share, and the model is a loaded one"
        )
    if config.pipeline_parallel_size > 1:
        raise ValueError(
            f"pipeline_parallel_size {config.pipeline_parallel_size} does not go with "
            "distributed_executor_backend 'external_launcher'"
        )
    whole, size = load_config(folder), config.tensor_parallel_size
    check_tensor_parallel(whole, size, config.enable_expert_parallel)
    tensor = join_launched_ranks()
    if tensor.world_size != size:
        raise ValueError(
            f"tensor_parallel_size ({size}) must be the number of processes that torchrun has started "
            f"({tensor.world_size})"
        )
    pipeline = Pipeline(0, 1, None, None, tensor)
    groups = RankGroups(tensor.rank, tensor, pipeline, config.enable_expert_parallel)
    backend = get_backend(config.attention)
    make_attention = parts.attention or backend.get_attention_cls()
    model: Any = load_model(folder, make_attention(), backend.get_model_cls(), groups)
    model.groups = groups
    return cast("ModelForTextGeneration", model)


def agree_on_blocks(model: Any, config: ResolvedConfig) -> ResolvedConfig:
    """As many blocks on each rank as the one with the least memory has room for
    (`vllm/v1/core/kv_cache_utils.py:2058 in get_kv_cache_configs`)."""
    blocks = model.groups.tensor.exchange(np.array([config.num_gpu_blocks]))
    return dataclasses.replace(config, num_gpu_blocks=int(min(blocks)))


def _name_sizes(config: EngineConfig) -> str:
    names = ("tensor_parallel_size", "pipeline_parallel_size")
    sizes = [f"{n} {getattr(config, n)}" for n in names if getattr(config, n) > 1]
    return (
        " and ".join(sizes)
        or f"distributed_executor_backend {config.distributed_executor_backend!r}"
    )


def make_multiproc_executor(
    model: ModelOnRanks,
    config: ResolvedConfig,
    parts: EngineParts,
    make_model_runner: MakeModelRunner,
) -> MultiprocExecutor:
    """The executor, when each of its ranks has its share of the model.

    Args:
        model: what the engine knows of it.
        config, parts: the engine's.
        make_model_runner: called in each rank's process.

    Raises ValueError for another's part that cannot go to a rank, and what making a rank's worker raises.
    """
    for name in _OF_RANKS:
        if getattr(parts, name) is not getattr(DEFAULT_PARTS, name):
            raise ValueError(
                f"parts.{name} ({getattr(parts, name)!r}) does not go with {_name_sizes(config)}: each rank "
                "makes its own"
            )
    for name, value in (
        ("parts.sampler", parts.sampler),
        ("logits_processors", config.logits_processors),
    ):
        try:
            pickle.dumps(value)
        except Exception as error:
            raise ValueError(
                f"{name} ({value!r}) cannot be sent to the ranks of {_name_sizes(config)}: they must be able "
                f"to import it ({error})"
            ) from error
    make_worker = partial(
        _make_worker, model.folder, config, parts.sampler, model.place, make_model_runner
    )
    stages = config.pipeline_parallel_size
    depth = 2 if config.async_scheduling else stages
    return MultiprocExecutor(make_worker, config.tensor_parallel_size, stages, depth)


def _make_worker(
    folder: str | Path,
    config: ResolvedConfig,
    sampler: Any,
    place: EnginePlace | None,
    make_model_runner: MakeModelRunner,
    groups: RankGroups,
) -> Worker:
    """In a rank's process: its share of the model, and what runs it."""
    limit_threads(max(1, count_cores() // (config.world_size * config.data_parallel_size)))
    backend = get_backend(config.attention)
    groups = dataclasses.replace(groups, expert_parallel=config.enable_expert_parallel)
    if place is not None:
        memory = place.memories[groups.tensor.rank]
        engines = SharedMemoryCommunicator(place.rank, place.size, memory)
        groups = dataclasses.replace(groups, data=DataParallel(engines))
    model = load_model(folder, backend.get_attention_cls()(), backend.get_model_cls(), groups)
    model.set_max_model_len(config.max_model_len)
    parts = dataclasses.replace(DEFAULT_PARTS, sampler=sampler)
    return Worker(make_model_runner(model, config, parts), groups)
