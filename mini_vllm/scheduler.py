"""Which requests run in the next step, and with how many tokens each.

Mirrors `vllm/v1/core/sched/scheduler.py` (`schedule` 329, `update_from_output` 1283). It takes the
same decisions: `python -m course.parity` replays recorded workloads of vLLM's own scheduler through
this one. What it sends to the worker is in `sched_output.py`.

Left out: draft tokens, output placeholders of async scheduling, encoder inputs, LoRA limits, KV
connectors, structured output, Mamba's block alignment, pausing, cascade attention's common prefix.
Without those no waiting request is ever skipped, so there is no `skipped_waiting` queue.

There is no prefill phase and no decode phase. A request has `num_tokens` and `num_computed_tokens`,
and each step lets the second catch up with the first, as far as budget and blocks allow.
"""

from __future__ import annotations

from collections.abc import Iterable

from mini_vllm.config import EngineConfig
from mini_vllm.kv_cache_manager import KVCacheManager
from mini_vllm.request import Request, RequestStatus
from mini_vllm.request_queue import SchedulingPolicy, create_request_queue
from mini_vllm.sched_output import (
    CachedRequestData,
    EngineCoreOutput,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
)


def check_stop(request: Request, max_model_len: int) -> bool:
    """Whether the token just appended ends the request; sets its status and stop reason.

    The order of the checks is `vllm/v1/core/sched/utils.py:94 check_stop`: `min_tokens` first of
    all, then EOS, stop token ids, length. Stop strings are not seen here but where text is made.
    """
    num_output_tokens = len(request.output_token_ids)
    if num_output_tokens < request.min_tokens:
        return False
    last_token_id = request.output_token_ids[-1]
    if last_token_id == request.eos_token_id:
        request.status = RequestStatus.FINISHED_STOPPED
        return True
    if last_token_id in request.stop_token_ids:
        request.status = RequestStatus.FINISHED_STOPPED
        request.stop_reason = last_token_id
        return True
    if num_output_tokens >= request.max_tokens or request.num_tokens >= max_model_len:
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED
        return True
    return False


