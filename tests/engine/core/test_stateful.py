"""Random lives of a scheduler: requests come, run, stop, are preempted and aborted in any order.

After every rule all invariants are checked, I1 to I5 of the block pool and I6 to I13 of
`invariants.py`; at the end everything drains and every block is free again.
"""

from __future__ import annotations

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed: uv sync, or pip install it")

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mini_vllm.config.engine import EngineConfig
from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.output import ModelRunnerOutput
from mini_vllm.core.sched.scheduler import Scheduler
from tests.engine.helpers.engine.invariants import (
    check_drained,
    check_sampled,
    check_scheduled,
    check_state,
)
from tests.engine.helpers.engine.workloads import EOS, make_request
from tests.engine.helpers.thorough import either

STOP = 5
TOTALS: dict[str, int] = {}


def token(request: Request) -> int:
    """The next token of a request: a pure function of who it is and where it stands."""
    mixed = hash((int(request.request_id), request.num_tokens, 977)) & 0xFFFF
    return (EOS, STOP)[mixed % 2] if mixed % 23 < 2 else 6 + mixed % 3


@dataclass
class Shadow:
    """What the machine knows of a request apart from the engine."""

    request: Request
    table: list[int] = field(default_factory=list)


class SchedulerLife(RuleBasedStateMachine):
    """Prompts come from three tokens, so that prefixes are shared by chance and by design."""

    scheduler: Scheduler
    scheduler_class: type[Scheduler] = Scheduler

    @initialize(
        block_size=st.sampled_from([1, 2, 4, 7]),
        # Not `integers`: Hypothesis likes those that stand in the project's source, so that an edit
        # anywhere would change how many of these lives are short of blocks.
        num_blocks=st.sampled_from(range(6, 15)),
        max_num_seqs=st.sampled_from(range(1, 7)),
        budget=st.sampled_from(range(25)),
        threshold=st.sampled_from([0, 0, 1, 5]),
        caching=st.sampled_from([True, True, False]),
        chunked=st.sampled_from([True, True, False]),
        policy=st.sampled_from(["fcfs", "fcfs", "priority"]),
        reserve=st.sampled_from([True, True, False]),
    )
    def begin(
        self,
        block_size: int,
        num_blocks: int,
        max_num_seqs: int,
        budget: int,
        threshold: int,
        caching: bool,
        chunked: bool,
        policy: Any,
        reserve: bool,
    ) -> None:
        self.max_model_len = min(60, (num_blocks - 1) * block_size)
        budget += max_num_seqs
        self.scheduler = self.scheduler_class(
            EngineConfig(
                block_size=block_size,
                num_gpu_blocks=num_blocks,
                max_model_len=self.max_model_len,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=budget if chunked else max(budget, self.max_model_len),
                long_prefill_token_threshold=threshold,
                enable_chunked_prefill=chunked,
                enable_prefix_caching=caching,
                scheduling_policy=policy,
                scheduler_reserve_full_isl=reserve,
            )
        )
        self.shadows: dict[str, Shadow] = {}
        self.in_flight: deque[Any] = deque()  # plans, and their requests that sample
        self.count = 0
        TOTALS["lives"] = TOTALS.get("lives", 0) + 1

    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        size = data.draw(st.sampled_from(range(1, max(2, self.max_model_len))), "prompt length")
        prompt = data.draw(st.sampled_from([[6], [6, 7], [6, 7, 8], [7, 6, 6]]), "pattern") * size
        prompt = prompt[:size]
        if self.shadows and data.draw(st.booleans(), "copy the beginning of another"):
            other = data.draw(st.sampled_from(sorted(self.shadows)), "of")
            prompt = (self.shadows[other].request.all_token_ids + prompt)[:size]
        request = make_request(
            self.scheduler,
            str(self.count),
            prompt,
            arrival_time=float(self.count),
            priority=data.draw(st.integers(0, 2), "priority"),
            max_tokens=data.draw(st.sampled_from(range(1, 31)), "max_tokens"),
            min_tokens=data.draw(st.sampled_from([0, 0, 1]), "min_tokens"),
            ignore_eos=data.draw(st.booleans(), "ignore_eos"),
            stop_token_ids=[STOP] if data.draw(st.booleans(), "stop token") else [],
        )
        self.scheduler.add_request(request)
        self.shadows[request.request_id] = Shadow(request)
        self.count += 1

    @precondition(lambda self: self.scheduler.has_unfinished_requests())
    @rule(count=st.integers(1, 8))
    def run(self, count: int) -> None:
        for _ in range(count):
            if self.scheduler.has_unfinished_requests():
                self.one_step(aborted=None)

    @precondition(lambda self: self.shadows)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.shadows)), "id"))

    @precondition(lambda self: self.shadows)
    @rule(data=st.data())
    def abort_while_a_step_runs(self, data: st.DataObject) -> None:
        self.one_step(aborted=data.draw(st.sampled_from(sorted(self.shadows)), "id"))

    @rule()
    def reset_prefix_cache(self) -> None:
        manager = self.scheduler.kv_cache_manager
        done = manager.reset_prefix_cache()
        assert done == (not manager.req_to_blocks)

    def end(self, request_id: str) -> None:
        ended = self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
        assert ended == [request_id]
        del self.shadows[request_id]
        TOTALS["aborted"] = TOTALS.get("aborted", 0) + 1

    def one_step(self, aborted: str | None) -> None:
        scheduler, shadows = self.scheduler, self.shadows
        output = scheduler.schedule()
        check_scheduled(scheduler, output)
        self.follow_tables(output)
        before = {i: shadow.request.num_tokens for i, shadow in shadows.items()}
        if aborted is not None:
            self.end(aborted)
        ids = list(output.num_scheduled_tokens)
        sampled = []
        for i in ids:
            request = shadows[i].request if i in shadows else None
            ready = request is not None and request.num_computed_tokens == request.num_tokens
            sampled.append([token(request)] if ready and request is not None else [])
        result = ModelRunnerOutput(ids, {i: k for k, i in enumerate(ids)}, sampled)
        outputs = scheduler.update_from_output(output, result)
        if aborted is None:
            check_sampled(scheduler, output, result, before)
        assert [o.request_id for o in outputs] == [
            i for i, tokens in zip(ids, sampled, strict=True) if tokens
        ]
        for o in outputs:
            request = shadows[o.request_id].request
            assert request.num_tokens == before[o.request_id] + 1
            assert (o.finish_reason is not None) == request.is_finished() == self.must_end(request)
            if request.is_finished():
                del shadows[o.request_id]
                TOTALS["finished"] = TOTALS.get("finished", 0) + 1
        TOTALS["steps"] = TOTALS.get("steps", 0) + 1
        TOTALS["preempted"] = TOTALS.get("preempted", 0) + len(output.preempted_req_ids)

    def must_end(self, request: Request) -> bool:
        last, params = request.output_token_ids[-1], request.sampling_params
        if request.num_output_tokens < params.min_tokens:
            return False
        return (
            (last == EOS and not params.ignore_eos)
            or last in (params.stop_token_ids or [])
            or request.num_output_tokens == params.max_tokens
            or request.num_tokens == self.max_model_len
        )

    def follow_tables(self, output: Any) -> None:
        """The worker's tables, kept from what it is told alone, equal the manager's (I2)."""
        for i in [*output.preempted_req_ids, *output.reset_req_ids]:
            self.shadows[i].table = []
        for new in output.scheduled_new_reqs:
            self.shadows[new.req_id].table = list(new.block_ids[0])
        cached = output.scheduled_cached_reqs
        for i, block_ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if i in cached.resumed_req_ids:
                assert self.shadows[i].table == []
            self.shadows[i].table += block_ids[0] if block_ids else []
        for i in output.num_scheduled_tokens:
            table = self.scheduler.kv_cache_manager.get_block_ids(i)[0]
            assert self.shadows[i].table == table, f"I2: the worker's table of {i} is out of step"

    @invariant()
    def all_invariants(self) -> None:
        if hasattr(self, "scheduler"):
            check_state(self.scheduler)
            assert set(self.scheduler.requests) == set(self.shadows)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        tokens = sum(self.max_model_len for _ in self.shadows)
        limit = 20 + 4 * tokens * max(1, len(self.shadows))
        while self.scheduler.has_unfinished_requests() or self.in_flight:
            self.one_step(aborted=None)
            limit -= 1
            assert limit, f"I13: somebody starves: {self.scheduler.requests}"
        assert not self.shadows
        check_drained(self.scheduler)


