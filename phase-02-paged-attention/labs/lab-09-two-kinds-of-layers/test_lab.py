"""Lab 02-09: what a window gives back, and what all kinds of layers can reuse."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
PROMPT = list(range(200, 240))  # ten blocks of four


def positions(run: Sequence[Any]) -> list[int]:
    """Where a run has a block that is not the null block."""
    return [i for i, block in enumerate(run) if not block.is_null]


def window_of(lab: ModuleType, window: int, **more: Any) -> Any:
    """The learner's manager for the only group, which has a window, and the KV cache manager around it."""
    manager = support.make(lab, window, **more)
    (own,) = manager.coordinator.single_type_managers
    return own, manager


def found(lab: ModuleType, window: int, there: Sequence[int], max_length: int = 40) -> Any:
    """What a window finds of PROMPT, whose blocks at the positions `there` are in the cache."""
    own, manager = window_of(lab, window)
    request = support.publish(manager, PROMPT, [there])
    (run,) = own.find_longest_cache_hit(
        request.block_hashes, max_length, [0], manager.block_pool, own.kv_cache_spec
    )
    return run


# ---- what is given back ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "computed", "skipped"),
    [(6, 0, 0), (6, 5, 0), (6, 6, 1), (6, 24, 19), (8, 8, 1), (8, 7, 0), (1, 5, 5), (64, 40, 0)],
)
def test_skipped_tokens(lab: ModuleType, window: int, computed: int, skipped: int) -> None:
    """A token is skipped if it lies a whole window before the next token, which counts itself."""
    got = window_of(lab, window)[0].get_num_skipped_tokens(computed)
    assert got == skipped, (
        f"{computed} tokens are computed, so the next is at position {computed}. It sees {window} tokens, "
        f"the last of them itself; yours says that the first {got} are out of its sight. Which does it see?"
    )


def test_whole_blocks_are_given_back(lab: ModuleType) -> None:
    """With a window of 6, block 0 still has token 3 in sight after 8 tokens, and none after 9."""
    own, manager = window_of(lab, 6)
    support.compute(manager, support.ask("ada", PROMPT), 8)
    own.remove_skipped_blocks("ada", 8)
    assert support.tables(manager, "ada") == [[1, 2]], (
        "the token at position 8 sees 3 to 7 and itself. Position 3 lies in the first block, which is still "
        f"needed; your table is {support.tables(manager, 'ada')[0]}"
    )
    own.remove_skipped_blocks("ada", 9)
    assert support.tables(manager, "ada") == [[0, 2]], (
        "position 9 sees 4 to 9: nothing of the first block, all of the second. The null block, 0, takes the "
        f"first one's place; your table is {support.tables(manager, 'ada')[0]}"
    )
    assert support.free_ids(manager)[-1] == 1, (
        f"block 1 is free again and at the back of the queue; yours: {support.free_ids(manager)}"
    )


def test_the_latest_is_given_back_first(lab: ModuleType) -> None:
    """The newest of the freed blocks joins the free queue first, so the oldest is evicted last."""
    own, manager = window_of(lab, 6)
    support.compute(manager, support.ask("ada", PROMPT), 16)
    own.remove_skipped_blocks("ada", 16)
    assert support.free_ids(manager)[-2:] == [2, 1], (
        "blocks 1 and 2 are out of the window. 2 goes back before 1, because a prefix is found from its "
        f"beginning; the end of your queue is {support.free_ids(manager)[-2:]}"
    )
    assert [manager.block_pool.blocks[i].block_hash is not None for i in (1, 2)] == [True, True], (
        "another request may still find them: they keep their hashes"
    )


