"""Lab 03-08: what a policy may do, where it is put in, and what comes of it."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from course.learner.labs import load_support
from course.parity.decisions import engine_config
from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.sampling_params import SamplingParams

support = load_support(__file__)
FCFS, PRIORITY = support.HELD_FCFS, support.HELD_PRIORITY


def request(name: str, prompt: int = 20, arrival: float = 0.0, priority: int = 0) -> Request:
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    return Request(
        name, [7] * prompt, params, arrival_time=arrival, priority=priority, block_size=16
    )


def ids(queue: Any) -> list[str]:
    return [one.request_id for one in queue]


def config(async_scheduling: bool = False, **changes: Any) -> Any:
    made = engine_config(support.CONFIG | changes)
    return replace(made, async_scheduling=async_scheduling)


def by_prompt(one: Any, now: float) -> Any:
    return one.num_prompt_tokens


# ---- where it is put in --------------------------------------------------------------------------


def test_the_scheduler_follows_the_policy_it_was_given(lab: ModuleType) -> None:
    """Each scheduler follows the policy that it was given: two schedulers, two policies, one batch slot
    each."""
    shortest = lab.make_scheduler(Scheduler, by_prompt)(config(max_num_seqs=1))
    longest = lab.make_scheduler(Scheduler, lambda one, now: -one.num_prompt_tokens)(
        config(max_num_seqs=1)
    )
    for scheduler, first in ((shortest, "b"), (longest, "a")):
        scheduler.clock = lambda: 0.0
        assert isinstance(scheduler, Scheduler), "it is to be a subclass of its base"
        for one in (request("c", 20), request("a", 30), request("b", 10)):
            scheduler.add_request(one)
        plan = scheduler.schedule()
        assert list(plan.num_scheduled_tokens) == [first], "one seat, and the policy says whose"


def test_the_order_is_made_anew_in_each_step(lab: ModuleType) -> None:
    """The order is made anew in each step, because keys change with time and requests arrive."""

    def turns(one: Any, now: float) -> Any:
        return -one.arrival_time if now >= 10 else one.arrival_time

    scheduler = lab.make_scheduler(Scheduler, turns)(config(max_num_seqs=1))
    scheduler.clock = lambda: 5.0
    for i in range(4):
        scheduler.add_request(request(f"r{i}", arrival=float(i)))
    planned = list(scheduler.schedule().num_scheduled_tokens)
    assert planned == ["r0"], f"at 5 s the oldest comes first, and {planned} got the seat"
    scheduler.add_request(request("r4", arrival=4.0))
    scheduler.clock = lambda: 10.0
    scheduler.finish_requests("r0", RequestStatus.FINISHED_ABORTED)
    assert list(scheduler.schedule().num_scheduled_tokens) == ["r4"], (
        "at 10 s the newest comes first, and the newest came after the step before"
    )


def test_who_runs_goes_on(lab: ModuleType) -> None:
    """A policy gives out free batch slots and takes none away."""
    scheduler = lab.make_scheduler(Scheduler, by_prompt)(config(max_num_seqs=1))
    scheduler.clock = lambda: 0.0
    scheduler.add_request(request("long", 600))
    planned = list(scheduler.schedule().num_scheduled_tokens)
    assert planned == ["long"], f"one waits, and {planned} got the seat"
    scheduler.add_request(request("short", 2))
    assert list(scheduler.schedule().num_scheduled_tokens) == ["long"], "its prompt is not through"
    assert ids(scheduler.waiting) == ["short"], f"waiting: {ids(scheduler.waiting)}"


def test_by_arrival_it_is_the_engines_own(lab: ModuleType) -> None:
    """With arrival time as the key, the whole run is the same as under FCFS."""

    def made(base: type) -> type:
        found: type = lab.make_scheduler(base, lambda one, now: one.arrival_time)
        return found

    requests = support.workload("mixed", 21, 60)
    ours, own = support.run(made, requests), support.run(None, requests)
    assert ours == own, "first come, first served: nothing may differ from the engine's FCFS"


def test_the_clock_is_the_one_of_the_arrivals(lab: ModuleType) -> None:
    """The default clock is the one that arrival times are read from."""
    scheduler = lab.make_scheduler(Scheduler)(config())
    assert abs(scheduler.clock() - time.time()) < 60, (
        "arrival times are read from time.time, and so must be what they are compared with"
    )


@pytest.mark.parametrize("base", [Scheduler, AsyncScheduler])
@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_the_base_class_must_fit(lab: ModuleType, base: type, async_scheduling: bool) -> None:
    """A base that waits for results is refused in an engine that does not wait."""

    class AsyncChild(base):  # type: ignore[misc]
        """Somebody else's subclass is as good as its base, and no better, whatever it is called."""

    class Grandchild(AsyncChild):
        """The base may be some classes away."""

    for one in (base, AsyncChild, Grandchild):
        made = lab.make_scheduler(one, by_prompt)
        try:
            made(config(async_scheduling))
        except ValueError as error:
            said = str(error)
        else:
            said = ""
        mode = "on" if async_scheduling else "off"
        if base is Scheduler and async_scheduling:
            assert one.__name__ in said, f"async_scheduling is {mode}; {one.__name__}: {said!r}"
        else:
            assert not said, f"async_scheduling is {mode}, and {one.__name__} is refused: {said}"


def test_any_class_of_this_name_plans_ahead(lab: ModuleType) -> None:
    """The name decides: vLLM's `AsyncScheduler` is a different class from `mini_vllm`'s."""
    vllms = type("AsyncScheduler", (Scheduler,), {})
    try:
        lab.make_scheduler(vllms, by_prompt)(config(async_scheduling=True))
    except ValueError as error:
        pytest.fail(f"a class called AsyncScheduler, as vLLM's is, was refused: {error}")


