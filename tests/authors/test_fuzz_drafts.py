"""The fuzz with speculative decoding: drafts in the plan, verified, rejected and written over."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import pytest

from course.fuzz.causes import COUNTED, EQUAL, TAKEN_BACK, WITHDRAWN, cause_of, goes_wrong
from course.fuzz.command import RESULTS, main
from course.fuzz.draw import WITH_DRAFTS, named, worlds
from course.fuzz.drive import Run, WrongPlan, WrongSlot, WrongTokens, play
from course.fuzz.engine import Engine
from course.fuzz.engines import Mini, engine_of
from course.fuzz.hunt import SCHEDULERS, hunt
from course.fuzz.known import KNOWN_WITH_DRAFTS, LOST
from course.fuzz.known import TAKEN_BACK as TAKEN_BACK_WORLD
from course.fuzz.memory import Entry, Memory, Plan, Wrong
from course.fuzz.show import script
from course.fuzz.shrink import shrink
from course.fuzz.world import Speculation, World, drafts, prefixes, sample, world_of
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.core.sched.upstream_scheduler import UpstreamAsyncScheduler
from tests.engine.helpers.thorough import either

POLICIES = ("fcfs", "priority")


def mine(world: World) -> Engine:
    """`mini_vllm`'s own scheduler for a world."""
    return engine_of("mini_vllm", world)


def vllm(world: World) -> Engine:
    """vLLM's own."""
    return engine_of("vllm", world)


upstream = functools.partial(Mini, scheduler_class=UpstreamAsyncScheduler)
"""`mini_vllm`'s with vLLM's faults."""


# -- nothing where nothing is ---------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_right_scheduler_passes_with_drafts(scheduler: str, policy: str) -> None:
    """Both schedulers, both policies: no finding, and not because nothing happened."""
    found = hunt("mini_vllm", scheduler, policy, either(800, 8000), with_drafts=True)
    assert found["findings"] == [], f"{found['findings']}"
    assert found["preemptions"] > 20, "nobody was preempted: the pools are too large"


def test_the_worlds_hold_what_drafts_can_do() -> None:
    """All methods, every k, drafts that are always right and never, short ones, and what happens beside."""
    drawn = [
        w for _, w in zip(range(400), worlds(0, ("sync", "async"), "fcfs", True), strict=False)
    ]
    specs = [(world.mode, world.speculation) for world in drawn if world.speculation is not None]
    assert len(specs) == 400, "somebody drafts in each"
    assert all(world.fair for world in drawn), "each request fits when it is alone"
    assert {spec.method for mode, spec in specs if mode == "sync"} == {
        "ngram", "eagle", "draft_model",
    }, "each method, one batch at a time"  # fmt: skip
    assert {spec.method for mode, spec in specs if mode == "async"} == {"eagle", "draft_model"}, (
        "an n-gram look-up needs tokens that are in flight"
    )
    assert {spec.k for _, spec in specs} == {1, 2, 3, 5}, "every k"
    assert {0, 100} < {spec.acceptance for _, spec in specs}, "never right, always right, between"
    assert sum(spec.short > 0 for _, spec in specs) > 100, "drafts that run short"
    assert any(running for world in drawn for _, running in world.resets), "forced resets"
    assert sum(job.abort is not None for world in drawn for job in world.jobs) > 100, "aborts"


def test_drafts_are_accepted_and_rejected_in_the_worlds() -> None:
    """A world's drafts reach the worker, and some are right."""
    verified = rejected = 0
    for _, world in zip(range(40), worlds(0, ("sync", "async"), "fcfs", True), strict=False):
        run = Run(world, mine)
        execute = run.memory.execute

        def counted(plan: Plan, execute: Any = execute) -> list[list[int]]:
            nonlocal verified, rejected
            sampled = execute(plan)
            verified += sum(len(entry.drafts) for entry in plan.entries)
            rejected += sum(count for _, count in plan.rejected.values())
            return list(sampled)

        run.memory.execute = counted  # type: ignore[method-assign]
        run.play(world.jobs)
    assert verified > 500, f"{verified} drafts verified"
    assert verified / 5 < rejected < verified * 4 / 5, f"{rejected} of {verified} rejected"


# -- what is planted ------------------------------------------------------------------------------


def nothing_back(base: Any) -> dict[str, Any]:
    """Rejected drafts stay counted."""
    return {"_take_back_rejected": lambda self, request, num_draft_tokens, num_accepted: None}


def all_back(base: Any) -> dict[str, Any]:
    """Accepted drafts are taken back, too."""

    def take_back(self: Any, request: Any, num_draft_tokens: int, num_accepted: int) -> None:
        base._take_back_rejected(self, request, num_draft_tokens, 0)

    return {"_take_back_rejected": take_back}


