"""Lab 08-03: a schedule with drafts. Your work: every NotImplementedError."""

from __future__ import annotations

from functools import partial
from typing import Any

from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched import async_scheduler as ahead
from mini_vllm.core.sched import scheduler as given
from mini_vllm.core.sched.output import DraftTokenIds
from mini_vllm.core.sched.utils import check_stop  # noqa: F401  (you will need it)
from mini_vllm.core.stats import SpecDecodingStats


def predictions() -> dict[str, Any]:
    """Your answers to the six questions of the README, under the names given there."""
    raise NotImplementedError


def lookahead(method: str, num_speculative_tokens: int) -> int:
    """How many slots past a step's tokens the scheduler asks for, on behalf of the drafter.

    The step's own drafts are not meant: they are tokens of the step and get slots as such.

    Args:
        method: `ngram`, `draft_model`, `eagle` or `eagle3`. The last three are models with a KV cache of
            their own, addressed by the same block table; `ngram` looks into the text.
        num_speculative_tokens: k, the most tokens drafted per request and step.
    """
    raise NotImplementedError


class Scheduler(given.Scheduler):
    """The engine's scheduler, with your handling of drafts.

    What you need of a request:

    - `num_tokens`: prompt and answer so far. `spec_token_ids`: the drafts that follow it, often none.
      `num_tokens_with_spec`: both together.
    - `num_computed_tokens`: how many tokens, drafts included, earlier steps were given.
    - `num_output_placeholders`: tokens that steps in flight may still add. Always 0 with this class; see
      `AsyncScheduler` at the end of the file.
    - `is_prefill_chunk`: its last step did not reach the end of what it has, so nothing was sampled.

    `schedule()` calls `_schedule_running` with a fresh `step` and then moves `num_computed_tokens` on by
    what the step gives. You do not move it forward, but you will move it back.
    """

    def __init__(self, config: Any, kv_cache_manager: Any = None) -> None:
        """(given)"""
        super().__init__(config, kv_cache_manager)
        spec = config.speculation
        if spec is not None:
            self.num_lookahead_tokens = lookahead(spec.method, spec.num_spec_tokens)

    # ---- schedule() --------------------------------------------------------------------------------

    def _schedule_running(self, step: Any) -> None:
        """Your loop of lab 03-04, which now asks the methods below (given)."""
        allocate_slots = self.kv_cache_manager.allocate_slots
        if self.num_lookahead_tokens:
            allocate_slots = partial(allocate_slots, num_lookahead_tokens=self.num_lookahead_tokens)
        req_index = 0
        while step.token_budget > 0 and req_index < len(self.running):
            request = self.running[req_index]
            num_new_tokens = 0
            if not self._ends_with_what_is_in_flight(request):
                num_new_tokens = self._num_new_tokens(request, step.token_budget)
            if num_new_tokens == 0:
                req_index += 1
                continue
            while (new_blocks := allocate_slots(request, num_new_tokens)) is None:
                preempted_req = self._pop_victim()
                if preempted_req in step.scheduled_running_reqs:
                    self._unschedule(step, preempted_req)
                    self._evict_uncomputed_blocks(preempted_req)
                    req_index -= 1
                self._preempt_request(preempted_req)
                step.preempted_reqs.append(preempted_req)
                if preempted_req is request:
                    return
            step.scheduled_running_reqs.append(request)
            step.req_to_new_blocks[request.request_id] = new_blocks
            step.num_scheduled_tokens[request.request_id] = num_new_tokens
            step.token_budget -= num_new_tokens
            req_index += 1
            self._schedule_drafts(step, request, num_new_tokens)

    def _ends_with_what_is_in_flight(self, request: Request) -> bool:
        """Whether what is in flight ends the request even if all drafts are rejected (given; False here)."""
        if request.num_output_placeholders == 0:
            return False
        least = request.num_computed_tokens + 2 - request.num_output_placeholders
        return least >= request.num_prompt_tokens + request.max_tokens

    def _num_new_tokens(self, request: Request, token_budget: int) -> int:
        """How many tokens a running request gets in this step, drafts among them; 0 if it gets none.

        It gets what it lacks, counted to the end of its drafts. Its placeholders come between its tokens and
        its drafts, and count like tokens that are there. Three limits:

        - `self.long_prefill_token_threshold`, unless that is 0;
        - `token_budget`, what is left of the step, at least 1;
        - `self.max_model_len`: a sequence is never longer, and its last token is never an input.
        """
        raise NotImplementedError

    def _schedule_drafts(self, step: Any, request: Request, num_new_tokens: int) -> None:
        """Record which of the request's drafts found room among its `num_new_tokens` tokens.

        The step's tokens begin at position `request.num_computed_tokens`. They are tokens, then
        placeholders, then drafts, and what found no room was cut off at the end.

        `step.scheduled_spec_decode_tokens` maps a request id to the list of drafts that found room. A
        request with none has no entry. No draft is kept for a later step: by then the request has other
        tokens. Give the request a new empty list; `AsyncScheduler` shares one list among requests.
        """
        raise NotImplementedError

    def _unschedule(self, step: Any, request: Request) -> None:
        """Take a victim out of the step that served it, as in lab 03-04, its drafts too (given)."""
        request_id = request.request_id
        step.scheduled_running_reqs.remove(request)
        step.req_to_new_blocks.pop(request_id)
        step.token_budget += step.num_scheduled_tokens.pop(request_id)
        step.scheduled_spec_decode_tokens.pop(request_id, None)

    def _preempt_request(self, request: Request) -> None:
        """Free the victim's blocks and put it at the head of the queue, as in lab 03-04 (given).

        It keeps its tokens and no drafts: it comes back through the queue, which does not handle them.
        """
        self.kv_cache_manager.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.spec_token_ids = []
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.prepend_request(request)

    # ---- between two steps -------------------------------------------------------------------------

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        """Take in what the drafter proposes for the next step.

        Args:
            draft_token_ids: `req_ids` and, parallel to it, `draft_token_ids`, a list of tokens for each.

        The drafter proposes for every request of the step it saw. Some of them are in the middle of their
        prompt, and what follows that is known: they get an empty list. Some have ended in the meantime and
        are no longer in `self.requests` (id to request): pass them over.
        """
        raise NotImplementedError

    # ---- update_from_output() ----------------------------------------------------------------------

    def _take_back_rejected(
        self, request: Request, num_draft_tokens: int, num_accepted: int
    ) -> None:
        """`update_from_output` calls this for a request that had drafts in the step (given)."""
        self._take_back(request, num_draft_tokens, num_accepted + 1)
        if self.spec_decoding_stats is None:
            self.spec_decoding_stats = SpecDecodingStats(self.num_spec_tokens)
        self.spec_decoding_stats.observe_draft(num_draft_tokens, num_accepted)

    def _take_back(self, request: Request, num_draft_tokens: int, num_generated: int) -> None:
        """Let the request be as if its rejected drafts had never been in the step.

        Args:
            num_draft_tokens: drafts that it had in the step.
            num_generated: tokens that the step gives it: the drafts accepted, and one that the model
                sampled after them. At least 1. They are not appended yet.

        `num_computed_tokens` counts all drafts of the step. So does `num_output_placeholders` under
        asynchronous scheduling; else it is 0 and stays 0. A request preempted since then has
        `num_computed_tokens` 0, so nothing is left to take back there. Its placeholders still count this
        step, so the rejected ones come off all the same. Those of the `num_generated` tokens are not yours:
        `AsyncScheduler` takes them off when the tokens are appended.
        """
        raise NotImplementedError

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int]
    ) -> tuple[list[int], bool]:
        """Append the step's tokens to the request, up to the one that ends it.

        `request.append_output_token_ids(token)` appends one token. `check_stop(request,
        self.max_model_len)` then says whether that token ends the request, and sets its status if so.
        Leave the counters alone.

        Returns: the tokens that the user gets, the ending one included; and whether the request has ended.
        """
        raise NotImplementedError


class AsyncScheduler(ahead.AsyncScheduler, Scheduler):
    """Your methods under asynchronous scheduling, with two steps in flight (given).

    A step is scheduled before the previous step's result is known. The previous step leaves a placeholder
    for the token it samples and one for each of its drafts, as if all were accepted. Drafts are -1 here: only
    the worker knows them, and `update_draft_token_ids` is never called.
    """
