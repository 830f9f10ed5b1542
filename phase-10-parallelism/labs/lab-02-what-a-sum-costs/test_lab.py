"""Lab 10-02: the two sums message by message, their formulas, where they cross, and the bill of a step."""

from __future__ import annotations

import math
from collections import Counter
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
RANKS = (2, 3, 4, 8)


def test_the_predictions_hold(lab: ModuleType) -> None:
    """There are six predictions: steps, bytes, bits, and what bandwidth and ranks change."""
    facts = {
        "steps": (
            [2, 6, 14],
            "How many steps until each part of the sum is complete, and how many until all have it?",
        ),
        "bytes": (
            [2 * 7 * 16_384 // 8, 7 * 16_384],
            "How many messages does a rank send, and how large is each?",
        ),
        "rank order": (
            [n == 2 for n in RANKS],
            "At which rank does the sum of each part begin? And is a + b the same as b + a?",
        ),
        "the same on all ranks": (
            [True] * 4,
            "How many ranks add up one part, and what do the others do with it?",
        ),
        "twice the bandwidth": (
            [3.49, 36.64],
            "What share of the time are the steps' latencies, and what share the bytes?",
        ),
        "from 4 ranks to 8": (
            "falls",
            "How many latencies does one shot save, and how many more bytes does it send?",
        ),
    }  # fmt: skip
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, f"six questions; the README and your answers do not both have these: {apart}"
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact, 1 if name.startswith("twice") else 0)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- message by message --------------------------------------------------------------------------


