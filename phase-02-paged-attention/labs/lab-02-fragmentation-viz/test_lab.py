"""Lab 02-02: what two allocators give out, keep and waste."""

from __future__ import annotations

import math
import random
from types import ModuleType
from typing import Any

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)


def contiguous(lab: ModuleType, num_slots: int = 40, **extents: tuple[int, int]) -> Any:
    """A pool in which the extents named lie already."""
    pool = lab.ContiguousAllocator(num_slots)
    pool.extents.update({name: lab.Extent(*extent) for name, extent in extents.items()})
    return pool


def paged(lab: ModuleType, num_blocks: int = 10, block_size: int = 4, **lengths: int) -> Any:
    """A pool that has admitted requests of these lengths."""
    pool = lab.PagedAllocator(num_blocks, block_size)
    for name, length in lengths.items():
        assert pool.allocate(name, length, 16) is True, (
            f"{num_blocks} blocks of {block_size}: {lengths} fit, yet {name} was refused"
        )
    return pool


# ---- predictions ---------------------------------------------------------------------------------


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your two exact predictions are right, and the other two are close enough."""
    said = lab.predictions()
    facts = {
        "admitted, reserved": (
            8,
            0,
            "How many slots does each keep for itself, and how many are there?",
        ),
        "admitted, blocks": (
            85,
            0,
            "How many blocks do 33 tokens take, and how many blocks has the pool?",
        ),
        "share held, the model's maximum": (
            0.132,
            0.05,
            "How many requests run at once, and how many tokens does one hold, averaged over its life?",
        ),
        "waste of a last block": (
            7.5,
            1,
            "How many are empty at least, how many at most, and are all numbers between as likely?",
        ),
    }
    assert said.keys() == facts.keys(), f"four questions, {sorted(facts)}; yours: {sorted(said)}"
    for name, (fact, may_be_off, ask) in facts.items():
        wrong = wrong_in(said[name], fact, may_be_off)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- one piece a request -------------------------------------------------------------------------


def test_a_reservation_is_for_the_longest(lab: ModuleType) -> None:
    """A request of ten tokens that may grow to sixteen takes sixteen slots."""
    pool = contiguous(lab)
    assert pool.allocate("ada", 10, 16) is True, "an empty pool of 40 slots has room for 16"
    assert pool.extents == {"ada": (0, 16)}, (
        f"Ada has 10 tokens and may come to have 16, and her extent cannot move: it is slots 0 to 15. "
        f"Yours: {pool.extents}"
    )


def test_first_fit_takes_the_lowest_hole(lab: ModuleType) -> None:
    """First fit takes the beginning of the first hole that is large enough; an exact fit will do."""
    for at_most, start in ((5, 4), (6, 4), (7, 14), (4, 4), (2, 0)):
        pool = contiguous(lab, 40, a=(2, 2), b=(10, 4), c=(24, 9))
        assert pool.allocate("new", 1, at_most) is True, (
            f"the holes are {[2, 6, 10, 7]}, wanted {at_most}"
        )
        assert pool.extents["new"] == (start, at_most), (
            f"holes of 2, 6, 10 and 7 slots at 0, 4, 14 and 33: the first with room for {at_most} begins "
            f"at {start}, and there the extent begins; yours is {pool.extents['new']}"
        )


def test_no_hole_is_large_enough(lab: ModuleType) -> None:
    """With 25 slots free in holes of at most 10, a request for 11 is refused, and nothing changes."""
    pool = contiguous(lab, 40, a=(2, 2), b=(10, 4), c=(24, 9))
    before = dict(pool.extents)
    assert pool.allocate("new", 1, 11) is False, (
        "free are 2, 6, 10 and 7 slots, 25 in all, but an extent is one piece: 11 have no place"
    )
    assert pool.extents == before, f"a refusal changes nothing; it left {pool.extents}"


def test_neighbouring_holes_are_one(lab: ModuleType) -> None:
    """A hole reaches from one extent to the next, or to an end of the pool."""
    pool = contiguous(lab, 40, a=(0, 8), b=(8, 8), c=(16, 8), d=(30, 10))
    assert list(pool.holes()) == [(24, 6)], f"only slots 24 to 29 are free, yours: {pool.holes()}"
    mixed = contiguous(lab, 40, d=(30, 10), b=(8, 8), a=(0, 8), c=(16, 8))
    assert list(mixed.holes()) == [(24, 6)], (
        f"the same four, but the one at slot 30 came first, then those at 8, 0 and 16: still only slots 24 "
        f"to 29 are free, yours: {mixed.holes()}. `extents` is in the order of arrival, not of addresses"
    )
    pool.release("b")
    pool.release("a")
    assert list(pool.holes()) == [(0, 16), (24, 6)], (
        f"who had 8 to 15 has left, and who had 0 to 7: that is one hole of 16. Yours: {pool.holes()}"
    )
    assert pool.allocate("e", 1, 16) is True, "a hole of 16 has room for 16"
    pool.release("c")
    pool.release("d")
    assert list(pool.holes()) == [(16, 24)], (
        f"everything from slot 16 to the end of the pool is free, in one piece. Yours: {pool.holes()}"
    )


def test_the_whole_pool_is_one_hole_or_none(lab: ModuleType) -> None:
    """An empty pool has one hole, a full one none."""
    pool = contiguous(lab)
    assert list(pool.holes()) == [(0, 40)], f"an empty pool is one hole, yours: {pool.holes()}"
    pool.allocate("all", 1, 40)
    assert list(pool.holes()) == [], f"a full pool has no hole, not even of 0 slots: {pool.holes()}"


def test_nobody_leaves_his_extent(lab: ModuleType) -> None:
    """A request may fill its extent, but not one slot more."""
    extents = {"ada": (0, 16), "bo": (16, 12)}
    pool = contiguous(lab, 40, **extents)
    for num_tokens, fits in ((11, True), (16, True), (17, False)):
        assert pool.grow("ada", num_tokens) is fits, (
            f"Ada's extent has 16 slots: for {num_tokens} tokens the answer is {fits}"
        )
    for num_tokens, fits in ((12, True), (13, False)):
        assert pool.grow("bo", num_tokens) is fits, (
            f"Bo's extent is slots 16 to 27, which are 12 wherever they lie: for {num_tokens} tokens the "
            f"answer is {fits}"
        )
    assert pool.extents == extents, f"grow moves nothing: {extents}, yours: {pool.extents}"


def test_taken_is_what_is_reserved(lab: ModuleType) -> None:
    """Empty slots in an extent count as taken, too."""
    pool = contiguous(lab, 40, ada=(0, 16), bo=(24, 10))
    assert pool.num_taken() == 26, f"extents of 16 and 10 are 26 slots, not {pool.num_taken()}"


# ---- blocks --------------------------------------------------------------------------------------


def test_blocks_for_rounds_up(lab: ModuleType) -> None:
    """The number of blocks is rounded up: a block that is begun counts as a block."""
    for num_tokens, block_size, blocks in (
        (0, 4, 0),
        (1, 4, 1),
        (4, 4, 1),
        (5, 4, 2),
        (33, 16, 3),
        (7, 1, 7),
    ):
        got = lab.blocks_for(num_tokens, block_size)
        assert got == blocks, f"{num_tokens} tokens in blocks of {block_size}: {blocks}, not {got}"


def test_blocks_are_given_for_what_is_there(lab: ModuleType) -> None:
    """Ten tokens take three blocks of four, whatever the request may become."""
    pool = paged(lab, ada=10)
    assert len(pool.tables["ada"]) == 3, (
        f"10 tokens of at most 16 lie in 3 blocks of 4; the fourth comes when token 13 does. Ada's table: "
        f"{pool.tables['ada']}"
    )
    assert pool.num_taken() == 12, f"3 blocks of 4 are 12 slots taken, not {pool.num_taken()}"
    assert len(pool.free) == 7, f"10 blocks, 3 in a table: 7 are free, not {len(pool.free)}"


def test_grow_takes_a_block_when_the_last_is_full(lab: ModuleType) -> None:
    """Tokens 11 and 12 fit, token 13 begins a block, and the table keeps the blocks that it has."""
    pool = paged(lab, ada=10)
    before = list(pool.tables["ada"])
    for num_tokens, blocks in ((11, 3), (12, 3), (13, 4), (13, 4), (21, 6)):
        assert pool.grow("ada", num_tokens) is True, (
            f"{len(pool.free)} blocks are free: there is room"
        )
        table = pool.tables["ada"]
        assert len(table) == blocks, (
            f"{num_tokens} tokens lie in {blocks} blocks of 4, the table: {table}"
        )
    assert pool.tables["ada"][:3] == before, (
        f"Ada's first tokens lie in {before}; her table now begins with {pool.tables['ada'][:3]}. "
        "A table is only ever added to"
    )
    assert pool.grow("ada", 9) is True, "6 blocks hold 9 tokens"
    assert (len(pool.tables["ada"]), len(pool.free)) == (6, 4), (
        f"a table of 6 blocks is long enough for 9 tokens, so nothing is taken and nothing given back: "
        f"the table is {pool.tables['ada']} now, free are {pool.free}"
    )


def test_blocks_may_lie_anywhere(lab: ModuleType) -> None:
    """Blocks need not touch: with only every other block free, a request gets all that it needs."""
    pool = paged(lab, a=4, b=4, c=4, d=4, e=4, f=4, g=4, h=4, i=4, j=4)
    for name in "acegi":
        pool.release(name)
    free = set(pool.free)
    assert pool.allocate("long", 20, 20) is True, (
        "five blocks are free, and a block is a block wherever it lies"
    )
    assert set(pool.tables["long"]) == free, f"free were {free}, the table: {pool.tables['long']}"


def test_all_or_nothing(lab: ModuleType) -> None:
    """A refused request has taken no block, whether it is new or growing."""
    pool = paged(lab, ada=10, bo=10, cy=8)
    free = list(pool.free)
    assert pool.allocate("dee", 9, 16) is False, "2 blocks are free, 9 tokens take 3"
    assert "dee" not in pool.tables, f"Dee was refused, and has a table: {pool.tables}"
    assert sorted(pool.free) == sorted(free), f"Dee was refused; free were {free}, now {pool.free}"
    table = list(pool.tables["ada"])
    assert pool.grow("ada", 21) is False, (
        "Ada's 3 blocks and the 2 that are free hold 20 tokens, not 21"
    )
    assert pool.tables["ada"] == table, (
        f"Ada was refused 3 blocks, and her table went from {table} to {pool.tables['ada']}: the blocks "
        "that she took in vain are missing elsewhere"
    )
    assert sorted(pool.free) == sorted(free), (
        f"a refusal changes nothing: free were {free}, now {pool.free}"
    )
    assert pool.grow("ada", 20) is True, "5 blocks hold 20 tokens, and 2 are free: exactly enough"


def test_who_leaves_gives_everything_back(lab: ModuleType) -> None:
    """When a request leaves, its blocks are free again and its table is gone."""
    pool = paged(lab, ada=10, bo=10, cy=8)
    pool.release("bo")
    assert sorted(pool.tables) == ["ada", "cy"], (
        f"Bo has left; there are tables of {sorted(pool.tables)}"
    )
    assert len(pool.free) == 5, f"2 blocks were free and Bo had 3: 5, not {len(pool.free)}"
    held = pool.free + pool.tables["ada"] + pool.tables["cy"]
    assert sorted(held) == list(range(10)), (
        f"each of the 10 blocks is free or in one table, yours: {held}"
    )
    assert pool.num_taken() == 20, f"Ada has 3 blocks and Cy 2: 20 slots, not {pool.num_taken()}"


# ---- churn ---------------------------------------------------------------------------------------


def test_every_slot_has_one_owner(lab: ModuleType) -> None:
    """In 300 random arrivals and departures, extents and holes, blocks and tables never overlap."""
    rng = random.Random(2)
    pieces, blocks = lab.ContiguousAllocator(64), lab.PagedAllocator(16, 4)
    for number in range(300):
        length, at_most = rng.randint(1, 12), rng.randint(12, 20)
        for pool, here in ((pieces, pieces.extents), (blocks, blocks.tables)):
            if here and rng.random() < 0.5:
                pool.release(rng.choice(sorted(here)))
            else:
                pool.allocate(str(number), length, at_most)
        spans = sorted([*pieces.extents.values(), *pieces.holes()])
        ends = [0, *(start + size for start, size in spans)]
        assert [*(start for start, _ in spans), 64] == ends, (
            f"extents {sorted(pieces.extents.values())} and holes {list(pieces.holes())} should fill slots "
            "0 to 63 without a gap and without overlap"
        )
        owned = [*blocks.free, *(block for table in blocks.tables.values() for block in table)]
        assert sorted(owned) == list(range(16)), (
            f"each of 16 blocks is free or in one table; free {blocks.free}, tables {blocks.tables}"
        )


def test_real_requests_through_both(lab: ModuleType) -> None:
    """Of 40 requests in 8,192 slots, extents refuse some although there is room, and blocks none."""
    requests = support.load_requests()[:40]
    pieces, blocks = lab.ContiguousAllocator(8192), lab.PagedAllocator(512, 16)
    served = support.totals(support.serve(pieces, requests, support.the_clients_maximum), 8192)
    assert (served.steps, round(served.stuck, 2)) == (1309, 0.36), (
        "in extents of prompt + 1,024 the 40 requests take 1,309 steps, and in 36 % of those with a queue "
        f"its head is refused although the holes together are large enough. Yours: {served.steps:,} "
        f"steps, {served.stuck:.0%}"
    )
    served = support.totals(support.serve(blocks, requests, support.the_clients_maximum), 8192)
    assert (served.steps, served.stuck, served.preempted) == (563, 0, 1), (
        "in blocks of 16 the same requests take 563 steps, nobody is refused although there is room, 1 is "
        f"thrown out. Yours: {served.steps:,} steps, {served.stuck:.0%}, {served.preempted}"
    )


# ---- what it comes to ----------------------------------------------------------------------------


def test_first_come_first_served(lab: ModuleType) -> None:
    """The queue stops at the first request that does not fit."""
    pool = lab.ContiguousAllocator(40)
    got = lab.admit(pool, [10, 10, 8], 16)
    assert got == len(pool.extents), (
        f"you say that {got} are in, and the pool has {pool.extents}. Each request needs a name of its own, "
        "or it takes the place of the one before"
    )
    assert got == 2, f"40 slots hold two extents of 16: Ada and Bo. You admitted {got}"
    got = lab.admit(lab.PagedAllocator(10, 4), [10, 10, 8], 16)
    assert got == 3, f"Ada, Bo and Cy take 3 + 3 + 2 of 10 blocks: all 3, not {got}"
    got = lab.admit(lab.PagedAllocator(10, 4), [10, 33, 10, 8], 40)
    assert got == 1, (
        f"after Ada 7 blocks are free, and the next in the queue needs 9. It waits, and the shorter ones "
        f"wait behind it: 1 admitted, not {got}"
    )
    got = lab.admit(lab.ContiguousAllocator(4096), iter([33] * 64), 512)
    assert got == 8, f"4,096 slots hold 8 extents of 512, you admitted {got}"


def test_wasted_is_taken_and_empty(lab: ModuleType) -> None:
    """Wasted slots are reserved and hold no token; a free slot is not wasted."""
    held = {"ada": 10, "bo": 9}
    pieces = contiguous(lab, 40, ada=(0, 16), bo=(24, 10))
    got = lab.wasted_slots(pieces, held)
    assert got == 7, (
        f"26 slots are reserved, 19 hold a token: 7 are wasted, not {got}. The 14 free ones can be given"
    )
    got = lab.wasted_slots(paged(lab, **held), held)
    assert got == 5, f"3 blocks each are 24 slots, 19 hold a token: 5, not {got}"


def test_a_block_wastes_less_than_a_block(lab: ModuleType) -> None:
    """A request never wastes more than block_size - 1 slots, whatever its length."""
    for length in range(1, 40):
        got = lab.wasted_slots(paged(lab, ada=length), {"ada": length})
        assert got == -length % 4, (
            f"a request of {length} tokens in blocks of 4 wastes {-length % 4} slots at its end, not {got}"
        )


def test_unusable_room(lab: ModuleType) -> None:
    """Free slots in holes smaller than the extent wanted are unusable; an exact fit is usable."""
    holes = [lab.Extent(0, 2), lab.Extent(4, 6), lab.Extent(14, 10), lab.Extent(33, 7)]
    for size, want in ((2, 0), (3, 2), (7, 8), (8, 15), (11, 25)):
        got = lab.unusable_room(holes, size)
        assert got == want, (
            f"holes of 2, 6, 10 and 7: {want} slots are of no use for {size}, not {got}"
        )


def test_stuck_with_room_enough(lab: ModuleType) -> None:
    """A pool is stuck if it has room enough in all, and no single hole is large enough."""
    holes = [lab.Extent(0, 2), lab.Extent(4, 6), lab.Extent(14, 10), lab.Extent(33, 7)]
    for size, want, why in (
        (10, False, "one hole has exactly 10"),
        (11, True, "25 slots are free, and the largest hole has 10"),
        (25, True, "25 slots are free, exactly enough, and the largest hole has 10"),
        (26, False, "25 slots are free: the pool is full, not fragmented"),
    ):
        got = lab.is_stuck(holes, size)
        assert got is want, (
            f"holes of 2, 6, 10 and 7, wanted {size}: {want}, because {why}; yours {got}"
        )
    got = lab.is_stuck([], 1)
    assert got is False, f"a full pool has no holes, and is not stuck but full; yours {got}"


def test_sweep(lab: ModuleType) -> None:
    """The sweep gives waste as a share of all slots taken, and the table length of the longest request."""
    rows = lab.sweep([5, 10, 1], [16, 1, 4])
    want = [(16, 1 - 16 / 48, 1), (1, 0.0, 10), (4, 1 - 16 / 24, 3)]
    assert [row[0] for row in rows] == [16, 1, 4], (
        f"a row for each of the block sizes 16, 1 and 4, in the order given; yours: {rows}"
    )
    for (size, waste, table), row in zip(want, rows, strict=True):
        assert math.isclose(row.waste, waste, abs_tol=1e-12), (
            f"5, 10 and 1 tokens in blocks of {size}: of all slots taken {waste:.4f} hold nothing; yours "
            f"{row.waste:.4f}. It is a share of the sum, not a mean of shares"
        )
        assert row.longest_table == table, (
            f"the longest of 5, 10 and 1 tokens has 10: in blocks of {size} a table of {table}, not "
            f"{row.longest_table}"
        )
