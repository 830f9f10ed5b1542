"""Ranks that speak through `torch.distributed`: gloo between processes on CPUs, NCCL between GPUs.

Mirrors `vllm/distributed/device_communicators/base_device_communicator.py:118 DeviceCommunicatorBase`, whose
sums are torch's too. Left out: the back ends that vLLM tries before
(`vllm/distributed/device_communicators/cuda_communicator.py:241 CudaCommunicator.all_reduce`).
"""

from __future__ import annotations

import atexit
import os
from typing import Any

import torch
from torch import distributed

from mini_vllm.distributed.communicator import Communicator


class TorchCommunicator(Communicator):
    """A rank's end of a process group. Takes tensors and numpy arrays, and gives back what it was given.

    Sums are torch's: NCCL chooses their order, so they need not have the bits of another communicator's.

    Args:
        group: None: of all ranks.
    """

    def __init__(self, group: distributed.ProcessGroup | None = None) -> None:
        super().__init__(distributed.get_rank(group), distributed.get_world_size(group))
        self.group = group

    def all_reduce(self, array: Any) -> Any:
        """The sum over the ranks, in a new array."""
        if self.world_size == 1:
            return array
        self.ledger.record("all_reduce", array)
        total = torch.as_tensor(array).clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total, group=self.group)
        return total if isinstance(array, torch.Tensor) else total.numpy()

    def all_gather(self, array: Any, axis: int = -1) -> Any:
        if self.world_size == 1:
            return array
        self.ledger.record("all_gather", array)
        gathered = torch.cat(self.exchange(array), dim=axis)
        return gathered if isinstance(array, torch.Tensor) else gathered.numpy()

    def exchange(self, array: Any) -> list[Any]:
        """Every rank's array, as tensors."""
        mine = torch.as_tensor(array).contiguous()
        arrays = [torch.empty_like(mine) for _ in range(self.world_size)]
        distributed.all_gather(arrays, mine, group=self.group)
        return arrays


def join_launched_ranks() -> TorchCommunicator:
    """The communicator of the processes that `torchrun` has started, each on its own GPU where there are any
    (`vllm/distributed/parallel_state.py:1370 init_distributed_environment`).

    Raises ValueError where this process was started otherwise.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise ValueError(
            "distributed_executor_backend 'external_launcher' is for processes that torchrun has started: "
            "RANK and WORLD_SIZE are not set"
        )
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not distributed.is_initialized():
        distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
        # Else gloo's threads may still run when the interpreter takes down what they use, which aborts.
        atexit.register(_leave)
    return TorchCommunicator()


def _leave() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()
