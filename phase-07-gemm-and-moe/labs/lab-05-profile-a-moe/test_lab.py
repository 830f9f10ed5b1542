"""Lab 07-05: a recorded trace of real vLLM, read, and the arithmetic beside it."""

from __future__ import annotations

import random
from collections import Counter
from types import ModuleType

import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
near = support.near


# ---- predictions ---------------------------------------------------------------------------------

ASK = {
    "products a step": "which matrices of a layer are linears, what is one product, and what comes last?",
    "calls of the experts a step": "does each expert get a call of its own?",
    "launches a layer, CUDA, 64 tokens": "the list of lab 07-03 is one of them, and each GEMM is one",
    "launches a layer, CUDA, 1 token": "four times the pairs are no more than the experts: what is left out?",
    "products seen from outside": "in which process does the model run?",
    "experts touched by 1": "how many experts does a token go to?",
    "experts touched by 16": "how likely is it that 16 tokens all leave one expert out?",
    "experts' share of the bytes, Ilse alone": "how many weights have two experts, and how many attention?",
}


def facts(lab: ModuleType) -> dict[str, tuple[float, float]]:
    """Each answer and how far off it may be, from the recording where that can say it."""
    found = support.profile()
    calls = found["batches"]["16"]["calls"]
    assert all(batch["calls"] == calls for batch in found["batches"].values()), (
        "the recording: a step has the same calls whatever the batch"
    )
    alone = lab.work(lab.ILSES, 1, 2)
    share = alone["experts"][1] / sum(read for _, read in alone.values())
    touched = {n: found["batches"][n]["touched"] for n in ("1", "16")}
    return {
        "products a step": (calls["_C::onednn_mm"], 0),
        "calls of the experts a step": (calls["_C::cpu_fused_moe"], 0),
        "launches a layer, CUDA, 64 tokens": (6, 0),
        "launches a layer, CUDA, 1 token": (5, 0),
        "products seen from outside": (found["outside"]["as it comes"], 0),
        "experts touched by 1": (sum(touched["1"]) / len(touched["1"]), 0),
        "experts touched by 16": (sum(touched["16"]) / len(touched["16"]), 0.2),
        "experts' share of the bytes, Ilse alone": (share, 0.05),
    }


@pytest.mark.parametrize("question", ASK)
def test_the_predictions_hold(lab: ModuleType, question: str) -> None:
    """The eight predictions hold; most of the numbers were counted in real vLLM."""
    said = lab.predictions()
    assert sorted(said) == sorted(ASK), f"answer {sorted(ASK)}; yours: {sorted(said)}"
    want, room = facts(lab)[question]
    wrong = wrong_in(said[question], want, room)
    assert not wrong, f"{question}: {wrong}. Ask yourself: {ASK[question]}"


# ---- the trace -----------------------------------------------------------------------------------


def test_a_call_within_a_call(lab: ModuleType) -> None:
    """The time of an inner call is not counted for the call around it."""
    made = support.calls(
        lab, ("a", 0, 100), ("b", 10, 40), ("c", 20, 25), ("b", 50, 60), ("a", 100, 130)
    )
    got = lab.self_times(made)
    want = {"a": 60 + 30, "b": 25 + 10, "c": 5}
    assert set(got) == set(want), f"the names are {sorted(want)}, not {sorted(got)}"
    for name, us in want.items():
        near(got[name], us, f"a 0-100 calls b 10-40 (and that c 20-25) and b 50-60; {name} itself")


def test_calls_side_by_side(lab: ModuleType) -> None:
    """A call that starts when another one ends was not made by it."""
    got = lab.self_times(support.calls(lab, ("a", 0, 10), ("b", 10, 30), ("c", 30, 31)))
    for name, us in (("a", 10), ("b", 20), ("c", 1)):
        near(got[name], us, f"a 0-10, b 10-30, c 30-31: {name}")
    got = lab.self_times(support.calls(lab, ("a", 0, 10), ("a", 2, 5)))
    near(got["a"], 10, "a 0-10 calls another a, 2-5: together")
    assert lab.self_times([]) == {}, "no call, no name"