def one_too_few_back(base: Any) -> dict[str, Any]:
    """The sampled token counts as an accepted draft."""

    def take_back(self: Any, request: Any, num_draft_tokens: int, num_accepted: int) -> None:
        accepted = min(num_draft_tokens, num_accepted + 1)
        base._take_back_rejected(self, request, num_draft_tokens, accepted)

    return {"_take_back_rejected": take_back}


def kept_drafts(base: Any) -> dict[str, Any]:
    """Drafts that found no room are tried again."""

    def schedule_drafts(self: Any, step: Any, request: Any, num_new_tokens: int) -> None:
        kept = list(request.spec_token_ids)
        base._schedule_drafts(self, step, request, num_new_tokens)
        recorded = step.scheduled_spec_decode_tokens.get(request.request_id, [])
        request.spec_token_ids = kept[len(recorded) :]

    return {"_schedule_drafts": schedule_drafts}


def no_lookahead(base: Any) -> dict[str, Any]:
    """The drafter has no slots of its own."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        base.__init__(self, *args, **kwargs)
        self.num_lookahead_tokens = 0

    return {"__init__": init}


def victims_drafts(base: Any) -> dict[str, Any]:
    """A victim keeps its drafts."""

    def preempt(self: Any, request: Any) -> None:
        kept = request.spec_token_ids
        base._preempt_request(self, request)
        request.spec_token_ids = kept

    return {"_preempt_request": preempt}


def past_the_stop(base: Any) -> dict[str, Any]:
    """All tokens are appended, and the last is asked whether it is the end."""
    from mini_vllm.core.sched.utils import check_stop

    def update(self: Any, request: Any, new_token_ids: list[int]) -> tuple[list[int], bool]:
        for token in new_token_ids:
            request.append_output_token_ids(token)
        return new_token_ids, check_stop(request, self.max_model_len)

    return {"_update_request_with_output": update}


def results_as_tokens(base: Any) -> dict[str, Any]:
    """As vLLM does it: a forced reset drops a result for each token in flight."""

    def discard(self: Any, request: Any) -> None:
        self._results_in_flight.pop(request.request_id, 0)
        if request.num_output_placeholders:
            void = self.async_tokens_to_discard
            before = void.get(request.request_id, 0)
            void[request.request_id] = before + request.num_output_placeholders
            request.num_output_placeholders = 0

    return {"_discard_latest_async_tokens": discard}


Plant = Callable[[Any], dict[str, Any]]
PLANTED: list[tuple[Plant, type[Any], type[Wrong]]] = [
    (nothing_back, Scheduler, WrongPlan),
    (nothing_back, AsyncScheduler, WrongPlan),
    (all_back, Scheduler, WrongPlan),
    (all_back, AsyncScheduler, WrongPlan),
    (one_too_few_back, Scheduler, WrongPlan),
    (one_too_few_back, AsyncScheduler, WrongPlan),
    (kept_drafts, Scheduler, WrongPlan),
    (no_lookahead, Scheduler, WrongPlan),
    (no_lookahead, AsyncScheduler, WrongPlan),
    (victims_drafts, Scheduler, WrongPlan),
    (past_the_stop, Scheduler, WrongTokens),
    (results_as_tokens, AsyncScheduler, WrongSlot),
]


@pytest.mark.parametrize(
    ("plant", "base", "error"), PLANTED, ids=[f"{p.__name__}-{b.__name__}" for p, b, _ in PLANTED]
)
def test_it_finds_a_planted_fault(plant: Plant, base: type[Any], error: type[Wrong]) -> None:
    """Each within 250 worlds."""
    faulty = type("Faulty", (base,), plant(base))
    for _, world in zip(
        range(250), worlds(0, SCHEDULERS[base.__name__], "fcfs", True), strict=False
    ):
        if isinstance(goes_wrong(world, lambda world: Mini(world, faulty)), error):
            return
    pytest.fail(f"{plant.__name__} goes unseen")


# -- the worker -----------------------------------------------------------------------------------


def memory(acceptance: int, ahead: bool = False) -> Memory:
    """A worker with k = 2 drafts."""
    spec = Speculation("eagle", k=2, acceptance=acceptance)
    made = Memory(10, 2, 16, 3, spec, ahead)
    made.salts["r"] = 0
    return made


def first_batch(worker: Memory) -> list[int]:
    """A prompt of two tokens; the token sampled."""
    (sampled,) = worker.execute(
        Plan([Entry("r", [5, 6], [1, 2, 3, 4, 5, 6], True, 0, 2)], set(), set())
    )
    return sampled


@pytest.mark.parametrize(("acceptance", "accepted"), [(0, 0), (100, 2)])
def test_the_worker_verifies(acceptance: int, accepted: int) -> None:
    """Right drafts come back with one token more; wrong ones are counted as rejected."""
    worker = memory(acceptance)
    (token,) = first_batch(worker)
    proposed = list(worker.rows["r"].drafts)
    assert len(proposed) == 2, f"two drafts: {proposed}"
    plan = Plan([Entry("r", None, [], False, 2, 3, proposed)], set(), set())
    (sampled,) = worker.execute(plan)
    assert len(sampled) == accepted + 1, f"{accepted} accepted and one: {sampled}"
    assert plan.rejected == {"r": (1, 2 - accepted)}, f"{plan.rejected}"
    *_, last = prefixes([5, 6, token, *sampled[:-1]], 0)
    assert sampled[-1] == sample(last, 3), "the last token is the model's own"


def test_the_worker_sets_a_plan_right_that_was_made_ahead() -> None:
    """Its start counts rejected drafts, until the scheduler has heard of them."""
    worker = memory(0, ahead=True)
    first_batch(worker)
    first = Plan([Entry("r", None, [], False, 2, 3, [-1, -1])], set(), set())
    worker.execute(first)
    second = Plan([Entry("r", None, [], False, 5, 3, [-1, -1])], set(), set())
    worker.execute(second)
    assert second.entries[0].start == 3, f"two of the three were rejected: {second.entries[0]}"
    worker.hear(first)
    third = Plan([Entry("r", None, [], False, 6, 1)], set(), set())
    worker.execute(third)
    assert third.entries[0].start == 4, f"of the second it has not heard yet: {third.entries[0]}"


@pytest.mark.parametrize(
    ("start", "count", "given", "message"),
    [
        (2, 3, [7, 7], "[7, 7] are to be verified"),
        (1, 3, "drafted", "r goes on at position 1, and 2 are computed"),
        (3, 3, "drafted", "r goes on at position 3, and 2 are computed"),
        (2, 4, "drafted", "token 3 is to be computed and is not known"),
        (2, 2, "drafted", "drafts for position 2, and it has 3 tokens"),
    ],
)
def test_the_worker_refuses_a_wrong_plan(start: int, count: int, given: Any, message: str) -> None:
    """Others' drafts, a token twice, a token left out."""
    worker = memory(50)
    first_batch(worker)
    told = list(worker.rows["r"].drafts) if given == "drafted" else given
    with pytest.raises(WrongPlan) as caught:
        worker.execute(Plan([Entry("r", None, [], False, start, count, told)], set(), set()))
    assert message in str(caught.value), f"{caught.value}"


