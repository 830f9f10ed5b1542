"""Lab 07-06: a learner's placements held against vLLM's own functions, and what the lab says of them.

    LAB_IMPL=starter pytest -m vllm tests/authors/test_lab_07_06_vllm.py

Without LAB_IMPL the reference is held.
"""

from __future__ import annotations

import itertools
import logging
import os
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_module
from tests.engine.helpers.real_vllm.vllm_helpers import ROOT

LAB = ROOT / "phase-07-gemm-and-moe" / "labs" / "lab-06-expert-load-balance"
CHOICE = os.environ.get("LAB_IMPL", "").strip() or "solution"
pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    named = {"solution": LAB / "solution.py", "starter": LAB / "starter.py"}
    return load_module(named.get(CHOICE, Path(CHOICE)), "lab_07_06_held")


@pytest.fixture(scope="module")
def ask() -> ModuleType:
    return load_module(LAB / "ask_vllm.py", "lab_07_06_ask")


def test_a_thousand_placements_are_vllms(lab: ModuleType, ask: ModuleType) -> None:
    """Copies, packs and placements of 1,000 random loads, one as the other."""
    for load, slots, gpus in itertools.islice(ask.cases(1), 1000):
        want = ask.placement(load, slots, gpus)
        phy2log, copies = lab.replicate_experts(load, slots)
        got = {"phy2log": phy2log.tolist(), "copies": copies.tolist()}
        if "pack" in want:
            pack, place = lab.balanced_packing(load, gpus)
            got |= {"pack": pack.tolist(), "place": place.tolist()}
        got["placed"] = lab.rebalance(load, slots, gpus).tolist()
        assert got == want, f"{load.tolist()}, {slots} slots, {gpus} GPUs"


def test_linear_hands_out_contiguous_blocks() -> None:
    """The first GPUs have one more, whatever the docstring says: 2 to 16 GPUs, 1 to 70 experts."""
    from vllm.model_executor.layers.fused_moe.expert_map_manager import determine_expert_map

    for experts, gpus in itertools.product(range(1, 71), range(2, 17)):
        blocks = np.array_split(np.arange(experts), gpus)  # the first ones are the larger
        for gpu, block in enumerate(blocks):
            held, local, _ = determine_expert_map(gpus, gpu, experts)
            want = [int(e - block[0]) if e in block else -1 for e in range(experts)]
            assert (held, local.tolist()) == (len(block), want), f"{experts} on {gpus}, GPU {gpu}"


def test_the_kept_answers_are_what_it_says(ask: ModuleType) -> None:
    """answers.json is what ask_vllm.py would write today."""
    import json

    kept = json.loads(ask.FILE.read_text(encoding="utf-8"))
    for (load, slots, gpus), case in zip(ask.cases(0), kept["placements"], strict=False):
        assert case == {
            "load": load.tolist(), "slots": slots, "gpus": gpus, **ask.placement(load, slots, gpus)
        }  # fmt: skip


def test_the_routing_simulator_fills_the_middle(lab: ModuleType) -> None:
    """`normal_routing` prefers the middle experts: linear is even on two GPUs, and uneven on four."""
    import torch
    from vllm.model_executor.layers.fused_moe.router.routing_simulator_router import (
        RoutingSimulator,
    )

    torch.manual_seed(0)
    tokens = 50_000
    _, chosen = RoutingSimulator.simulate_routing(
        torch.empty(tokens, 16), torch.empty(tokens, 8), "normal_routing", 2
    )
    load = np.bincount(chosen.flatten().numpy(), minlength=8)
    share = load / load.sum()
    assert share[[3, 4]].min() > 0.18 > 0.05 > share[[0, 7]].max()
    one = np.arange(8)
    assert lab.imbalance(load, one, 2) == pytest.approx(1.0, abs=0.02)
    assert lab.imbalance(load, one, 4) == pytest.approx(1.46, abs=0.02)
    assert lab.imbalance(load, lab.rebalance(load, 8, 4), 4) == pytest.approx(1.12, abs=0.02)
    _, uniform = RoutingSimulator.simulate_routing(
        torch.empty(tokens, 16), torch.empty(tokens, 8), "uniform_random", 2
    )
    twice = (uniform[:, 0] == uniform[:, 1]).float().mean().item()
    assert twice == pytest.approx(1 / 8, abs=0.01), "it may choose an expert twice, a router never"


def test_the_logged_balancedness_compares_layers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All tokens on one GPU of two, in both layers, is logged as balancedness 1.0."""
    import torch
    from vllm.distributed.eplb import eplb_state

    group = SimpleNamespace(size=lambda: 2, rank=lambda: 0)
    monkeypatch.setattr(eplb_state, "get_ep_group", lambda: SimpleNamespace(device_group=group))
    monkeypatch.setattr(eplb_state, "all_reduce", lambda *_, **__: None)
    logger = logging.getLogger("vllm")
    monkeypatch.setattr(logger, "propagate", True)

    def logged(load: list[list[int]]) -> str:
        config = SimpleNamespace(
            eplb_config=SimpleNamespace(log_balancedness_interval=1, window_size=4)
        )
        state: Any = object.__new__(eplb_state.EplbState)
        state.parallel_config = config
        state.is_async = False
        state.expert_rearrangement_step = 0
        state.expert_rearrangement_step_interval = 100
        state.expert_load_window_size = 4
        state.expert_load_window_step = 0
        state.should_record_tensor = None
        shape = (4, *torch.tensor(load).shape)
        state.model_states = {
            "m": SimpleNamespace(
                expert_load_pass=torch.tensor(load, dtype=torch.int32),
                expert_load_window=torch.zeros(shape, dtype=torch.int32),
                model_name="m",
            )
        }
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="vllm"):
            state.step(log_stats=True)
        return next(r.getMessage() for r in caplog.records if "balancedness" in r.getMessage())

    # [layers, slots], two slots per GPU: everything on GPU 0.
    assert "avg_tokens=100.00, max_tokens=100, balancedness=1.0000" in logged([[60, 40, 0, 0]] * 2)
    # It does fall where the layers differ: GPU 0 has everything in one, GPU 1 in the other.
    assert "balancedness=0.5000" in logged([[60, 40, 0, 0], [0, 0, 50, 50]])
