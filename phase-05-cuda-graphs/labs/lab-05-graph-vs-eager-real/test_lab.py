"""Lab 05-05: count what a step launches, predict its time, and judge what was measured."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)


def test_the_predictions_hold(lab: ModuleType) -> None:
    """The predictions match what was counted and measured."""
    said, want = lab.predictions(), support.answers(lab)
    assert set(said) == set(want), f"the names are {sorted(want)}, not {sorted(said)}"
    asks = {
        "operators": "Does a wider layer have more operators, or larger ones?",
        "kernels": "Does the compiler join less when tensors are larger?",
        "share": "How many operators of a layer can become one kernel?",
        "width": "How much of the step is starting operators, at this width and batch?",
        "vLLM": "How much of a step is left to save at this batch, and do all five rounds agree?",
    }
    for name, answer in want.items():
        wrong = wrong_in(said[name], answer)
        ask = next(ask for begin, ask in asks.items() if name.startswith(begin))
        assert not wrong, f"{name}: {wrong}. {ask}"


# -- Predict.


def test_a_step_on_a_gpu(lab: ModuleType) -> None:
    """On a GPU the processor starts the next kernel while one runs, so the longer of the two is the step."""
    bound = lab.predict(200, 5e-6, 2e9, 4e12, overlap=True)
    assert math.isclose(bound.host, 1e-3), f"200 launches of 5 us are 1 ms, not {bound.host:g} s"
    assert math.isclose(bound.device, 5e-4), f"2 GB at 4 TB/s are 0.5 ms, not {bound.device:g} s"
    assert math.isclose(bound.step, 1e-3), (
        f"1 ms of launches hide 0.5 ms of work, not {bound.step:g} s"
    )
    assert math.isclose(bound.lost, 0.5), (
        f"half of the step no kernel works, since the next one is not started yet; not {bound.lost:g}"
    )
    busy = lab.predict(10, 5e-6, 2e9, 4e12, overlap=True)
    assert math.isclose(busy.step, 5e-4), (
        f"0.5 ms of work hide 50 us of launches, not {busy.step:g} s"
    )
    assert busy.lost == 0, (
        f"the card always has something to do; not {busy.lost:g} of the time without"
    )


def test_a_step_on_a_cpu(lab: ModuleType) -> None:
    """On a CPU one core first starts a kernel and then runs it."""
    got = lab.predict(300, 1e-5, 1e8, 1e11, overlap=False)
    assert math.isclose(got.step, 4e-3), (
        f"3 ms of launches, then 1 ms of work: 4 ms, not {got.step:g} s"
    )
    assert math.isclose(got.lost, 0.75), (
        f"3 of 4 ms are launches, so 0.75 is lost, not {got.lost:g}"
    )
    slow = lab.predict(1, 1.0, 2.0, 0.5, overlap=False)
    assert slow.step == 5, (
        f"2 bytes at half a byte a second, and one launch: 5 s, not {slow.step:g}"
    )
    nothing = lab.predict(0, 1e-5, 0, 1e11, overlap=False)
    assert (nothing.step, nothing.lost) == (0, 0), (
        f"nothing to do takes 0 s and loses none: {nothing}"
    )


# -- Judge.


@pytest.mark.parametrize(("ratio", "verdict"), [(1.5, "GAIN"), (0.8, "LOSS"), (1.0, "UNDECIDED")])
def test_a_drifting_machine(lab: ModuleType, ratio: float, verdict: str) -> None:
    """Rounds may be ten times slower than others: if every pair has the same ratio, so has the result."""
    got = lab.gain(support.drifting(3, ratio))
    for name in ("ratio", "low", "high"):
        value = getattr(got, name)
        assert math.isclose(value, ratio, rel_tol=1e-9), (
            f"{name} is {value:.3f}, where each of the pairs says {ratio}. Compare the two of a pair: they "
            f"were measured one behind the other"
        )
    if ratio != 1:
        assert got.verdict == getattr(lab, verdict), f"every pair says {ratio}: not {got.verdict!r}"


def test_the_middle_pair(lab: ModuleType) -> None:
    """One disturbed pair does not move the ratio, and it is not hidden either."""
    pairs = [(2.0, 1.0), (2.2, 1.0), (2.1, 1.0), (60.0, 1.0), (1.9, 1.0)]
    got = lab.gain(pairs)
    assert math.isclose(got.ratio, 2.1), (
        f"the middle of 1.9, 2, 2.1, 2.2 and 60 is 2.1, not {got.ratio:g}"
    )
    assert (got.low, got.high) == (1.9, 60.0), (
        f"from 1.9 to 60, not from {got.low:g} to {got.high:g}"
    )
    drifts = [(2.0, 1.0), (40.0, 10.0), (3.0, 2.0), (60.0, 30.0), (25.0, 20.0)]
    got = lab.gain(drifts)
    assert math.isclose(got.ratio, 2.0), (
        f"2, 4, 1.5, 2 and 1.25 times, in the middle 2, not {got.ratio:g}. The middle of the slow times "
        f"and the middle of the fast ones may come from different rounds"
    )
    even = lab.gain([(1.0, 1.0), (3.0, 1.0), (4.0, 1.0), (9.0, 1.0)])
    assert math.isclose(even.ratio, 3.5), (
        f"of four the middle lies between 3 and 4, not at {even.ratio:g}"
    )


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([1.01, 1.3], "GAIN"),
        ([0.99, 1.9, 1.9], "UNDECIDED"),
        ([1.0, 1.2], "UNDECIDED"),
        ([0.8, 1.0], "UNDECIDED"),
        ([0.2, 0.99], "LOSS"),
        ([1.2], "GAIN"),
    ],
)
def test_all_pairs_must_agree(lab: ModuleType, ratios: list[float], verdict: str) -> None:
    """One pair that disagrees, or shows no difference, makes the verdict UNDECIDED."""
    got = lab.gain([(ratio, 1.0) for ratio in ratios])
    want = getattr(lab, verdict)
    assert got.verdict == want, f"pairs that say {ratios} are {want!r}, not {got.verdict!r}"


def test_no_pairs_no_verdict(lab: ModuleType) -> None:
    """An empty list of pairs is an error."""
    with pytest.raises(ValueError, match="no pairs"):
        lab.gain([])


def test_where_the_gain_ends(lab: ModuleType) -> None:
    """The gain ends at the first size of the last stretch without one, in whatever order the sizes come."""
    made = {
        name: lab.Gain(1.0, 1.0, 1.0, getattr(lab, name)) for name in ("GAIN", "LOSS", "UNDECIDED")
    }
    yes, no, open_ = made["GAIN"], made["LOSS"], made["UNDECIDED"]
    cases = [
        ({1: yes, 8: yes, 64: open_, 256: no}, 64),
        ({256: no, 64: open_, 8: yes, 1: yes}, 64),
        ({1: open_, 8: yes, 64: open_}, 64),
        ({1: no, 8: open_}, 1),
        ({1: yes, 8: no, 64: yes}, None),
        ({}, None),
    ]
    for gains, want in cases:
        got = lab.gain_ends(gains)
        told = {size: seen.verdict for size, seen in gains.items()}
        assert got == want, f"{told}: from {want} on nothing is gained, not from {got}"


def test_what_a_launch_was_worth(lab: ModuleType) -> None:
    """A saved launch is worth the pairs' median difference, divided by the launches saved."""
    pairs = [(9.0, 1.0), (30.0, 20.0), (12.0, 2.0), (110.0, 10.0), (8.0, 4.0)]
    got = lab.cost_of_removed(216, 50, pairs)
    assert math.isclose(got, 10 / 166), (
        f"the pairs differ by 8, 10, 10, 100 and 4 s, in the middle by 10; over 166 launches that is "
        f"{10 / 166:.4f} s each, not {got:.4f}"
    )
    for before, after in ((50, 50), (50, 51)):
        with pytest.raises(ValueError, match="launches"):
            lab.cost_of_removed(before, after, pairs)


def test_the_recorded_gains(lab: ModuleType) -> None:
    """Every row of `steps.json` has the gain that numpy computes."""
    for row in support.recorded("steps")["rows"]:
        pairs = support.pairs_of(row)
        ratios = [before / after for before, after in pairs]
        got = lab.gain(pairs)
        name = f"width {row['hidden_size']}, batch {row['batch']}"
        assert math.isclose(got.ratio, np.median(ratios)), (
            f"{name}: {np.median(ratios):.2f}, not {got.ratio:.2f}"
        )
        assert got.verdict == support.verdict_of(lab, pairs), f"{name}: {got}"