class AsyncSchedulerLife(SchedulerLife):
    """The same, with two plans in flight."""

    scheduler_class = AsyncScheduler

    @precondition(lambda self: self.scheduler.running)
    @rule(chance=st.sampled_from(range(5)))
    def reset_running_requests(self, chance: int) -> None:
        if chance == 4:  # seldom: nothing would be left in the cache
            assert self.scheduler.reset_prefix_cache(reset_running_requests=True)
            TOTALS["resets"] = TOTALS.get("resets", 0) + 1

    def one_step(self, aborted: str | None) -> None:
        """A turn: a plan, and the result of the oldest unless a second one has room."""
        scheduler, shadows = self.scheduler, self.shadows
        if scheduler.has_requests():
            output = scheduler.schedule()
            check_scheduled(scheduler, output)
            self.follow_tables(output)
            live = [shadows[i].request for i in output.num_scheduled_tokens]
            self.in_flight.append((output, [r for r in live if not r.is_prefill_chunk]))
            TOTALS["preempted"] = TOTALS.get("preempted", 0) + len(output.preempted_req_ids)
        if aborted is not None:
            self.end(aborted)
        TOTALS["steps"] = TOTALS.get("steps", 0) + 1
        if len(self.in_flight) == 1 and self.in_flight[0][0].num_scheduled_tokens:
            return
        output, samplers = self.in_flight.popleft()
        ids = list(output.num_scheduled_tokens)
        sampled = {r.request_id: [token(r)] for r in samplers}
        result = ModelRunnerOutput(
            ids, {i: k for k, i in enumerate(ids)}, [sampled.get(i, []) for i in ids]
        )
        void = scheduler.async_tokens_to_discard  # type: ignore[attr-defined]
        dropped = [r for r in samplers if r.request_id not in shadows or r.request_id in void]
        taken = [r for r in samplers if r not in dropped]
        before = {r.request_id: (r.num_tokens, r.num_output_placeholders) for r in taken}
        outputs = scheduler.update_from_output(output, result)
        TOTALS["dropped"] = TOTALS.get("dropped", 0) + len(dropped)
        assert [o.request_id for o in outputs] == [r.request_id for r in taken]
        for o, request in zip(outputs, taken, strict=True):
            num_tokens, in_flight = before[o.request_id]
            assert request.num_tokens == num_tokens + 1
            if not request.is_finished():
                assert request.num_output_placeholders == in_flight - 1
            assert (o.finish_reason is not None) == request.is_finished() == self.must_end(request)
            if request.is_finished():
                del shadows[o.request_id]
                TOTALS["finished"] = TOTALS.get("finished", 0) + 1


def test_random_lives_with_two_plans_in_flight_keep_every_invariant() -> None:
    run_lives(AsyncSchedulerLife, either(25, 200))
    least = {
        "steps": 500,
        "preempted": 10,
        "aborted": 40,
        "finished": 30,
        "dropped": 10,
        "resets": 2,
    }
    assert all(TOTALS[name] > number for name, number in least.items()), TOTALS


def run_lives(life: type[SchedulerLife], max_examples: int) -> None:
    TOTALS.clear()
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        life,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_thousands_of_random_steps_keep_every_invariant() -> None:
    run_lives(SchedulerLife, either(30, 200))
    # A machine that hardly did anything would show nothing. Hypothesis draws other lives where other modules
    # are loaded (once 82 were preempted, once over 100), so these are well below what was counted.
    least = either(
        {"steps": 500, "preempted": 8, "aborted": 60, "finished": 30},
        {"steps": 2000, "preempted": 20, "aborted": 200, "finished": 100},
    )
    assert all(TOTALS[name] > number for name, number in least.items()), TOTALS
