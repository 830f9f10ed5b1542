"""Lab 12-05: the predictions, each function by itself, 1,000 grammars, and what was counted in real vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
parts = support.parts
read, spell = parts.CHARACTERS.read, parts.CHARACTERS.spell
WORDS = 2
"""Of a row: 37 tokens."""


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your answers to the six questions hold, before anything is run."""
    facts: dict[str, tuple[Any, str]] = {
        "kept": (2, "Which of the four is the first that the rule bars?"),
        "text": ("KX-117", "Which drafts did the model choose itself, and what does it give after them?"),
        "ends": ((3, 2), "What is left to fill once the end token is taken?"),
        "unknown": ((5, 3), "How many of the four drafts are kept, and which rows can be reached?"),
        "all right": ((3, 8), "Which tokens does each step bring, the end token among them?"),
        "waits": (["d", "f"], "For which bound request is a token that fixes its state still unknown?"),
    }  # fmt: skip
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"six questions; these stand in one of the README and your answers only: {apart}"
    )
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


@contextmanager
def judged(what: str) -> Iterator[None]:
    """Fails where the code under test asks for what vLLM or xgrammar refuses."""
    refused = ""
    try:
        yield
    except parts.RefusedError as error:
        refused = str(error)
    fine = not refused  # not in the assert: the grade would print it a second time
    assert fine, f"{what}: {refused}"


# ---- each function by itself -----------------------------------------------------------------------


def check_state(what: str, text: str, grammar: Any) -> None:
    """The grammar is where it was after `text`."""
    now, before = grammar.grammar.num_processed_tokens, len(text)
    assert now == before, f"{what}: the grammar had accepted {before} tokens, and now {now}"
    same = grammar.grammar.state == parts.part_number(text).grammar.state
    assert same, f"{what}: the grammar is in another state than after {text!r}"


FILTERED = {
    "all": ("K", "X-11", "X-11"),
    "none": ("K", "1X-1", ""),
    "barred": ("KX-1", "19X0", "19"),
    "behind a barred one": ("KX-", "1A23", "1"),
    "end": ("KX-119", "0.", "0."),
    "behind the end": ("KX-119", "..K", "."),
    "unknown": ("KX-1", "1__0", "1"),
    "empty": ("KX", "", ""),
}


@pytest.mark.parametrize("name", FILTERED)
def test_drafts_are_filtered(lab: ModuleType, name: str) -> None:
    """The longest allowed beginning, a new list; the state stays, and no row is filled."""
    text, drafts, kept = FILTERED[name]
    grammar, given = parts.part_number(text), read(drafts)
    what = f"after {text!r}, drafts {spell(read(drafts))}"
    with judged(what):
        found = lab.filter_drafts(grammar, given)
    assert found is not given, f"{what}: what you return is the given list itself, not a new one"
    got = list(found)
    assert got == read(kept), f"{what}: kept are {spell(read(kept))}, and yours are {spell(got)}"
    check_state(what, text, grammar)
    assert given == read(drafts), f"{what}: the list itself was changed, to {spell(given)}"
    fills = grammar.counter.counts.fills
    assert fills == 0, (
        f"{what}: filter_drafts has filled {fills} rows; whether a token passes says accept_token"
    )


def describe(row: Any) -> str:
    """What a row allows, as text."""
    if (row == -1).all():
        return "everything"
    bits = np.unpackbits(row.view(np.uint8), count=len(parts.CHARACTERS), bitorder="little")
    allowed: str = spell([int(t) for t in np.flatnonzero(bits)])
    return allowed


FILLED = {
    "no drafts": ("K", ""),
    "drafts": ("K", "X-11"),
    "end": ("KX-119", "0."),
    "early end": ("KX-119", "."),
    "unknown": ("K", "X-__"),
    "unknown first": ("KX-11", "___"),
    "known behind unknown": ("K", "X_-1"),
    "terminated": ("KX-119.", ""),
    "terminated, unknown": ("KX-119.", "__"),
}


def expected_rows(text: str, drafts: str) -> Any:
    """What `fill_rows` writes: each row from a grammar of its own."""
    rows = np.full((len(drafts) + 1, WORDS), -1, dtype=np.int32)
    for place in range(len(drafts) + 1):
        before = text + drafts[:place]
        if "_" not in before and "." not in before:
            parts.part_number(before).fill_bitmask(rows, place)
    return rows


