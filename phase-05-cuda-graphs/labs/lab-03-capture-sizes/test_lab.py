"""Lab 05-03: the ladder as vLLM makes it, and what it does to the steps of a night."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
DEFAULT = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
"""256 people, steps of 8,192 tokens."""


def test_the_predictions_hold(lab: ModuleType) -> None:
    """The nine predictions hold: six numbers from vLLM's own config, two steps, and the night."""
    asked = support.asked()
    sizes = {name: case.get("sizes", []) for name, case in asked.items()}
    graphs = {name: sum(case.get("captures", {}).values()) for name, case in asked.items()}
    runs = {
        tokens: padded for tokens, uniform, _, padded in asked["256 people"]["runs"] if not uniform
    }
    facts = {
        "rungs for 256 people": (
            len(sizes["256 people"]), "How many sizes are below 8, how many below 256, how many from there?",
        ),
        "captures for 256 people": (
            graphs["256 people"], "Which sizes are captured in pieces, and which of them once more, FULL?",
        ),
        "captures for Kim alone": (
            graphs["Kim alone"], "Which size is the largest then, and how many are FULL as well?",
        ),
        "top rung for 21 people": (
            sizes["21 people"][-1], "How large a size is wanted for 21, and which is next below it?",
        ),
        "top rung for a maximum of 42": (
            sizes["a maximum of 42"][-1], "Is 42 a size that vLLM makes by itself?",
        ),
        "top rung for steps of 300 tokens": (
            sizes["a step of 300 tokens"][-1], "How long is the longest step, and does it have a graph?",
        ),
        "33 tokens run as": (runs[33], "How far apart are the sizes there?"),
        "513 tokens run as": (runs[513], "Is a step padded for which there is no graph?"),
        "rungs that the night steps on": (
            len({support.grid_padded(n, DEFAULT) for n in support.night() if n <= 512}),
            "`visited` counts them, when you have written it.",
        ),
    }  # fmt: skip
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"nine questions; these stand in one of the README and your answers only: {apart}"
    )
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- the ladder ----------------------------------------------------------------------------------


def made(lab: ModuleType, *args: int, **settings: Any) -> list[int]:
    """A ladder, which must not be an error."""
    try:
        got = lab.capture_sizes(*args, **settings)
    except ValueError as error:
        return pytest.fail(f"{args} {settings}: vLLM makes a ladder of it, you raise {error}")
    kind = type(got).__name__
    assert kind == "list", f"{args} {settings}: a ladder is a list, rising, and yours a {kind}"
    assert got == sorted(set(got)), f"{args} {settings}: a ladder rises, yours {got}"
    return got


def test_the_default_ladder(lab: ModuleType) -> None:
    """256 requests and steps of 8,192 tokens make 51 capture sizes."""
    got = made(lab, 256, 8192)
    assert got == DEFAULT, (
        f"1, 2, 4, by 8 up to 248, by 16 from 256 to 512, which are 51 rungs; yours has {len(got)}: "
        f"{support.in_vllm.ladder(got)}"
    )
    assert made(lab, 1000, 8192) == DEFAULT, "more than 256 requests do not raise it above 512"


def test_twice_the_requests(lab: ModuleType) -> None:
    """Without a maximum, the largest size is twice the decode batch's tokens, speculative ones included."""
    for seqs, query_len, want in [
        (1, 1, [1, 2]), (4, 1, [1, 2, 4, 8]), (3, 2, [1, 2, 4, 8]), (2, 5, [1, 2, 4, 8, 16]),
    ]:  # fmt: skip
        got = made(lab, seqs, 8192, uniform_decode_query_len=query_len)
        assert got == want, f"{seqs} requests of {query_len} tokens: {want}, yours {got}"


