"""Lab 03-05: the reference solution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from mini_vllm.core.request import RequestStatus
from mini_vllm.core.sched import scheduler as given


class Ask(NamedTuple):
    """A request of a workload.

    Attributes:
        prompt: token ids.
        num_answer_tokens: how many tokens the answer has, at least 1.
        salt: the tenant's `cache_salt`, or None.
    """

    prompt: tuple[int, ...]
    num_answer_tokens: int
    salt: str | None = None


def predictions() -> dict[str, int]:
    return {
        "without caching": 544,
        "with caching": 96,
        "nothing shared": 544,
        "system prompt of 66": 112,
        "eight identical prompts of 64": 116,
        "threshold 16": 192,
        "smallest pool, all found": 38,
        "largest pool, nothing found": 22,
    }


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two prompts have in common, counted from the beginning to the first difference."""
    for place, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return place
    return min(len(a), len(b))


def found(prompt_tokens: int, cached_prefix_tokens: int, block_size: int) -> int:
    return min(cached_prefix_tokens, prompt_tokens - 1) // block_size * block_size


def scheduled_tokens(
    workload: Sequence[Ask], block_size: int, caching: bool, threshold: int = 0
) -> list[int]:
    counts: list[int] = []
    earlier: list[tuple[Ask, int]] = []  # and the tokens that it has slots for so far
    for ask in workload:
        hit = 0
        if caching:
            cached = [
                min(common_prefix(ask.prompt, other.prompt), granted)
                for other, granted in earlier
                if other.salt == ask.salt
            ]
            hit = found(len(ask.prompt), max(cached, default=0), block_size)
        missing = len(ask.prompt) - hit
        earlier.append((ask, hit + min(missing, threshold or missing)))
        counts.append(missing + ask.num_answer_tokens - 1)
    return counts


def savings(num_requests: int, prompt_tokens: int, shared_tokens: int, block_size: int) -> int:
    return (num_requests - 1) * found(prompt_tokens, shared_tokens, block_size)


def conversation(turns: Sequence[tuple[int, int]], block_size: int, caching: bool) -> list[int]:
    """How many tokens each turn of a conversation computes, prompt and answer.

    The prompt of a turn is everything said before, questions and answers, and then the new question.
    There are no other requests, and the pool is large.

    Args:
        turns: for each the tokens of the question and of the answer, at least 1 each.
        block_size: tokens in a block.
        caching: whether prefix caching is on.
    """
    counts: list[int] = []
    said = computed = 0
    for question, answer in turns:
        prompt = said + question
        hit = found(prompt, computed, block_size) if caching else 0
        counts.append(prompt - hit + answer - 1)
        said = prompt + answer
        computed = said - 1
    return counts


def price_of_salts(workload: Sequence[Ask], block_size: int) -> int:
    """How many more tokens are computed than if no request had a salt, with caching on."""
    together = [ask._replace(salt=None) for ask in workload]
    return sum(scheduled_tokens(workload, block_size, True)) - sum(
        scheduled_tokens(together, block_size, True)
    )


def blocks_left(prefix_blocks: int, usable_blocks: int, others: int) -> int:
    """How many blocks of a prefix can still be found after other requests have run.

    The request that had the prefix is finished, and its blocks were given back, the last first. Then
    others come, one after the other, which share nothing with it or with each other.

    Args:
        prefix_blocks: full blocks that the prefix had in the cache.
        usable_blocks: blocks of the pool, without the null block.
        others: how many blocks those others have held, added up.
    """
    return max(0, min(prefix_blocks, usable_blocks - others))


class Scheduler(given.Scheduler):
    def _schedule_waiting(self, step: Any) -> None:
        while (
            len(self.waiting)
            and len(self.running) < self.max_num_running_reqs
            and step.token_budget > 0
        ):
            request = self.waiting.peek_request()
            hits, num_hits = self.kv_cache_manager.get_computed_blocks(request)
            missing = request.num_tokens - num_hits
            num_new_tokens = min(missing, self.long_prefill_token_threshold or missing)
            if num_new_tokens > step.token_budget:
                if not self.config.enable_chunked_prefill:
                    break
                num_new_tokens = step.token_budget
            new_blocks = self.kv_cache_manager.allocate_slots(
                request,
                num_new_tokens,
                num_new_computed_tokens=num_hits,
                new_computed_blocks=hits,
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
            request.num_computed_tokens = num_hits
            if request.num_output_tokens == 0:
                request.num_cached_tokens = num_hits
            whole_table = self.kv_cache_manager.get_blocks(request.request_id)
            step.req_to_new_blocks[request.request_id] = whole_table
            step.num_scheduled_tokens[request.request_id] = num_new_tokens
            step.token_budget -= num_new_tokens