@pytest.mark.parametrize("name", FILLED)
def test_rows_are_filled(lab: ModuleType, name: str) -> None:
    """A row for each draft and one for the token after them, and the state stays."""
    text, drafts = FILLED[name]
    grammar, given = parts.part_number(text), read(drafts)
    bitmask = np.full((8, WORDS), 0x0F0F0F0F, dtype=np.int32)  # an earlier step's
    grammar.counter.phase = "fill"
    what = f"after {text!r}, drafts {spell(given)}, rows from 2 on"
    with judged(what):
        end = lab.fill_rows(grammar, given, bitmask, 2)
    assert given == read(drafts), f"{what}: the list itself was changed, to {spell(given)}"
    assert end == 3 + len(given), f"{what}: the row after them is {3 + len(given)}, and yours {end}"
    for place, row in enumerate(expected_rows(text, drafts)):
        want, got = describe(row), describe(bitmask[2 + place])
        assert got == want, f"{what}: row {2 + place} allows {want}, and yours {got}"
    others = np.delete(bitmask, range(2, end), axis=0)
    assert (others == 0x0F0F0F0F).all(), f"{what}: rows of other requests were written to"
    check_state(what, text, grammar)


ACCEPTED = {
    # text, drafts, chosen, most, kept
    "no drafts": ("K", "", "X", 9, "X"),
    "all": ("K", "X-11", "X-119", 9, "X-119"),
    "rejected": ("KX-1", "19", "170", 9, "17"),
    "rejected at once": ("KX-1", "19", "29.", 9, "2"),
    "agrees again later": ("KX-", "119", "1299", 9, "12"),
    "unknown": ("KX-", "1__", "120.", 9, "12"),
    "end in the drafts": ("KX-119", ".", ".K", 9, "."),
    "end instead of a draft": ("KX-119", "0.", "..A", 9, "."),
    "end after the drafts": ("KX-11", "90", "90.", 9, "90."),
    "most": ("K", "X-11", "X-119", 3, "X-1"),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_only_what_was_accepted_moves_the_grammar(lab: ModuleType, name: str) -> None:
    """The request gets the drafts that were chosen, and a token more; so does its grammar."""
    text, drafts, chosen, most, kept = ACCEPTED[name]
    grammar, given = parts.part_number(text), read(drafts)
    grammar.counter.phase = "accept"
    what = (
        f"after {text!r}, drafts {spell(read(drafts))}, chosen {spell(read(chosen))}, most {most}"
    )
    with judged(what):
        got = list(lab.accept(grammar, given, read(chosen), parts.END, most))
    assert given == read(drafts), f"{what}: the drafts were changed, to {spell(given)}"
    assert got == read(kept), (
        f"{what}: the request gets {spell(read(kept))}, and yours gets {spell(got)}"
    )
    check_state(what, text + kept, grammar)


PLACED = {
    "all": ("K", "X-11", 4, "X-11"),
    "barred": ("KX-", "12B4", 4, "12__"),
    "none": ("KX-", "B124", 4, "____"),
    "fewer places": ("K", "X-11", 2, "X-"),
    "fewer places, barred": ("K", "XK11", 3, "X__"),
    "unknown": ("K", "X-__", 4, "X-__"),
    "end": ("KX-119", "..11", 4, ".___"),
    "fewer drafts": ("K", "X-", 4, "X-__"),
    "no drafts": ("K", "", 2, "__"),
}


@pytest.mark.parametrize("name", PLACED)
def test_drafts_are_placed(lab: ModuleType, name: str) -> None:
    """A draft for each place: what the grammar allows, then -1."""
    text, drafts, num_places, placed = PLACED[name]
    grammar = parts.part_number(text)
    what = f"after {text!r}, drafts {spell(read(drafts))}, {num_places} places"
    given = read(drafts)
    with judged(what):
        got = list(lab.place_drafts(grammar, given, num_places))
    assert given == read(drafts), f"{what}: the list itself was changed, to {spell(given)}"
    assert got == read(placed), f"{what}: {spell(read(placed))}, and yours {spell(got)}"
    check_state(what, text, grammar)


def test_a_free_request_keeps_its_drafts(lab: ModuleType) -> None:
    """They are cut to the places, or filled up with -1, and nothing is filtered."""
    for drafts, num_places, placed in (("19X_", 3, "19X"), ("1_9X", 3, "1_9"), ("19", 4, "19__")):
        got = list(lab.place_drafts(None, read(drafts), num_places))
        assert got == read(placed), (
            f"no grammar, drafts {spell(read(drafts))}, {num_places} places: {spell(read(placed))}, "
            f"and yours {spell(got)}"
        )


STEPS = {
    # of each request: bound, in its prompt, places whose tokens are not known
    "free": ([(False, False, 5)], False),
    "bound, nothing in flight": ([(True, False, 0)], False),
    "bound, one in flight": ([(True, False, 1)], True),
    "bound, drafts in flight": ([(True, False, 5)], True),
    "in its prompt": ([(True, True, 0)], False),
    "in its prompt, with places not known": ([(True, True, 5)], False),
    "in its prompt beside a free one": ([(True, True, 0), (False, False, 5)], False),
    "behind free ones": ([(False, False, 1), (False, False, 5), (True, False, 1)], True),
    "prompt ends beside one in flight": ([(True, False, 0), (True, False, 4)], True),
    "nothing": ([], False),
}


@pytest.mark.parametrize("name", STEPS)
def test_when_sampling_waits(lab: ModuleType, name: str) -> None:
    """Only a bound request that samples in this step, with tokens in flight, makes the step wait."""
    requests, waits = STEPS[name]
    said = lab.must_defer([support.Scheduled("r", *request) for request in requests])
    assert bool(said) == waits, (
        f"requests (bound, in its prompt, places not known) {requests}: must_defer is {waits}, yours {said}"
    )


# ---- the order of an asynchronous step -------------------------------------------------------------


def make_jobs(*kinds: str) -> list[Any]:
    """Requests of five tokens: `free`, `bound`, or `late`: bound, with a prompt of three steps."""
    jobs = []
    for kind in kinds:
        job = parts.Job([1], None, 5, chunks=3 if kind == "late" else 1)
        if kind != "free":
            job.make_grammar = lambda: parts.part_number().grammar
        job.answer = parts.plain_run(job, parts.CharacterModel())
        jobs.append(job)
    return jobs


ORDERS = {
    "free": (["free", "free"], range(0)),
    "bound": (["bound"], range(1, 5)),
    "both": (["free", "bound"], range(1, 5)),
    "late": (["free", "late"], range(3, 7)),
}


@pytest.mark.parametrize("name", ORDERS)
def test_the_order_of_a_step(lab: ModuleType, name: str) -> None:
    """The model starts first. A step is sampled at once, or after the one before is known."""
    kinds, waiting = ORDERS[name]
    jobs = make_jobs(*kinds)
    with judged(f"requests {kinds}"):
        answer = support.run_async(
            lab, jobs, parts.CharacterModel(), lambda number, tokens: [3, 3], 2
        )
    events = answer.events
    for n in range(1, answer.num_steps):
        steps = [e for e in events if e in (f"execute {n}", f"sample {n}", f"update {n - 1}")]
        order = ["execute", "update", "sample"] if n in waiting else ["execute", "sample", "update"]
        got = [event.split()[0] for event in steps]
        assert got == order, (
            f"requests {kinds}, step {n}, which {'must' if n in waiting else 'need not'} wait for "
            f"step {n - 1}: {', '.join(steps)}"
        )
    for n, plan in enumerate(answer.plans):
        if kinds[0] == "free" and n in waiting and "0" in plan.drafts:
            own = [3] * len(plan.drafts["0"])
            assert plan.drafts["0"] == own, (
                f"requests {kinds}, step {n}, deferred: in the free request's places stand its drafts "
                f"{own}, and in yours {plan.drafts['0']}"
            )
    tokens = [job.answer for job in jobs]
    same = answer.tokens == tokens  # not in the assert: the grade would print both a second time
    assert same, f"requests {kinds} get {answer.tokens}; without speculation {tokens}"


# ---- equal to the run without speculation ----------------------------------------------------------


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_thousand_grammars(lab: ModuleType, mode: str) -> None:
    """With drafts that are often wrong, barred, or unknown, every request gets what it gets without them;
    and what is asked of the grammars is what vLLM's functions asked of xgrammar's."""
    total: dict[str, int] = {}
    for seed, jobs in support.random_batches():
        with judged(f"{mode}, batch {seed}"):
            answer = support.run(mode, lab, seed, jobs)
        for number, job in enumerate(jobs):
            got = answer.tokens[number]
            assert got == job.answer, (
                f"{mode}, batch {seed}, request {number}, rule {job.rule and job.rule[1]!r}: without drafts "
                f"{parts.PIECES.spell(job.answer)}; yours {parts.PIECES.spell(got)}"
            )
        support.add(total, answer.counts)
    check_counts(f"{mode}, 1,000 grammars", total, support.recorded()["random"][mode])


@pytest.mark.parametrize("number", [0, 1])
def test_counts_are_those_of_real_vllm(lab: ModuleType, number: int) -> None:
    """Six requests to real vLLM with n-gram speculation, run once more: tokens and counts."""
    run = support.recorded()["runs"][number]
    with judged(f"real vLLM's run, k {run['k']}"):
        answer = support.replay(lab, run)
    for line, got in zip(run["requests"], answer.tokens, strict=True):
        assert got == line["answer"], (
            f"k {run['k']}, rule {line['rule']}: {line['answer']}, yours {got}"
        )
    check_counts(f"real vLLM, k {run['k']}", answer.counts, run["counts"])


def check_counts(what: str, mine: dict[str, int], theirs: dict[str, int]) -> None:
    """What was asked of the grammars is what was asked of xgrammar's."""
    for name, count in theirs.items():
        same = mine[name] == count
        assert same, f"{what}: {name} {count} round xgrammar's grammars, and {mine[name]} in yours"
