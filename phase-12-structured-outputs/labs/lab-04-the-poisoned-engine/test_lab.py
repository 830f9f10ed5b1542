"""Lab 12-04: predictions, the two rules beside real vLLM, the gate, and your test of engines well and not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
SETTINGS = ("auto", "xgrammar", "guidance", "outlines")


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your answers to the seven questions hold, before anything is run."""
    facts: dict[str, tuple[Any, str]] = {
        "part, name": (
            ("served", "dead"), "Whose check takes `name`, and who has to compile it?",
        ),
        "name, part": (("served", "served"), "Which backend has the engine now?"),
        "name, not 7": (
            ("served", "empty"), "xgrammar's check takes `not 7`. What does guidance say to it?",
        ),
        "labels, kind": (
            ("served", "dead"), "What does xgrammar's check make of a choice? Does outlines know that?",
        ),
        "set, name, part": (
            ("refused", "served", "served"), "Does a refused request reach the engine?",
        ),
        "named": (("served", "refused"), "Is there a second check to fall back on?"),
        "alone": (
            ["nothing", "off"], "For which rule does xgrammar's check find nothing that it could look at?",
        ),
    }  # fmt: skip
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"seven questions; these stand in one of the README and your answers only: {apart}"
    )
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- the two rules ---------------------------------------------------------------------------------


def a_rule(lab: ModuleType, taken_by: Sequence[str], pattern_properties: bool = False) -> Any:
    checked = {backend: backend in taken_by for backend in SETTINGS[1:]}
    compiled = {b: dict.fromkeys(SETTINGS[1:], "grammar") for b in taken_by}
    return lab.Rule("made up", pattern_properties, checked, compiled)


CHOICES = (
    ("auto", "xgrammar guidance outlines", False, "xgrammar"),
    ("auto", "xgrammar", False, "xgrammar"),
    ("auto", "xgrammar outlines", True, "xgrammar"),
    ("auto", "guidance outlines", False, "guidance"),
    ("auto", "guidance outlines", True, "outlines"),
    ("auto", "outlines", True, "outlines"),
    ("auto", "outlines", False, None),
    ("auto", "guidance", True, None),
    ("auto", "", False, None),
    ("xgrammar", "xgrammar guidance", False, "xgrammar"),
    ("xgrammar", "guidance", False, None),
    ("guidance", "xgrammar guidance", False, "guidance"),
    ("guidance", "guidance outlines", True, "guidance"),
    ("guidance", "xgrammar outlines", True, None),
    ("outlines", "xgrammar outlines", False, "outlines"),
    ("outlines", "xgrammar guidance", False, None),
)


@pytest.mark.parametrize("case", CHOICES, ids=str)
def test_the_choice(lab: ModuleType, case: tuple[str, str, bool, str | None]) -> None:
    """Which backend a request gets, by what the checks say."""
    setting, taken_by, pattern_properties, want = case
    found = lab.choose_backend(setting, a_rule(lab, taken_by.split(), pattern_properties))
    assert found == want, (
        f"setting {setting}, {'with' if pattern_properties else 'without'} patternProperties, taken by the "
        f"checks of {taken_by or 'none'}: {want}; yours {found}"
    )


@pytest.mark.parametrize("setting", SETTINGS)
def test_outcomes_are_vllms(lab: ModuleType, setting: str) -> None:
    """Of each recorded engine the outcomes of all its requests: under `auto` every pair."""
    for names, want in support.runs(setting):
        found = lab.predict(setting, [support.rule_of(lab, name) for name in names])
        same = list(found) == want  # not in the assert: the grade would print both a second time
        assert same, (
            f"setting {setting}, requests {', then '.join(names)}: in vLLM {', '.join(want)}; yours "
            f"{', '.join(found)}"
        )


def test_an_empty_answer_harms_no_other(lab: ModuleType) -> None:
    """The engine lives on, and its backend is still the first request's."""
    good, bad = a_rule(lab, ["guidance"]), a_rule(lab, ["guidance"])
    bad.compiled["guidance"]["guidance"] = "end only"
    found = list(lab.predict("auto", [bad, bad, good]))
    want = ["empty", "empty", "served"]
    assert found == want, (
        f"two rules of which guidance makes `end only`, and one that works: {want}; yours {found}"
    )


# ---- the fix ---------------------------------------------------------------------------------------


def engine_of(lab: ModuleType, places: int = 4) -> Any:
    return support.Engine(lab.GrammarGate(), lab.end_failed, places)


def step(engine: Any, what: str) -> None:
    """A step, of which nothing may come out."""
    try:
        engine.step()
    except (Exception, support.PanicException) as error:
        pytest.fail(f"{what}: step {engine.step_number} raises {type(error).__name__}: {error}")


def finish(engine: Any, what: str) -> None:
    for _ in range(support.STEPS):
        if not engine.unfinished():
            return
        step(engine, what)
    pytest.fail(f"{what}: after {support.STEPS} steps {engine.unfinished()} have not finished")


def test_a_request_waits_and_others_pass(lab: ModuleType) -> None:
    """A bound request runs once its grammar is there; those behind it do not wait for that."""
    engine = engine_of(lab)
    engine.add("slow", "slow")
    engine.add("fine", "fine")
    engine.add("free", None)
    finish(engine, "three requests, whose grammars compile")
    assert engine.last_step == {"free": 4, "fine": 6, "slow": 10}, (
        "a grammar is there after 6 steps, one after 2, and one request is free; each then takes 4 steps: "
        f"the last in 4, 6 and 10. Yours: {engine.last_step}"
    )
    assert not engine.gate.compiling, (
        f"all have their grammars, and in `compiling` are {list(engine.gate.compiling)}"
    )