class Scheduler:
    """Decides each step; owns the requests from `add_request` until they finish.

    Args:
        config: `num_gpu_blocks` and `max_model_len` must be set.
        kv_cache_manager: the manager to use, for instance a learner's own.

    Raises ValueError if the config leaves one of the two open.
    Source: `vllm/v1/core/sched/scheduler.py:64 Scheduler`.
    """

    def __init__(
        self, config: EngineConfig, kv_cache_manager: KVCacheManager | None = None
    ) -> None:
        if config.num_gpu_blocks is None or config.max_model_len is None:
            raise ValueError(
                "the scheduler needs num_gpu_blocks and max_model_len, got "
                f"{config.num_gpu_blocks} and {config.max_model_len}"
            )
        self.config = config
        self.max_model_len = config.max_model_len
        self.max_num_running_reqs = config.max_num_seqs
        self.max_num_scheduled_tokens = config.token_budget
        self.long_prefill_token_threshold = config.long_prefill_token_threshold
        self.policy = SchedulingPolicy(config.scheduling_policy)
        self.kv_cache_manager = kv_cache_manager or KVCacheManager(
            config.num_gpu_blocks,
            config.block_size,
            config.max_model_len,
            config.enable_prefix_caching,
        )
        self.requests: dict[str, Request] = {}
        self.waiting = create_request_queue(self.policy)
        self.running: list[Request] = []
        self.finished_req_ids: set[str] = set()
        self.num_preemptions = 0  # since start, over all requests

    # -- requests come and go ---------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Queue a request.

        Raises ValueError if its id is taken, or if it may come to need more blocks than there are.
        Upstream accepts the latter and, should it come to that, waits for ever
        (vllm-project/vllm issue 35541).
        """
        if request.request_id in self.requests:
            raise ValueError(f"request id {request.request_id!r} is already in use")
        needed = self.kv_cache_manager.max_blocks_needed(request)
        usable = self.kv_cache_manager.block_pool.num_gpu_blocks - 1
        if needed > usable:
            raise ValueError(
                f"request {request.request_id!r} may need {needed} KV blocks of "
                f"{self.config.block_size} tokens (prompt {request.num_prompt_tokens} tokens, "
                f"max_tokens {request.max_tokens}, max_model_len {self.max_model_len}), but the "
                f"pool has {usable}: it could wait for ever"
            )
        self.waiting.add_request(request)
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
                self.waiting.remove_request(request)
            request.status = finished_status
            self._free_request(request)
            ended.append(request_id)
        return ended

    def _free_request(self, request: Request) -> None:
        self.finished_req_ids.add(request.request_id)
        self.kv_cache_manager.free(request)
        del self.requests[request.request_id]

    def get_num_unfinished_requests(self) -> int:
        return len(self.waiting) + len(self.running)

    def has_unfinished_requests(self) -> bool:
        return bool(self.running) or len(self.waiting) > 0

    # -- one step ---------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Decide the next step: running requests first, then waiting ones, within the budget.

        Running requests that find no block preempt the last of the running (under `priority`, the
        least important), which starts over later. Nobody is admitted in a step that preempted.
        Source: `vllm/v1/core/sched/scheduler.py:329 Scheduler.schedule`.
        """
        num_scheduled_tokens: dict[str, int] = {}
        scheduled_running_reqs: list[Request] = []
        new_block_ids: dict[str, list[int]] = {}
        preempted_reqs: list[Request] = []
        budget = self.max_num_scheduled_tokens
        threshold = self.long_prefill_token_threshold
        running = self.running
        allocate_slots = self.kv_cache_manager.allocate_slots

        req_index = 0
        while req_index < len(running) and budget > 0:
            request = running[req_index]
            num_new_tokens = request.num_tokens - request.num_computed_tokens
            if num_new_tokens > 1:
                if 0 < threshold < num_new_tokens:
                    num_new_tokens = threshold
                if num_new_tokens > budget:
                    num_new_tokens = budget

            new_blocks = allocate_slots(request, num_new_tokens)
            while new_blocks is None:
                victim = self._pop_victim()
                if victim.request_id in num_scheduled_tokens:  # only under PRIORITY
                    scheduled_running_reqs.remove(victim)
                    budget += num_scheduled_tokens.pop(victim.request_id)
                    new_block_ids.pop(victim.request_id, None)
                    req_index -= 1
                self._preempt_request(victim)
                preempted_reqs.append(victim)
                if victim is request:
                    break
                new_blocks = allocate_slots(request, num_new_tokens)
            if new_blocks is None:
                break  # it preempted itself: nothing is left for those behind it either

            scheduled_running_reqs.append(request)
            num_scheduled_tokens[request.request_id] = num_new_tokens
            if new_blocks.blocks:
                new_block_ids[request.request_id] = new_blocks.get_block_ids()
            budget -= num_new_tokens
            req_index += 1

        scheduled_new_reqs: list[NewRequestData] = []
        scheduled_resumed_reqs: list[Request] = []
        if not preempted_reqs and len(self.waiting):
            budget = self._schedule_waiting(
                budget, num_scheduled_tokens, new_block_ids, scheduled_new_reqs,
                scheduled_resumed_reqs,
            )  # fmt: skip

        assert budget >= 0 and len(running) <= self.max_num_running_reqs
        cached = scheduled_running_reqs + scheduled_resumed_reqs
        req_ids = [request.request_id for request in cached]
        output = SchedulerOutput(
            scheduled_new_reqs=scheduled_new_reqs,
            scheduled_cached_reqs=CachedRequestData(
                req_ids=req_ids,
                resumed_req_ids={request.request_id for request in scheduled_resumed_reqs},
                new_block_ids=[new_block_ids.get(request_id) for request_id in req_ids],
                num_computed_tokens=[request.num_computed_tokens for request in cached],
            ),
            num_scheduled_tokens=num_scheduled_tokens,
            total_num_scheduled_tokens=self.max_num_scheduled_tokens - budget,
            preempted_req_ids={request.request_id for request in preempted_reqs},
            finished_req_ids=self.finished_req_ids,
        )
        self._update_after_schedule(num_scheduled_tokens)
        return output

    def _schedule_waiting(
        self,
        budget: int,
        num_scheduled_tokens: dict[str, int],
        new_block_ids: dict[str, list[int]],
        scheduled_new_reqs: list[NewRequestData],
        scheduled_resumed_reqs: list[Request],
    ) -> int:
        """Admit from the head of the queue until something runs out; returns the budget left.

        The first request that does not fit ends it: nobody overtakes
        (`vllm/v1/core/sched/scheduler.py:545 in Scheduler.schedule`).
        """
        manager, waiting, running = self.kv_cache_manager, self.waiting, self.running
        threshold = self.long_prefill_token_threshold
        while len(waiting) and budget > 0 and len(running) < self.max_num_running_reqs:
            request = waiting.peek_request()
            hits, num_hit_tokens = manager.get_computed_blocks(request)
            num_new_tokens = request.num_tokens - num_hit_tokens
            if 0 < threshold < num_new_tokens:
                num_new_tokens = threshold
            if num_new_tokens > budget:
                if not self.config.enable_chunked_prefill:
                    break
                num_new_tokens = budget
            new_blocks = manager.allocate_slots(
                request,
                num_new_tokens,
                num_new_computed_tokens=num_hit_tokens,
                new_computed_blocks=hits,
                full_sequence_must_fit=self.config.scheduler_reserve_full_isl,
            )
            if new_blocks is None:
                break

            waiting.pop_request()
            running.append(request)
            request_id = request.request_id
            block_ids = manager.get_blocks(request_id).get_block_ids()
            request.num_computed_tokens = num_hit_tokens
            if not request.output_token_ids:
                request.num_cached_tokens = num_hit_tokens
            if request.status is RequestStatus.WAITING:
                scheduled_new_reqs.append(
                    NewRequestData(
                        request_id,
                        request.prompt_token_ids,
                        request.sampling_params,
                        block_ids,
                        num_hit_tokens,
                    )
                )
            else:
                new_block_ids[request_id] = block_ids
                scheduled_resumed_reqs.append(request)
            request.status = RequestStatus.RUNNING
            num_scheduled_tokens[request_id] = num_new_tokens
            budget -= num_new_tokens
        return budget

    def _pop_victim(self) -> Request:
        """Take the request to preempt out of `running`: the last, or the least important."""
        if self.policy is SchedulingPolicy.FCFS:
            return self.running.pop()
        victim = max(self.running, key=lambda r: (r.priority, r.arrival_time))
        self.running.remove(victim)
        return victim

    def _preempt_request(self, request: Request) -> None:
        """Free the request's blocks and queue it again; its tokens stay, their KV is recomputed.

        The blocks keep their hashes, so with prefix caching much of it is often found again.
        Source: `vllm/v1/core/sched/scheduler.py:929 Scheduler._preempt_request`.
        """
        self.kv_cache_manager.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.prepend_request(request)

    def _update_after_schedule(self, num_scheduled_tokens: dict[str, int]) -> None:
        """Advance the counters now, not when the result comes
        (`vllm/v1/core/sched/scheduler.py:951 Scheduler._update_after_schedule`)."""
        requests = self.requests
        for request_id, num_tokens in num_scheduled_tokens.items():
            requests[request_id].num_computed_tokens += num_tokens
        self.finished_req_ids = set()

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> list[EngineCoreOutput]:
        """Append the sampled tokens, stop what has to stop, free what stopped.

        Source: `vllm/v1/core/sched/scheduler.py:1283 Scheduler.update_from_output`.
        """
        outputs: list[EngineCoreOutput] = []
        stopped: set[Request] = set()
        requests, max_model_len = self.requests, self.max_model_len
        sampled = model_runner_output.sampled_token_ids
        index = model_runner_output.req_id_to_index
        logprobs = model_runner_output.logprobs
        prompt_logprobs = model_runner_output.prompt_logprobs_dict
        for request_id in scheduler_output.num_scheduled_tokens:
            request = requests.get(request_id)
            if request is None:
                continue  # aborted while the step ran
            row = index[request_id]
            new_token_ids = sampled[row]
            if not new_token_ids:
                continue  # a prefill chunk that has not caught up
            request.append_output_token_ids(new_token_ids[0])
            output = EngineCoreOutput(request_id, new_token_ids)
            if check_stop(request, max_model_len):
                output.finish_reason = request.get_finished_reason()
                output.stop_reason = request.stop_reason
                self._free_request(request)
                stopped.add(request)
            if logprobs:
                output.new_logprobs = logprobs.get(request_id)
            if prompt_logprobs:
                output.new_prompt_logprobs_tensors = prompt_logprobs.get(request_id)
            output.num_cached_tokens = request.num_cached_tokens
            outputs.append(output)

        if len(stopped) == 1:
            self.running.remove(stopped.pop())
        elif stopped:
            self.running = [request for request in self.running if request not in stopped]
        return outputs