def test_what_the_base_takes_goes_through(lab: ModuleType) -> None:
    """All arguments reach the base: vLLM's scheduler takes eight by keyword, `mini_vllm`'s one or two."""

    class Base(Scheduler):
        def __init__(self, config: Any, *, log_stats: bool = False) -> None:
            super().__init__(config)
            self.log_stats = log_stats

        def schedule(self, throttle: bool = False) -> Any:
            self.throttled = throttle
            return super().schedule()

    made = lab.make_scheduler(Base, by_prompt)
    try:
        scheduler = made(config=config(), log_stats=True)
        scheduler.clock = lambda: 0.0
        scheduler.schedule(throttle=True)
    except (TypeError, IndexError) as error:
        pytest.fail(
            f"the base takes config=, log_stats= and schedule(throttle=), and so must yours: {error}"
        )
    assert (scheduler.log_stats, scheduler.throttled) == (True, True), (
        "log_stats=True and throttle=True did not reach the base"
    )


# ---- what comes of it ----------------------------------------------------------------------------


def test_a_policy_reads_and_no_more(lab: ModuleType) -> None:
    """A policy reads only what requests of both engines have, and changes nothing."""
    one = SimpleNamespace(
        request_id="ada-1", arrival_time=3.0, num_prompt_tokens=50, max_tokens=9,
        num_output_tokens=0, num_preemptions=0, priority=1,
    )  # fmt: skip
    before = copy.deepcopy(vars(one))
    try:
        keys = [lab.policy(one, now) for now in (4.0, 4.0, 40.0, 4.0)]
    except AttributeError as error:
        pytest.fail(f"the policy reads what is not among the seven: {error}")
    assert vars(one) == before, "the policy changed the request"
    assert keys[0] == keys[1] == keys[3], "asked the same, it must say the same"
    # From one who has just come to one who has waited for 100 s, half of them preempted once.
    others = [
        SimpleNamespace(
            **before
            | {"request_id": f"eve-{i}", "arrival_time": 4.0 - waited}
            | {"num_output_tokens": i % 2, "num_preemptions": i % 2}
        )
        for i, waited in enumerate((0.0, 0.1, 1.0, 2.0, 4.0, 8.0, 16.0, 40.0, 99.0, 100.0))
    ]
    try:
        sorted(lab.policy(other, 4.0) for other in [*others, one])
    except TypeError as error:
        pytest.fail(
            f"the keys of two requests that have waited for 0 to 100 s cannot be compared: {error}"
        )


@pytest.fixture(scope="module")
def yours(lab: ModuleType) -> Any:
    return support.stand(lab.make_scheduler, "fcfs", support.HELD, support.N)


def test_more_are_served_in_time(lab: ModuleType, yours: Any) -> None:
    """More requests are good than under either of vLLM's policies."""
    assert yours.goodput >= 0.6, (
        f"goodput {yours.goodput:.3f} on average over five workloads; FCFS has {FCFS.goodput:.3f} and "
        f"PRIORITY {PRIORITY.goodput:.3f}. Wanted: 0.6. Yours, FCFS's: {one_by_one(lab)}"
    )


def one_by_one(lab: ModuleType) -> str:
    """The goodput on each workload, and FCFS's, for a message."""
    parts = []
    for name, own in support.GOODPUT_FCFS.items():
        ours = support.run(lab.make_scheduler, support.workload(name, support.HELD[0], support.N))
        parts.append(f"{name} {ours.goodput:.2f}, {own:.2f}")
    return "; ".join(parts)


def test_nobody_starves(yours: Any) -> None:
    """A long request gets its turn while short ones keep coming."""
    assert not yours.starves, (
        f"in the flood somebody waits {yours.waited:.1f} times as long as anybody under FCFS; allowed are "
        f"{support.STARVED}"
    )


def test_users_are_served_alike(yours: Any) -> None:
    """The good requests are not all one user's."""
    assert yours.fairness >= 0.85, (
        f"Jain's index {yours.fairness:.3f} on average; FCFS has {FCFS.fairness:.3f}, PRIORITY "
        f"{PRIORITY.fairness:.3f}. Wanted: 0.85"
    )


def test_the_late_do_not_pay_for_all(yours: Any) -> None:
    """The worst waits grow, but not without bound."""
    most = 1.25 * FCFS.p99_ttft_ms
    assert yours.p99_ttft_ms <= most, (
        f"p99 of TTFT {yours.p99_ttft_ms:.0f} ms in the worst workload; allowed are {most:.0f}, 1.25 times "
        "what FCFS has"
    )


def test_who_runs_does_not_pay(yours: Any) -> None:
    """Gaps between tokens stay as they are, and so do preemptions."""
    assert yours.p99_itl_ms <= 1.1 * FCFS.p99_itl_ms, (
        f"p99 of ITL {yours.p99_itl_ms:.1f} ms; FCFS has {FCFS.p99_itl_ms:.1f}"
    )
    assert yours.preemptions <= FCFS.preemptions + 10, (
        f"{yours.preemptions} preemptions; FCFS has {FCFS.preemptions}"
    )


def test_it_works_two_batches_ahead(lab: ModuleType) -> None:
    """The same class works on `AsyncScheduler`, with two batches in flight."""
    requests = support.workload("chat", 31, 120)
    found = support.run(lab.make_scheduler, requests, async_scheduling=True)
    fcfs = support.run(None, requests, async_scheduling=True)
    assert found.goodput >= fcfs.goodput + 0.2, (
        f"asynchronously goodput is {found.goodput:.3f} with your policy, {fcfs.goodput:.3f} with FCFS"
    )
