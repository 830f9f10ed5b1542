"""Ranks that torchrun has started: each runs the whole engine on its share of the model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from course.parity.tokens import make_prompts
from mini_vllm import LLM
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.tokenizer import Tokenizer
from tests.engine.helpers.gpu import launched_child
from tests.engine.helpers.thorough import either
from tests.engine.parity.test_ranks_vllm import NUM_BLOCKS, SETTINGS, answers, run_ranks

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[3]


def launch(attention: str, size: int, folder: Path) -> list[dict[str, Any]]:
    """What each rank has written."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size),
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", launched_child.__file__,
        attention, str(folder), str(size),
    ]  # fmt: skip
    settings = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(command, env=settings, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads((folder / f"{rank}.json").read_text("utf-8")) for rank in range(size)]


@pytest.mark.parametrize("attention", ["numpy", "torch"])
def test_two_launched_ranks_give_the_tokens_of_one(attention: str, tmp_path: Path) -> None:
    ranks = launch(attention, 2, tmp_path)
    assert ranks[0] == ranks[1]
    outputs = LLM().generate(launched_child.PROMPTS * 2, launched_child.make_params())
    assert ranks[0]["tokens"] == [list(output.outputs[0].token_ids) for output in outputs]
    all_reduces, gathers = ranks[0]["said"]
    assert all_reduces == 9 * gathers  # 2 for each of 4 layers, and the embedding's


@pytest.mark.parametrize(
    ("attention", "size"),
    either([("numpy", 4)], [("numpy", 2), ("numpy", 4), ("torch", 2), ("torch", 4)]),
)
def test_many_prompts_and_every_call(attention: str, size: int, tmp_path: Path) -> None:
    """Through gloo go the calls that go through shared memory, which are real vLLM's
    (`tests/engine/parity/test_ranks_vllm.py`)."""
    prompts = make_prompts(
        Tokenizer.from_folder(DEFAULT_MODEL).encode, 264, either(12, 100), longest=120
    )
    settings = SETTINGS | {"num_gpu_blocks": NUM_BLOCKS}
    (tmp_path / "job.json").write_text(json.dumps({"prompts": prompts, "settings": settings}))
    ranks = launch(attention, size, tmp_path)
    assert all(rank == ranks[0] for rank in ranks)
    tokens, calls, _ = run_ranks(DEFAULT_MODEL, prompts, {"tensor_parallel_size": size})
    assert ranks[0]["tokens"] == tokens == answers(LLM(**settings), prompts)
    said = {(kind, tuple(shape), n): times for kind, shape, n, times in ranks[0]["calls"]}
    for of_rank in calls:
        assert {call[1:]: times for call, times in of_rank.items()} == said
    total = sum(call[2] * times for call, times in said.items())
    print(f"{attention}, {size} ranks: {sum(said.values())} calls, {total} bytes")


def test_a_process_that_torchrun_has_not_started_says_so() -> None:
    with pytest.raises(ValueError, match="torchrun has started: RANK and WORLD_SIZE are not set"):
        LLM(tensor_parallel_size=2, distributed_executor_backend="external_launcher")