def test_the_worker_guards_others_blocks() -> None:
    """Somebody writes into a block that another one reads."""
    worker = memory(50)
    worker.salts["s"] = 0
    first_batch(worker)
    with pytest.raises(WrongSlot, match="s writes position 0 into block 2, which r holds"):
        worker.execute(Plan([Entry("s", [8, 9], [2], True, 0, 2)], set(), set()))


def test_drafts_are_as_good_as_they_say() -> None:
    """Always right, never right, about half; the same for the same prefix."""
    right = {}
    for acceptance in (0, 50, 100):
        spec = Speculation(k=1, acceptance=acceptance)
        numbers = list(prefixes(range(400), 0))
        right[acceptance] = sum(drafts(n, spec, 3, False) == [sample(n, 3)] for n in numbers)
    assert right[0] == 0, f"{right}"
    assert right[100] == 400, f"{right}"
    assert 150 < right[50] < 250, f"{right}"


# -- names, shrinking, the command ----------------------------------------------------------------


@pytest.mark.parametrize("kind", WITH_DRAFTS)
def test_a_world_with_drafts_is_found_again(kind: str) -> None:
    """By its name, and in JSON."""
    world = named(f"{kind} 12 sync priority")
    assert world == WITH_DRAFTS[kind](12, "sync", "priority"), "by its name"
    assert world_of(json.loads(json.dumps(world.as_data()))) == world, "in JSON"
    assert world.speculation is not None, "somebody drafts"
    assert f"drafts {world.speculation.k} tokens" in script(world), script(world)


def test_shrinking_leaves_out_drafts_that_do_not_matter() -> None:
    """And keeps the fewest of those that do."""
    world = next(w for w in worlds(3, ("sync",), "fcfs", True) if w.speculation.k > 2)  # type: ignore[union-attr]
    assert shrink(world, lambda w: True).speculation is None, "drafts did not matter"
    smallest = shrink(world, lambda w: w.speculation is not None)
    left = smallest.speculation
    assert left is not None
    assert (left.k, left.acceptance, left.short) == (1, 0, 0), f"the least of them: {left}"


