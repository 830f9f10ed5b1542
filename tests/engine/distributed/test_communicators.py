"""Sums and gathers over ranks that are threads, and ranks that are processes."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
import pytest

from mini_vllm.distributed import shm_communicator
from mini_vllm.distributed.communicator import Communicator, RankDiedError
from mini_vllm.distributed.parallel_state import get_pp_indices
from mini_vllm.distributed.shm_communicator import SharedMemoryCommunicator, allocate_shared_memory
from mini_vllm.distributed.thread_communicator import run_ranks
from mini_vllm.model_loader.shards import get_experts_of_rank


def speak(communicator: Communicator) -> list[np.ndarray]:
    """What a rank gets, of some calls in a row."""
    generator = np.random.default_rng(communicator.rank)
    answers = []
    for shape in [(3, 5), (1, 1), (2, 7), (0, 4)] * 3:
        x = generator.standard_normal(shape).astype(np.float32)
        answers += [communicator.all_reduce(x), communicator.all_gather(x)]
    return answers


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_all_ranks_get_the_same_bits_and_the_right_sum(size: int) -> None:
    answers = run_ranks(speak, size)
    for of_rank in answers[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(of_rank, answers[0], strict=True))
    generators = [np.random.default_rng(rank) for rank in range(size)]
    parts = [g.standard_normal((3, 5)).astype(np.float32) for g in generators]
    np.testing.assert_allclose(answers[0][0], np.sum(parts, 0, np.float64), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(answers[0][1], np.concatenate(parts, -1))


def _send_answers(rank: int, size: int, memory: Any, pipe: Any) -> None:
    shm_communicator.BUFFER_BYTES = 64  # so that most arrays go in pieces
    pipe.send(speak(SharedMemoryCommunicator(rank, size, memory)))


def test_processes_get_what_threads_get(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_communicator, "BUFFER_BYTES", 64)
    context = multiprocessing.get_context("spawn")
    memory = allocate_shared_memory(context, 3)
    answers = []
    pipes = [context.Pipe() for _ in range(3)]
    processes = [
        context.Process(target=_send_answers, args=(rank, 3, memory, pipes[rank][1]))
        for rank in range(3)
    ]
    for process in processes:
        process.start()
    for mine, theirs in pipes:
        answers.append(mine.recv())
        theirs.close()
    for process in processes:
        process.join()
    for of_rank in answers:
        for got, wanted in zip(of_rank, run_ranks(speak, 3)[0], strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_a_rank_that_ends_lets_none_wait() -> None:
    def rank_main(communicator: Communicator) -> None:
        if communicator.rank == 1:
            raise KeyError("rank 1")
        communicator.all_reduce(np.zeros(3))

    with pytest.raises((KeyError, RankDiedError)):
        run_ranks(rank_main, 3)


def test_a_rank_that_returns_early_lets_none_wait() -> None:
    """A rank that makes one call less than the others: a hang on a GPU, here an error."""

    def rank_main(communicator: Communicator) -> None:
        communicator.all_reduce(np.zeros(3))
        if communicator.rank == 0:
            communicator.all_reduce(np.zeros(3))

    for size in (2, 4):
        with pytest.raises(RankDiedError, match="rank 0 waits for one that has ended"):
            run_ranks(rank_main, size)


def test_shapes_that_differ_are_refused() -> None:
    def rank_main(communicator: Communicator) -> None:
        communicator.all_reduce(np.zeros((2, 1 + communicator.rank)))

    with pytest.raises(ValueError, match=r"rank 0 \(2, 1\), rank 1 \(2, 2\)"):
        run_ranks(rank_main, 2)


def test_the_ledger_counts_calls_and_bytes() -> None:
    def rank_main(communicator: Communicator) -> Any:
        communicator.all_reduce(np.zeros((2, 3), np.float32))
        communicator.all_reduce(np.zeros((2, 3), np.float32))
        communicator.all_gather(np.zeros(5, np.float32))
        return communicator.ledger

    for ledger in run_ranks(rank_main, 2):
        assert ledger.calls == {("all_reduce", (2, 3), 24): 2, ("all_gather", (5,), 20): 1}
        assert (ledger.count("all_reduce"), ledger.nbytes("all_reduce")) == (2, 48)
    assert not run_ranks(rank_main, 1)[0].calls  # a rank alone says nothing


@pytest.mark.parametrize(
    ("layers", "stages", "counts"),
    [(8, 2, [4, 4]), (7, 2, [4, 3]), (10, 4, [2, 3, 3, 2]), (11, 4, [3, 3, 3, 2]), (4, 4, [1, 1, 1, 1])],
)  # fmt: skip
def test_the_layers_of_the_stages(layers: int, stages: int, counts: list[int]) -> None:
    """The counts are what vLLM's `get_pp_indices` says (`vllm/distributed/utils.py:95`)."""
    found = [get_pp_indices(layers, rank, stages) for rank in range(stages)]
    assert [len(of_stage) for of_stage in found] == counts
    assert [layer for of_stage in found for layer in of_stage] == list(range(layers))


def test_the_experts_of_the_ranks() -> None:
    assert [list(get_experts_of_rank(8, rank, 3)) for rank in range(3)] == [
        [0, 1, 2], [3, 4, 5], [6, 7],
    ]  # fmt: skip
