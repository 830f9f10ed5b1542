"""Lab 03-03: what each victim waits, and what the dial does."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)


def step(tokens: dict[str, int], sampled: str = "", arrived: str = "") -> Any:
    """A step; names are given as one string, separated by blanks."""
    return support.Step(tokens, frozenset(sampled.split()), frozenset(arrived.split()))


def count(one: Any) -> float:
    return float(sum(one.tokens.values()))


# ---- predictions ---------------------------------------------------------------------------------


def test_the_predictions_hold(lab: ModuleType) -> None:
    """The four predictions about Fay's document are right, for the whole document and for chunks of 32."""
    said = lab.predictions()
    ask = {
        "whole": "Who is in the step with the document, and for how many steps do both decode after it?",
        "threshold 32": "How many steps does the document take, and who else is in each of them?",
        "ttft, whole": "Which steps does she wait for, and whose tokens are in them besides her own?",
        "ttft, threshold 32": "How many steps does she wait for, and what else does each compute?",
    }
    whole = [int(count(one)) for one in support.eve_and_fay()]
    pieces = [int(count(one)) for one in support.eve_and_fay(long_prefill_token_threshold=32)]
    facts: dict[str, Any] = {
        "whole": whole[7:13],
        "threshold 32": pieces[7:19],
        "ttft, whole": 257,
        "ttft, threshold 32": 264,
    }
    assert said.keys() == facts.keys(), f"four questions, {sorted(facts)}; yours: {sorted(said)}"
    for name, fact in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask[name]}"


# ---- what somebody waits -------------------------------------------------------------------------


def test_a_step_costs_its_tokens(lab: ModuleType) -> None:
    """The cost of a step is the sum of everybody's tokens."""
    got = lab.total_tokens(step({"eve": 1, "fay": 256}))
    assert got == 257, f"1 for Eve and 256 for Fay are 257, not {got}"


@pytest.mark.parametrize(
    ("steps", "expected", "why"),
    [
        (
            [step({"eve": 9}, "eve", "eve"), step({"eve": 1}, "eve"), step({"eve": 1}, "eve")],
            {"eve": (9, [1, 1])},
            "the first token took her prompt's 9, the others a step of 1 each",
        ),
        (
            [step({"eve": 5}, "", "eve"), step({"eve": 4}, "eve")],
            {"eve": (9, [])},
            "her prompt came in two pieces, and only the second brought a token: TTFT is both",
        ),
        (
            [step({"eve": 1}, "eve", "eve"), step({"eve": 1, "fay": 9}, "eve fay", "fay")],
            {"eve": (1, [10]), "fay": (10, [])},
            "a step is over for everybody when all of it is computed: Eve waits for Fay's 9, too",
        ),
        (
            [
                step({"eve": 3}, "eve", "eve fay"),
                step({"eve": 1}, "eve"),
                step({"eve": 1, "fay": 4}, "eve fay"),
            ],
            {"eve": (3, [1, 5]), "fay": (9, [])},
            "Fay came before the first step and waited in the queue through the first two",
        ),
        (
            [
                step({"eve": 3}, "eve", "eve"),
                step({"eve": 1, "gil": 1}, "eve gil", "gil"),
                step({"gil": 1}, "gil"),
                step({"gil": 1}, "gil"),
                step({"eve": 5, "gil": 1}, "eve gil"),
            ],
            {"eve": (3, [2, 8]), "gil": (2, [1, 1, 6])},
            "Eve lost her blocks for two steps: her third token took those two and the one that brought it",
        ),
        (
            [step({}, "", "eve"), step({"eve": 2}, "eve"), step({"fay": 7}, "", "fay")],
            {"eve": (2, [])},
            "Fay has no token yet, so there is nothing to tell of her",
        ),
    ],
)
def test_latencies_by_hand(
    lab: ModuleType, steps: list[Any], expected: dict[str, Any], why: str
) -> None:
    """Everybody who has arrived waits through every step: queue, chunks, neighbours and gaps."""
    got = lab.latencies(steps, count)
    plain = {name: (one.ttft, list(one.itls)) for name, one in got.items()}
    assert plain == expected, f"{why}: {expected}, not {plain}"


