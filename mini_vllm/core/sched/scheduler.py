"""Which requests run in the next step, and with how many tokens each.

Mirrors `vllm/v1/core/sched/scheduler.py` (`schedule` 329, `update_from_output` 1283). It takes the same
decisions: `python -m course.parity` replays recorded workloads of vLLM's own scheduler through this one. It
is the synchronous scheduler, which hears of each step's tokens before it decides the next. What changes when
it does not, a GPU's default at the pin, stands in `async_scheduler.py`; what it sends, in `output.py`.

Features take part in admission as rules at a gate (`admission.py`); without them no request is skipped.
Left out: encoder inputs, KV connectors, Mamba's block alignment, pausing, cascade attention's common prefix.

Two things are done otherwise under `priority`, because vLLM 0.22.1 goes wrong there: which blocks a victim
leaves in the index, and which of equals is the victim. `upstream_scheduler.py` says how, and does as vLLM.

There is no prefill phase and no decode phase. A request has `num_tokens` and `num_computed_tokens`,
and each step lets the second catch up with the first, as far as budget and blocks allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.admission import Admission, AdmissionGate, AdmissionRule
from mini_vllm.core.sched.drafts import DraftScheduling
from mini_vllm.core.sched.output import (
    CachedRequestData,
    EngineCoreOutput,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
)
from mini_vllm.core.sched.request_queue import RequestQueues, SchedulingPolicy
from mini_vllm.core.sched.step import Step
from mini_vllm.core.sched.utils import check_stop
from mini_vllm.core.stats import SchedulerStats

if TYPE_CHECKING:
    from mini_vllm.core.sched.grammars import Grammars
    from mini_vllm.distributed.kv_events import KVEventPublisher


class Scheduler(RequestQueues, DraftScheduling):
    """Decides each step; owns the requests from `add_request` until they finish.

    Args:
        config: `num_gpu_blocks` and `max_model_len` must be set.
        kv_cache_manager: the manager to use, for instance a learner's own.
        admission_rules: one for each feature that takes part in admission, in the order in which to ask.

    Raises ValueError if the config leaves one of the two open.
    Source: `vllm/v1/core/sched/scheduler.py:64 Scheduler`.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        kv_cache_manager: KVCacheManager | None = None,
        admission_rules: Sequence[AdmissionRule] = (),
    ) -> None:
        if config.num_gpu_blocks is None or config.max_model_len is None:
            raise ValueError(
                "the scheduler needs num_gpu_blocks and max_model_len, got "
                f"{config.num_gpu_blocks} and {config.max_model_len}"
            )
        self.config = config
        self.max_model_len = config.max_model_len
        self.max_num_running_reqs = config.max_num_seqs
        self.max_num_scheduled_tokens = config.max_num_scheduled_tokens
        self.long_prefill_token_threshold = config.long_prefill_token_threshold
        self._set_speculation(config.speculation)
        self.kv_cache_manager = kv_cache_manager or KVCacheManager.from_config(config)
        self.requests: dict[str, Request] = {}
        self._make_queues(SchedulingPolicy(config.scheduling_policy))
        self.admission = AdmissionGate(admission_rules)
        self.finished_req_ids: set[str] = set()
        self.reset_preempted_req_ids: set[str] = set()  # between two steps; the worker must hear
        self.num_preemptions = 0  # since start, over all requests
        self.kv_event_publisher: KVEventPublisher | None = None
        self.grammars: Grammars | None = None  # from the first request with a rule on

    # -- requests come and go ---------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Queue a request (`vllm/v1/core/sched/scheduler.py:1755 Scheduler.add_request`).

        Raises ValueError if its id is taken, or if it may come to need more blocks than there are.
        Upstream accepts the latter and, should it come to that, waits for ever
        (vllm-project/vllm issue 35541).
        """
        if request.request_id in self.requests:
            raise ValueError(f"request id {request.request_id!r} is already in use")
        needed = self.kv_cache_manager.max_blocks_needed(
            request, self.num_draft_slots, self.num_lookahead_tokens
        )
        usable = self.kv_cache_manager.block_pool.num_gpu_blocks - 1
        if needed > usable:
            raise ValueError(
                f"request {request.request_id!r} may need {needed} KV blocks of "
                f"{self.config.block_size} tokens (prompt {request.num_prompt_tokens} tokens, "
                f"max_tokens {request.max_tokens}, max_model_len {self.max_model_len}), but the "
                f"pool has {usable}: it could wait for ever"
            )
        self._enqueue_waiting_request(request)
        self.requests[request.request_id] = request

    def finish_requests(
        self, request_ids: str | Iterable[str], finished_status: RequestStatus
    ) -> list[str]:
        """End requests from outside: a client left, or a stop string was found.

        Returns the ids that were alive; others are passed over.
        Source: `vllm/v1/core/sched/scheduler.py:1779 Scheduler.finish_requests`.
        """
        assert RequestStatus.is_finished(finished_status)
        ended: list[str] = []
        for request_id in [request_ids] if isinstance(request_ids, str) else list(request_ids):
            request = self.requests.get(request_id)
            if request is None:
                continue
            if request.status is RequestStatus.RUNNING:
                self.running.remove(request)
            else:
                self._remove_waiting_request(request)
            request.status = finished_status
            self._free_request(request)
            ended.append(request_id)
        return ended

    def _free_request(self, request: Request) -> None:
        self.finished_req_ids.add(request.request_id)
        self.reset_preempted_req_ids.discard(request.request_id)
        self.kv_cache_manager.free(request)
        del self.requests[request.request_id]

    def make_stats(self) -> SchedulerStats:
        """The scheduler as it stands, and what was looked up in the prefix cache since the last call
        (`vllm/v1/core/sched/scheduler.py:1968 Scheduler.make_stats`)."""
        spec_decoding_stats, self.spec_decoding_stats = self.spec_decoding_stats, None
        return SchedulerStats(
            len(self.running),
            len(self.waiting),
            self.kv_cache_manager.usage,
            self.kv_cache_manager.make_prefix_cache_stats(),
            spec_decoding_stats,
            len(self.skipped_waiting),
        )

    def has_requests(self) -> bool:
        """Whether a step has something to do, and be it to tell the worker which requests have finished
        (`vllm/v1/core/sched/interface.py:185 SchedulerInterface.has_requests`)."""
        return bool(self.finished_req_ids) or self.has_unfinished_requests()

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes; False, and nothing is forgotten, while requests hold blocks.

        With `reset_running_requests` those are preempted first, to be computed again from their
        first token (`vllm/v1/core/sched/scheduler.py:1896 Scheduler.reset_prefix_cache`).
        """
        if reset_running_requests:
            self.reset_preempted_req_ids |= {request.request_id for request in self.running}
            while self.running:
                self._preempt_request(self.running.pop())
        return self.kv_cache_manager.reset_prefix_cache()

    # -- one step ---------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Decide the next step: running requests first, then waiting ones, within the budget.

        No request is admitted in a step that preempted.
        Source: `vllm/v1/core/sched/scheduler.py:329 Scheduler.schedule`.
        """
        step = self.step_class(self.max_num_scheduled_tokens)
        self._schedule_running(step)
        if not step.preempted_reqs and (self.waiting or self.skipped_waiting):
            self._schedule_waiting(step)

        total_num_scheduled_tokens = sum(step.num_scheduled_tokens.values())
        assert total_num_scheduled_tokens <= self.max_num_scheduled_tokens
        assert step.token_budget >= 0
        assert len(self.running) <= self.max_num_running_reqs
        scheduler_output = SchedulerOutput(
            scheduled_new_reqs=[
                NewRequestData.from_request(
                    request, step.req_to_new_blocks[request.request_id].get_block_ids()
                )
                for request in step.scheduled_new_reqs
            ],
            scheduled_cached_reqs=self._make_cached_request_data(step),
            num_scheduled_tokens=step.num_scheduled_tokens,
            total_num_scheduled_tokens=total_num_scheduled_tokens,
            preempted_req_ids={request.request_id for request in step.preempted_reqs},
            finished_req_ids=self.finished_req_ids,
            reset_req_ids=self.reset_preempted_req_ids,
            scheduled_spec_decode_tokens=step.scheduled_spec_decode_tokens,
        )
        self.reset_preempted_req_ids = set()
        self._update_after_schedule(scheduler_output)
        return scheduler_output

    def _schedule_running(self, step: Step) -> None:
        """Serve the running requests in order, as far as budget and blocks go.

        One that finds no block preempts the last of the running (under `priority`, the least
        important), which starts over later. If that is itself, nothing is left for those behind it
        either (`vllm/v1/core/sched/scheduler.py:364 in Scheduler.schedule`).
        """
        allocate_slots, lookahead = self.kv_cache_manager.allocate_slots, self.num_lookahead_tokens
        drafting = self.num_spec_tokens > 0
        req_index = 0
        while step.token_budget > 0 and req_index < len(self.running):
            request = self.running[req_index]
            num_new_tokens = request.num_tokens - request.num_computed_tokens
            # Tokens in flight, or drafts: see there.
            if num_new_tokens <= 0 or (drafting and request.spec_token_ids):
                num_new_tokens = self._count_new_tokens(request)
            if 0 < self.long_prefill_token_threshold < num_new_tokens:
                num_new_tokens = self.long_prefill_token_threshold
            # One token fits: there is budget. The last position is never an input.
            if num_new_tokens > 1:
                room = self.max_model_len - 1 - request.num_computed_tokens
                num_new_tokens = min(num_new_tokens, step.token_budget, room)
            if num_new_tokens <= 0:  # its newest token is in flight
                req_index += 1
                continue

            while True:
                new_blocks = allocate_slots(request, num_new_tokens, num_lookahead_tokens=lookahead)
                if new_blocks is not None:
                    break
                preempted_req = self._pop_victim()
                if preempted_req in step.scheduled_running_reqs:  # only under PRIORITY
                    preempted_req_id = preempted_req.request_id
                    step.scheduled_running_reqs.remove(preempted_req)
                    step.token_budget += step.num_scheduled_tokens.pop(preempted_req_id)
                    step.req_to_new_blocks.pop(preempted_req_id)
                    step.scheduled_spec_decode_tokens.pop(preempted_req_id, None)
                    self._evict_uncomputed_blocks(preempted_req)
                    req_index -= 1
                elif self.recounts_victims and preempted_req is not request:
                    req_index = self.running.index(request)
                self._preempt_request(preempted_req)
                step.preempted_reqs.append(preempted_req)
                if preempted_req is request:
                    break  # it has lost its own blocks
            if new_blocks is None:
                if self.serves_behind_victims:
                    continue
                break

            request_id = request.request_id
            step.scheduled_running_reqs.append(request)
            step.req_to_new_blocks[request_id] = new_blocks
            step.num_scheduled_tokens[request_id] = num_new_tokens
            step.token_budget -= num_new_tokens
            req_index += 1
            if drafting and request.spec_token_ids:
                self._schedule_drafts(step, request, num_new_tokens)

    def _schedule_waiting(self, step: Step) -> None:
        """Admit waiting requests, as far as budget, slots and blocks go.

        The first that does not fit ends admission, so that no request behind it overtakes. One that waits
        for something else, such as a grammar, is skipped and moves to `skipped_waiting`
        (`vllm/v1/core/sched/scheduler.py:545 in Scheduler.schedule`).
        """
        self.admission.start_step(step.scheduled_running_reqs)
        skipped: list[Request] = []
        while step.token_budget > 0 and len(self.running) < self.max_num_running_reqs:
            queue = self._select_waiting_queue_for_scheduling()
            if queue is None:
                break
            decision = self._try_admit(step, request := queue.peek_request())
            if decision is Admission.STOP:
                break
            queue.pop_request()
            if decision is Admission.SKIP:
                skipped.append(request)
        for request in reversed(skipped):
            self.skipped_waiting.prepend_request(request)

    def _try_admit(self, step: Step, request: Request) -> Admission:
        """Admit the request and give it blocks for its first tokens, if the rules and the pool allow it."""
        decision = self.admission.check(request)
        if decision is not Admission.ADMIT:
            return decision
        new_computed_blocks, num_computed_tokens = self.kv_cache_manager.get_computed_blocks(
            request
        )
        num_external = self.admission.get_num_new_matched_tokens(request, num_computed_tokens)
        if num_external is None:
            return Admission.SKIP
        num_computed_tokens += num_external
        num_new_tokens = request.num_tokens - num_computed_tokens
        if 0 < self.long_prefill_token_threshold < num_new_tokens:
            num_new_tokens = self.long_prefill_token_threshold
        if not self.config.enable_chunked_prefill and num_new_tokens > step.token_budget:
            return Admission.STOP
        num_new_tokens = min(num_new_tokens, step.token_budget)
        limit = self.admission.limit_new_tokens(request, num_computed_tokens, num_new_tokens)
        if limit == 0 < num_new_tokens:
            return Admission.STOP
        num_new_tokens = limit
        new_blocks = self.kv_cache_manager.allocate_slots(
            request,
            num_new_tokens,
            num_new_computed_tokens=num_computed_tokens,
            new_computed_blocks=new_computed_blocks,
            full_sequence_must_fit=self.config.scheduler_reserve_full_isl,
        )
        if new_blocks is None:
            self.admission.withdraw(request)
            return Admission.STOP

        self.admission.admit(request)
        self.running.append(request)
        if request.status is RequestStatus.WAITING:
            step.scheduled_new_reqs.append(request)
        else:
            step.scheduled_resumed_reqs.append(request)
        request_id = request.request_id
        step.req_to_new_blocks[request_id] = self.kv_cache_manager.get_blocks(request_id)
        step.num_scheduled_tokens[request_id] = num_new_tokens
        step.token_budget -= num_new_tokens
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_computed_tokens
        if not request.output_token_ids:
            request.num_cached_tokens = num_computed_tokens
        return Admission.ADMIT

    def _make_cached_request_data(self, step: Step) -> CachedRequestData:
        """What the worker must hear of the requests it knows
        (`vllm/v1/core/sched/scheduler.py:1036 Scheduler._make_cached_request_data`)."""
        requests = step.scheduled_running_reqs + step.scheduled_resumed_reqs
        req_ids = [request.request_id for request in requests]
        new_blocks = [step.req_to_new_blocks[req_id] for req_id in req_ids]
        return CachedRequestData(
            req_ids=req_ids,
            resumed_req_ids={request.request_id for request in step.scheduled_resumed_reqs},
            new_block_ids=[b.get_block_ids() if b.blocks else None for b in new_blocks],
            num_computed_tokens=[request.num_computed_tokens for request in requests],
        )

    def _pop_victim(self) -> Request:
        """Take the request to preempt out of `running`: the last, or the least important; by id among
        equals, so that one of them always gets on (see `upstream_scheduler.py`)."""
        if self.policy is SchedulingPolicy.FCFS:
            return self.running.pop()
        preempted_req = max(self.running)  # by `Request.__lt__`
        self.running.remove(preempted_req)
        return preempted_req

    def _evict_uncomputed_blocks(self, request: Request) -> None:
        """Un-publish the blocks of a victim that this step was to fill, and now does not.

        `num_computed_tokens` has not moved yet: it tells what was computed before the step. No
        other request can hold these blocks, since only an admission takes hits.
        """
        num_computed_blocks = request.num_computed_tokens // self.config.block_size
        for blocks in self.kv_cache_manager.get_blocks(request.request_id).groups:
            uncomputed = {block.block_id for block in blocks[num_computed_blocks:]}
            self.kv_cache_manager.evict_blocks(uncomputed)

    def _preempt_request(self, request: Request) -> None:
        """Free the request's blocks and queue it again; its tokens stay, their KV is recomputed.

        The blocks keep their hashes, so with prefix caching much of it is often found again.
        Source: `vllm/v1/core/sched/scheduler.py:929 Scheduler._preempt_request`.
        """
        self.kv_cache_manager.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        if request.spec_token_ids:
            request.spec_token_ids = []
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.prepend_request(request)

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        """Advance the counters now, not when the result comes
        (`vllm/v1/core/sched/scheduler.py:951 Scheduler._update_after_schedule`)."""
        for req_id, num_scheduled_token in scheduler_output.num_scheduled_tokens.items():
            self.requests[req_id].num_computed_tokens += num_scheduled_token
        self.finished_req_ids = set()
        if self.num_spec_tokens or self.grammars is not None:
            self._mark_prefill_chunks(scheduler_output)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> list[EngineCoreOutput]:
        """Append the sampled tokens, stop what has to stop, free what stopped
        (`vllm/v1/core/sched/scheduler.py:1283 Scheduler.update_from_output`)."""
        outputs = [] if self.grammars is None else self.grammars.end_failed()
        stopped_running_reqs: set[Request] = set()
        sampled_token_ids = model_runner_output.sampled_token_ids
        req_id_to_index = model_runner_output.req_id_to_index
        logprobs = model_runner_output.logprobs
        prompt_logprobs_dict = model_runner_output.prompt_logprobs_dict
        scheduled_spec_decode_tokens = scheduler_output.scheduled_spec_decode_tokens
        for req_id in scheduler_output.num_scheduled_tokens:
            request = self.requests.get(req_id)
            if request is None:
                continue  # aborted while the step ran
            new_token_ids = sampled_token_ids[req_id_to_index[req_id]]
            if not new_token_ids:
                continue  # a prefill chunk that has not caught up
            if scheduled_spec_decode_tokens and req_id in scheduled_spec_decode_tokens:
                num_draft_tokens = len(scheduled_spec_decode_tokens[req_id])
                self._take_back_rejected(request, num_draft_tokens, len(new_token_ids) - 1)
            new_token_ids, stopped = self._update_request_with_output(request, new_token_ids)
            if self.grammars is not None and request.structured_output_request is not None:
                stopped = self.grammars.rejects(request, new_token_ids) or stopped
            # Two of its seven fields, as to name all of them takes three times as long.
            output = EngineCoreOutput(req_id, new_token_ids)
            if stopped:
                output.finish_reason = request.get_finished_reason()
                output.stop_reason = request.stop_reason
                if request.num_computed_tokens <= 0:  # it waits: preempted with this step in flight
                    self._remove_waiting_request(request)
                self._free_request(request)
                stopped_running_reqs.add(request)
            if logprobs:
                output.new_logprobs = logprobs.get(req_id)
                if output.new_logprobs is not None:
                    output.new_logprobs = output.new_logprobs.first(len(new_token_ids))
            if prompt_logprobs_dict:
                output.new_prompt_logprobs_tensors = prompt_logprobs_dict.get(req_id)
            output.num_cached_tokens = request.num_cached_tokens
            outputs.append(output)
        if stopped_running_reqs:
            self.running = [r for r in self.running if r not in stopped_running_reqs]
        if self.kv_event_publisher is not None:
            from mini_vllm.distributed.kv_events import publish_kv_events

            publish_kv_events(self.kv_event_publisher, self.kv_cache_manager.take_events())
        return outputs

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int]
    ) -> tuple[list[int], bool]:
        """Append the sampled tokens. Returns what is to be sent on, and whether the request stops
        (`vllm/v1/core/sched/scheduler.py:1649 Scheduler._update_request_with_output`)."""
        request.append_output_token_ids(new_token_ids[0])
        stopped = check_stop(request, self.max_model_len)
        if self.num_spec_tokens and len(new_token_ids) > 1:
            return self._append_beside_drafts(request, new_token_ids, stopped)
        return new_token_ids, stopped