def play(function: Any, num_ranks: int, length: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """The sums, the wire, and the arrays, which must not have changed; no two ranks share their sum."""
    arrays, wire = support.draw(num_ranks, length, seed), support.Wire(num_ranks)
    kept = [array.copy() for array in arrays]
    sums = function(arrays, wire)
    for rank, (array, before) in enumerate(zip(arrays, kept, strict=True)):
        assert np.array_equal(array, before), (
            f"{num_ranks} ranks: rank {rank}'s own array was changed"
        )
    assert len(sums) == num_ranks, f"{num_ranks} ranks: a sum for each; yours are {len(sums)}"
    for rank, total in enumerate(sums):
        assert np.shape(total) == (length,), (
            f"{num_ranks} ranks: rank {rank}'s sum has the shape {(length,)}; yours {np.shape(total)}"
        )
        far = float(np.abs(total - np.sum(np.array(kept, np.float64), 0)).max())
        assert far < 1e-5, (
            f"{num_ranks} ranks: rank {rank}'s sum is {far:.2g} away from the right one"
        )
        for other in range(rank):
            assert not np.shares_memory(sums[other], total), (
                f"{num_ranks} ranks: ranks {other} and {rank} share the memory of their sums; on a real "
                "machine each has its own"
            )
    return sums, wire, kept


@pytest.mark.parametrize("n", RANKS)
def test_one_shot(lab: ModuleType, n: int) -> None:
    """One step, a whole array from each rank to every other, the bits of the sum in rank order on all."""
    sums, wire, arrays = play(lab.one_shot, n, 24)
    assert wire.steps == 1, f"{n} ranks: 1 step; yours takes {wire.steps}"
    pairs = sorted((a, b) for a, b, _ in wire.messages[0])
    want = [(a, b) for a in range(n) for b in range(n) if a != b]
    assert pairs == want, (
        f"{n} ranks: {len(want)} messages (source, target), from each rank to every other; yours are "
        f"{pairs}"
    )
    sent = [(n - 1) * 96] * n
    assert wire.sent == sent, (
        f"{n} ranks: of arrays of 96 bytes each rank sends, in bytes, {sent}; yours {wire.sent}"
    )
    for rank, total in enumerate(sums):
        assert np.array_equal(total, support.in_rank_order(arrays)), (
            f"{n} ranks: rank {rank}'s sum differs in its last bits from the one in rank order, 0 first"
        )


@pytest.mark.parametrize("n", RANKS)
def test_the_ring(lab: ModuleType, n: int) -> None:
    """2(n - 1) steps, an n-th of the array to the right neighbour in each, the same bits on all ranks."""
    sums, wire, _ = play(lab.ring, n, 24 * n)
    assert wire.steps == 2 * (n - 1), f"{n} ranks: {2 * (n - 1)} steps; yours takes {wire.steps}"
    for number, messages in enumerate(wire.messages):
        pairs = sorted((a, b) for a, b, _ in messages)
        assert pairs == [(r, (r + 1) % n) for r in range(n)], (
            f"{n} ranks, step {number}: each sends to its right neighbour; your (source, target) are {pairs}"
        )
        sizes = {size for *_, size in messages}
        assert sizes == {96}, (
            f"{n} ranks, step {number}: a part has 96 bytes; yours have {sorted(sizes)}"
        )
    for rank in range(1, n):
        assert np.array_equal(sums[rank], sums[0]), (
            f"{n} ranks: rank {rank} and rank 0 have sums that differ in their last bits"
        )


def test_the_rings_bits(lab: ModuleType) -> None:
    """Two ranks: the bits of the sum in rank order. From three on they differ."""
    for n in RANKS:
        sums, _, arrays = play(lab.ring, n, 64 * n, seed=n)
        same = np.array_equal(sums[0], support.in_rank_order(arrays))
        if n == 2:
            assert same, (
                "2 ranks: the bits of your ring's sum are not those of a0 + a1. A part that arrives is added "
                "to the rank's own part, and nothing else is"
            )
            continue
        assert not same, (
            f"{n} ranks: the bits of your ring's sum are those of the sum in rank order, but only one part's "
            "way around the ring begins at rank 0. A part that arrives is added to the rank's own part"
        )


@pytest.mark.parametrize("n", RANKS)
def test_only_what_arrives_is_used(lab: ModuleType, n: int) -> None:
    """On a wire that delivers zeros, a rank knows no numbers but its own."""
    arrays = support.draw(n, 4 * n)
    for rank, total in enumerate(lab.one_shot(arrays, support.Wire(n, dead=True))):
        assert np.array_equal(total, arrays[rank]), (
            f"one_shot, {n} ranks: all messages arrive as zeros, so rank {rank}'s sum is its own array; "
            "yours has other numbers. It adds something that did not come over the wire"
        )
    for rank, total in enumerate(lab.ring(arrays, support.Wire(n, dead=True))):
        parts = [slice(4 * i, 4 * i + 4) for i in range(n)]
        own = [np.array_equal(total[part], arrays[rank][part]) for part in parts]
        zero = [not np.any(total[part]) for part in parts]
        assert (sum(own), sum(zero)) == (1, n - 1), (
            f"ring, {n} ranks: all messages arrive as zeros, so rank {rank} ends with one part of its own "
            f"array and {n - 1} of zeros; yours with {sum(own)} and {sum(zero)}. Use what the wire "
            "delivers, not another rank's list"
        )


# ---- what it costs -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["one_shot", "ring"])
def test_the_ways_are_what_is_sent(lab: ModuleType, kind: str) -> None:
    """Steps and payloads by your formula are those that your messages have, for 2 to 9 ranks."""
    for n in range(2, 10):
        _, wire, _ = play(getattr(lab, kind), n, 5 * n)
        way = getattr(lab, f"{kind}_way")(n)
        sent = wire.sent[0] / (5 * n * 4)
        assert way.steps == wire.steps, (
            f"{kind}, {n} ranks: your messages take {wire.steps} steps; by your formula {way.steps}"
        )
        assert abs(way.payloads - sent) < 1e-9, (
            f"{kind}, {n} ranks: a rank sends {sent:.4f} payloads; by your formula {way.payloads:.4f}"
        )


def test_a_gather(lab: ModuleType) -> None:
    """A rank passes each array on but the one that its neighbour began with."""
    for n in (2, 3, 8):
        way = lab.gather_way(n)
        assert way.steps == n - 1, f"{n} ranks: {n - 1} steps around the ring; yours {way.steps}"
        assert way.payloads == pytest.approx(n - 1), (
            f"{n} ranks, each with a payload of its own: a rank sends {n - 1}; yours {way.payloads:g}"
        )


def test_alpha_and_beta(lab: ModuleType) -> None:
    """Each step costs the latency once, however little it sends; all bytes go at the bandwidth."""
    link = support.made("slow", 10, 0.001)  # a million bytes per second
    for way, nbytes, want in (
        (lab.Way(1, 3), 8, 34e-6),
        (lab.Way(6, 1.5), 8, 72e-6),
        (lab.Way(6, 1.5), 0, 60e-6),
        (lab.Way(14, 1.75), 1e6, 1.75014),
    ):
        got = lab.seconds(link, way, nbytes)
        assert got == pytest.approx(want, rel=1e-9), (
            f"10 us, 1 MB/s, {way}, {nbytes:g} bytes: {want * 1e6:.2f} us; yours {got * 1e6:.2f}"
        )


def words(link: Any) -> str:
    """A link by its figures."""
    return f"{link.latency_s * 1e6:g} us and {link.bandwidth / 1e9:g} GB/s"


@pytest.mark.parametrize("n", range(2, 10))
def test_where_they_cross(lab: ModuleType, n: int) -> None:
    """Below it one shot is faster, above it the ring, on every link; with two ranks there is no above."""
    for link in (support.NVLINK, support.made("far", 14, 12.5), support.made("quick", 0.5, 900)):
        at = lab.crossing(link, n)
        if n == 2:
            assert at == math.inf, (
                f"2 ranks: the ring sends as much in more steps, so inf; yours is {at:,.0f} bytes"
            )
            continue
        assert 0 < at < math.inf, (
            f"{n} ranks, {words(link)}: a positive, finite number of bytes; yours is {at:,.0f}"
        )
        for nbytes, faster in ((0.999 * at, "one shot"), (1.001 * at, "the ring")):
            one = link.latency_s + (n - 1) * nbytes / link.bandwidth
            around = 2 * (n - 1) * (link.latency_s + nbytes / n / link.bandwidth)
            assert (one < around) == (faster == "one shot"), (
                f"{n} ranks, {words(link)}: with your crossing at {at:,.0f} bytes, {faster} must be faster "
                f"for {nbytes:,.0f}; but one shot takes {one * 1e6:.2f} us, the ring {around * 1e6:.2f}"
            )


# ---- a step's bill -------------------------------------------------------------------------------


def bill(link: Any, n: int, ledger: Any) -> dict[str, float]:
    """What it must be: of a sum the faster way."""
    took = {"all_reduce": 0.0, "all_gather": 0.0}
    for (kind, _, nbytes), count in ledger.items():
        beta = nbytes / link.bandwidth
        around = 2 * (n - 1) * (link.latency_s + beta / n)
        one = link.latency_s + (n - 1) * beta
        gather = (n - 1) * (link.latency_s + beta)
        took[kind] += count * (min(one, around) if kind == "all_reduce" else gather)
    return took


def check_bill(lab: ModuleType, what: str, link: Any, n: int, ledger: Any) -> None:
    got, want = lab.step_seconds(link, n, Counter(ledger)), bill(link, n, ledger)
    assert sorted(got) == sorted(want), f"{what}: both kinds; yours are {sorted(got)}"
    for kind in sorted(want):
        assert got[kind] == pytest.approx(want[kind], rel=1e-9), (
            f"{what}: {kind} takes {1e3 * want[kind]:.4f} ms; yours {1e3 * got[kind]:.4f}"
        )


@pytest.mark.parametrize(
    ("tokens", "requests"),
    [(1, 1), (16, 16), (2048, 1)],
    ids=["decode of 1", "decode of 16", "chunk"],
)
@pytest.mark.parametrize("n", [2, 4, 8])
def test_noors_step(lab: ModuleType, n: int, tokens: int, requests: int) -> None:
    """The 161 sums and the gather of her model's step, over NVLink."""
    ledger = support.noors_step(n, tokens, requests)
    check_bill(lab, f"{n} ranks, step of {tokens}", support.NVLINK, n, ledger)


def test_the_measured_ledger(lab: ModuleType) -> None:
    """The 240 calls that two ranks of the tiny Llama made in 24 steps, over Ethernet."""
    ranks, ledger = support.measured()
    check_bill(lab, "the tiny Llama, 24 steps", support.made("far", 14, 12.5), ranks, ledger)


def test_a_ledger_of_one_kind(lab: ModuleType) -> None:
    """A stage of a pipeline may have sums and no gather; a ledger may be empty."""
    sums = {("all_reduce", (4, 8192), 65_536): 81, ("all_reduce", (4096, 8192), 2**26): 2}
    check_bill(lab, "two sizes of sums", support.NVLINK, 4, sums)
    check_bill(lab, "a gather alone", support.NVLINK, 3, {("all_gather", (4, 42_752), 342_016): 1})
    check_bill(lab, "nothing", support.NVLINK, 4, {})