def test_the_command_with_drafts(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    """`run`, `show` and `known`."""
    out = tmp_path / "found.json"
    run = ["run", "--drafts", "--engine", "mini_vllm", "--steps", "100", "--out", str(out)]
    assert main(run) == 0, "nothing is found"
    assert main(["show", "drafts any 3 sync fcfs", "--engine", "mini_vllm"]) == 0, (
        "a world is shown"
    )
    assert main(["known", "--drafts", "--engine", "mini_vllm"]) == 0, "the known worlds are played"
    printed = capsys.readouterr().out
    assert "lost, async: ends well" in printed, f"{printed}"


# -- what vLLM does -------------------------------------------------------------------------------


@pytest.mark.parametrize("world", KNOWN_WITH_DRAFTS, ids=lambda world: world.name)
def test_the_miniature_ends_well_after_a_reset_in_flight(world: World) -> None:
    """Where vLLM does not: `AsyncScheduler` counts the results that are void, and leaves them alone."""
    assert goes_wrong(world, mine) is None, f"{goes_wrong(world, mine)}"
    assert play(world, mine).given["0_0"] == [2, 3, 5, 3, 4, 3, 5, 5, 5, 4, 4, 3], "all its tokens"


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("world", "cause"),
    [(LOST, COUNTED), (TAKEN_BACK_WORLD, TAKEN_BACK)],
    ids=["lost", "taken back"],
)
def test_vllm_goes_wrong_after_a_reset_in_flight(world: World, cause: str) -> None:
    """Tokens in the middle of the answer are lost; and counters of the new start are set back."""
    error = goes_wrong(world, vllm)
    assert isinstance(error, WrongTokens if world is LOST else WrongPlan), f"{error}"
    assert cause_of(world, vllm) == cause, cause_of(world, vllm)


def test_the_upstream_scheduler_goes_wrong_as_vllm_does() -> None:
    """In both worlds, by both halves of the cause."""
    assert isinstance(goes_wrong(LOST, upstream), WrongTokens)
    error = goes_wrong(TAKEN_BACK_WORLD, upstream)
    assert isinstance(error, WrongPlan)
    assert str(error) == "0_0 goes on at position 2, and 5 are computed"


@pytest.mark.vllm
def test_the_upstream_scheduler_ends_each_world_with_resets_as_vllm_does() -> None:
    """Well, or by the same error at the same position."""
    drawn = (w for _, w in zip(range(300), worlds(0, ("async",), "fcfs", True), strict=False))
    resets = [*KNOWN_WITH_DRAFTS, *(w for w in drawn if any(forced for _, forced in w.resets))]
    assert len(resets) > 50, "enough of them"
    wrong = 0
    for world in resets:
        theirs, ours = goes_wrong(world, vllm), goes_wrong(world, upstream)
        assert (type(ours), str(ours)) == (type(theirs), str(theirs)), f"{world}"
        wrong += theirs is not None
    assert wrong > 10, f"{wrong} of {len(resets)} go wrong"


@pytest.mark.vllm
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_vllm_with_drafts(scheduler: str) -> None:
    """What goes wrong has a known cause, and under fcfs and one batch at a time nothing does."""
    found = hunt("vllm", scheduler, "fcfs", 400, with_drafts=True)["findings"]
    known = {COUNTED, TAKEN_BACK} if scheduler == "AsyncScheduler" else set()
    assert {finding["cause"] for finding in found} <= known, f"{found}"


def test_the_committed_results_with_drafts() -> None:
    """A million steps of ours without a finding; 200,000 of vLLM's, each finding with its cause."""
    ours = json.loads((RESULTS / "drafts-mini.json").read_text())["runs"]
    theirs = json.loads((RESULTS / "vllm-0.22.1-drafts.json").read_text())["runs"]
    for runs in (ours, theirs):
        assert [(run["scheduler"], run["policy"]) for run in runs] == [
            (scheduler, policy) for scheduler in SCHEDULERS for policy in POLICIES
        ], "both schedulers, both policies"
    assert sum(run["steps"] for run in ours) >= 1_000_000, "a million steps"
    assert not any(run["findings"] for run in ours), "without a finding"
    assert sum(run["steps"] for run in theirs) >= 200_000, "200,000 steps"
    causes = [
        {cause for finding in run["findings"] for cause in finding["cause"].split("; and ")}
        for run in theirs
    ]
    assert causes[0] == set(), "one batch at a time, fcfs: nothing"
    assert causes[1] <= {WITHDRAWN, EQUAL}, f"one batch at a time, priority: {causes[1]}"
    assert causes[2] == {COUNTED, TAKEN_BACK}, f"two in flight, fcfs: {causes[2]}"
    assert causes[3] <= {WITHDRAWN, EQUAL, COUNTED, TAKEN_BACK}, f"two in flight: {causes[3]}"
