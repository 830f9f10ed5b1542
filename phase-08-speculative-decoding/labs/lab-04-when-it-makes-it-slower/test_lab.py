"""Lab 08-04: rates and tokens per step, counters, the cost of a step, and a controller that sets k."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
SERVERS = support.servers()
SHARE, MEAN_SHARE = 0.88, 0.95
"""Of the oracle's tokens per second, for each workload and for all of them on average."""
TOY: dict[str, Any] = {"dense_s": 8.0, "row_s": 0.5, "kv_token_s": 0.01, "host_s": 1.0}
HEAD: dict[str, Any] = {"draft_pass_s": 1.0, "draft_row_s": 0.25}


def test_the_predictions_hold(lab: ModuleType) -> None:
    """The predictions hold: a log line, a closed form, the price of n-grams, and the rows that are free."""
    want = {
        "56 % of five": (
            [3.8, 36.0],
            "of the five draft tokens, how many were accepted? Which token comes without being "
            "drafted? And the rate is asked for in percent",
        ),
        "conditional 0.75": (
            [3.288, 0.4219],
            "what has to happen before the third position is even looked at?",
        ),
        "n-gram alone": ([1.25], "how long is a step with the host in parallel, and how long without?"),
        "rows for nothing": ([49, 295], "each request has its draft tokens, and one row more"),
    }  # fmt: skip
    got = lab.predictions()
    assert got.keys() == want.keys(), f"the names are {sorted(want)}, yours {sorted(got)}"
    for name, (numbers, why) in want.items():
        wrong = wrong_in(got[name], numbers, 0.006)
        assert not wrong, f"{name}: {wrong}; think of this: {why}"


# ---- what is gained ------------------------------------------------------------------------------


def test_rates_go_both_ways(lab: ModuleType) -> None:
    """Conditional rates turn back into unconditional ones; after a rate of 0 all are 0."""
    for rates, conditional in (
        ([0.8, 0.4, 0.3, 0.3], [0.8, 0.5, 0.75, 1.0]), ([0.5, 0.0, 0.0], [0.5, 0.0, 0.0]), ([], []),
    ):  # fmt: skip
        got = lab.conditional_rates(rates)
        assert got == pytest.approx(conditional), f"{rates} is conditionally {conditional}: {got}"
        back = lab.unconditional_rates(conditional)
        assert back == pytest.approx(rates), f"{conditional} is unconditionally {rates}: {back}"


def test_tokens_by_hand(lab: ModuleType) -> None:
    """Every step gives one token that nobody drafted."""
    for rates, want in (([], 1.0), ([0.0, 0.0], 1.0), ([0.7, 0.5, 0.4], 2.6), ([1.0] * 4, 5.0)):
        got = lab.expected_tokens(rates)
        assert got == pytest.approx(want), f"rates {rates}: {want} tokens per step, you say {got}"


def test_the_closed_form_agrees(lab: ModuleType) -> None:
    """The closed form agrees for one conditional rate at all positions, 0 and 1 included."""
    for a in (0.0, 0.3, 0.75, 0.99, 1.0):
        for k in (0, 1, 5):
            want = 1 + sum(a**i for i in range(1, k + 1))
            got = lab.expected_tokens_at(a, k)
            assert got == pytest.approx(want), f"a = {a}, k = {k}: {want:.4f} tokens, you say {got}"


def test_steps_are_counted_not_timed(lab: ModuleType) -> None:
    """The tokens per request and step are those that the engine's scheduler gives with accepted drafts."""
    for conditional in (support.TEXTS["chat"], support.TEXTS["edits of code"]):
        part = support.Part(60, 200, conditional)
        stats = support.serve(
            lab, SERVERS["Llama, EAGLE"], [part], support.fixed(support.MOST)
        ).stats
        counted = part.batch * (part.tokens - 1) / stats.num_drafts
        want = lab.expected_tokens(lab.unconditional_rates(list(conditional)))
        assert want == pytest.approx(counted, rel=0.03), (
            f"conditional rates {conditional}: the simulator counts {counted:.2f} tokens per step, and you "
            f"expect {want:.2f}"
        )
        length, _, rates = lab.log_line(support.read(lab, stats))
        assert length == pytest.approx(counted, rel=0.03), (
            f"from its counters vLLM would print {counted:.2f} as mean acceptance length, you say {length}"
        )
        assert lab.conditional_rates(rates) == pytest.approx(conditional, abs=0.05), (
            f"the text's conditional rates are {conditional}, and from the counters you get "
            f"{lab.conditional_rates(rates)}"
        )