def test_the_cost_is_the_callers(lab: ModuleType) -> None:
    """The caller chooses the cost: in milliseconds the same steps give other latencies."""
    steps = support.eve_and_fay(8000)
    eve = lab.latencies(steps, support.a100_ms)["eve"]
    longest = max(eve.itls)
    assert longest == pytest.approx(8001 * support.TOKEN_MS), (
        f"8,001 tokens at {support.TOKEN_MS:.4f} ms are {8001 * support.TOKEN_MS:.0f} ms; your longest "
        f"is {longest}"
    )
    shortest = min(eve.itls)
    assert shortest == pytest.approx(support.WEIGHTS_MS), (
        f"a step of 1 token reads the weights: {support.WEIGHTS_MS:.1f} ms, not {shortest}"
    )


def test_the_sum_does_not_change(lab: ModuleType) -> None:
    """Eve's 39 gaps add up to the same number of tokens, whether the document is cut or not."""
    sums = {}
    for threshold in (0, 16, 32, 100):
        steps = support.eve_and_fay(long_prefill_token_threshold=threshold)
        eve = lab.latencies(steps, count)["eve"]
        sums[threshold] = sum(eve.itls)
        assert len(eve.itls) == 39, f"40 tokens have 39 gaps, not {len(eve.itls)}"
    assert set(sums.values()) == {298.0}, (
        f"39 of her own, 256 of the document and 3 of Fay's answer are 298, however it is cut: {sums}"
    )


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [
        ([5], 99, 5),
        ([1, 2], 50, 1.5),
        ([1, 2, 3], 50, 2),
        ([3, 1, 2], 50, 2),
        ([1, 2, 3, 4], 25, 1.75),
        ([1, 1, 1, 5], 50, 1),
    ],
)
def test_percentile_by_hand(
    lab: ModuleType, values: list[float], q: float, expected: float
) -> None:
    """Percentiles are right for one, two and three values, in any order, between two values and with
    equal ones."""
    got = lab.percentile(values, q)
    assert got == pytest.approx(expected), f"percentile {q} of {values} is {expected}, not {got}"


def test_percentile_is_numpys(lab: ModuleType) -> None:
    """Percentiles of random values are NumPy's, 0 and 100 included, and the values keep their order."""
    rng = random.Random(303)
    for size in (1, 2, 7, 39, 100, 101):
        values = [rng.expovariate(1.0) for _ in range(size)]
        before = list(values)
        for q in (0, 1, 50, 90, 99, 99.9, 100):
            got, expected = lab.percentile(values, q), float(np.percentile(values, q))
            assert got == pytest.approx(expected), f"{size} values, q = {q}: {expected}, not {got}"
        assert values == before, "whoever asks for a percentile gets the values back in their order"
    try:
        got = lab.percentile([], 50)
    except ValueError as error:
        said = str(error)
    else:
        pytest.fail(f"no values have no percentile: raise ValueError instead of returning {got}")
    assert said, "the ValueError is empty: say in it that there are no values"