def test_the_top_is_cut_to_a_rung(lab: ModuleType) -> None:
    """A maximum of 42 becomes 40, whether it was set or derived, and 257 becomes 256."""
    for settings, top in [
        ({"max_num_seqs": 21}, 40),
        ({"max_num_seqs": 256, "max_cudagraph_capture_size": 42}, 40),
        ({"max_num_seqs": 256, "max_cudagraph_capture_size": 257}, 256),
        ({"max_num_seqs": 256, "max_cudagraph_capture_size": 7}, 4),
        ({"max_num_seqs": 256, "max_cudagraph_capture_size": 3}, 2),
        ({"max_num_seqs": 8, "max_cudagraph_capture_size": 600}, 592),
    ]:  # fmt: skip
        got = made(lab, max_num_batched_tokens=8192, **settings)
        assert got[-1:] == [top], (
            f"{support.told(settings)}: the top rung is {top}, yours {got[-1:]}"
        )


def test_the_longest_step_has_a_rung(lab: ModuleType) -> None:
    """`max_num_batched_tokens` is a capture size if the list reaches it, and only then."""
    for tokens, maximum, want in [
        (300, None, [272, 288, 300]), (300, 300, [272, 288, 300]), (300, 1000, [272, 288, 300]),
        (300, 299, [256, 272, 288]), (5, None, [2, 4, 5]), (512, None, [480, 496, 512]), (1, None, [1]),
        (513, None, [480, 496, 512]),
    ]:  # fmt: skip
        got = made(lab, 256, tokens, max_cudagraph_capture_size=maximum)[-3:]
        assert got == want, f"steps of {tokens}, maximum {maximum}: the top is {want}, yours {got}"


def test_every_size_up_to_32(lab: ModuleType) -> None:
    """`interactivity` adds every size up to 32, and `throughput` does not."""
    got = made(lab, 256, 8192, performance_mode="interactivity")
    assert got == sorted({*range(1, 33), *DEFAULT}), (
        f"1 to 32 each, then as ever: 76 rungs, yours {len(got)}: {support.in_vllm.ladder(got)}"
    )
    small = made(lab, 9, 8192, performance_mode="interactivity")
    assert small == list(range(1, 19)), f"up to 18, twice the requests; yours {small}"
    assert made(lab, 256, 8192, performance_mode="throughput") == DEFAULT, (
        "throughput changes nothing"
    )


def test_sizes_of_ones_own(lab: ModuleType) -> None:
    """The user's own sizes are sorted, each once, and only those above the step's limit are dropped."""
    for sizes, tokens, want in [
        ([40, 1, 2, 4, 4], 8192, [1, 2, 4, 40]), ([700, 3], 8192, [3, 700]), ([8, 42, 43], 42, [8, 42]),
        ([50], 42, []),
    ]:  # fmt: skip
        given = list(sizes)
        got = made(lab, 256, tokens, cudagraph_capture_sizes=given)
        assert got == want, f"{sizes}, steps of {tokens}: {want}, yours {got}"
        assert given == sizes, f"the user's list was {sizes}, and now it is {given}"
    got = made(lab, 8, 8192, cudagraph_capture_sizes=[4, 600], max_cudagraph_capture_size=600)
    assert got == [4, 600], f"sizes and a maximum that agree: [4, 600], yours {got}"


REFUSED = [
    ({"cudagraph_capture_sizes": []}, []),
    ({"cudagraph_capture_sizes": [1, 2, 4], "max_cudagraph_capture_size": 8}, ["8", "4"]),
    ({"cudagraph_capture_sizes": [1, 2, 4], "max_cudagraph_capture_size": 2}, ["2", "4"]),
    ({"cudagraph_capture_sizes": [4, 9000], "max_cudagraph_capture_size": 9000}, ["9000", "4"]),
    ({"max_cudagraph_capture_size": 0}, ["0"]),
    ({"max_cudagraph_capture_size": -3}, ["-3"]),
    ({"cudagraph_capture_sizes": [4], "max_cudagraph_capture_size": 0}, ["0"]),
]


@pytest.mark.parametrize(("settings", "named"), REFUSED)
def test_what_vllm_refuses(lab: ModuleType, settings: dict[str, Any], named: list[str]) -> None:
    """An empty list, a maximum below 1 and a maximum other than the user's largest size are refused."""
    said = refusal(lambda: lab.capture_sizes(256, 8192, **settings), support.told(settings))
    missing = [number for number in named if number not in said]
    assert not missing, f"{support.told(settings)}: the message should name {missing}: {said}"


