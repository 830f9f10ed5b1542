"""What an engine is made of, put together: settings filled in, and each part made as they say.

Upstream this is spread over `vllm/v1/engine/core.py:235 EngineCore._initialize_kv_caches`, the worker
(`vllm/v1/worker/gpu_worker.py`) and `vllm/config/vllm.py`. What a setting of one part forbids another is
refused here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_vllm.attention.registry import get_backend
from mini_vllm.config.cache import DEFAULT_KV_CACHE_BYTES
from mini_vllm.config.engine import EngineConfig, ResolvedConfig
from mini_vllm.core.kv_cache_groups import block_bytes, get_kv_cache_config
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.engine.parts import DEFAULT_PARTS, EngineParts
from mini_vllm.executor.abstract import Executor
from mini_vllm.executor.uniproc_executor import UniProcExecutor
from mini_vllm.layers.quantization import get_quantization_config
from mini_vllm.model_loader import get_model
from mini_vllm.models.interfaces_base import ModelForTextGeneration
from mini_vllm.sample.sampler import Sampler
from mini_vllm.utils.math import cdiv
from mini_vllm.utils.memory import available_memory
from mini_vllm.worker.components import Speculation
from mini_vllm.worker.forward import ModelForward
from mini_vllm.worker.memory import check_memory
from mini_vllm.worker.model_runner import ModelRunner

if TYPE_CHECKING:
    from mini_vllm.core.hybrid_kv_cache_manager import HybridKVCacheManager
    from mini_vllm.core.sched.grammars import Grammars
    from mini_vllm.core.sched.scheduler import Scheduler
    from mini_vllm.lora.registry import LoRARegistry
    from mini_vllm.tokenizer.tokenizer import Tokenizer


def resolve_config(config: EngineConfig, model: ModelForTextGeneration) -> ResolvedConfig:
    """Fill in what depends on the model: `max_model_len`, `num_gpu_blocks` and `kv_cache_dtype`.

    The longest request is what the model's positions allow; a tokenizer's `model_max_length` is for models
    that pool (`vllm/config/model.py:2119 _get_and_verify_max_len`).

    Raises ValueError if `max_model_len` is more than the model was made for, if the memory holds
    fewer than 2 blocks, or if the settings ask for more memory than there is.
    """
    if config.enable_expert_parallel and not hasattr(model.config, "num_experts"):
        raise ValueError(
            "enable_expert_parallel is for a model with experts, and this "
            f"{model.config.architecture} has none"
        )
    if config.enable_lora:
        from mini_vllm.lora.layers import get_lora_modules

        get_lora_modules(model)  # refuses a model that adapters are not made for
    limit = model.config.max_model_len
    max_model_len = config.max_model_len or model.config.default_max_model_len
    if max_model_len > limit:
        raise ValueError(
            f"max_model_len ({max_model_len}) is greater than what the model was made for "
            f"({limit} tokens)"
        )
    config = dataclasses.replace(config, max_model_len=max_model_len)
    if config.kv_cache_dtype == "auto":  # a checkpoint may turn a cache in 8 bits on
        quantization = get_quantization_config(model.config.quantization_config)
        config = dataclasses.replace(config, kv_cache_dtype=quantization.kv_cache_dtype)
    drafter_bytes_per_block = 0
    if config.speculation is not None:
        from mini_vllm.spec_decode.loading import drafter_block_bytes

        drafter_bytes_per_block = drafter_block_bytes(
            config.speculation, config.block_size, config.kv_cache_dtype
        )
    if config.num_gpu_blocks is None:
        bytes_per_block = (
            block_bytes(model.config, config.block_size, config.kv_cache_dtype)
            + drafter_bytes_per_block
        )
        memory = config.kv_cache_memory_bytes or default_kv_cache_bytes(
            bytes_per_block * (cdiv(max_model_len, config.block_size) + 1)  # and the null block
        )
        num_gpu_blocks = memory // bytes_per_block
        if num_gpu_blocks < 2:
            raise ValueError(
                f"kv_cache_memory_bytes ({memory}) holds {num_gpu_blocks} "
                f"blocks of {bytes_per_block} bytes; at least 2 are needed"
            )
        # No use for more than all running requests can fill.
        groups = get_kv_cache_config(
            model.config, config.block_size, num_gpu_blocks
        ).kv_cache_groups
        max_useful_blocks = (
            config.max_num_seqs * cdiv(max_model_len, config.block_size) * len(groups) + 1
        )
        config = dataclasses.replace(config, num_gpu_blocks=min(num_gpu_blocks, max_useful_blocks))
    resolved = ResolvedConfig.of(config)
    check_memory(resolved, model.config, drafter_bytes_per_block)
    return resolved


def default_kv_cache_bytes(longest_request: int) -> int:
    """Bytes of the KV cache where no setting says how many: enough for the small models and, as memory
    allows, for one request of the greatest length, `longest_request` bytes."""
    return max(DEFAULT_KV_CACHE_BYTES, min(longest_request, available_memory() // 4))


def make_sampler(parts: EngineParts, config: ResolvedConfig) -> Sampler:
    """The sampler of these parts; another's need know no mode of logprobs but the usual one."""
    if config.logprobs_mode == "raw_logprobs":
        return parts.sampler(config.seed)
    return parts.sampler(config.seed, logprobs_mode=config.logprobs_mode)


