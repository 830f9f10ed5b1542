"""Lab 11-07: the predictions, what the servers say, and the plan that keeps reads out of bursts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
VLLM = support.by_call(support.recorded()["morning"])


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    """The morning on `mini_vllm`'s server, call by call."""
    for package in ("fastapi", "prometheus_client", "prometheus_fastapi_instrumentator", "jinja2"):
        pytest.importorskip(package, reason="the server needs the extra 'serve'")
    found: dict[str, Any] = support.by_call(support.play_here())
    return found


def cached(note: Any) -> int:
    details = note["answer"]["usage"]["prompt_tokens_details"]
    return details["cached_tokens"] if details else 0


def inside(notes: Any) -> list[str]:
    """The calls in which a step reads a file."""
    return [
        name for name in notes if any(read["step"] is not None for read in notes[name]["reads"])
    ]


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your answers to the six questions are what vLLM's server did."""
    asked = ("e", "f", "g", "h", "i", "k")
    facts: dict[str, tuple[Any, str]] = {
        "listed": (
            [card["id"] for card in VLLM["d"]["models"]["data"]],
            "Is the list of names, or of what lies in memory?",
        ),
        "reads": (
            {name: len(VLLM[name]["reads"]) for name in "abcdefghijk"},
            "Which two are in memory before this call, and was this one loaded in place?",
        ),
        "in a step": (inside(VLLM), "Who reads at that moment: a call to load, or a step?"),
        "stalled": (
            VLLM["h"]["reads"][0]["step"],
            "Whose tokens does the step compute that reads?",
        ),
        "cached": (
            {name: cached(VLLM[name]) for name in asked},
            "Under which name are these blocks kept, and when were they computed?",
        ),
        "here": (
            {"reads in k": 0, "reads in steps": 0, "cached in k": 0},
            "Who reads in `mini_vllm`, and what is in its key beside the name?",
        ),
    }
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"six questions; these stand in one of the README and your answers only: {apart}"
    )
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- what the server says ------------------------------------------------------------------------


def card(name: str, parent: str | None, root: str = "r") -> dict[str, Any]:
    return {"id": name, "object": "model", "root": root, "parent": parent}


def test_tenants_are_the_cards_with_a_parent(lab: ModuleType) -> None:
    """A base model of several names, adapters between them, and one whose folder looks like the base's."""
    folders = {name: f"tiny-llama-lora/{support.FOLDERS[name]}" for name in ("ada", "bo", "cy")}
    got = lab.tenants(VLLM["d"]["models"])
    assert got == folders, f"vLLM lists the adapters {folders}, and you find {got}"
    assert list(got) == list(folders), f"in the order of the list, not {list(got)}"
    cards = [card("one", None), card("bo", "one"), card("two", None), card("ada", "two", "one")]
    got = lab.tenants({"object": "list", "data": cards})
    assert got == {"bo": "r", "ada": "one"}, (
        f"a base model with two names and the adapters bo and ada: you find {got}"
    )
    got = lab.tenants({"object": "list", "data": cards[:1]})
    assert got == {}, f"a base model alone has no tenants: {got}"


def test_cached_tokens_are_read_from_usage(lab: ModuleType) -> None:
    """vLLM's recorded answers, with and without details."""
    for name in "efghik":
        got = lab.cached_tokens(VLLM[name]["answer"])
        assert got == cached(VLLM[name]), (
            f"call {name}: you read {got!r} from {VLLM[name]['answer']['usage']}"
        )


def line(time: float, running: str, waiting: str | None = None, turned: bool = False) -> str:
    labels = [
        'max_lora="2"', f'running_lora_adapters="{running}"',
        f'waiting_lora_adapters="{running if waiting is None else waiting}"',
    ]  # fmt: skip
    return f"vllm:lora_requests_info{{{','.join(labels[::-1] if turned else labels)}}} {time!r}\n"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("# TYPE vllm:lora_requests_info gauge\nvllm:num_requests_running{engine=\"0\"} 9e+09\n", []),
        (line(3e9, "ada"), ["ada"]),
        (line(1e9, "ada") + line(2e9, "bo"), ["bo"]),
        (line(2e9, "bo") + line(1e9, "ada"), ["bo"]),
        (line(1.5e9, "cy,bo,ada") + line(9.5e8, "cy"), ["ada", "bo", "cy"]),
        (line(1e9, "ada,bo") + line(1.25e9, ""), []),
        (line(1.25e9, "") + line(1e9, "ada,bo"), []),
        (line(1e9, "ada", "bo", turned=True), ["ada"]),
    ],
    ids=["no text", "no sample", "one", "in order", "not in order", "9e8 is early", "now none",
         "now none, first", "other order of labels"],
)  # fmt: skip
def test_the_sample_seen_last_counts(lab: ModuleType, text: str, names: list[str]) -> None:
    """Samples stay for ever and have no order: only the time tells."""
    got = lab.adapters_with_requests(text)
    assert got == names, f"{text!r} says {names} at last, and you read {got}"


def test_the_metric_of_vllm(lab: ModuleType) -> None:
    """While Cy's request runs and Bo's has just ended, and when all have."""
    for name, names in (("h", ["cy"]), ("end", [])):
        text = VLLM[name]["metrics"]
        got = lab.adapters_with_requests(text)
        assert got == names, f"call {name}: {names} have requests, and you read {got} from\n{text}"


