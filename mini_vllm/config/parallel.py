"""How many processes share the model.

Mirrors `vllm/config/parallel.py`. Left out: context parallelism, engines behind another's load balancer,
other machines.
"""

from __future__ import annotations

from dataclasses import dataclass

from mini_vllm.config.checks import check_flag, check_integer, check_one_of

BACKENDS = ("uni", "mp", "external_launcher")


@dataclass(frozen=True)
class ParallelConfig:
    """How the model is split.

    Attributes:
        tensor_parallel_size: ranks, each a process, that share every layer
            (`vllm/config/parallel.py:113 ParallelConfig.tensor_parallel_size`).
        pipeline_parallel_size: stages, each with some of the layers and `tensor_parallel_size` ranks
            (`vllm/config/parallel.py:111 ParallelConfig.pipeline_parallel_size`).
        data_parallel_size: engines, each a process with its own scheduler and KV cache, that share the
            requests (`vllm/config/parallel.py:117 ParallelConfig.data_parallel_size`).
        enable_expert_parallel: a rank has some experts whole, not a part of each
            (`vllm/config/parallel.py:151 ParallelConfig.enable_expert_parallel`).
        distributed_executor_backend: `uni`: in this process; `mp`: a process for each rank;
            `external_launcher`: this process is one rank of those that torchrun has started. None: `uni` for
            one rank, else `mp`.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    distributed_executor_backend: str | None = None

    def _check_parallel(self) -> None:
        check_integer("tensor_parallel_size", self.tensor_parallel_size, 1, 64)
        backend = self.distributed_executor_backend
        if backend is not None:
            check_one_of("distributed_executor_backend", backend, BACKENDS)
        if backend == "uni" and self.world_size > 1:
            raise ValueError(
                f"distributed_executor_backend 'uni' runs one rank, and there are {self.world_size}: "
                "tensor_parallel_size times pipeline_parallel_size"
            )
        check_flag("enable_expert_parallel", self.enable_expert_parallel)
        check_integer("pipeline_parallel_size", self.pipeline_parallel_size, 1, 64)
        check_integer("data_parallel_size", self.data_parallel_size, 1, 64)
        if self.is_launched and self.data_parallel_size > 1:
            raise ValueError(
                f"data_parallel_size {self.data_parallel_size} does not go with distributed_executor_backend "
                "'external_launcher': each engine is a process that the front end starts"
            )

    @property
    def is_launched(self) -> bool:
        """Whether this process is one of the ranks."""
        return self.distributed_executor_backend == "external_launcher"

    @property
    def has_processes(self) -> bool:
        """Whether each rank is a process that the engine starts."""
        several = self.world_size > 1 and not self.is_launched
        return several or self.distributed_executor_backend == "mp"

    @property
    def world_size(self) -> int:
        """Ranks of an engine."""
        return self.tensor_parallel_size * self.pipeline_parallel_size
