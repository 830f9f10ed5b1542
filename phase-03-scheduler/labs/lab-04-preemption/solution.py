"""Lab 03-04: the reference solution."""

from __future__ import annotations

from typing import Any, NamedTuple

from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched import scheduler as given
from mini_vllm.core.sched.request_queue import SchedulingPolicy


class Model(NamedTuple):
    """A decoder, as far as its cost goes. Numbers are 16-bit, 2 bytes each.

    Attributes:
        num_params: its weights.
        num_layers: its layers.
        num_heads: query heads in a layer.
        num_kv_heads: heads whose keys and values are kept.
        head_dim: numbers in one key.
    """

    num_params: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


class Gpu(NamedTuple):
    """A card: its peak operations per second, for dense 16-bit matrices."""

    flops: float


class Link(NamedTuple):
    """The link to the host's memory: bytes per second, one way, from the data sheet."""

    bandwidth: float


LLAMA_3_8B = Model(8_030_261_248, 32, 32, 8, 128)
LLAMA_2_7B = Model(6_738_415_616, 32, 32, 32, 128)
A100, H100 = Gpu(312e12), Gpu(989.5e12)
PCIE_4, PCIE_5, NVLINK_C2C = Link(32e9), Link(64e9), Link(450e9)


def predictions() -> dict[str, Any]:
    return {
        "first victim": ("gil", 5),
        "gil keeps": 1,
        "second victim": ("fay", 9),
        "gil is back": 14,
        "computed twice": 24,
        "computed twice, with prefix caching": 8,
    }


def clamp(num_new_tokens: int, threshold: int, token_budget: int) -> int:
    """How many of the tokens that it lacks a request gets, as in lab 03-01.

    Args:
        num_new_tokens: how many it lacks, at least 1.
        threshold: no request gets more in one step; 0 means no such limit.
        token_budget: what is left of the step's budget, at least 1.
    """
    if 0 < threshold < num_new_tokens:
        num_new_tokens = threshold
    return min(num_new_tokens, token_budget)


class Scheduler(given.Scheduler):
    def _schedule_running(self, step: Any) -> None:
        req_index = 0
        while step.token_budget > 0 and req_index < len(self.running):
            request = self.running[req_index]
            num_new_tokens = clamp(
                request.num_tokens - request.num_computed_tokens,
                self.long_prefill_token_threshold,
                step.token_budget,
            )
            new_blocks = self.kv_cache_manager.allocate_slots(request, num_new_tokens)
            while new_blocks is None:
                preempted_req = self._pop_victim()
                if preempted_req in step.scheduled_running_reqs:
                    step.scheduled_running_reqs.remove(preempted_req)
                    step.req_to_new_blocks.pop(preempted_req.request_id)
                    step.token_budget += step.num_scheduled_tokens.pop(preempted_req.request_id)
                    req_index -= 1
                self._preempt_request(preempted_req)
                step.preempted_reqs.append(preempted_req)
                if preempted_req is request:
                    return
                new_blocks = self.kv_cache_manager.allocate_slots(request, num_new_tokens)
            step.scheduled_running_reqs.append(request)
            step.req_to_new_blocks[request.request_id] = new_blocks
            step.num_scheduled_tokens[request.request_id] = num_new_tokens
            step.token_budget -= num_new_tokens
            req_index += 1

    def _pop_victim(self) -> Request:
        if self.policy is SchedulingPolicy.FCFS:
            return self.running.pop()
        victim = max(self.running, key=lambda r: (r.priority, r.arrival_time, r.request_id))
        self.running.remove(victim)
        return victim

    def _preempt_request(self, request: Request) -> None:
        self.kv_cache_manager.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.prepend_request(request)

    def _schedule_waiting(self, step: Any) -> None:
        """Admit from the head of the queue, as in lab 03-01, with one difference.

        A request that comes back from a preemption is not new to the worker: it goes to
        `step.scheduled_resumed_reqs` instead of `step.scheduled_new_reqs`. Its status tells.
        """
        while (
            len(self.waiting)
            and len(self.running) < self.max_num_running_reqs
            and step.token_budget > 0
        ):
            request = self.waiting.peek_request()
            num_new_tokens = clamp(
                request.num_tokens, self.long_prefill_token_threshold, step.token_budget
            )
            new_blocks = self.kv_cache_manager.allocate_slots(
                request,
                num_new_tokens,
                full_sequence_must_fit=self.config.scheduler_reserve_full_isl,
            )
            if new_blocks is None:
                break
            self.waiting.pop_request()
            self.running.append(request)
            if request.status is RequestStatus.PREEMPTED:
                step.scheduled_resumed_reqs.append(request)
            else:
                step.scheduled_new_reqs.append(request)
            request.status = RequestStatus.RUNNING
            request.num_cached_tokens = 0
            step.req_to_new_blocks[request.request_id] = new_blocks
            step.num_scheduled_tokens[request.request_id] = num_new_tokens
            step.token_budget -= num_new_tokens


# ---- what it costs -------------------------------------------------------------------------------


def kv_bytes(num_tokens: int, model: Model) -> int:
    """Bytes of keys and values in the cache for so many tokens, over all layers."""
    numbers = 2 * model.num_layers * model.num_kv_heads * model.head_dim
    return 2 * numbers * num_tokens


def recompute_flops(num_tokens: int, model: Model, num_found: int = 0) -> int:
    """Operations to compute a victim's tokens again, without the first `num_found`.

    Each token computed takes 2 operations per weight. Its attention, in each layer and each query
    head, takes 2 * head_dim operations for every key that it sees (a product), and as many for the
    value. The token at place p, counted from 1, sees p keys, found tokens' keys included.

    Args:
        num_tokens: how many the victim has.
        num_found: how many of them, from the first on, the prefix cache still has.
    """
    pairs = num_tokens * (num_tokens + 1) // 2 - num_found * (num_found + 1) // 2
    attention = 4 * model.num_layers * model.num_heads * model.head_dim * pairs
    return 2 * model.num_params * (num_tokens - num_found) + attention


def recompute_ms(num_tokens: int, model: Model, gpu: Gpu, num_found: int = 0) -> float:
    """Milliseconds of the card's peak that these operations take."""
    return recompute_flops(num_tokens, model, num_found) / gpu.flops * 1e3


def swap_ms(num_tokens: int, model: Model, link: Link) -> float:
    """Milliseconds that the victim's keys and values occupy the link, out and back."""
    return 2 * kv_bytes(num_tokens, model) / link.bandwidth * 1e3


def break_even(num_tokens: int, model: Model, gpu: Gpu, link: Link) -> int | None:
    """The smallest `num_found` with which computing again takes no longer than swapping.

    At least one token is computed, so it is below `num_tokens`. None if there is no such number.
    """
    limit = swap_ms(num_tokens, model, link)
    for num_found in range(num_tokens):
        if recompute_ms(num_tokens, model, gpu, num_found) <= limit:
            return num_found
    return None