def test_the_maximum_is_compared_as_it_was_given(lab: ModuleType) -> None:
    """The maximum is compared as given: 8 with sizes up to 4 is refused, even if a step has only 4 tokens."""
    both: dict[str, Any] = {"cudagraph_capture_sizes": [1, 4], "max_cudagraph_capture_size": 8}
    what = f"steps of 4, {support.told(both)} (8 is not 4, whatever a step can have)"
    refusal(lambda: lab.capture_sizes(256, 4, **both), what)


def test_vllm_makes_the_same_ladders(lab: ModuleType) -> None:
    """Your list equals vLLM's for 9,504 settings without a maximum or sizes of the user's."""
    support.same_as_vllm(
        lab,
        lambda s: s["max_cudagraph_capture_size"] is None and s["cudagraph_capture_sizes"] is None,
        "The docstring has all rules that are needed here; look at both ends of each range",
    )


def test_vllm_makes_the_same_of_a_maximum(lab: ModuleType) -> None:
    """Your list equals vLLM's for 1,380 settings with a maximum, some of which cut it."""
    support.same_as_vllm(
        lab,
        lambda s: s["max_cudagraph_capture_size"] and s["cudagraph_capture_sizes"] is None,
        "A maximum is lowered to the step, and a rung only where one stands",
    )


def test_vllm_makes_the_same_of_sizes(lab: ModuleType) -> None:
    """Your list equals vLLM's for 396 settings with the user's own sizes, of which vLLM refuses 307."""
    support.same_as_vllm(
        lab,
        lambda s: s["cudagraph_capture_sizes"],
        "The user's sizes replace the rule, and a maximum beside them, as it was given, must be the "
        "largest that is left",
    )


# ---- a step on the ladder ------------------------------------------------------------------------


def test_the_lowest_rung_that_holds_it(lab: ModuleType) -> None:
    """Every step up to the largest size runs as the smallest size that holds it, on three lists."""
    for sizes in (DEFAULT, [1, 2, 4, 8], [40]):
        for num_tokens in range(1, sizes[-1] + 1):
            got = lab.padded(num_tokens, sizes)
            want = next(size for size in sizes if size >= num_tokens)
            assert got == want, f"{num_tokens} tokens run as {want}, yours {got}"


def test_above_the_top_nothing_is_padded(lab: ModuleType) -> None:
    """A step above the largest size has no graph and no padding; with an empty list that is every step."""
    for num_tokens, sizes in [
        (513, DEFAULT),
        (9, [1, 2, 4, 8]),
        (8192, DEFAULT),
        (1, []),
        (33, []),
    ]:
        got = lab.padded(num_tokens, sizes)
        assert got == num_tokens, f"{num_tokens} tokens, top {sizes[-1:]}: as they are, yours {got}"


def test_how_many_captures(lab: ModuleType) -> None:
    """Each size is captured in pieces, and as FULL if a decode batch can have it, like vLLM's keys."""
    for name, case in support.asked().items():
        if not case.get("sizes"):
            continue
        settings = support.in_vllm.CASES[name]
        query_len = 1 + settings.get("drafts", 0)
        got = lab.captures(case["sizes"], settings["max_num_seqs"], query_len)
        want = (case["captures"]["PIECEWISE"], case["captures"]["FULL"])
        assert tuple(got) == want, f"{name}: vLLM captures {want} (pieces, FULL), yours {got}"
    got = lab.captures([1, 2, 4, 8], 8)
    assert tuple(got) == (4, 4), f"eight requests of one token: FULL at every size, yours {got}"
    got = lab.captures([1, 2, 4, 8], 2)
    assert tuple(got) == (4, 2), f"two requests of one token: FULL at 1 and 2, yours {got}"
    got = lab.captures([2, 4, 8, 12, 16], 3, 4)
    assert tuple(got) == (5, 3), (
        f"three requests of 4 tokens: FULL at 4, 8 and 12, not at 2, which is no whole request; yours {got}"
    )


# ---- a run on the ladder -------------------------------------------------------------------------


