"""`benchmarks/attention.py` without a GPU: every leg runs, and its tables have the right shape."""

from __future__ import annotations

import pytest
from benchmark_helpers import dry_run

from benchmarks.attention import BATCHES, CONTEXTS, main
from benchmarks.attention_varlen import mixed_batches, prefill_batches


@pytest.mark.torch
@pytest.mark.triton
@pytest.mark.vllm
def test_every_leg_runs_and_is_right() -> None:
    head, *rows = dry_run("attention")
    assert [head.count(f"{leg} error") for leg in ("mini_vllm", "vLLM Triton")] == [1, 1]
    assert head.count("FlashAttention error") == head.count("gather + SDPA error") == 1
    assert len(rows) == 2
    for row in rows:
        errors = row.split()[-4:]
        assert all(float(error) < 5e-3 for error in errors), row


@pytest.mark.torch
@pytest.mark.triton
@pytest.mark.vllm
@pytest.mark.parametrize(
    ("what", "legs"),
    [
        ("prefill", ["mini_vllm", "vLLM Triton", "FlashAttention", "SDPA"]),
        ("mixed", ["mini_vllm", "mini_vllm, decodes not named", "vLLM Triton", "FlashAttention"]),
    ],
)
def test_every_leg_of_chunks_runs_and_is_right(what: str, legs: list[str]) -> None:
    head, *rows = dry_run("attention", "--what", what)
    assert head.endswith("  ".join(f"{leg} error" for leg in legs)), head
    for row in rows:
        assert all(float(error) < 5e-3 for error in row.split()[-4:]), row


@pytest.mark.torch
def test_without_a_gpu_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="--dry-run needs none"):
        main([])


def test_a_batch_knows_its_decodes_and_its_work() -> None:
    [mixed] = mixed_batches(dry=True)
    assert mixed.num_decodes == 2
    assert [batch.num_decodes for batch in prefill_batches(dry=True)] == [0, 0]
    assert all(0 < batch.num_decodes < len(batch.seq_lens) for batch in mixed_batches())


def test_the_shapes_that_were_asked_for() -> None:
    assert (BATCHES[0], BATCHES[-1]) == (1, 256)
    assert (CONTEXTS[0], CONTEXTS[-1]) == (128, 131_072)
