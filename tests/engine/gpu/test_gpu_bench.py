"""The kernels before the bench, and the committed table of what the compiler makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
KERNEL = ROOT / "mini_vllm" / "gpu" / "kernels" / "paged_decode.py"
RESULT = json.loads((ROOT / "benchmarks" / "results" / "attention_compiled.json").read_text())
GPUS = ("sm_75", "sm_80", "sm_90", "sm_100")


def row(gpu: str, kernel: str) -> dict[str, Any]:
    [found] = [r for r in RESULT["rows"] if (r["GPU"], r["kernel"]) == (gpu, kernel)]
    return dict(found)


@pytest.mark.torch
@pytest.mark.triton
def test_the_bench_accepts_the_kernel() -> None:
    """No race, no byte twice, no access outside, no spill; and the committed table is of this kernel."""
    from course.kernels import judge

    report = judge(KERNEL, "decode", vllm=False)
    assert report.ok, report.refusals()
    [traffic] = report.of("bytes")
    # A short case, cut up to fill a GPU: the parts of its splits weigh more than at long context, below.
    assert traffic.figures["ratio"] <= 1.03, traffic.message
    [compiled] = report.of("compiled")
    for found in compiled.figures["rows"]:
        if "decode_split" in found["kernel"]:
            committed = row(found["GPU"], "mini_vllm, split")
            assert found["registers"] == committed["registers"], (
                f"{found['GPU']}: {found['registers']} registers now, {committed['registers']} in the "
                "table: run python -m benchmarks.attention_compiled --save"
            )


@pytest.mark.parametrize("gpu", GPUS)
def test_no_more_registers_than_vllms_kernel(gpu: str) -> None:
    for ours, theirs in (("mini_vllm", "vLLM 2D"), ("mini_vllm, split", "vLLM segmented")):
        mine, other = row(gpu, ours), row(gpu, theirs)
        assert mine["registers"] <= other["registers"], f"{gpu}: {mine} beside {other}"
        assert mine["spills"] == mine["stack"] == 0, mine
        assert mine["wide"] > 0.8, f"of the loop's bytes come 128 bits at a time: {mine}"
    merge = row(gpu, "mini_vllm, split, merge")
    assert merge["spills"] == merge["stack"] == 0, merge


def test_vllms_registers_are_those_that_were_known() -> None:
    assert row("sm_90", "vLLM 2D")["registers"] == 112
    assert row("sm_90", "vLLM segmented")["registers"] == 88


def test_bytes_within_two_percent_of_the_least() -> None:
    for measured in RESULT["bytes"]:
        for name in ("mini_vllm", "mini_vllm, split"):
            assert 1 <= measured[name] <= 1.02, f"{name} at {measured}"


def test_the_result_says_where_it_was_made() -> None:
    assert {"torch", "triton"} <= RESULT["machine"]["versions"].keys()
    assert RESULT["machine"]["date"]


def test_the_lab_shows_the_committed_figures() -> None:
    lab = ROOT / "phase-02-paged-attention" / "labs" / "lab-06-triton-paged-attn"
    page = (lab / "README.md").read_text(encoding="utf-8")
    found = row("sm_90", "vLLM 2D")
    assert f"vLLM's 2D kernel {found['registers']} and {found['shared']:,}" in page
    assert found["spills"] == 0, "the page says that neither spills"


@pytest.mark.torch
@pytest.mark.triton
def test_the_bench_accepts_the_prefill_kernel() -> None:
    """No race, no key behind the frontier, no spill, and tensor cores at work on all GPUs that have them."""
    from course.kernels import judge

    report = judge(KERNEL.with_name("paged_prefill.py"), "prefill", vllm=False)
    assert report.ok, report.refusals()
    [traffic] = report.of("bytes")
    assert traffic.figures["ratio"] <= 0.6, (
        traffic.message
    )  # of programs with 32 rows; here they have more
    [compiled] = report.of("compiled")
    for found in compiled.figures["rows"]:
        assert (found["tensor core"] > 0) == (found["GPU"] != "sm_75"), found
    assert all(found["spills"] == 0 for found in compiled.figures["rows"])