def test_what_is_gone_is_not_given_back_again(lab: ModuleType) -> None:
    """A null block in a table was freed before, and so were the blocks before it: none is freed again."""
    own, manager = window_of(lab, 6)
    support.compute(manager, support.ask("ada", PROMPT), 20)
    for computed in (16, 17, 20):
        own.remove_skipped_blocks("ada", computed)
    assert support.free_ids(manager)[-3:] == [2, 1, 3], (
        f"at 16 tokens blocks 2 and 1, at 20 block 3; your queue ends with {support.free_ids(manager)[-3:]}"
    )
    count = manager.block_pool.null_block.ref_cnt
    assert count == 0, f"the null block has no holders to lose; yours has counted to {count}"


def test_only_what_is_new_is_looked_at(lab: ModuleType) -> None:
    """In a long answer one block leaves the window every four steps, and only the new one is read."""

    class Watched(list[Any]):
        looks = 0

        def __getitem__(self, at: Any) -> Any:
            Watched.looks += len(range(len(self))[at]) if isinstance(at, slice) else 1
            return super().__getitem__(at)

        def __iter__(self) -> Any:
            Watched.looks += len(self)
            return super().__iter__()

    own, manager = window_of(lab, 6, num_blocks=300)
    blocks = manager.block_pool.get_new_blocks(250)
    own.req_to_blocks["ada"] = Watched(blocks)
    own.remove_skipped_blocks("ada", 960)
    Watched.looks = 0
    own.remove_skipped_blocks("ada", 964)
    assert Watched.looks <= 8, (
        f"one block has come out of the window, and yours reads {Watched.looks} entries of a table of 250. "
        "Which can be new, and what tells you that the rest is gone already?"
    )


def test_a_table_may_be_shorter_than_what_is_skipped(lab: ModuleType) -> None:
    """A table may be shorter than what is skipped, because hits count as computed before they are in it."""
    own, manager = window_of(lab, 6)
    own.remove_skipped_blocks("nobody", 24)
    support.compute(manager, support.ask("ada", PROMPT), 4)
    own.remove_skipped_blocks("ada", 24)
    assert support.tables(manager, "ada") == [[0]], (
        f"all of ada's one block is out of the window: [0]; yours is {support.tables(manager, 'ada')[0]}"
    )


# ---- what a window finds --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "there", "length", "needed"),
    [
        (6, range(10), 10, [8, 9]),
        (6, [4, 5], 6, [4, 5]),
        (6, [1, 2, 5, 7], 3, [1, 2]),
        (6, [0, 3, 6], 1, [0]),
        (6, [3, 6, 9], 0, []),
        (5, [3, 6, 9], 10, [9]),
        (9, [5, 6], 7, [5, 6]),
        (10, [0, 1, 5, 6], 2, [0, 1]),
        (64, [0, 1, 2, 5, 6, 7, 8], 3, [0, 1, 2]),
        (1, [2], 3, [2]),
    ],
)
def test_what_a_window_finds(
    lab: ModuleType, window: int, there: Sequence[int], length: int, needed: list[int]
) -> None:
    """A run of cached blocks that covers the window is a hit, whatever is missing before it."""
    run = found(lab, window, there)
    said = f"a window of {window}, blocks of 4, of a prompt's ten blocks those at {list(there)} are cached"
    assert len(run) == length, (
        f"{said}: yours says that {len(run)} blocks are a prefix to go on from. What would the token after "
        f"{4 * len(run)} see, what the one after {4 * length}?"
    )
    assert set(needed) <= set(positions(run)), (
        f"{said}: the token after {4 * length} needs those at {needed}, yours has those at {positions(run)}"
    )
    assert positions(run) == needed, (
        f"{said}: only those at {needed} are needed; yours holds those at {positions(run)}, too"
    )


def test_no_longer_than_asked_for(lab: ModuleType) -> None:
    """A hit ends where the search was told to end."""
    for max_length in (23, 24, 27):
        run = found(lab, 6, range(10), max_length)
        assert len(run) == max_length // 4, (
            f"at most {max_length} tokens are asked for, in whole blocks of 4; yours has {len(run)} blocks"
        )