# ---- what is read --------------------------------------------------------------------------------


def test_a_reading_by_hand(lab: ModuleType) -> None:
    """Each of the log's three figures has a denominator of its own."""
    counted = lab.Counters(100, 400, 180, (80, 60, 30, 10))
    length, percent, rates = lab.log_line(counted)
    assert length == pytest.approx(2.8), (
        f"100 drafts, 180 tokens accepted: a mean acceptance length of 2.80, you say {length}"
    )
    assert percent == pytest.approx(45.0), f"180 of 400 is 45.0 %, you say {percent}"
    assert rates == pytest.approx([0.8, 0.6, 0.3, 0.1]), (
        f"of 100 drafts 80, 60, 30 and 10: {[0.8, 0.6, 0.3, 0.1]}, you say {rates}"
    )


def test_between_two_readings(lab: ModuleType) -> None:
    """Counters only ever grow, so recent events are the difference of two readings."""
    got = lab.since(
        lab.Counters(150, 500, 210, (90, 70, 50)), lab.Counters(100, 400, 180, (80, 60, 40))
    )
    assert got == lab.Counters(50, 100, 30, (10, 10, 10)), (
        f"150 drafts after 100, and so on: 50, 100, 30 and (10, 10, 10), not {got}"
    )  # fmt: skip


# ---- what it costs -------------------------------------------------------------------------------


def test_a_step_by_hand(lab: ModuleType) -> None:
    """A step's time: 8 s for weights, 0.5 per row, 0.01 per token of KV, and one second of the host."""
    for batch, k, context, want, why in (
        (1, 0, 100, 9.0, "8 of weights and 1 of KV; the host works beside it"),
        (1, 3, 100, 10.0, "four rows share weights and KV; then the host has its turn"),
        (10, 0, 10, 9.0, "arithmetic of 10 rows takes 5, less than reading"),
        (10, 3, 10, 21.0, "arithmetic of 40 rows takes 20, then the host"),
    ):
        got = lab.step_seconds(lab.Server(**TOY), batch, k, context)
        assert got == pytest.approx(want), (
            f"n-gram, {batch} requests, k = {k}, context {context}: {want} s ({why}), you say {got}"
        )


def test_a_drafter_by_hand(lab: ModuleType) -> None:
    """A drafter takes a second per pass, or a quarter per row, and the host is hidden again."""
    for batch, k, want, why in (
        (1, 1, 9.0, "one pass"),
        (1, 3, 11.0, "three passes"),
        (10, 1, 15.0, "20 rows: arithmetic 10, and a pass of 20 rows"),
        (10, 3, 20.0 + 10.0 + 5.0, "40 rows, a pass of 40, then two of 10"),
    ):
        got = lab.step_seconds(lab.Server(**TOY, **HEAD), batch, k, 0)
        assert got == pytest.approx(want), (
            f"EAGLE, {batch} requests, k = {k}, no context: {want} s ({why}), you say {got}"
        )
    slow = lab.step_seconds(lab.Server(**TOY | {"host_s": 30.0}, **HEAD), 1, 3, 0)
    assert slow == pytest.approx(30.0), f"a host of 30 s hides 11 s of the device: 30, not {slow}"


@pytest.mark.parametrize("name", ["Llama, EAGLE", "Mixtral, EAGLE"])
def test_a_step_takes_what_the_simulator_says(lab: ModuleType, name: str) -> None:
    """With nothing accepted, each step gives one token and takes as long as in the simulator, on average."""
    server = lab.Server(**SERVERS[name] | {"host_s": 0.0})
    for batch, k in ((1, 0), (2, 3), (8, 6), (48, 4)):
        ends = []
        for tokens in (20, 40):
            part = support.Part(batch, tokens, (0.0,) * support.MOST)
            ends.append(support.serve(lab, SERVERS[name], [part], support.fixed(k)).seconds[0])
        counted = (ends[1] - ends[0]) / 20
        got = lab.step_seconds(server, batch, k, support.PROMPT + 30 + k)
        assert got == pytest.approx(counted, rel=0.01), (
            f"{name}, {batch} requests, k = {k}: a step takes {1e3 * counted:.2f} ms in the simulator, "
            f"you say {1e3 * got:.2f}"
        )