def make_model_runner(
    model: ModelForTextGeneration, config: ResolvedConfig, parts: EngineParts
) -> ModelRunner:
    """The one model runner, with what runs the model under this attention backend, plainly or as graphs,
    and the components of the abilities that are on.

    Raises ValueError for settings that do not go together, and as the parts do.
    """
    check_windows(model, config)
    backend = get_backend(config.attention)
    make_forward: Callable[..., ModelForward] = backend.get_forward_cls()
    if config.cudagraph_mode != "NONE":
        graph_parts = {
            "graph_runner": parts.graph_runner,
            "cudagraph_dispatcher": parts.cudagraph_dispatcher,
        }
        given = {name: part for name, part in graph_parts.items() if part is not None}
        make_forward = partial(backend.get_graph_forward_cls(), **given)
    make_speculation: Callable[..., Speculation] | None = None
    if config.speculation is not None:
        from mini_vllm.worker.speculation import SpecDecode  # what a plain run does not load

        asked: dict[str, Any] = {
            "make_drafter": parts.drafter,
            "make_rejection_sampler": parts.rejection_sampler,
        }
        make_speculation = partial(
            SpecDecode, **{name: part for name, part in asked.items() if part is not None}
        )
    lora = None
    if config.enable_lora:
        from mini_vllm.lora.component import LoRAComponent
        from mini_vllm.models.llama import LlamaForCausalLM

        assert isinstance(model, LlamaForCausalLM), "`resolve_config` takes no other"
        lora = LoRAComponent(model, config)
        model, make_forward = lora.model, lora.wrap(make_forward)
    sampler = make_sampler(parts, config)
    return ModelRunner(model, config, sampler, make_forward, make_speculation, lora)


def get_engine_model(
    model: str | Path | ModelForTextGeneration, config: EngineConfig, parts: EngineParts
) -> ModelForTextGeneration:
    """The model that an engine is given or reads, or what it knows of one that its processes read.

    Raises ValueError for a loaded model and settings that need a folder.
    """
    if config.data_parallel_size > 1 and not isinstance(model, str | Path):
        raise ValueError(
            f"data_parallel_size {config.data_parallel_size} is for a checkpoint folder, which each "
            "engine reads for itself, and the model is a loaded one"
        )
    elsewhere = config.has_processes or config.data_parallel_size > 1
    if elsewhere and isinstance(model, str | Path):
        from mini_vllm.engine.ranks import ModelOnRanks

        return ModelOnRanks(model, config)
    if config.is_launched:
        from mini_vllm.engine.ranks import load_launched_rank

        return load_launched_rank(model, config, parts)
    return get_model(model, config.attention, parts.attention)


