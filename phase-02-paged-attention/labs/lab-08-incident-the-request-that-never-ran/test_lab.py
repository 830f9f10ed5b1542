"""Lab 02-08: what the trace says, and whether your test can tell a right engine from a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support

support = load_support(__file__)
TRACE: list[dict[str, Any]] = support.trace()
PROMPTS = {r["arrives"]["id"]: r["arrives"]["prompt"] for r in TRACE if "arrives" in r}


def worked_in(request_id: str) -> list[int]:
    """The steps that computed something for this request."""
    return [record["step"] for record in TRACE if request_id in record["scheduled"]]


def ended(request_id: str) -> bool:
    return any(request_id in record.get("finished", ()) for record in TRACE)


# ---- the trace -----------------------------------------------------------------------------------


def test_who_never_began_and_who_never_ended(lab: ModuleType) -> None:
    """One request got no work at all, and another got some but never ended."""
    found = lab.diagnose()
    for name, request_id in (
        ("never_began", found.never_began),
        ("never_ended", found.never_ended),
    ):
        assert request_id in PROMPTS, f"{name}: no request of the trace is called {request_id!r}"
        assert not ended(request_id), (
            f"{name}: {request_id} stands under `finished` in the trace, so it came to its end"
        )
    steps = worked_in(found.never_began)
    assert not steps, (
        f"never_began: step {(steps or [0])[0]} computed tokens of {found.never_began}"
    )
    assert worked_in(found.never_ended), (
        f"never_ended: no step computed anything for {found.never_ended}, so it did not even begin"
    )
    longest = max((i for i in PROMPTS if not worked_in(i)), key=PROMPTS.__getitem__)
    assert found.never_began == longest, (
        f"never_began: {found.never_began} got nothing because it stood behind somebody in the queue. "
        "Who stood at the head?"
    )


def test_how_far_it_came(lab: ModuleType) -> None:
    """`outputs_of_it` counts the outputs of the request that never ended, when it stopped getting on."""
    found = lab.diagnose()
    tokens = max(
        r["computed"][found.never_ended][1] for r in TRACE if found.never_ended in r["computed"]
    )
    prompt = PROMPTS[found.never_ended]
    assert found.outputs_of_it == tokens - prompt, (
        f"outputs_of_it: {found.outputs_of_it}. `computed` has [computed tokens, tokens]; at the end "
        f"{found.never_ended} has {tokens} tokens, and {prompt} of these are its prompt. (Computed falls "
        "back to 0 when a request is preempted; its tokens stay.)"
    )


def test_how_many_blocks_there_are_and_how_many_are_missing(lab: ModuleType) -> None:
    """The diagnosis says how many blocks are usable, and how many the log's promise lacks."""
    found = lab.diagnose()
    most = max(record["free_blocks"] for record in TRACE)
    assert found.usable_blocks == most, (
        f"usable_blocks: {found.usable_blocks}. Look at the steps in which nobody runs: nobody holds a "
        "block, and the trace says how many are free. It is not the number that the log's 512 tokens make"
    )
    wanted = -(511 // -16)
    assert found.blocks_missing == wanted - most, (
        f"blocks_missing: {found.blocks_missing}. The longest request that max_model_len 512 lets in "
        "computes 511 tokens; count its blocks, and those that can be given out"
    )


def test_when_waiting_became_needless(lab: ModuleType) -> None:
    """mail-7 waits for two reasons, one after the other."""
    step = lab.diagnose().needless_from
    preempts = next(r["step"] for r in TRACE if r["preempted"])
    arrives = next(r["step"] for r in TRACE if r.get("arrives", {}).get("id") == "mail-7")
    assert step >= arrives, f"needless_from: step {step}, but mail-7 arrives in step {arrives}"
    assert step > preempts - 1, (
        f"needless_from: in step {step} minutes-6 still holds nearly all blocks, so mail-7, which needs 3, "
        "has to wait: the pool is full, and that is no fault"
    )
    assert step != preempts, (
        f"needless_from: in step {step} somebody is preempted, and nobody is ever admitted in such a step"
    )
    assert step == preempts + 1, (
        f"needless_from: {step}. All blocks are free at the end of step {preempts}, and records with "
        "`until` stand for many steps"
    )


def test_the_cause(lab: ModuleType) -> None:
    """Only one of the six causes agrees with everything in log and trace."""
    cause = lab.diagnose().cause
    against = {
        "A": "while contract-3 waits nobody runs, and no block is in use: steps 30 to 149",
        "B": "contract-3 has 505 tokens and asks for 6 more: 511 in all, and the log says 512",
        "C": "whenever nobody runs, the same number of blocks is free, at the start as at the end",
        "D": "cached blocks that nobody holds count as free, and `free_blocks` is as high as it ever is",
        "F": "exactly one step preempts anybody, and the victim was alone",
    }
    assert cause in lab.CAUSES, f"cause: {cause!r} is none of {', '.join(lab.CAUSES)}"
    assert cause not in against, f"cause {cause}, “{lab.CAUSES[cause]}”: but {against[cause]}"


# ---- your test -----------------------------------------------------------------------------------


def verdict(lab: ModuleType, make_engine: Callable[..., Any]) -> str | None:
    """What your test says against the engine; None if it lets it pass."""
    try:
        lab.incident_test(make_engine)
    except AssertionError as error:
        return str(error) or "AssertionError"
    return None


def test_your_test_fails_on_the_pin(lab: ModuleType) -> None:
    """Your test fails on a small stand-in that does what vLLM 0.22.1 does."""
    said = verdict(lab, support.Engine)
    assert said is not None, (
        "your test passes on an engine that does what the pin does: it accepts every prompt below "
        "max_model_len, and never looks again. Ask for a max_model_len that fills the whole pool"
    )


@pytest.mark.parametrize("engine", support.GOOD, ids=lambda e: e.__name__)
def test_your_test_passes_on_every_mend(lab: ModuleType, engine: Callable[..., Any]) -> None:
    """Your test passes on every correct fix, of which there are several."""
    said = verdict(lab, engine)
    assert said is None, (
        f"your test fails on an engine that is right. What it does: {engine.__doc__} Your test said: {said}"
    )


@pytest.mark.parametrize("engine", support.BAD, ids=lambda e: e.__name__)
def test_your_test_fails_on_every_bad_mend(lab: ModuleType, engine: Callable[..., Any]) -> None:
    """Your test fails on fixes that go too far, not far enough, or somewhere else."""
    said = verdict(lab, engine)
    assert said is not None, (
        f"your test passes on an engine that is wrong. What it does: {engine.__doc__}"
    )