def test_mini_vllms_server_says_the_same(lab: ModuleType, here: dict[str, Any]) -> None:
    """Statuses, tenants, cached tokens and metrics by your functions; of the reads none is in a step."""
    for name, note in here.items():
        vllms = VLLM[name]
        assert note["status"] == vllms["status"], f"call {name}: status {note['status']} here"
        reads = 0 if name == "k" else len(vllms["reads"])
        assert len(note["reads"]) == reads, f"call {name}: {len(note['reads'])} reads here"
        if name in "efghik":
            found = 0 if name == "k" else cached(vllms)
            got = lab.cached_tokens(note["answer"])
            assert got == found, f"call {name}: you read {got!r} from {note['answer']['usage']}"
    names = list(lab.tenants(here["d"]["models"]))
    assert names == ["ada", "bo", "cy"], f"ada, bo and cy are listed, and you find {names}"
    assert inside(here) == [], f"a step of this server reads a file in {inside(here)}"
    for name, running in (("h", ["cy"]), ("end", [])):
        got = lab.adapters_with_requests(here[name]["metrics"])
        assert got == running, f"call {name}: {running} have requests, and you read {got}"


# ---- what to keep in memory ----------------------------------------------------------------------


def check_plan(forecast: Sequence[Sequence[str]], capacity: int, plan: Any) -> list[list[str]]:
    """A plan with an entry for each burst, whose touches are names, and enough for no read in a burst."""
    assert len(plan) == len(forecast), f"{len(forecast)} bursts, and the plan is for {len(plan)}"
    touches = [list(before) for before in plan]
    what = f"memory for {capacity}, bursts {[list(burst) for burst in forecast]}"
    for turned in (False, True):
        counts = support.count_reads(forecast, touches, capacity, turned)
        for place, (_, loud) in enumerate(counts):
            assert not loud, (
                f"{what}: with {touches[place]} touched before it, burst {place}, counted from 0, reads "
                f"{loud} files{', if the requests of each burst come in reversed order' if turned else ''}"
            )
    return touches


def test_a_week_without_a_read_in_a_burst(lab: ModuleType) -> None:
    """The ten bursts of the README, whatever the order within a burst."""
    check_plan(support.WEEK, support.CAPACITY, lab.plan_touches(support.WEEK, support.CAPACITY))


SMALL: dict[str, tuple[list[list[str]], int]] = {
    "one burst": ([["ada", "bo"]], 2),
    "no request": ([[], ["ada"], []], 1),
    "one slot": ([["ada"], ["bo"], ["ada"]], 1),
    "one stays, one comes": ([["ada", "bo"], ["cy", "ada"]], 2),
    "needed soon": ([["ada"], ["bo"], ["cy"], ["ada"], ["bo"]], 2),
    "often, but late": (
        [["ada"], ["bo"], ["cy"], ["bo"], ["cy"], ["bo"], ["ada"] * 3, ["ada"] * 3],
        2,
    ),
    "never again": ([["ada"], ["bo"], ["cy"], ["bo"], ["cy"]], 2),
    "three of four": ([["ada", "bo"], ["cy"], ["dan", "ada"], ["bo"], ["ada", "cy"]], 3),
}


@pytest.mark.parametrize("name", SMALL)
def test_no_more_reads_than_needed(lab: ModuleType, name: str) -> None:
    """Small forecasts: the fewest reads of all plans that keep them out of the bursts."""
    forecast, capacity = SMALL[name]
    touches = check_plan(forecast, capacity, lab.plan_touches(forecast, capacity))
    for turned in (False, True):
        paid = sum(quiet for quiet, _ in support.count_reads(forecast, touches, capacity, turned))
        fewest = support.fewest_reads(forecast, capacity)
        assert paid == fewest, (
            f"memory for {capacity}, bursts {forecast}: {touches} reads {paid} files, {fewest} do"
        )


def test_nothing_is_touched_without_need(lab: ModuleType) -> None:
    """Before a burst whose adapters are all in memory nothing is touched, and no tenant is touched twice."""
    forecast = [["ada", "bo", "ada"], ["bo"], [], ["ada", "bo"], ["cy", "bo", "cy"], ["bo"]]
    touches = check_plan(forecast, 2, lab.plan_touches(forecast, 2))
    for place in (1, 2, 3, 5):
        assert touches[place] == [], (
            f"{forecast}: all of burst {place}, counted from 0, is in memory, and you touch {touches[place]}"
        )
    for before in touches:
        assert len(set(before)) == len(before), f"a tenant is touched twice in {before}"


def test_random_forecasts(lab: ModuleType) -> None:
    """A hundred forecasts: no read in a burst, the fewest before them."""
    for seed in range(100):
        rng = random.Random(seed)
        names, capacity = [f"t{i}" for i in range(rng.randint(1, 6))], rng.randint(1, 4)
        forecast = []
        for _ in range(rng.randint(1, 12)):
            some = rng.sample(names, rng.randint(1, min(len(names), capacity)))
            forecast.append([rng.choice(some) for _ in range(rng.randint(0, 5))])
        before = [list(burst) for burst in forecast]
        plan = lab.plan_touches(forecast, capacity)
        assert forecast == before, "the forecast has been changed"
        touches = check_plan(forecast, capacity, plan)
        paid = sum(quiet for quiet, _ in support.count_reads(forecast, touches, capacity))
        fewest = support.fewest_reads(forecast, capacity)
        assert paid == fewest, (
            f"memory for {capacity}, bursts {forecast}: {paid} reads, {fewest} do"
        )


def test_your_plan_on_mini_vllms_server(lab: ModuleType, here: dict[str, Any]) -> None:
    """The week with your plan, requests of a burst at the same time: the server reads nothing in a burst."""
    week, capacity = support.WEEK, support.CAPACITY
    counts = support.play_week_here(week, lab.plan_touches(week, capacity), capacity)
    loud = [place for place, (_, reads) in enumerate(counts) if reads]
    assert not loud, f"bursts, counted from 0, in which the server read files: {loud}"
