"""What lab 03-02 gives, `ask`, and where its broken engines show, which its README says."""

from __future__ import annotations

from types import ModuleType

import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module

LAB = ROOT / "phase-03-scheduler/labs/lab-02-chunked-prefill"
support = load_module(LAB / "support.py", "test_lab_03_02_support")


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    return load_module(LAB / "solution.py", "test_lab_03_02_solution")


def test_ask_says_what_the_engine_did(lab: ModuleType) -> None:
    """Tokens, logprobs and pieces of two at once, and an engine left as it was."""
    engine = support.make_engine(max_num_batched_tokens=16, max_num_seqs=4)
    two = {name: support.PROMPTS[name] for name in ("fay", "hal")}
    engine.engine_core.step_observers.append(lambda record: None)
    observers = list(engine.engine_core.step_observers)
    answers = lab.ask(engine, two, 4)
    assert set(answers) == {"fay", "hal"}, f"an Answer for each of {set(two)}, not {set(answers)}"
    fay, hal = answers["fay"], answers["hal"]
    assert fay.chunks == [16, 16, 15], (
        f"Fay's 47 tokens of prompt came in 16, 16 and 15; what the answer took is no piece of the "
        f"prompt. Yours: {fay.chunks}"
    )
    assert hal.chunks == [1, 8], (
        f"Hal got the 1 token that Fay's last piece left, then 8 beside her first token of answer; "
        f"yours: {hal.chunks}"
    )
    assert (len(fay.token_ids), len(hal.token_ids)) == (4, 4), (
        f"4 tokens were asked for, ignoring EOS; yours: {fay.token_ids}, {hal.token_ids}"
    )
    assert len(fay.logprobs) == 4, f"a logprob for each token, not {fay.logprobs}"
    assert fay.logprobs[0] == pytest.approx(-0.3263, abs=1e-3), (
        f"the logprob of Fay's first token is -0.3263, yours {fay.logprobs[0]}"
    )
    left = engine.engine_core.step_observers
    assert left == observers, (
        f"the engine had {len(observers)} observer, somebody else's, and has {len(left)}: take away yours, "
        "and only yours"
    )


def test_an_answer_that_would_end_goes_on(lab: ModuleType) -> None:
    """After the document the model would say nothing more: `ignore_eos` makes it."""
    [answer] = lab.ask(support.make_engine(), {"jon": support.DOCUMENT}, 3).values()
    assert len(answer.token_ids) == 3, (
        f"3 tokens were asked for, and the end token does not end it; yours: {answer.token_ids}"
    )


def test_a_broken_engine_is_found(lab: ModuleType) -> None:
    """A check that cannot fail proves nothing: two faulty kernels, and where they can be seen."""
    expected = lab.ask(support.make_engine(), support.PROMPTS, 6)
    off = {"enable_prefix_caching": False}
    for broken in (support.Forgetful, support.TopLeft):
        for settings, seen in (
            (off, set()),
            (off | {"long_prefill_token_threshold": 1}, set()),
            (off | {"long_prefill_token_threshold": 16}, {"fay", "gil", "ida"}),
            ({}, {"gil"}),
        ):
            engine = support.make_engine(broken, **settings)
            got = lab.changed(expected, lab.ask(engine, support.PROMPTS, 6))
            assert set(got) == seen, (
                f"{broken.__name__} with {settings or 'prefix caching'}: it shows in the answers of "
                f"{seen or 'nobody'}; you found {got}"
            )
