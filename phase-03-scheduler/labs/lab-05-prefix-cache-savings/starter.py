"""Lab 03-05: what prefix caching saves, to the token. Your work: every NotImplementedError."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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


# ---- before you write anything -------------------------------------------------------------------


def predictions() -> dict[str, int]:
    """Your guesses for the README's eight questions, under the names that it uses."""
    raise NotImplementedError


# ---- the arithmetic ------------------------------------------------------------------------------


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two prompts have in common, counted from the beginning to the first difference."""
    for place, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return place
    return min(len(a), len(b))


def found(prompt_tokens: int, cached_prefix_tokens: int, block_size: int) -> int:
    """How many tokens of a prompt an admission finds in the cache.

    Args:
        prompt_tokens: tokens that the request has, at least 1.
        cached_prefix_tokens: how many of its first tokens another request has had slots for.
        block_size: tokens in a block; only full blocks are published.

    The last token of a prompt has to be computed, or there is nothing to sample from.
    """
    raise NotImplementedError


def scheduled_tokens(
    workload: Sequence[Ask], block_size: int, caching: bool, threshold: int = 0
) -> list[int]:
    """How many tokens all steps together compute for each request, prompt and answer.

    All ask before the same step, in this order, and that step has room for all: budget, batch slots and
    blocks. Each is admitted after the one before it, and finds what the step has given to earlier ones
    with the same salt. The last token of an answer is sampled and never computed.

    Args:
        workload: who asks what.
        block_size: tokens in a block.
        caching: whether prefix caching is on.
        threshold: `long_prefill_token_threshold`: the first step gives no request more, so a request
            with a longer prompt publishes only the beginning; 0 means no such limit. (What it gets in
            later steps comes too late for requests that were admitted in the first.)

    Returns: a number for each request, in order.
    """
    raise NotImplementedError


def savings(num_requests: int, prompt_tokens: int, shared_tokens: int, block_size: int) -> int:
    """The tokens that prefix caching saves, as a formula: no list, no loop.

    There is at least one request, and all prompts have the same length. They have their first
    `shared_tokens` tokens in common, which may be all of them. Nothing else is shared, and there is no
    threshold.
    """
    raise NotImplementedError


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


# ---- the scheduler -------------------------------------------------------------------------------


class Scheduler(given.Scheduler):
    """The engine's scheduler with your waiting loop, now complete.

    `schedule()` calls `_schedule_running(step)`, and if no request was preempted `_schedule_waiting(step)`.
    Labs 03-01 and 03-04 list what comes from the class above, the running loop and preemption included. New
    here:

    - `kv_cache_manager.get_computed_blocks(request)`: the blocks found and the number of tokens in them.
      Nothing is reserved yet.
    - `kv_cache_manager.allocate_slots(request, num_new_tokens, num_new_computed_tokens=...,
      new_computed_blocks=..., full_sequence_must_fit=...)`: takes what was found and what is lacking.
    - `kv_cache_manager.get_blocks(request_id)`: the request's whole table.
    - `step.scheduled_new_reqs` and `step.scheduled_resumed_reqs`: requests admitted for the first time, and
      requests that come back.
    - `config.enable_chunked_prefill`.
    """

    def _schedule_waiting(self, step: Any) -> None:
        """Admit from the head of the queue, as in lab 03-01, but start each request after what is cached.

        - Look up the prefix of the head. Its counter begins there, and it lacks the rest.
        - If chunked prefill is off and the rest, after the threshold, is more than the budget has left, the
          loop ends.
        - The hits go to `allocate_slots` with the rest. None ends the loop, and the request stays as it was.
        - A request that waited with the status PREEMPTED is resumed, every other one is new. For both the
          worker needs the whole table, found blocks included.
        - `num_computed_tokens` is what was found. So is `num_cached_tokens`, unless the request has output
          already: a user is told what was found for the prompt, not what a victim found again.
        """
        raise NotImplementedError