def test_nothing_waits_for_the_compiler(lab: ModuleType) -> None:
    """A future that is not done is not asked for its result."""
    engine = engine_of(lab)
    engine.add("bound", "fine")
    future: Any = support.Watched()
    engine.gate.compiling["bound"] = future
    for _ in range(3):
        step(engine, "a request whose grammar is not there")
    assert engine.unfinished() == ["bound"], "its grammar is not there, and it has ended"
    future.set_result("grammar")
    finish(engine, "its grammar is there")


@pytest.mark.parametrize("rule", ["raises", "panics", "cancelled"])
def test_a_failed_rule_ends_its_own_request(lab: ModuleType, rule: str) -> None:
    """It ends by an error that says why, and all others as without it."""
    expected = engine_of(lab)
    engine = engine_of(lab)
    for request_id, its_rule in (("a", "fine"), ("bad", rule), ("b", "slow"), ("c", None)):
        engine.add(request_id, its_rule)
        if request_id != "bad":
            expected.add(request_id, its_rule)
    finish(engine, f"a rule that {rule}")
    finish(expected, "no rule that fails")
    bad = engine.ended.pop("bad", None)
    assert bad is not None, f"a rule that {rule}: no output says that its request has ended"
    assert (bad.tokens, bad.finish_reason) == ((), "error"), (
        f"a rule that {rule}: no tokens and `error`; yours {list(bad.tokens)} and {bad.finish_reason!r}"
    )
    assert rule in str(bad.stop_reason), (
        f"a rule that {rule}: stop_reason is to hold the reason, `{rule}`, and is {bad.stop_reason!r}"
    )
    assert engine.ended == expected.ended, (
        f"a rule that {rule}: the others end as {engine.ended}; without it as {expected.ended}"
    )
    assert engine.free_blocks() == expected.free_blocks(), (
        f"a rule that {rule}: {engine.free_blocks()} blocks are free; without it {expected.free_blocks()}"
    )


def test_failures_in_one_step(lab: ModuleType) -> None:
    """Each ends in that step, by an output of its own."""
    engine = engine_of(lab)
    for request_id, rule in (("a", "raises"), ("b", "panics"), ("c", "raises")):
        engine.add(request_id, rule)
    requests = dict(engine.scheduler.requests)
    finish(engine, "three rules that fail")
    assert engine.last_step == dict.fromkeys("abc", 3), (
        f"three compilations fail before step 3, where all end; yours, by id: {engine.last_step}"
    )
    states = {i: request.status.name for i, request in requests.items()}
    assert set(states.values()) == {"FINISHED_ERROR"}, f"all end as FINISHED_ERROR; yours {states}"


def test_a_failure_is_told_while_the_batch_is_full(lab: ModuleType) -> None:
    """The scheduler asks the gate only when there are places; a failure does not wait for that."""
    engine = engine_of(lab, places=1)
    engine.add("long", None)
    engine.add("next", None)
    engine.add("bad", "raises")
    engine.add("fine", "fine")
    finish(engine, "one place, two free requests, and a rule that fails")
    assert engine.last_step["bad"] == 3, (
        "one place, which two free requests take for 8 steps; behind them a rule whose compilation fails "
        f"before step 3. Its request ends in step 3; yours in {engine.last_step['bad']}"
    )
    assert engine.ended["fine"].finish_reason == "length", (
        "one place, taken by others: a request whose grammar is there waits for the place, and has not "
        f"failed; yours ends by {engine.ended['fine'].finish_reason}, {engine.ended['fine'].stop_reason!r}"
    )


def test_a_client_that_left(lab: ModuleType) -> None:
    """If a request is gone when its compilation fails, no output speaks of it."""
    engine = engine_of(lab)
    engine.add("gone", "raises")
    engine.add("free", None)
    step(engine, "a rule that compiles")
    engine.abort("gone")
    for _ in range(5):
        step(engine, "a rule fails whose request was aborted in step 1")
    assert "gone" not in engine.ended, (
        f"a request was aborted in step 1, and an output says {engine.ended.get('gone')}"
    )
    assert not engine.gate.failed(), "its failure was taken notice of, and `failed` still names it"


# ---- the test --------------------------------------------------------------------------------------


def run_check(lab: ModuleType, make_engine: Callable[[], Any]) -> AssertionError | None:
    """What the learner's test says of an engine; None: it passes."""
    try:
        lab.check_no_request_stops_another(make_engine)
    except AssertionError as error:
        return error
    return None


def test_your_test_passes_a_well_engine(lab: ModuleType) -> None:
    """And one with your own gate."""
    for what, make_engine in (
        ("the healthy engine", support.WELL),
        ("your own", lambda: engine_of(lab)),
    ):
        error = run_check(lab, make_engine)
        assert error is None, f"your test refuses {what}: {error}"


@pytest.mark.parametrize("name", support.POISONED)
def test_your_test_refuses_a_poisoned_engine(lab: ModuleType, name: str) -> None:
    """By an AssertionError."""
    try:
        error = run_check(lab, support.POISONED[name])
    except (Exception, support.PanicException) as other:
        pytest.fail(
            f"{name}: {type(other).__name__} comes out of your test, which is to say so by an assertion"
        )
    refused = error is not None
    assert refused, f"your test passes this engine: {name}"