def test_waste_by_hand(lab: ModuleType) -> None:
    """Five steps are counted by hand: four fit the four sizes, one is above them."""
    got = lab.waste([1, 3, 3, 8, 9], [1, 2, 4, 8])
    assert tuple(got) == (4, 1, 15, 2), (
        f"1, 3, 3 and 8 are replayed, 15 tokens with 2 rows of padding, and 9 is above: {got}"
    )
    assert tuple(lab.waste([5, 1], [])) == (0, 2, 0, 0), (
        "without a ladder nothing is replayed or padded"
    )
    assert tuple(lab.waste([], [1])) == (0, 0, 0, 0), "nothing ran"


def test_waste_of_the_night(lab: ModuleType) -> None:
    """The night's waste is right for four lists: the more sizes, the less padding."""
    steps = support.night()
    for sizes in (DEFAULT, sorted({*range(1, 33), *DEFAULT}), [2**i for i in range(10)], [512]):
        fits = [n for n in steps if n <= sizes[-1]]
        rows = sum(min(size for size in sizes if size >= n) for n in fits)
        want = (len(fits), len(steps) - len(fits), sum(fits), rows - sum(fits))
        got = tuple(lab.waste(steps, sizes))
        assert got == want, (
            f"{len(sizes)} rungs, (replayed, above, tokens, padding): {want}, yours {got}"
        )


def test_only_what_is_stepped_on(lab: ModuleType) -> None:
    """`visited` lists each size once, in the order of first use, and skips steps above the largest."""
    got = list(lab.visited([3, 1, 4, 3, 9, 2], [1, 2, 4, 8]))
    assert got == [4, 1, 2], f"3 and 4 run as 4, then 1, then 2; 9 is above: [4, 1, 2], yours {got}"
    got = list(lab.visited([8], [1, 2, 8]))
    assert got == [8], f"8 is the top rung, and it holds 8: [8], yours {got}"
    got = list(lab.visited([7], [1, 2, 8]))
    assert got == [8], f"7 runs as 8, the top: [8], yours {got}"
    for num_tokens in (1, 3):
        got = list(lab.visited([num_tokens], []))
        assert got == [], f"no ladder, so no rung for {num_tokens} tokens either; yours {got}"


def test_when_captures_have_paid(lab: ModuleType) -> None:
    """Break-even is exact to the step, a tie counts, and a graph that saves nothing is refused."""
    for num, capture_us, saved_us, want in [
        (1, 10, 5, 2), (1, 11, 5, 3), (2, 10, 1, 20), (3, 10, 7, 5), (0, 10, 5, 0),
        (86, 970_000, 260, 320_847),
        (2**40, 2**20, 3, -(-(2**60) // 3)),
    ]:  # fmt: skip
        got = lab.pays_after(num, capture_us, saved_us)
        assert got == want, (
            f"{num} captures of {capture_us} us, {saved_us} us saved a step: {want}, yours {got}"
        )
    for num, saved_us in ((1, 0), (1, -4), (0, 0)):
        what = f"{num} captures, {saved_us} us saved a step"
        said = refusal(lambda num=num, saved=saved_us: lab.pays_after(num, 10, saved), what)
        assert str(saved_us) in said, f"the message should name {saved_us}: {said}"


def refusal(call: Callable[[], Any], what: str) -> str:
    """The words with which a call is refused, which must be a ValueError's."""
    try:
        got = call()
    except ValueError as error:
        return str(error)
    except ArithmeticError as error:
        return pytest.fail(f"{what} is a ValueError with a sentence, and yours ends in {error!r}")
    return pytest.fail(f"{what} is an error, and you give {got}")


def test_the_steps_stay_in_their_order(lab: ModuleType) -> None:
    """`waste` and `visited` read the steps and do not change their order."""
    for name, ask in [
        ("waste", lambda steps: lab.waste(steps, [1, 2, 4, 8])),
        ("visited", lambda steps: lab.visited(steps, [1, 2, 4, 8])),
    ]:
        given = [3, 9, 4, 3]
        ask(given)
        assert given == [3, 9, 4, 3], f"{name}: the steps were [3, 9, 4, 3], and now are {given}"
