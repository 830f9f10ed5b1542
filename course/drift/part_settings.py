"""Cases of CUDA graphs and of the KV cache's groups, for `part_cases`: what follows of a configuration.

They run on vLLM's CUDA platform, which is told that it is on an H100.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from course.drift.record import ROOT

Rng = np.random.Generator


def engine_config(**settings: Any) -> Any:
    """A whole `VllmConfig` for the course's checkpoint."""
    from vllm.engine.arg_utils import EngineArgs

    folder = str(ROOT / "mini_vllm/checkpoints/tiny-llama")
    return EngineArgs(model=folder, dtype="float16", **settings).create_engine_config()


def graphs(rng: Rng, number: int, what: str, drafts: str = "") -> Any:
    """The mode and the capture sizes, or how steps of all lengths are dispatched."""
    from vllm.v1.attention.backend import AttentionCGSupport
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

    seqs = int(rng.choice([1, 5, 8, 33, 64, 100, 256, 300, 512, 1024]))
    k = int(rng.integers(1, 8)) if drafts else 0
    modes = ["FULL_AND_PIECEWISE"] * 3 + ["PIECEWISE", "FULL", "FULL_DECODE_ONLY", "NONE"]
    compilation: dict[str, Any] = {"cudagraph_mode": str(rng.choice(modes))}
    given = number % 3
    if what == "dispatch" or given == 1:  # sizes of one's own
        own = np.unique(rng.integers(1, 200, 12) * (1 + k))
        compilation["cudagraph_capture_sizes"] = own.tolist()
    elif given == 2:
        compilation["max_cudagraph_capture_size"] = int(rng.integers(4, 700))
    settings: dict[str, Any] = {"compilation_config": compilation, "max_num_seqs": seqs}
    settings["max_num_batched_tokens"] = int(rng.choice([1024, 1500, 8192]))
    if k:
        ngram = {"method": "ngram", "num_speculative_tokens": k, "prompt_lookup_max": 4}
        settings["speculative_config"] = ngram
    config = engine_config(max_model_len=256, **settings)
    compiled = config.compilation_config
    dispatcher = CudagraphDispatcher(config)
    mode = compiled.resolve_cudagraph_mode_and_sizes(AttentionCGSupport.ALWAYS, None, 1 + k)
    sizes = list(compiled.cudagraph_capture_sizes or [])
    if what == "sizes":
        return [mode.name, sizes]
    dispatcher.initialize_cudagraph_keys(mode, 1 + k)
    captured = [
        [one.name, [key.num_tokens for key in keys]] for one, keys in dispatcher.get_capture_descs()
    ]
    runs = []
    for tokens in range(1, (sizes or [8])[-1] + 3):
        for uniform in (False, True):
            if uniform and (tokens % (1 + k) or tokens // (1 + k) > seqs):
                continue
            how, key = dispatcher.dispatch(tokens, uniform)
            runs.append([tokens, uniform, how.name, key.num_tokens, key.num_reqs, key.uniform])
    return [mode.name, captured, runs]


def layers(rng: Rng, kind: str, heads: int, size: int) -> list[Any]:
    """The specs of a model's layers, in order."""
    import torch
    from vllm.v1 import kv_cache_interface as kv

    usual: dict[str, Any] = {"block_size": size, "dtype": torch.bfloat16}
    wide = usual | {"num_kv_heads": heads, "head_size": 128}
    if "indexes_kv_by_block_stride" in kv.AttentionSpec.__dataclass_fields__:
        wide["indexes_kv_by_block_stride"] = True  # as the runner says of FlashAttention
    full = kv.FullAttentionSpec(**wide)
    window = kv.SlidingWindowSpec(**wide, sliding_window=int(rng.choice([128, 512, 1024, 4096])))
    chunk = kv.ChunkedLocalAttentionSpec(**wide, attention_chunk_size=8192)
    n = int(rng.integers(2, 9))
    if kind == "full":
        return [full] * int(rng.integers(2, 65))
    if kind == "windows":
        return [window] * int(rng.integers(2, 65))
    if kind == "full and windows":
        one, other = int(rng.integers(1, 8)), int(rng.integers(1, 3))
        return ([window] * one + [full] * other) * n + [window] * int(rng.integers(0, one + 1))
    if kind == "full and chunks":
        return ([chunk] * 3 + [full]) * n
    latent = kv.MLAAttentionSpec(
        **usual | {"num_kv_heads": 1, "head_size": 576}, cache_dtype_str="auto"
    )
    if kind == "latent":
        return [latent] * n * 4
    if kind == "latent and an indexer":  # as DeepSeek-V3.2
        of_bytes = usual | {"num_kv_heads": 1, "head_size": 132, "dtype": torch.uint8}
        return [latent, kv.MLAAttentionSpec(**of_bytes)] * n
    if kind == "full of two widths":
        return [full, kv.FullAttentionSpec(**wide | {"head_size": 256})] * n
    if kind == "windows of half the width":
        half = kv.SlidingWindowSpec(**wide | {"head_size": 64}, sliding_window=512)
        return ([half] * int(rng.integers(1, 6)) + [full]) * n
    if kind == "windows of other pages":
        other = kv.SlidingWindowSpec(**wide | {"head_size": 192}, sliding_window=512)
        return ([other] * int(rng.integers(1, 6)) + [full]) * n
    state = kv.MambaSpec(
        block_size=2048,
        shapes=((3, 256), (8, 64, 16)),
        dtypes=(torch.bfloat16, torch.float32),
        page_size_padded=full.page_size_bytes * int(np.ceil(34304 / full.page_size_bytes)),
    )
    return ([state] * int(rng.integers(1, 8)) + [full]) * n


def cache_config(rng: Rng, number: int, what: str, *kinds: str) -> Any:
    """The groups of a model's layers with their block sizes, and how many blocks; or the longest text that
    fits, if one does."""
    from vllm.v1.attention.backends import utils as backends

    utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
    if not hasattr(utils, "get_kv_cache_configs"):
        utils = importlib.import_module("vllm.v1.core.kv_cache_planning")
    kind = kinds[number % len(kinds)]
    heads, size = int(rng.choice([1, 2, 8])), int(rng.choice([16, 32, 64]))
    specs = {f"model.layers.{i}": spec for i, spec in enumerate(layers(rng, kind, heads, size))}
    config = engine_config(max_num_batched_tokens=int(rng.choice([2048, 8192])))
    config.scheduler_config.disable_hybrid_kv_cache_manager = bool(rng.random() < 0.15)
    config.model_config.max_model_len = int(rng.choice([8192, 131072]))
    memory = int(rng.uniform(40, 70) * 2**30)
    if what == "longest":
        config.model_config.original_max_model_len = -1
        memory = int(rng.uniform(0.01, 4) * 2**30)
    elif rng.random() < 0.2:
        config.cache_config.num_gpu_blocks_override = 9000
    names = list(specs)
    at = len(names) // 2 if rng.random() < 0.2 else len(names)  # two pipeline stages, or one
    given = [{n: specs[n] for n in stage} for stage in (names[:at], names[at:]) if stage]
    arguments = [config, given, [memory] * len(given)]
    if hasattr(backends, "resolve_kv_cache_layout"):  # of backends that take every layout
        layouts = [[one.name for one in backends.get_supported_kv_cache_layouts([])]]
        backends.resolve_kv_cache_layout(config, layouts * len(given), list(specs.values()))
    try:
        if hasattr(utils, "get_global_kv_cache_groups"):
            arguments.append(utils.get_global_kv_cache_groups(config, given))
        found = utils.get_kv_cache_configs(*arguments)
    except (ValueError, NotImplementedError) as error:
        return type(error).__name__
    if what == "longest":
        return [kind, config.model_config.max_model_len]
    return [
        kind,
        found[0].num_blocks,
        [
            [
                sorted(names.index(layer) for layer in group.layer_names),
                group.kv_cache_spec.block_size,
            ]
            for one in found
            for group in one.kv_cache_groups
        ],
    ]
