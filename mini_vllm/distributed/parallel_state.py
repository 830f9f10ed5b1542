"""Which ranks share a layer, which hand a step on to each other, and who has which layers.

Mirrors `vllm/distributed/parallel_state.py:1506 initialize_model_parallel`. Upstream the groups are global,
and layers ask for theirs; here each rank is given its own.

The engine has tensor parallel groups, pipelines, and the ranks of engines that step together. Of the other
groups it knows only which ranks would be in them (`make_group_ranks`).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import numpy as np

from mini_vllm.distributed.communicator import (
    Array,
    Communicator,
    Ledger,
    RankDiedError,
)


def get_pp_indices(num_hidden_layers: int, pp_rank: int, pp_size: int) -> range:
    """The layers of a stage. Where they do not come out even, the stages before the last get one more each,
    from the end on: the last has the head, and the first the embedding.

    Source: `vllm/distributed/utils.py:95 get_pp_indices`.
    """
    counts = [num_hidden_layers // pp_size] * pp_size
    for i in range(num_hidden_layers % pp_size):
        counts[-2 - i] += 1
    start = sum(counts[:pp_rank])
    return range(start, start + counts[pp_rank])


def get_place(rank: int, tensor_parallel_size: int) -> tuple[int, int]:
    """A rank's stage, and its number among those of the stage: these are neighbours
    (`vllm/distributed/parallel_state.py:1572 in initialize_model_parallel`)."""
    return divmod(rank, tensor_parallel_size)


def make_group_ranks(
    world_size: int,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    prefill_context_parallel_size: int = 1,
    decode_context_parallel_size: int = 1,
    data_parallel_size: int = 1,
    is_moe: bool = True,
) -> dict[str, list[list[int]]]:
    """Every group of every kind, by vLLM's names for the kinds: `tp`, `dcp`, `pcp`, `pp`, `dp`, and for a
    mixture of experts `ep`.

    All ranks in one array of five axes; a group runs along an axis, or along several. What is left of the
    world is split from the front, into copies that vLLM takes no part in. Decode context parallelism has no
    axis: it cuts a tensor parallel group into smaller ones.

    Raises ValueError where the sizes do not divide the world, or each other.

    Source: `vllm/distributed/parallel_state.py:1506 initialize_model_parallel`.
    """
    dp, pp = data_parallel_size, pipeline_parallel_size
    pcp, tp = prefill_context_parallel_size, tensor_parallel_size
    dcp = decode_context_parallel_size
    if world_size % (dp * pp * pcp * tp):
        raise ValueError(f"{world_size} ranks are no multiple of {dp} x {pp} x {pcp} x {tp}")
    if tp % dcp:
        raise ValueError(
            f"tensor_parallel_size ({tp}) must be divisible by decode_context_parallel_size ({dcp})"
        )
    all_ranks = np.arange(world_size).reshape(-1, dp, pp, pcp, tp)
    groups = {
        "tp": all_ranks.reshape(-1, tp),
        "dcp": all_ranks.reshape(-1, dcp),
        "pcp": all_ranks.swapaxes(3, 4).reshape(-1, pcp),
        "pp": all_ranks.swapaxes(2, 4).reshape(-1, pp),
        "dp": all_ranks.swapaxes(1, 4).reshape(-1, dp),
    }
    if is_moe:
        groups["ep"] = all_ranks.swapaxes(1, 2).reshape(-1, dp * pcp * tp)
    return {name: ranks.tolist() for name, ranks in groups.items()}


class DataParallel:
    """A rank among those that have its place in the other engines: each sends its tokens to the
    others' experts.

    Attributes:
        communicator: of these ranks.
        sizes: tokens of each in the step under way.
    """

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.sizes: list[int] = []

    def agree_on_sizes(self, num_tokens: int) -> None:
        """Tell the others how many tokens this one has in the step. As upstream, the number goes twice,
        without and with padding, and two more say what there is none of here: halves of a batch, graphs
        (`vllm/v1/worker/dp_utils.py:36 _run_ar`)."""
        counts = np.zeros((4, self.communicator.world_size), np.int32)
        counts[:2, self.communicator.rank] = num_tokens
        self.sizes = self.communicator.all_reduce(counts)[1].tolist()


@dataclass(frozen=True)
class EnginePlace:
    """An engine among those that step together. It goes to the processes of its ranks.

    Attributes:
        rank, size: which of how many.
        memories: for each of its ranks, what that shares with the ranks of its place in the other engines.
    """

    rank: int
    size: int
    memories: list[Any]


class Pipeline:
    """A rank's end of the pipeline: from the same rank of the stage before, to that of the stage behind.

    Args:
        rank, size: the stage, and how many there are.
        before, behind: pipes; None at the ends.
        tensor: the communicator of the stage.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        before: Connection | None,
        behind: Connection | None,
        tensor: Communicator,
    ) -> None:
        self.rank = rank
        self.size = size
        self.ledger = Ledger()
        self._before = before
        self._tensor = tensor
        self._out: SimpleQueue[Array] = SimpleQueue()
        if behind is not None:
            # Sending is left to a thread, so that a stage goes on when the one behind is not ready yet
            # (`vllm/distributed/parallel_state.py:871 GroupCoordinator.isend_tensor_dict`).
            args = (self._out, behind)
            threading.Thread(target=_send, args=args, name="mini-vllm-stage", daemon=True).start()

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        return self.rank == self.size - 1

    def send(self, *arrays: Array) -> None:
        """Hand arrays to the stage behind. Where the ranks of this stage are several, each sends its share,
        since all have the same numbers
        (`vllm/distributed/parallel_state.py:819 GroupCoordinator._should_use_all_gather`)."""
        for array in arrays:
            share = array
            if array.size % self._tensor.world_size == 0:
                share = array.reshape(self._tensor.world_size, -1)[self._tensor.rank]
            self.ledger.record("send", share)
            self._out.put(share.copy())

    def receive(self, shape: tuple[int, ...]) -> Array:
        """An array of this shape, float32, from the stage before.

        Raises RankDiedError where that is gone.
        """
        assert self._before is not None, "the first stage has none before it"
        try:
            share = np.frombuffer(self._before.recv_bytes(), np.float32)
        except (EOFError, OSError) as error:
            raise RankDiedError(f"stage {self.rank}: the stage before is gone") from error
        if share.size < np.prod(shape):
            share = self._tensor.all_gather(share, 0)
        return share.reshape(shape)


def _send(out: SimpleQueue[Array], behind: Connection) -> None:
    while True:
        try:
            behind.send_bytes(out.get().tobytes())
        except OSError:
            return  # it is gone, and the executor sees that


@dataclass(frozen=True)
class RankGroups:
    """What a rank is part of.

    Attributes:
        rank: among all.
        tensor: those that share its layers.
        pipeline: its stage's place.
        expert_parallel: those that share its layers share the experts out among them.
        data: those of its place in engines that step together; None: there are none, or they step alone.
    """

    rank: int
    tensor: Communicator
    pipeline: Pipeline
    expert_parallel: bool = False
    data: DataParallel | None = None

    def get_ledgers(self) -> dict[str, Any]:
        """What it has said, by group."""
        ledgers = {"tensor": self.tensor.ledger, "pipeline": self.pipeline.ledger}
        if self.data is not None:
            ledgers["data"] = self.data.communicator.ledger
        return ledgers