def make_loras(model: ModelForTextGeneration, config: ResolvedConfig) -> LoRARegistry | None:
    """What reads adapters; None where requests may name none."""
    if not config.enable_lora:
        return None
    from mini_vllm.lora.layers import get_lora_modules
    from mini_vllm.lora.registry import LoRARegistry

    return LoRARegistry(get_lora_modules(model), config.max_lora_rank)


def make_executor(
    model: ModelForTextGeneration, config: ResolvedConfig, parts: EngineParts
) -> Executor:
    """What runs the workers: in this process, or one for each rank. Raises ValueError as those do."""
    if not config.has_processes:
        runner = make_model_runner(model, config, parts)
        return UniProcExecutor(runner, 2 if config.async_scheduling else 1)
    from mini_vllm.engine.ranks import ModelOnRanks, make_multiproc_executor

    if not isinstance(model, ModelOnRanks):
        raise ValueError(
            "ranks (tensor_parallel_size, pipeline_parallel_size, distributed_executor_backend 'mp') are "
            "for a checkpoint folder, which each rank reads for itself, and the model is a loaded one"
        )
    return make_multiproc_executor(model, config, parts, make_model_runner)


def make_kv_cache_manager(
    model: ModelForTextGeneration, config: ResolvedConfig, parts: EngineParts
) -> KVCacheManager | HybridKVCacheManager:
    """The manager of the KV cache: of one group of full attention, or the one that knows groups and windows.

    Raises ValueError for another's part that knows nothing of groups.
    """
    kv_cache_config = get_kv_cache_config(model.config, config.block_size, config.num_gpu_blocks)
    use_eagle = config.speculation is not None and config.speculation.use_eagle()
    if kv_cache_config.is_plain:
        return parts.kv_cache_manager(
            config.num_gpu_blocks,
            config.block_size,
            config.max_model_len,
            config.enable_prefix_caching,
            parts.make_block_pool(config),
            **({"use_eagle": True} if use_eagle else {}),
        )
    for name in ("block_pool", "kv_cache_manager"):
        if getattr(parts, name) is not getattr(DEFAULT_PARTS, name):
            raise ValueError(
                f"parts.{name} ({getattr(parts, name)!r}) is for one KV cache group of full attention, and "
                "this model attends to a sliding window"
            )
    from mini_vllm.core.hybrid_kv_cache_manager import HybridKVCacheManager

    return HybridKVCacheManager(
        kv_cache_config,
        config.max_model_len,
        config.token_budget,
        config.enable_prefix_caching,
        parts.make_block_pool(config),
        use_eagle,
    )


def make_grammars(
    scheduler: Scheduler,
    config: ResolvedConfig,
    vocab_size: int,
    tokenizer: Tokenizer | Callable[[], Tokenizer] | None,
) -> Grammars:
    """What compiles rules and fills rows, for the first request that has one.

    Raises ValueError for an engine without a tokenizer, or with a scheduler that knows nothing of grammars.
    """
    from mini_vllm.structured_output.scheduling import GrammarScheduling

    return GrammarScheduling.make(scheduler, config, vocab_size, tokenizer)


def check_windows(model: ModelForTextGeneration, config: ResolvedConfig) -> None:
    """Raises ValueError, naming it, for a setting that does not go with a model that attends to a window."""
    if not any(model.config.sliding_windows):
        return
    architecture = model.config.architecture
    attends = f"this {architecture}, which attends to a sliding window"
    if config.kv_cache_dtype != "auto":
        raise ValueError(
            f"kv_cache_dtype {config.kv_cache_dtype!r} is not supported for {attends}: only kv_cache_dtype "
            "'auto' is"
        )
    if config.async_scheduling and config.speculation is not None:
        raise ValueError(
            f"async_scheduling does not go with speculation for {attends}: a plan takes the drafts in flight "
            "for accepted, gives back what the window then has passed, and reads it if they are not"
        )
    if not getattr(model.attention, "supports_sliding_window", False):
        raise ValueError(
            f"{type(model.attention).__name__} does not support the sliding window that this {architecture} "
            "attends to"
        )
