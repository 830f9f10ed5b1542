"""Lab 01-04: what the probe writes down of an engine that does not run: records by hand."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.output import (
    CachedRequestData,
    EngineCoreOutput,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
)
from mini_vllm.engine.step_record import StepRecord

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


class Backwards(set[str]):
    """A set that is walked through from its last member to its first: sets have no order to rely on."""

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(super().__iter__(), reverse=True))


class Desk:
    """A probe, and steps written for it by hand."""

    def __init__(self, lab: ModuleType, model: Any) -> None:
        config = EngineConfig(max_num_batched_tokens=8, max_num_seqs=4, num_gpu_blocks=50)
        self.engine = LLMEngine(model, config)
        self.probe = lab.BatchProbe(self.engine)
        self.index = 0

    def step(
        self,
        scheduled: dict[str, int],
        new: dict[str, tuple[int, int]] | None = None,
        known: dict[str, int] | None = None,
        resumed: tuple[str, ...] = (),
        preempted: tuple[str, ...] = (),
        sampled: tuple[str, ...] = (),
        ends: tuple[str, ...] = (),
        waiting: tuple[str, ...] = (),
    ) -> Any:
        """Show the probe one step. `new`: id to (prompt, cached); `known`: id to computed tokens."""
        known = known or {}
        output = SchedulerOutput(
            [
                NewRequestData(r, [1] * prompt, PARAMS, [1], cached)
                for r, (prompt, cached) in (new or {}).items()
            ],
            CachedRequestData(list(known), set(resumed), [None] * len(known), list(known.values())),
            scheduled,
            sum(scheduled.values()),
            Backwards(preempted),
            set(),
        )
        news = [
            EngineCoreOutput(r, [9], finish_reason="length" if r in ends else None) for r in sampled
        ]
        queue = self.engine.engine_core.scheduler.waiting
        while len(queue):
            queue.pop_request()
        for request_id in waiting:
            request = Request(request_id, [1, 2], PARAMS)
            if request_id in preempted:
                request.status = RequestStatus.PREEMPTED
            queue.add_request(request)
        self.index += 1
        nothing = ModelRunnerOutput([], {}, [])
        record = StepRecord(output, nothing, news, 0.0, 0.0, 0.0, index=self.index)
        before = copy.deepcopy((output, news))
        try:
            self.probe.observe(record)
        except KeyError as error:
            raise AssertionError(
                f"update_ledgers looked up {error} and did not find it. The record has all that you need of "
                "a step; in the scheduler's own requests those that have finished are gone, and the counts "
                "have moved"
            ) from error
        assert (output, news) == before, (
            "update_ledgers has changed the record it was shown: a probe reads"
        )
        steps = self.probe.steps
        assert len(steps) == self.index, (
            f"after {self.index} steps the probe has {len(steps)}: observe writes one BatchStep a step"
        )
        return steps[-1]


@pytest.fixture
def desk(lab: ModuleType, model: Any) -> Desk:
    return Desk(lab, model)


def test_a_decode_computes_the_token_sampled_last(lab: ModuleType) -> None:
    """`is_decode` knows which of seven requests decode; a count of 1 is not enough."""

    def asked(prompt: int, sampled: int, computed: int) -> Any:
        ledger = lab.RequestLedger(prompt, num_sampled=sampled)
        return lab.is_decode(ledger, computed)

    cases = {
        "13 of prompt, 1 sampled, 13 computed: it needs that 1": ((13, 1, 13), True),
        "13 of prompt, 5 sampled, 17 computed": ((13, 5, 17), True),
        "13 of prompt, nothing sampled, 12 computed: the last token of a prompt": (
            (13, 0, 12),
            False,
        ),
        "a prompt of one token": ((1, 0, 0), False),
        "13 of prompt, nothing sampled, 8 computed": ((13, 0, 8), False),
        "13 of prompt, 5 sampled, preempted, 16 found in the cache: two to compute": (
            (13, 5, 16),
            False,
        ),
        "13 of prompt, 5 sampled, preempted, nothing found": ((13, 5, 0), False),
    }
    wrong = [case for case, (args, want) in cases.items() if asked(*args) is not want]
    assert not wrong, f"is_decode is wrong for: {'; '.join(wrong)}"


def test_prefills_and_decodes_are_told_apart(desk: Desk) -> None:
    """The probe tells prefills from decodes by what a request had before the step, not by its count."""
    first = desk.step({"a": 3, "b": 5}, new={"a": (3, 0), "b": (6, 0)}, sampled=("a",))
    assert (first.prefills, first.decodes) == (("a", "b"), ()), (
        f"two prompts begin: prefills {first.prefills}, decodes {first.decodes}, should be "
        "('a', 'b') and ()"
    )
    second = desk.step({"a": 1, "b": 1}, known={"a": 3, "b": 5}, sampled=("a", "b"))
    assert (second.prefills, second.decodes) == (("b",), ("a",)), (
        f"a decodes; b reads the last token of its prompt of 6: prefills {second.prefills}, decodes "
        f"{second.decodes}, should be ('b',) and ('a',). What b sampled in this very step does not "
        "count for it: look at the ledger before you enter the step's tokens"
    )
    third = desk.step({"a": 1, "b": 1}, known={"a": 4, "b": 6}, sampled=("a", "b"))
    assert third.decodes == ("a", "b"), f"both decode now, decodes is {third.decodes}"


BACK = {  # in the cache when it comes back: (tokens in the step, whether it decodes), step by step
    0: [(18, False)],
    16: [(2, False)],
    4: [(4, False), (1, False), (8, False), (1, True)],
}


@pytest.mark.parametrize("found", list(BACK))
def test_who_comes_back_reads(desk: Desk, found: int) -> None:
    """A request back from a preemption is a prefill: at once, with a hit, or in chunks."""
    desk.step({"r": 13}, new={"r": (13, 0)}, sampled=("r",))
    for computed in range(13, 17):
        step = desk.step({"r": 1}, known={"r": computed}, sampled=("r",))
        assert step.decodes == ("r",), f"r decodes with {computed} computed; decodes {step.decodes}"
    desk.step({}, preempted=("r",), waiting=("r",))
    before, resumed = found, ("r",)
    for n, decodes in BACK[found]:
        step = desk.step(
            {"r": n}, known={"r": before}, resumed=resumed, sampled=("r",) * (before + n == 18)
        )
        want = ((), ("r",)) if decodes else (("r",), ())
        does = "it decodes" if decodes else "it reads"
        assert (step.prefills, step.decodes) == want, (
            f"r came back from a preemption with 18 tokens, prompt and output; {before} are computed and the "
            f"step has {n}: {does}. prefills {step.prefills}, decodes {step.decodes}. Ask is_decode, with "
            "the count from before the step"
        )
        before, resumed = before + n, ()


def test_a_step_keeps_the_schedulers_order(desk: Desk) -> None:
    """Both lists are in scheduling order, for new, known and resumed requests alike."""
    step = desk.step(
        {"c": 2, "a": 4, "b": 1}, new={"c": (2, 0), "a": (9, 0), "b": (1, 0)}, sampled=("c", "b")
    )
    assert step.prefills == ("c", "a", "b"), (
        f"three prompts begin, scheduled c, a, b: prefills is {step.prefills}, should be in that order, "
        "that of num_scheduled_tokens"
    )
    step = desk.step({"b": 1, "a": 4, "c": 1}, known={"c": 2, "a": 4, "b": 1}, sampled=("b", "c"))
    assert (step.prefills, step.decodes) == (("a",), ("b", "c")), (
        f"b decodes, a reads, c decodes, scheduled in that order: prefills {step.prefills}, decodes "
        f"{step.decodes}, should be ('a',) and ('b', 'c')"
    )
    desk.step({}, preempted=("a",))
    step = desk.step({"a": 3, "n": 3}, new={"n": (3, 0)}, known={"a": 0}, resumed=("a",))
    assert step.prefills == ("a", "n"), (
        f"a came back and was scheduled before n, which is new: prefills is {step.prefills}, should be "
        "('a', 'n'). Go through num_scheduled_tokens, not through the two lists one after the other"
    )


def test_an_empty_step_is_a_step(desk: Desk, lab: ModuleType) -> None:
    """In an empty step no request reads or decodes, and what was lost is lost all the same."""
    desk.step({"a": 4}, new={"a": (9, 0)})
    step = desk.step({}, preempted=("a",), waiting=("a",))
    got = (step.prefills, step.decodes)
    assert got == ((), ()), (
        f"an empty step in which a was preempted: prefills and decodes are {got}"
    )
    lost = desk.probe.ledgers["a"].num_lost
    assert lost == 4, f"a preemption in an empty step: lost is {lost}, should be 4, as in any step"


def test_the_ledger_adds_up(desk: Desk) -> None:
    """A ledger's prompt, cached, scheduled, computed, sampled and admissions are right in every step."""
    desk.step({"a": 3}, new={"a": (12, 4)})
    ledger = desk.probe.ledgers["a"]
    got = (ledger.num_prompt_tokens, ledger.num_cached, ledger.num_scheduled,
           ledger.num_computed_tokens, ledger.num_sampled, ledger.num_admissions)  # fmt: skip
    assert got == (12, 4, 3, 7, 0, 1), (
        f"prompt, cached, scheduled, computed, sampled, admissions are {got}, should be "
        "(12, 4, 3, 7, 0, 1): a prompt of 12, 4 of them found in the cache, 3 computed"
    )
    desk.step({"a": 5}, known={"a": 7}, sampled=("a",))
    desk.step({"a": 1}, known={"a": 12}, sampled=("a",), ends=("a",))
    got = (ledger.num_cached, ledger.num_scheduled, ledger.num_computed_tokens, ledger.num_sampled,
           ledger.num_admissions, ledger.num_lost)  # fmt: skip
    assert got == (4, 9, 13, 2, 1, 0), (
        f"cached, scheduled, computed, sampled, admissions, lost are {got}, should be "
        "(4, 9, 13, 2, 1, 0). What a running request has computed is no prefix hit; the counts in "
        "the record are those before the step"
    )
    assert ledger.finished is True, "the step's output had a finish_reason: the request is finished"


