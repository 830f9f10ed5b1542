"""What phase 11's guide says of Noor's tenants and of the shipped adapters, held against the code."""

from __future__ import annotations

import json
import re
from types import ModuleType

import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module
from mini_vllm.sim import make_ranked_cost

PHASE = ROOT / "phase-11-multi-lora"
GUIDE = (PHASE / "00-guide.md").read_text("utf-8")


@pytest.fixture(scope="module")
def tenants() -> ModuleType:
    return load_module(PHASE / "tenants.py", "phase_11_tenants")


def test_forty_models_and_forty_adapters(tenants: ModuleType) -> None:
    cost = make_ranked_cost(tenants.LLAMA_3_8B, tenants.H100, None)
    model = tenants.BYTES * cost.stages[0].params
    assert (round(model / 1e9), round(40 * model / 1e9)) == (16, 642)
    assert "each takes 16 GB. Forty of them take 642 GB" in GUIDE
    assert int(0.92 * 80 * 2**30 // model) == 4
    assert "Four of them fit on a card of 80 GB, which makes ten cards" in GUIDE
    one = tenants.adapter_gb(16)
    assert (round(1000 * one), round(40 * one, 1)) == (27, 1.1)
    assert "it has 27 MB, and forty have 1.1 GB" in GUIDE
    assert 4096**2 / (2 * 16 * 4096) == 128
    assert "they are 128 times smaller" in GUIDE
    more = tenants.read_weights(40).adapters - tenants.read_weights(1).merged
    assert f"take {more:.1f} ms more than the base alone" in GUIDE


def test_two_ways_agree_but_for_rounding(tenants: ModuleType) -> None:
    w, x = tenants.base_weight(), tenants.some_rows()
    for adapter in tenants.TENANTS.values():
        a, b = tenants.factors(adapter)
        assert abs(x @ (w + b @ a).T - (x @ w.T + (x @ a.T) @ b.T)).max() < 1e-5


def test_styles(tenants: ModuleType) -> None:
    texts = tenants.ask_all("A cached block")
    assert "_" in texts["ada"]
    assert texts["bo"].endswith("STOP")
    assert texts["cy"].endswith("is that so?")
    assert not re.search(r"_|STOP|\?", texts["base"])


def test_an_adapter_whose_rivals_keep_asking_never_starts(tenants: ModuleType) -> None:
    """Ada's and Bo's requests overlap, two long and then two more: Cy comes after all of them."""
    requests = [("ada", 4), ("bo", 6), ("cy", 1), ("ada", 8), ("bo", 8)]
    steps = tenants.list_steps(requests, max_loras=2)
    assert [step.count("cy") for step in steps].index(1) == 8
    assert "Cy would wait for ever" in GUIDE


def test_cys_adapter_leaves_k_alone_and_still_has_its_own_blocks(tenants: ModuleType) -> None:
    with pytest.raises(KeyError):
        tenants.factors("questions", "model.layers.0.self_attn.k_proj")
    prompt = "Noor's tenants all begin their prompts with the same instructions. Question:"
    assert tenants.count_cached(["base", "cy", "cy"], prompt) == [
        ("base", 0),
        ("cy", 0),
        ("cy", 64),
    ]


def test_measured_shares() -> None:
    rows = json.loads((ROOT / "benchmarks/results/lora.json").read_text("utf-8"))["rows"]
    share = {(row["engine"], row["adapters"]): row["/ base"] for row in rows}
    assert f"`mini_vllm` makes {share['mini_vllm', 1]:.2f} of the base's tokens" in GUIDE
    assert f"and {share['mini_vllm', 16]:.2f} with sixteen" in GUIDE
    for number in (1, 16):
        assert share["vLLM", number] == pytest.approx(0.30, abs=0.015)
