"""How many processes share the model.

Mirrors `vllm/config/parallel.py`. Left out: data and context parallelism, other machines.
"""

from __future__ import annotations

from dataclasses import dataclass

from mini_vllm.config.checks import check_flag, check_integer


@dataclass(frozen=True)
class ParallelConfig:
    """How the model is split.

    Attributes:
        tensor_parallel_size: ranks, each a process, that share every layer
            (`vllm/config/parallel.py:113 ParallelConfig.tensor_parallel_size`).
        pipeline_parallel_size: stages, each with some of the layers and so many ranks
            (`vllm/config/parallel.py:111 ParallelConfig.pipeline_parallel_size`).
        enable_expert_parallel: a rank has some experts whole, not a part of each
            (`vllm/config/parallel.py:151 ParallelConfig.enable_expert_parallel`).
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    enable_expert_parallel: bool = False

    def _check_parallel(self) -> None:
        check_integer("tensor_parallel_size", self.tensor_parallel_size, 1, 64)
        check_flag("enable_expert_parallel", self.enable_expert_parallel)
        check_integer("pipeline_parallel_size", self.pipeline_parallel_size, 1, 64)

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.tensor_parallel_size * self.pipeline_parallel_size