def test_what_pays_by_hand(lab: ModuleType) -> None:
    """The best k gives the most tokens per second; of equal ones the smallest counts."""
    server, rates = lab.Server(**TOY), [0.5, 0.25, 0.125]
    for batch, want in ((1, 1.875 * 8 / 9), (10, 1.875 * 8 / 21)):
        got = lab.speedup(server, rates, batch, 0)
        assert got == pytest.approx(want), (
            f"1.875 tokens per step, {batch} requests without KV: {want:.3f}, you say {got}"
        )
    for name, batch, chosen, want in (
        ("n-gram", 1, rates, 3), ("n-gram", 20, rates, 0), ("n-gram", 1, [0.1, 0.0], 0),
        ("n-gram", 1, [0.5, 0.0, 0.0], 1), ("EAGLE", 1, [0.5, 0.1, 0.05], 1), ("EAGLE", 1, [0.125], 0),
    ):  # fmt: skip
        one = lab.Server(**TOY, **(HEAD if name == "EAGLE" else {}))
        got = lab.best_k(one, chosen, batch, 0)
        assert got == want, f"{name}, rates {chosen}, {batch} requests: {want}, you say {got}"


def test_a_mixture_is_another_matter(lab: ModuleType) -> None:
    """One request's draft tokens need further experts; those of 16 requests use experts already read."""
    rates = [0.6, 0.4, 0.25]
    gains = {
        name: [lab.speedup(lab.Server(**SERVERS[name]), rates, batch, 500) for batch in (1, 16, 128)]
        for name in ("Llama, EAGLE", "Mixtral, EAGLE")
    }  # fmt: skip
    one, some, many = gains["Mixtral, EAGLE"]
    assert one < 1 < many < some, f"Mixtral: a loss at 1, most at 16, still a gain at 128: {gains}"
    one, some, many = gains["Llama, EAGLE"]
    assert many < 1 < one < some, f"Llama: as good at 1 as at 16, a loss at 128: {gains}"


# ---- when to do it -------------------------------------------------------------------------------


@cache
def scored(lab: ModuleType, workload: str) -> dict[str, Any]:
    """The controller's score on both servers, by the server's name."""
    recorded = support.recorded()
    return {
        name: support.score(
            lab, SERVERS[name], support.HELD_OUT[workload], recorded[f"{name}: {workload}"]
        )
        for name in ("Llama, EAGLE", "Mixtral, EAGLE")
    }


@pytest.mark.parametrize("workload", list(support.HELD_OUT))
def test_close_to_the_oracle(lab: ModuleType, workload: str) -> None:
    """An oracle that knows each part's best k is not far ahead, on either server."""
    for name, found in scored(lab, workload).items():
        assert found.controller >= SHARE, (
            f"{name}, {workload}: {found.controller:.2f} of the oracle's tokens per second, and {SHARE} is "
            f"asked for; the best fixed k has {found.best_fixed:.2f}, no speculation {found.off:.2f}; "
            f"{found.compare_k()}"
        )


def test_close_on_average_and_better_than_any_fixed_k(lab: ModuleType) -> None:
    """The controller is close to the oracle on average, and beats any fixed k if one user's text changes."""
    runs = [found for name in support.HELD_OUT for found in scored(lab, name).values()]
    mean = sum(found.controller for found in runs) / len(runs)
    assert mean >= MEAN_SHARE, f"on average {mean:.3f} of the oracle, and {MEAN_SHARE} is asked for"
    for name, found in scored(lab, "one user does").items():
        assert found.controller > found.best_fixed, (
            f"{name}, one user whose text changes: {found.controller:.2f} of the oracle, and the best fixed "
            f"k has {found.best_fixed:.2f}; {found.compare_k()}"
        )


def test_it_speculates_again(lab: ModuleType) -> None:
    """A controller that has switched off, and so counts nothing, still notices that the text has changed."""
    server = lab.Server(**SERVERS["Mixtral, EAGLE"])
    controller = lab.Controller(server, support.MOST)
    counts = [0, 0, 0, [0] * support.MOST]
    chosen = []
    for call in range(160):
        k = controller.choose(lab.Counters(*counts[:3], tuple(counts[3])), 2, 500)
        chosen.append(k)
        if k:
            counts[0] += 16
            counts[1] += 16 * k
            accepted = 0 if call < 60 else 16
            counts[2] += accepted * k
            for position in range(k):
                counts[3][position] += accepted
    assert 0 in chosen[30:60], f"nothing is accepted for 60 calls, and k is {chosen[30:60]}"
    assert chosen[30:60].count(0) > 15, (
        f"nothing is accepted for 60 calls, and k is {chosen[30:60]}"
    )
    assert max(chosen[60:]) > 2, (
        f"from call 60 on all would be accepted, and in the next hundred calls k is {set(chosen[60:])}"
    )
