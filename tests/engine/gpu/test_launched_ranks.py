"""Ranks that torchrun has started: each runs the whole engine on its share of the model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mini_vllm import LLM
from tests.engine.helpers.gpu import launched_child

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("attention", ["numpy", "torch"])
def test_two_launched_ranks_give_the_tokens_of_one(attention: str, tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", "localhost:0", launched_child.__file__, attention, str(tmp_path),
    ]  # fmt: skip
    settings = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(command, env=settings, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr[-2000:]
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text("utf-8")) for rank in range(2)]
    assert ranks[0] == ranks[1]
    outputs = LLM().generate(launched_child.PROMPTS * 2, launched_child.make_params())
    assert ranks[0]["tokens"] == [list(output.outputs[0].token_ids) for output in outputs]
    all_reduces, gathers = ranks[0]["said"]
    assert all_reduces == 9 * gathers  # 2 for each of 4 layers, and the embedding's


def test_a_process_that_torchrun_has_not_started_says_so() -> None:
    with pytest.raises(ValueError, match="torchrun has started: RANK and WORLD_SIZE are not set"):
        LLM(tensor_parallel_size=2, distributed_executor_backend="external_launcher")
