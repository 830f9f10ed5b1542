"""Lab 10-02 beside vLLM: the gate of its own all-reduce, and its limits."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from course.learner.labs import load_module
from mini_vllm.sim import Link, cards, get_card, should_custom_all_reduce
from mini_vllm.sim.collectives import (
    CUSTOM_MAX_BYTES,
    CUSTOM_MAX_SIZES,
    CUSTOM_WORLD_SIZES,
    SYMM_MEM_MAX_SIZES,
)

LAB = Path(__file__).resolve().parents[2] / "phase-10-parallelism/labs/lab-02-what-a-sum-costs"
MIB = 2**20


@pytest.fixture(scope="module")
def in_vllm() -> ModuleType:
    return load_module(LAB / "in_vllm.py", "lab_10_02_in_vllm")


@pytest.mark.vllm
def test_the_limits_are_vllms() -> None:
    import inspect

    from vllm.distributed.device_communicators import all_reduce_utils
    from vllm.distributed.device_communicators.custom_all_reduce import CustomAllreduce

    assert all_reduce_utils.CUSTOM_ALL_REDUCE_MAX_SIZES == CUSTOM_MAX_SIZES
    assert all_reduce_utils.SYMM_MEM_ALL_REDUCE_MAX_SIZES == SYMM_MEM_MAX_SIZES
    assert tuple(CustomAllreduce._SUPPORTED_WORLD_SIZES) == CUSTOM_WORLD_SIZES
    default = inspect.signature(CustomAllreduce.__init__).parameters["max_size"].default
    assert default == CUSTOM_MAX_BYTES


@pytest.mark.vllm
@pytest.mark.parametrize("connected", [True, False], ids=["NVLink", "PCIe"])
@pytest.mark.parametrize("name", sorted(cards()))
def test_the_gate_is_vllms(in_vllm: ModuleType, name: str, connected: bool) -> None:
    """Every number of ranks to 9, at each limit, one element to both sides, and sizes that do not divide."""
    card = get_card(name)
    link = Link("made up", 1e-6, 1e9, same_node=True, fully_connected=connected)
    sizes = {
        24,
        1024,
        *(at + off for at in (MIB // 4, MIB // 2, MIB, 8 * MIB) for off in (-16, 0, 8, 16)),
    }
    for ranks in range(2, 10):
        gate = in_vllm.make_gate(card.capability if connected else None, ranks, connected)
        for nbytes in sorted(sizes):
            want = in_vllm.is_let_through(gate, nbytes)
            got = should_custom_all_reduce(card, link, ranks, nbytes)
            assert got == want, (ranks, nbytes)


@pytest.mark.vllm
def test_the_page_says_what_is_printed(
    in_vllm: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """With eight H100s the gate is shut from 16 requests on, with two never below 512."""
    in_vllm.main("solution")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[-1] for row in rows] == ["511", "511", "15"]