def test_self_times_are_the_time_that_anything_ran(lab: ModuleType) -> None:
    """On random traces the self times agree with a clock that ticks once per microsecond."""
    rng = random.Random(3)

    def grow(start: int, end: int, depth: int) -> list[tuple[str, float, float]]:
        rows, at = [], start
        while at < end - 1 and depth:
            first = rng.randint(at, end - 1)
            last = rng.randint(first + 1, end)
            rows += [(rng.choice("abc"), float(first), float(last)), *grow(first, last, depth - 1)]
            at = last
        return rows

    for _ in range(20):
        rows = grow(0, 60, 4)
        want: Counter[str] = Counter()
        for tick in range(60):
            inside = [name for name, start, end in rows if start <= tick < end]
            if inside:
                want[inside[-1]] += 1
        got = lab.self_times(support.calls(lab, *rows))
        for name in {name for name, _, _ in rows}:
            near(got.get(name), want[name], f"{rows}: {name}")


def test_the_recorded_step(lab: ModuleType) -> None:
    """The self times in the recorded step add up to the time of all its operators, and no more."""
    step = support.recorded_step(lab)
    own = lab.self_times(step.events)
    ends: list[float] = []
    total = 0.0
    for event in step.events:  # those that no other has called
        if not ends or event.start >= ends[-1]:
            total += event.duration
            ends.append(event.start + event.duration)
    near(sum(own.values()), total, "all self times together", rel=1e-6)


def test_parts_by_name_and_shape(lab: ModuleType) -> None:
    """A product's widths tell what it is for."""
    model = lab.Model(2, 64, 4, 1, 32, 16, 96, 2, 100)
    for out, into, want in (
        (192, 64, "qkv"), (64, 128, "o"), (16, 64, "router"), (128, 64, "head"), (100, 64, None),
        (64, 64, None),
    ):  # fmt: skip
        event = lab.Event("_C::onednn_mm", 0.0, 1.0, ((7, out), (7, into), (3, 3)))
        got = lab.part_of(event, model)
        assert got == want, (
            f"4 heads of 32, one KV head, 64 hidden, 16 experts, 100 tokens: {into} in and {out} out is "
            f"{want}, not {got}"
        )
    for vocab, width in ((128, 128), (129, 192)):
        event = lab.Event("_C::onednn_mm", 0.0, 1.0, ((7, width), (7, 64)))
        got = lab.part_of(event, model._replace(vocab=vocab))
        assert got == "head", f"a vocabulary of {vocab}, {width} out: 'head', not {got!r}"
    got = lab.part_of(lab.Event("_C::cpu_fused_moe", 0.0, 1.0, ((7, 64), (7, 64))), model)
    assert got == "experts", f"the experts' call: 'experts', not {got!r}"
    got = lab.part_of(lab.Event("aten::mul", 0.0, 1.0, ((7, 192), (7, 64))), model)
    assert got is None, f"a multiplication is none of the parts: None, not {got!r}"


def test_the_parts_of_the_recorded_step(lab: ModuleType) -> None:
    """The recorded step has one product of each kind per layer, and one for the head."""
    step = support.recorded_step(lab)
    got = Counter(part for event in step.events if (part := lab.part_of(event, lab.TINY)))
    want = {"qkv": 4, "o": 4, "router": 4, "experts": 4, "head": 1}
    assert got == want, f"four layers and a head: {want}, not {dict(got)}"


# ---- the arithmetic ------------------------------------------------------------------------------