def test_worst_neighbour(lab: ModuleType) -> None:
    """The worst neighbour has the most tokens in one of the steps that yield the victim a token."""
    steps = [
        step({"eve": 30, "ida": 70}, "ida", "eve ida"),
        step({"eve": 90}, "eve"),
        step({"eve": 1, "fay": 7}, "eve"),
        step({"eve": 1, "jon": 15, "kim": 15, "leo": 15}, "eve"),
        step({"fay": 60, "gil": 2}, "fay"),
        step({"eve": 1, "gil": 20, "hal": 20}, "eve gil"),
        step({"eve": 1, "fay": 20}, "eve fay"),
    ]
    got = lab.worst_neighbour(steps, "eve")
    assert got == "gil", (
        "of the steps that brought Eve a token the heaviest neighbour had 20: Gil first, then Hal and Fay. "
        f"(Fay's 60 came in a step without Eve, Ida's 70 in one that brought Eve no token, the 90 are her "
        f"own, and Jon, Kim and Leo had 15 each.) Yours: {got}"
    )
    alone = lab.worst_neighbour(steps[1:2], "eve")
    assert alone is None, f"in a step of her own Eve is alone: None, not {alone}"
    first = lab.worst_neighbour([step({"eve": 9, "gil": 1}, "eve gil", "eve gil")], "eve")
    assert first == "gil", (
        f"Gil's 1 token is in the step that brings Eve's first: a neighbour, too; yours: {first}"
    )


# ---- the dial ------------------------------------------------------------------------------------


def test_best_setting(lab: ModuleType) -> None:
    """The best setting has the smallest TTFT of those within the limit, and exactly at the limit is
    within."""
    rows = [
        lab.Setting(*row)
        for row in ((64, 8, 990), (256, 13, 416), (512, 26, 413), (8192, 258, 412), (9000, 26, 414))
    ]
    for limit, budget in ((26, 512), (25.9, 256), (1000, 8192), (8, 64)):
        got = lab.best_setting(rows, limit)
        assert got is not None, f"a budget of {budget} keeps a limit of {limit}"
        assert got.budget == budget, f"limit {limit}: a budget of {budget}, not {got.budget}"
    got = lab.best_setting(rows, 5)
    assert got is None, f"nobody keeps 5: None, not {got}"
    backwards = lab.best_setting(rows[::-1], 26)
    assert backwards.budget == 512, f"the order of the rows does not matter; got {backwards}"


def test_goodput(lab: ModuleType) -> None:
    """A request counts only within both limits, and one that reads a single token has no gaps to be late
    in."""
    found = {
        "eve": lab.Latency(5.0, [1.0] * 39 + [100.0] * 2),
        "fay": lab.Latency(50.0, [1.0, 2.0]),
        "gil": lab.Latency(20.0, []),
        "hal": lab.Latency(20.0, [9.0]),
        "ida": lab.Latency(99.0, [1.0] * 200 + [300.0]),
    }
    for limits, share, why in (
        (
            (20.0, 9.0),
            0.4,
            "Gil and Hal just keep both; Eve's gaps are late, Fay's and Ida's first tokens are",
        ),
        (
            (99.0, 9.0),
            0.8,
            "only Eve's 99th percentile is too late; of Ida's 201 gaps one is, and hers is 1",
        ),
        ((99.0, 200.0), 1.0, "everybody is in time"),
        ((1.0, 200.0), 0.0, "all first tokens are late"),
    ):
        got = lab.goodput(found, *limits)
        assert got == pytest.approx(share), f"limits {limits}: {why}: {share}, not {got}"
    assert lab.goodput({}, 1.0, 1.0) == 0.0, "nobody was served: 0.0"


def test_the_dial_on_an_a100(lab: ModuleType) -> None:
    """On an A100 a smaller budget cuts the stream's gap by twenty, and a document of 8,000 tokens hardly
    pays."""
    rows = []
    for budget in (128, 256, 512, 2048, 8192):
        found = lab.latencies(
            support.eve_and_fay(8000, max_num_batched_tokens=budget), support.a100_ms
        )
        rows.append(lab.Setting(budget, lab.percentile(found["eve"].itls, 99), found["fay"].ttft))
    got = {row.budget: (round(row.p99_itl), round(row.ttft)) for row in rows}
    expected = {128: (8, 496), 256: (13, 416), 512: (26, 413), 2048: (105, 412), 8192: (258, 412)}
    assert got == expected, f"budget: (p99 of ITL, TTFT) in ms should be {expected}, not {got}"
    best = lab.best_setting(rows, 50)
    assert best.budget == 512, f"under 50 ms, the smallest TTFT has 512; yours: {best}"
