"""The model runner of a model that has a window, or several KV cache groups.

Mirrors what `vllm/v1/worker/gpu_model_runner.py` does once for each group: a block table, slots, and the
metadata that layers of the group get. `model_runner.py` has one group of full attention, and knows nothing of
any of this.

The groups' layers share arrays: there are as many as the largest group has layers, and the first layers of
all groups use the first one (`vllm/v1/core/kv_cache_utils.py:1302 in get_kv_cache_config_from_groups`).

The scheduler does not say when a block has fallen out of a window. Its number stays in the table here, and
whoever got it writes to it; attention begins at the window's first block and never looks there.

Left out: CUDA graphs, caches in 8 bits, torch, Triton. Who asks for them is refused (`check_hybrid`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mini_vllm.attention import AttentionMetadata
from mini_vllm.config.engine import EngineConfig
from mini_vllm.core.kv_cache_groups import get_kv_cache_config, get_kv_cache_specs
from mini_vllm.core.kv_cache_interface import SlidingWindowSpec
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.sample.sampler import Sampler
from mini_vllm.worker.model_runner import CachedRequestState, ModelRunner


def check_hybrid(model: LlamaForCausalLM, config: EngineConfig) -> None:
    """Raises ValueError, naming it, for a setting that does not go with windows."""
    kind = model.config.architecture
    for name, plain in (
        ("attention", "numpy"),
        ("kv_cache_dtype", "auto"),
        ("cudagraph_mode", "NONE"),
    ):
        value = getattr(config, name)
        if value != plain:
            raise ValueError(
                f"{name} {value!r} is not supported for this {kind}, which attends to a sliding window: "
                f"only {name} {plain!r} is"
            )
    if config.async_scheduling and config.speculation is not None:
        raise ValueError(
            f"async_scheduling does not go with speculation for this {kind}, which attends to a sliding "
            "window: a plan takes the drafts in flight for accepted, gives back what the window then has "
            "passed, and reads it if they are not"
        )
    if not getattr(model.attention, "supports_sliding_window", False):
        raise ValueError(
            f"{type(model.attention).__name__} does not support the sliding window that this {kind} "
            "attends to"
        )


class HybridModelRunner(ModelRunner):
    """Executes steps, with a block table for each group. Arguments are those of `ModelRunner`.

    Raises ValueError as that, and for what `check_hybrid` refuses.
    """

    def __init__(self, model: LlamaForCausalLM, config: EngineConfig, sampler: Sampler) -> None:
        check_hybrid(model, config)
        assert config.num_gpu_blocks is not None
        self.kv_cache_config = get_kv_cache_config(
            model.config, config.block_size, config.num_gpu_blocks
        )
        groups = self.kv_cache_config.kv_cache_groups
        specs = [group.kv_cache_spec for group in groups]
        self.sliding_windows = [
            spec.sliding_window if isinstance(spec, SlidingWindowSpec) else None for spec in specs
        ]
        # For each layer its group, and which of the group's layers it is.
        places = {
            name: (group_id, index)
            for group_id, group in enumerate(groups)
            for index, name in enumerate(group.layer_names)
        }
        names = get_kv_cache_specs(model.config, config.block_size)
        self.places_of_layers = [places[name] for name in names]
        super().__init__(model, config, sampler)
        self.num_blocks: list[Any] = [[] for _ in self.num_blocks]  # of each row and group
        self.block_tables = [self.block_table, *(self.block_table.copy() for _ in groups[1:])]

    def _allocate_kv_caches(self, shape: tuple[int, ...]) -> list[Any]:
        """Each layer's cache; one layer of every group has the same array."""
        arrays = [np.zeros(shape, np.float32) for _ in range(self.kv_cache_config.group_size)]
        return [arrays[index] for _, index in self.places_of_layers]

    def _take_row(self, state: CachedRequestState) -> None:
        super()._take_row(state)
        self.num_blocks[state.row] = [0] * len(self.block_tables)

    def _append_blocks(self, row: int, block_ids: Any) -> None:
        """`block_ids` has a list for each group."""
        starts = self.num_blocks[row]
        for group_id, (table, ids) in enumerate(zip(self.block_tables, block_ids, strict=True)):
            start = starts[group_id]
            table[row, start : start + len(ids)] = ids
            starts[group_id] = start + len(ids)

    def _prepare_inputs(
        self, rows: np.ndarray, num_scheduled_tokens: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, AttentionMetadata]:
        """As `ModelRunner._prepare_inputs`, once for each group's table. The metadata is the first group's;
        if there are several, `layers` has those of all layers."""
        of_groups = []
        for table, window in zip(self.block_tables, self.sliding_windows, strict=True):
            self.block_table = table
            input_ids, positions, metadata = super()._prepare_inputs(rows, num_scheduled_tokens)
            metadata.sliding_window = window
            of_groups.append(metadata)
        first = of_groups[0]
        if len(of_groups) > 1:
            layers = [of_groups[group_id] for group_id, _ in self.places_of_layers]
            first = replace(first, layers=layers)
        return input_ids, positions, first