def test_experts_touched(lab: ModuleType) -> None:
    """The number of experts touched agrees with every possible choice, and with what was counted."""
    for experts, top_k, tokens, want in (
        (8, 2, 1, 2.0), (8, 2, 2, 3.5), (8, 2, 0, 0.0), (4, 4, 9, 4.0), (2, 1, 2, 1.5),
    ):  # fmt: skip
        near(
            lab.experts_touched(experts, top_k, tokens),
            want,
            f"{top_k} of {experts}, {tokens} tokens",
        )
    for tokens, room in ((1, 0.0), (16, 0.2), (64, 0.01)):
        seen = support.profile()["batches"][str(tokens)]["touched"]
        got = lab.experts_touched(8, 2, tokens)
        counted = sum(seen) / len(seen)
        assert abs(got - counted) <= room + 1e-9, (
            f"{tokens} tokens: counted {counted:.2f}, yours {got:.2f}"
        )


def test_work_of_ilses_model(lab: ModuleType) -> None:
    """Mixtral-8x7B's matrices have 46.6 billion weights, of which a token meets 12.7 billion."""
    attention = 32 * 4096 * (4096 + 2 * 1024), 32 * 4096 * 4096
    rest = {"qkv": attention[0], "o": attention[1], "router": 32 * 4096 * 8, "head": 4096 * 32_000}
    expert = 3 * 4096 * 14336
    for tokens, width in ((1, 2), (1, 1), (16, 2), (512, 4)):
        got = lab.work(lab.ILSES, tokens, width)
        assert sorted(got) == sorted(lab.PARTS), f"one entry for each of {lab.PARTS}: {sorted(got)}"
        what = f"{tokens} tokens, {width} bytes a weight"
        for part, weights in rest.items():
            near(got[part][0], 2 * weights * tokens, f"{what}: FLOPs of {part}")
            near(got[part][1], weights * width, f"{what}: bytes of {part}")
        near(got["experts"][0], 2 * 32 * 2 * expert * tokens, f"{what}: FLOPs of the experts")
        touched = 8 * (1 - 0.75**tokens)
        near(got["experts"][1], 32 * touched * expert * width, f"{what}: bytes of the experts")


def test_heads_may_be_wider_than_the_model(lab: ModuleType) -> None:
    """A head's width times the number of heads need not be `hidden`."""
    model = lab.Model(1, 8, 4, 2, 4, 4, 6, 1, 10)
    got = lab.work(model, 1, 1)
    for part, weights in (
        ("qkv", 8 * 32),
        ("o", 16 * 8),
        ("router", 32),
        ("head", 80),
        ("experts", 144),
    ):
        near(got[part][1], weights, f"8 hidden, 4 heads of 4, 2 KV heads: weights of {part}")


def test_shares(lab: ModuleType) -> None:
    """The shares of a step's parts add up to 1."""
    got = lab.shares({"a": 1.0, "b": 3.0, "c": 4.0})
    assert got == {"a": 0.125, "b": 0.375, "c": 0.5}, f"1, 3 and 4 of 8: {got}"


def test_what_it_waits_for(lab: ModuleType) -> None:
    """A step waits for arithmetic or memory, whichever takes longer, if that explains its time."""
    for flops, read, seconds, want in (
        (1e9, 1e9, 1e-2, "memory"), (1e12, 1e9, 0.12, "compute"), (1e9, 1e9, 2.9e-2, "memory"),
        (1e9, 1e9, 0.03, "memory"), (1e9, 1e9, 3.1e-2, "neither"), (1e11, 1e9, 1e-2, "compute"),
        (1e11, 1e9, 3.1e-2, "neither"),
    ):  # fmt: skip
        got = lab.waits_for(flops, read, 1e13, 1e11, seconds)
        assert got == want, (
            f"{flops:g} FLOPs at 1e13, {read:g} bytes at 1e11 a second, measured {seconds:g} s: {want!r}, "
            f"not {got!r}"
        )


def test_what_a_faster_part_brings(lab: ModuleType) -> None:
    """A faster part shortens only its own share of the step; the rest takes as long as before."""
    for share, times, want in (
        (0.5, 2, 4 / 3),
        (0.115, 2, 1 / (1 - 0.0575)),
        (0.0, 9, 1.0),
        (1.0, 3, 3.0),
    ):
        near(lab.gain(share, times), want, f"{share:.1%} of a step, {times} times faster")
