"""Ranks in threads: what a model split over some of them gives, without making processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm.distributed.communicator import Communicator, Ledger
from mini_vllm.distributed.parallel_state import Pipeline, RankGroups
from mini_vllm.distributed.thread_communicator import run_ranks
from mini_vllm.model_loader import load_model
from tests.engine.helpers.models.model_helpers import whole


def split_logits(
    folder: Path, tokens: list[int], size: int, expert_parallel: bool = False
) -> list[tuple[np.ndarray, Ledger]]:
    """Of each rank, its logits for a prompt, and its ledger."""

    def rank_main(communicator: Communicator) -> tuple[np.ndarray, Ledger]:
        pipeline = Pipeline(0, 1, None, None, communicator)
        groups = RankGroups(communicator.rank, communicator, pipeline, expert_parallel)
        model: Any = load_model(folder, groups=groups)
        return whole(model, tokens), communicator.ledger

    return run_ranks(rank_main, size)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