def test_all_groups_with_this_window_must_have_it(lab: ModuleType) -> None:
    """A block counts only if each group of this kind has it."""
    manager = support.make(lab, 6, 6, num_blocks=40)
    own = manager.coordinator.single_type_managers[0]
    request = support.publish(manager, PROMPT, [[2, 3, 6, 7], [2, 3, 7]])
    runs = own.find_longest_cache_hit(
        request.block_hashes, 40, [0, 1], manager.block_pool, own.kv_cache_spec
    )
    assert [positions(run) for run in runs] == [[2, 3], [2, 3]], (
        "the second group lacks block 6, so both end with block 3, and each has its own blocks; yours: "
        f"{[positions(run) for run in runs]}"
    )
    assert not set(map(id, runs[0][2:])) & set(map(id, runs[1][2:])), "two groups share no block"


# ---- what all kinds find --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("windows", "there", "length"),
    [
        ((0, 6), [range(10), range(10)], 9),
        ((0, 6), [range(7), range(10)], 7),
        ((0, 6), [range(10), [0, 1, 5, 6]], 7),
        ((0, 6), [range(6), [0, 1, 5, 6]], 2),
        ((0, 6), [range(10), [3, 5, 7]], 0),
        ((6, 0), [[2, 3, 7, 8], range(6)], 4),
        ((0, 6, 10), [range(10), [2, 3, 4, 5, 7, 8], [1, 2, 3, 4, 5, 6]], 6),
        ((0, 6, 10), [range(10), [2, 3, 6, 7], [1, 2, 3, 4, 5]], 4),
        ((6, 10), [[2, 3, 6, 7], [1, 2, 3, 4, 5, 6, 7, 8]], 8),
        ((6, 10), [[1, 2, 5, 6], [0, 1, 2, 3, 4]], 3),
        ((10, 6, 0), [[1, 2, 3, 4, 5], [2, 3, 6, 7], range(9)], 4),
    ],
)
def test_what_all_kinds_find(
    lab: ModuleType, windows: tuple[int, ...], there: Sequence[Sequence[int]], length: int
) -> None:
    """The hit is the longest that every kind of layer can serve."""
    manager = support.make(lab, *windows, num_blocks=40)
    request = support.publish(manager, PROMPT, there)
    runs, tokens = manager.coordinator.find_longest_cache_hit(request.block_hashes, 39)
    kinds = [f"window {window}" if window else "full" for window in windows]
    said = ", ".join(f"{kind} has {list(at)}" for kind, at in zip(kinds, there, strict=True))
    assert tokens == 4 * length, (
        f"{said}: yours goes on after {tokens} tokens. Which kind cannot, or which could go on after more?"
    )
    assert [len(run) for run in runs] == [length] * len(windows), (
        f"{said}: a hit of {length} blocks is {length} entries in each group's table; yours are "
        f"{[len(run) for run in runs]}"
    )
    for window, run in zip(windows, runs, strict=True):
        first = max(0, 4 * length - window + 1) // 4 if window else 0
        null = [i for i in range(first, length) if run[i].is_null]
        assert not null, (
            f"{said}: the token at {4 * length} sees blocks from {first} on, with a window of {window} "
            f"(0: all); in your run those at {null} are null"
        )


def test_your_predictions(lab: ModuleType) -> None:
    """What you predicted is what the engine does."""
    happened, predicted = support.what_happens(None), lab.predictions()
    for name, value in happened.items():
        assert name in predicted, f"predictions() has no answer under {name!r}"
        wrong = wrong_in(predicted[name], value)
        assert not wrong, (
            f"{name}: {wrong}. Draw both tables and the free queue after each step. What does the "
            "first token of the next step see?"
        )


def test_it_happens_on_yours(lab: ModuleType) -> None:
    """The scene has the same result in a manager on your two classes."""
    happened, yours = support.what_happens(None), support.what_happens(lab)
    for name, value in happened.items():
        assert yours[name] == value, f"{name}: {value} on mini_vllm, {yours[name]} on yours"
