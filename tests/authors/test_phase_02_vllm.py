"""What phase 02's pages say of blocks, end to end on vLLM, as a user meets it (`-m vllm`).

The pages' own scripts are held against vLLM in tests/authors/test_both_pools.py.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

from course.parity.tokens_run import run_worker

pytestmark = pytest.mark.vllm
SITUATIONS = {
    "room": {"caching": True, "num_blocks": 60},
    "tight": {"caching": True, "num_blocks": 14},
    "no caching": {"caching": False, "num_blocks": 60},
}


@functools.cache
def played() -> dict[str, dict[str, Any]]:
    results = run_worker(
        "tests.engine.helpers.real_vllm.written_slots", [], list(SITUATIONS.values())
    )
    return dict(zip(SITUATIONS, results, strict=True))


def test_what_is_shared_is_computed_once() -> None:
    """Two full blocks of 16. A repeat that fills its blocks computes the last of them again."""
    plan = {"first": 33, "repeat": 16, "again": 16, "own end": 3, "0_pair": 1, "1_pair": 1}
    assert played()["room"]["first plan"] == plan
    lengths = {"first": 33, "repeat": 32, "again": 32, "own end": 35, "0_pair": 33, "1_pair": 33}
    assert played()["no caching"]["first plan"] == lengths


def test_sharing_changes_no_answer() -> None:
    alone = played()["no caching"]["answers"]
    assert played()["room"]["answers"] == alone
    # At the pin a seeded draw depends on who is beside it (`seeds_beside`): so greedy ones only.
    greedy = [name for name in alone if name != "pair"]
    tight = played()["tight"]["answers"]
    assert {name: tight[name] for name in greedy} == {name: alone[name] for name in greedy}
    assert alone["late"] == alone["first"]
    assert alone["pair"]["0"] != alone["pair"]["1"], "the two of n=2 go their own ways"


def test_no_copy_on_write_is_ever_needed() -> None:
    """While a block is with its owners, no slot of it is written a second time, by anybody."""
    assert played()["tight"]["preempted"] > 0, "the pool was large enough: nothing was tried"
    for name in ("room", "tight"):
        assert played()[name]["rewritten"] == played()[name]["miscounted"] == 0, name


def test_equal_content_keeps_several_blocks() -> None:
    """`repeat` and `again` fill the block that `first` has, and nobody merges the three."""
    assert played()["room"]["twins"] >= 2
    assert played()["no caching"]["twins"] == 0
