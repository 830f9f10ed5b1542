"""No request ever reads a slot that holds something else: see `slot_identity`, which runs at length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mini_vllm.core import block_pool
from mini_vllm.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from mini_vllm.core.single_type_kv_cache_manager import SlidingWindowManager
from mini_vllm.engine.parts import EngineParts
from mini_vllm.sampling_params import SamplingParams
from tests.engine.helpers.engine.faults import FAULTS
from tests.engine.helpers.scheduler.slot_identity import (
    ASYNC_PARTS,
    UPSTREAM_ASYNC_PARTS,
    UPSTREAM_PARTS,
    NoProgress,
    World,
    aimed_world,
    any_world,
    fuzz,
    main,
    run_world,
    worlds,
)
from tests.engine.helpers.scheduler.slot_memory import SlotMemory, WrongSlot
from tests.engine.helpers.thorough import either


def test_every_read_finds_the_readers_own_sequence() -> None:
    wanted = either(1000, 12_000)
    steps, count, wrong = fuzz(wanted)
    assert not wrong, "\n".join(wrong)
    assert steps >= wanted
    assert count > wanted // 40, "few worlds: each takes absurdly long"


def test_every_read_finds_it_with_two_plans_in_flight_too() -> None:
    wanted = either(750, 12_000)
    steps, count, wrong = fuzz(wanted, 0, ASYNC_PARTS)
    assert not wrong, "\n".join(wrong)
    assert steps >= wanted
    assert count > wanted // 60, "few worlds: each takes absurdly long"


@pytest.mark.parametrize("parts", [EngineParts(), ASYNC_PARTS], ids=["sync", "async"])
def test_every_read_finds_it_in_models_of_several_kv_cache_groups_too(parts: EngineParts) -> None:
    wanted = either(750, 12_000)
    steps, count, wrong = fuzz(wanted, 0, parts, groups=True)
    assert not wrong, "\n".join(wrong)
    assert steps >= wanted
    assert count > wanted // 60, "few worlds: each takes absurdly long"


def _window_a_token_short(patch: pytest.MonkeyPatch) -> None:
    """The window's first token counts as skipped."""
    patch.setattr(
        SlidingWindowManager,
        "get_num_skipped_tokens",
        lambda self, n: max(0, n - self.sliding_window + 2),
    )


def _hash_without_the_group(patch: pytest.MonkeyPatch) -> None:
    """One group's block is found for another."""
    patch.setattr(
        block_pool, "make_block_hash_with_group_id", lambda block_hash, group_id: block_hash
    )


def _run_of_hits_a_block_short(patch: pytest.MonkeyPatch) -> None:
    """A window is found although its first block is not."""
    find = SlidingWindowManager.find_longest_cache_hit.__func__  # type: ignore[attr-defined]

    def short(
        cls: Any, hashes: Any, length: int, ids: Any, pool: Any, spec: Any, *more: Any
    ) -> Any:
        less = max(1, spec.sliding_window - spec.block_size)
        return find(cls, hashes, length, ids, pool, replace(spec, sliding_window=less), *more)

    patch.setattr(SlidingWindowManager, "find_longest_cache_hit", classmethod(short))


@pytest.mark.parametrize(
    "plant", [_window_a_token_short, _hash_without_the_group, _run_of_hits_a_block_short]
)
def test_it_finds_a_fault_planted_in_groups(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    drawn = (world for _, (_, world) in zip(range(90), worlds(0, True), strict=False))
    assert any(reads_a_wrong_slot(world, EngineParts()) for world in drawn), "it goes unseen"


def test_the_worlds_hold_what_goes_wrong() -> None:
    """Both policies, salts, children, block size 1, caching on and off, thresholds, aborts."""
    drawn = [world for _, (_, world) in zip(range(300), worlds(0), strict=False)]
    jobs = [job for world in drawn for job in world.jobs]
    assert {world.settings["scheduling_policy"] for world in drawn} == {"fcfs", "priority"}
    assert {world.settings["block_size"] for world in drawn} == {1, 2, 3, 4, 8}
    assert {world.settings.get("enable_prefix_caching", True) for world in drawn} == {True, False}
    assert {world.settings["long_prefill_token_threshold"] > 0 for world in drawn} == {True, False}
    assert {job.salt for job in jobs} == {None, "a", "b"}
    assert {job.n for job in jobs} == {1, 2, 3}
    assert sum(job.abort is not None for job in jobs) > 50


def reads_a_wrong_slot(world: World, parts: EngineParts) -> bool:
    try:
        run_world(world, parts)
    except WrongSlot:
        return True
    except NoProgress:
        pass
    return False


AIMED, AT_LEAST = either((53, 2), (130, 3))


def test_it_finds_that_vllm_0_22_1_attends_over_blocks_nobody_computed() -> None:
    """Under `priority`, aimed; under `fcfs` it does not happen."""
    found = [s for s in range(AIMED) if reads_a_wrong_slot(aimed_world(s), UPSTREAM_PARTS)]
    assert len(found) >= AT_LEAST, found
    for seed in range(AIMED):
        run_world(any_world(seed, "fcfs"), UPSTREAM_PARTS)


def test_it_finds_that_with_two_plans_in_flight_too() -> None:
    found = [s for s in range(AIMED) if reads_a_wrong_slot(aimed_world(s), UPSTREAM_ASYNC_PARTS)]
    assert len(found) >= AT_LEAST, found
    for seed in range(AIMED):
        run_world(aimed_world(seed), ASYNC_PARTS)


def test_it_finds_that_in_vllm_0_22_1_equals_preempt_each_other_for_ever() -> None:
    with pytest.raises(NoProgress, match=r"'0_0', '1_0'.* unfinished"):
        run_world(any_world(199, "priority"), UPSTREAM_PARTS)
    assert run_world(any_world(199, "priority")) < 100


@pytest.mark.parametrize(
    "name",
    [
        "hash_without_the_parent",
        "hash_without_the_salt",
        "prefix_hit_one_block_too_long",
        "shared_tail_block",
        "published_before_it_is_full",
    ],
)
def test_it_finds_a_planted_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = FAULTS[name](monkeypatch)
    drawn = (world for _, (_, world) in zip(range(60), worlds(0), strict=False))
    assert any(reads_a_wrong_slot(world, parts) for world in drawn), f"{name} goes unseen"


def _output(block_ids: list[int], num_computed_tokens: int, num_tokens: int) -> SchedulerOutput:
    new = NewRequestData("r", [5, 6, 7], SamplingParams(), (block_ids,), num_computed_tokens)
    cached = CachedRequestData([], set(), [], [])
    return SchedulerOutput([new], cached, {"r": num_tokens}, num_tokens, set(), set())


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (_output([1, 2], 2, 1), "r reads position 0 in block 1: never written"),
        (_output([1, 1], 0, 3), "r reads position 0 in block 1: written for another sequence"),
        (_output([1], 0, 3), "r has no slot for position 2"),
    ],
    ids=["a hit on nothing", "a block twice", "too few blocks"],
)
def test_the_memory_knows_what_it_holds(output: SchedulerOutput, message: str) -> None:
    memory = SlotMemory(num_blocks=4, block_size=2, vocabulary=3)
    memory.salts["r"] = None
    with pytest.raises(WrongSlot, match=message):
        memory.execute(output)


def test_the_command_says_how_much_it_ran(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["200"]) == 0
    assert " steps, " in capsys.readouterr().out
    assert main(["200", "--seed", "15", "--upstream"]) == 1
    printed = capsys.readouterr().out
    assert "aimed_world(15): WrongSlot: 0_0 reads position 4 in block 8: never written" in printed
