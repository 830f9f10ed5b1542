"""Lab 07-08: near ties of a router, the jump they make, and tickets from recorded runs.

Nothing here depends on the BLAS of this machine: the runs were recorded (`ties.json`).
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
same, NOISE = support.same, support.NOISE


# ---- predictions ---------------------------------------------------------------------------------

ASK = {
    "nearer than 1e-06, of a million": "how do the other rows of the table go on?",
    "logits move, no expert turned": "how exact is float32, and how many sums follow each other?",
    "logits move, an expert turned": "by how much do two experts' answers differ? Is the gap part of that?",
    "bits change, dense": "which matrices are multiplied with the weights, and how high is each?",
    "bits change, Mixtral": "how high is the matrix that goes to one expert? Who decides that?",
    "rounded to three digits": "1.00049 and 1.00051: how far apart are they now?",
    "VLLM_BATCH_INVARIANT=1 on a CPU": "which kernels does the variable choose, and where do they run?",
    "tokens from which the order changes": "which of lab 07-07's tile sizes cuts a row's sum into parts?",
}


def facts(lab: ModuleType) -> dict[str, tuple[Any, Any]]:
    """The lowest and the highest answer that is right, from the recording."""
    found = support.ties()
    moved = []
    for flip in found["flips"]:
        alone = flip["runs"]["alone"]
        for run in flip["runs"].values():
            if [sorted(row) for row in run["experts"]] != [sorted(row) for row in alone["experts"]]:
                moved.append(float(np.abs(np.subtract(run["logits"], alone["logits"])).max()))
    million = 1e6 * found["below"]["1e-06"] / found["rows"]
    quiet = found["quiet_logits_move"]
    noise = found["turned_by_noise"]
    assert noise["rounded"] >= noise["plain"], "the recording: with rounding no fewer experts turn"
    asked = support.in_vllm()["runs"]
    in_vllm = lab.AS_BEFORE if asked["invariant"] == asked["as it comes"] else lab.GONE
    dense, mixtral = (found["company"][name] > 0 for name in ("dense", "mixtral"))
    return {
        "nearer than 1e-06, of a million": (million / 3, 3 * million),
        "logits move, no expert turned": (quiet / 30, 3 * quiet),
        "logits move, an expert turned": (min(moved) / 3, 3 * max(moved)),
        "bits change, dense": (dense, dense),
        "bits change, Mixtral": (mixtral, mixtral),
        "rounded to three digits": (lab.AS_BEFORE, lab.AS_BEFORE),
        "VLLM_BATCH_INVARIANT=1 on a CPU": (in_vllm, in_vllm),
        "tokens from which the order changes": (65, 65),
    }


@pytest.mark.parametrize("question", ASK)
def test_the_predictions_hold(lab: ModuleType, question: str) -> None:
    """The eight predictions hold, and those that are estimates hold within a factor of three."""
    said = lab.predictions()
    assert sorted(said) == sorted(ASK), f"answer {sorted(ASK)}; yours: {sorted(said)}"
    least, most = facts(lab)[question]
    mine = said[question]
    if isinstance(least, float) and isinstance(mine, int | float):
        wrong = "" if least <= mine <= most else f"{mine!r} is wrong"
    else:
        wrong = wrong_in(mine, least)
    assert not wrong, f"{question}: {wrong}. Ask yourself: {ASK[question]}"


# ---- a tie ---------------------------------------------------------------------------------------


def test_the_gap(lab: ModuleType) -> None:
    """The gap lies between the last chosen logit and the first that is not chosen, in float64."""
    logits = np.array([0.5, 3.0, 2.0, 2.5, -1.0], np.float32)
    for k, want in ((1, 0.5), (2, 0.5), (3, 1.5), (4, 1.5)):
        same(lab.gap(logits, k), want, f"{logits.tolist()}, {k} of them: the gap")
    near = np.array([4.0, 1.0, np.nextafter(np.float32(4), np.float32(5)), 4.0], np.float32)
    same(lab.gap(near, 1), 2.0**-21, "4 and the next float32 above it")
    same(lab.gap(near, 2), 0.0, "two that are equal")


def test_what_noise_can_turn(lab: ModuleType) -> None:
    """One logit may fall while another rises, so noise counts twice; only the set of experts counts."""
    logits = np.array([1.0, 3.0, 2.0, 2.5], np.float32)
    for k, noise, want in (
        (2, 0.2, False), (2, 0.24, False), (2, 0.26, True), (2, 0.6, True), (3, 0.4, False),
    ):  # fmt: skip
        got = lab.can_turn(logits, k, noise)
        assert got == want, f"{logits.tolist()}, {k} of them, noise {noise}: {want}, not {got}"
    logits = np.array([0.0, 5.0, 5.0, 1.0], np.float32)
    got = lab.can_turn(logits, 2, 0.1)
    assert not got, "5 and 5 are both chosen; which of them is first does not matter"


def test_equal_ones_go_to_the_lower_index(lab: ModuleType) -> None:
    """Where noise makes two logits exactly equal, the lower index is chosen."""
    for logits, want in (([1.0, 0.5, 0.0], False), ([0.5, 1.0, 0.0], True)):
        got = lab.can_turn(np.array(logits, np.float32), 1, 0.25)
        assert got == want, (
            f"{logits}, one of them, noise 0.25: both become 0.75, and the lower index is chosen, so {want}, "
            f"not {got}"
        )
    step = 2.0**-21  # between float32 numbers just above 4
    near = np.array([4 + 2 * step, 4, 0], np.float32)
    for share, want in ((0.9, False), (1.2, True)):
        got = lab.can_turn(near, 1, share * step)
        assert got == want, (
            f"4 and a number two steps of {step:.2g} above it, noise {share} of a step: {want}, not {got}: "
            "how exact are sums beside 4 in float32?"
        )


def test_of_many_equal_ones_the_lower_indices_are_chosen(lab: ModuleType) -> None:
    """Of many equal logits the lower indices are chosen; numpy's default sort does not keep their order."""
    for seed in range(8):
        logits = np.random.default_rng(seed).choice([9, 0.5, -9], 128).astype(np.float32)
        near = np.flatnonzero(logits == 0.5)
        lower = near[: len(near) // 2]
        logits[lower] = 1
        got = lab.can_turn(logits, int((logits > 0.5).sum()), 0.25)
        assert not got, (
            "128 experts, of which noise makes a third equal. The lower half of these was chosen before, and "
            "is chosen again, so nothing turns"
        )
    outputs = np.random.default_rng(3).standard_normal((128, 5)).astype(np.float32)
    logits = (np.arange(128) % 4).astype(np.float32)
    best = np.flatnonzero(logits == 3)
    for k in (1, 5):
        worst = float(np.abs(lab.mix(logits, outputs, k) - outputs[best[:k]].mean(0)).max())
        assert worst < 1e-5, (
            f"32 of 128 experts have the largest logit, and {k} are chosen: the first {k}"
        )
        want = float(np.abs(outputs[best[k - 1]] - outputs[best[k]]).max()) / k
        jumps = float(lab.jump(logits, outputs, k))
        assert math.isclose(jumps, want, rel_tol=1e-4), (
            f"32 of 128 experts have the largest logit, {k} are chosen: of equal ones the next to come in is "
            "that with the next index"
        )


def test_a_layer_is_mixed(lab: ModuleType) -> None:
    """A layer mixes its experts by a softmax over the chosen logits, compared with float64 by hand."""
    rng = np.random.default_rng(1)
    for experts, k in ((8, 2), (8, 1), (16, 4)):
        logits = rng.standard_normal(experts).astype(np.float32) + 60  # exp(120) is too large
        outputs = rng.standard_normal((experts, 5)).astype(np.float32)
        best = sorted(range(experts), key=lambda i: -logits[i])[:k]
        total = sum(math.exp(float(logits[i])) for i in best)
        want = sum(math.exp(float(logits[i])) / total * outputs[i].astype(np.float64) for i in best)
        got = lab.mix(logits, outputs, k)
        assert np.shape(got) == (5,), f"one number per hidden number, [5], not {np.shape(got)}"
        worst = float(np.abs(got - want).max())
        assert worst < 1e-5, f"{k} of {experts}: {worst:.2g} from the sum in float64"


def test_the_jump_is_what_mix_does(lab: ModuleType) -> None:
    """If two logits 4e-6 apart change places, the layer's output moves as `jump` predicts."""
    rng = np.random.default_rng(2)
    for k in (1, 2, 3):
        logits = np.array([0.3, -1, 1.2, 0.9, -0.5, 2.0], np.float32) + np.float32(60)
        order = np.argsort(-logits)
        logits[order[k]] = np.nextafter(logits[order[k - 1]], np.float32(0))
        outputs = rng.standard_normal((6, 7)).astype(np.float32)
        turned = logits.copy()
        turned[[order[k - 1], order[k]]] = logits[[order[k], order[k - 1]]]
        want = float(np.abs(lab.mix(turned, outputs, k) - lab.mix(logits, outputs, k)).max())
        same(lab.jump(logits, outputs, k), want, f"{k} of 6 experts, a tie of 4e-6", rel=1e-3)


def test_a_smaller_gap_is_no_smaller_jump(lab: ModuleType) -> None:
    """Unlike in a dense model, a smaller gap makes no smaller jump: noise goes in, and far more comes out."""
    outputs = np.array([[1, 0], [0, 1], [0, -3]], np.float32)
    for near in (1e-1, 1e-3, 1e-5):
        logits = np.array([1.0, 0.5, 0.5 - near], np.float32)
        want = 4 * math.exp(0.5) / (math.exp(1) + math.exp(0.5))
        same(lab.jump(logits, outputs, 2), want, f"a gap of {near:g}: the jump")


# ---- company -------------------------------------------------------------------------------------


def test_rows_together(lab: ModuleType) -> None:
    """Other company in a step of four rows makes matrices of other heights."""
    me = [2, 5]
    for others, want in (
        ([[0, 1], [3, 4], [6, 7]], [1, 1]),
        ([[2, 1], [5, 2], [6, 7]], [3, 2]),
        ([[5, 2], [2, 5], [2, 5]], [4, 4]),
    ):
        for place in (0, 2, 3):
            table = np.array([*others[:place], me, *others[place:]], np.int64)
            got = lab.rows_together(table, place)
            assert list(got) == want, f"row {place} of {table.tolist()}: {want}, not {got}"


# ---- a ticket ------------------------------------------------------------------------------------

ROUTER = [[3.0, 2.0, 1.0, 0.0], [0.0, 2.0, 2.0 - 1e-5, 4.0]]


def test_where_experts_first_differ(lab: ModuleType) -> None:
    """Experts are compared as sets, layer by layer."""
    one = support.made(lab, ROUTER, [1, 0])
    for experts, want in (
        ([[0, 1], [3, 1]], None), ([[1, 0], [1, 3]], None), ([[0, 1], [3, 2]], 1), ([[0, 2], [2, 3]], 0),
    ):  # fmt: skip
        got = lab.first_turn(one, support.made(lab, ROUTER, [1, 0], experts))
        assert got == want, f"{one.experts.tolist()} and {experts}: {want}, not {got}"


def test_verdicts_by_hand(lab: ModuleType) -> None:
    """There is one ticket for each verdict, and for each a case just beyond noise."""
    one = support.made(lab, ROUTER, [1.0, 1.0 - 1e-5, 0.0])
    for router, logits, experts, want, what in (
        (ROUTER, [1.0, 1.0 - 1e-5, 0.0], None, "noise", "two equal runs"),
        (ROUTER, [1.0 + 2e-5, 1.0, 0.0], None, "noise", "all moved by 2e-5 at most, the same token"),
        (ROUTER, [1.0 - 2e-5, 1.0, 0.0], None, "token tie", "the token's logit fell by 2e-5"),
        (ROUTER, [1.0, 1.01, 0.0], None, "fault", "a logit moved by 0.01, and no expert turned"),
        (ROUTER, [1.0, 1.0 - 1e-5, 0.5], None, "fault", "a logit moved by 0.5, though the token is the same"),
        (ROUTER, [0.0, 0.0, 9.0], [[0, 1], [3, 2]], "router tie", "layer 1 turned, where two are 1e-5 apart"),
        (ROUTER, [1.0, 1.0 - 1e-5, 0.0], [[0, 1], [2, 3]], "router tie", "the same with equal logits"),
        (ROUTER, [0.0, 0.0, 9.0], [[0, 2], [3, 1]], "fault", "layer 0 turned, where they are 1 apart"),
        (ROUTER, [0.0, 0.0, 9.0], [[0, 2], [3, 2]], "fault", "both turned, and the first cannot be a tie"),
    ):  # fmt: skip
        got = lab.verdict(one, support.made(lab, router, logits, experts), NOISE)
        assert got == want, f"{what}: {want!r}, not {got!r}"
    equal = (
        support.made(lab, ROUTER, [1.0, 1.0, 0.0]),
        support.made(lab, ROUTER, [1.0, 1.0 + 1e-5, 0.0]),
    )
    got = lab.verdict(*equal, NOISE)
    assert got == "token tie", f"of two equal logits the lower token was the largest: not {got!r}"
    moved = support.made(lab, ROUTER, [1.0, 0.25, 0.0]), support.made(lab, ROUTER, [1.0, 0.5, 0.0])
    got = lab.verdict(*moved, 0.25)
    assert got == "noise", f"a logit moved by 0.25, noise 0.25, which is at most that: not {got!r}"


def test_a_later_turn_follows_from_the_first(lab: ModuleType) -> None:
    """After a tie in layer 0, layer 1 may turn far beyond noise, and that is not a fault."""
    one = support.made(lab, ROUTER[::-1], [1.0, 0.0])
    later = support.made(lab, [ROUTER[1], [0.0, 0.0, 5.0, 6.0]], [0.0, 1.0], [[3, 2], [3, 2]])
    got = lab.verdict(one, later, NOISE)
    assert got == "router tie", f"layer 0 turned by a tie of 1e-5, layer 1 in its wake: not {got!r}"


def test_the_recorded_runs(lab: ModuleType) -> None:
    """Every run of ties.json gets its verdict beside the run of the request alone."""
    for flip in support.ties()["flips"]:
        alone = support.as_run(lab, flip["runs"]["alone"])
        for name, raw in flip["runs"].items():
            run = support.as_run(lab, raw)
            differs = [
                i
                for i in range(4)
                if set(run.experts[i].tolist()) != set(alone.experts[i].tolist())
            ]
            got = lab.first_turn(alone, run)
            assert got == (differs[0] if differs else None), (
                f"{name}: the first of {differs}, not {got}"
            )
            want = "router tie" if differs else "noise"
            got = lab.verdict(alone, run, NOISE)
            assert got == want, f"{flip['prompt'][-20:]!r} {name}: {want!r}, not {got!r}"
            if differs:
                between = lab.gap(alone.router[differs[0]], 2)
                assert between < 1e-5, f"{name}: a gap of {between:g} in layer {differs[0]}"


def test_a_lost_token_is_no_tie(lab: ModuleType) -> None:
    """A recorded run with one token's keys and values overwritten is a fault, not a tie."""
    healthy, broken = (support.as_run(lab, raw) for raw in support.ties()["lost"])
    got = lab.verdict(healthy, broken, NOISE)
    assert got == "fault", (
        f"a slot of the cache was lost, which no order of sums explains: not {got!r}"
    )