def test_a_preemption_loses_what_was_computed(desk: Desk) -> None:
    """A preemption loses what the cache held before the step; what is found again counts as cached."""
    desk.step({"a": 8}, new={"a": (10, 0)})
    desk.step({"a": 2}, known={"a": 8}, sampled=("a",))
    desk.step({"b": 1}, new={"b": (1, 0)}, preempted=("a",), sampled=("b",))
    ledger = desk.probe.ledgers["a"]
    entries = {
        "num_lost": (ledger.num_lost, 10),
        "num_computed_tokens": (ledger.num_computed_tokens, 0),
    }
    wrong = [
        f"{name} is {got}, should be {want}" for name, (got, want) in entries.items() if got != want
    ]
    assert not wrong, f"a was preempted with 10 tokens computed: {', '.join(wrong)}"
    desk.step({"b": 1, "a": 7}, known={"b": 1, "a": 4}, resumed=("a",), sampled=("b", "a"))
    got = (ledger.num_cached, ledger.num_admissions, ledger.num_computed_tokens, ledger.num_lost)
    assert got == (4, 2, 11, 10), (
        f"a came back and found 4 tokens: cached, admissions, computed, lost are {got}, should be "
        "(4, 2, 11, 10). The count of a resumed request is a prefix hit, like a new one's"
    )
    desk.step({"b": 1}, known={"b": 2}, preempted=("a",), sampled=("b",))
    assert ledger.num_lost == 21, (
        f"preempted again with 11: lost is {ledger.num_lost}, should be 21"
    )


def test_an_id_used_again_starts_a_new_ledger(desk: Desk) -> None:
    """An id that comes as a new request has nothing of the old one's."""
    desk.step({"a": 4}, new={"a": (4, 0)}, sampled=("a",), ends=("a",))
    desk.step({"a": 2}, new={"a": (5, 0)})
    ledger = desk.probe.ledgers["a"]
    got = (ledger.num_prompt_tokens, ledger.num_scheduled, ledger.finished)
    assert got == (5, 2, False), (
        f"the id 'a' was used again: prompt, scheduled, finished are {got}, should be (5, 2, "
        "False). Its ledger starts anew"
    )
