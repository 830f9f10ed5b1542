"""Lab 01-04: watch the batch. The reference solution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.engine.step_record import StepRecord

# ---- given ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BatchStep:
    """What one step had in it. Tuples of request ids are in scheduling order.

    Attributes:
        index: the step's number, from 1, as the engine counts: `record.index`.
        num_scheduled_tokens: request id to the tokens computed for it, in scheduling order.
        prefills: the requests that read tokens: of a prompt, or once more after a preemption.
        decodes: the requests that computed just the token they had sampled last.
        joined: admitted in this step, new or back from a preemption.
        sampled: got a token.
        finished: the core ended them (`finish_reason`). A stop string is found by the front end,
            which aborts: it does not show here.
        preempted: lost their blocks in this step's schedule, sorted.
        waiting: in line and not admitted, in the queue's order: the deferred ones. A preempted
            request is in line again.
        budget: tokens the step could have computed at most.
    """

    index: int
    num_scheduled_tokens: dict[str, int]
    prefills: tuple[str, ...]
    decodes: tuple[str, ...]
    joined: tuple[str, ...]
    sampled: tuple[str, ...]
    finished: tuple[str, ...]
    preempted: tuple[str, ...]
    waiting: tuple[str, ...]
    budget: int

    @property
    def num_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


@dataclass
class RequestLedger:
    """What a request has had from the engine so far. Tokens, but for `num_admissions`.

    Attributes:
        num_prompt_tokens: of its prompt.
        num_computed_tokens: in the cache when the last step was over.
        num_scheduled: computed for it, over all steps.
        num_cached: found in the prefix cache, over all its admissions.
        num_lost: computed or found, and thrown away at a preemption, over all preemptions.
        num_sampled: given to the client.
        num_admissions: 1, and 1 more each time it came back from a preemption.
    """

    num_prompt_tokens: int
    num_computed_tokens: int = 0
    num_scheduled: int = 0
    num_cached: int = 0
    num_lost: int = 0
    num_sampled: int = 0
    num_admissions: int = 0
    finished: bool = False


def is_mixed(step: BatchStep) -> bool:
    """Whether a prefill and a decode share the step."""
    return bool(step.prefills and step.decodes)


# ---- reading a step ------------------------------------------------------------------------------


def is_decode(ledger: RequestLedger, num_computed_tokens: int) -> bool:
    """Whether a request that has so many tokens computed needs only the one it sampled last."""
    num_tokens = ledger.num_prompt_tokens + ledger.num_sampled
    return ledger.num_sampled > 0 and num_computed_tokens == num_tokens - 1


# ---- the probe -----------------------------------------------------------------------------------


class BatchProbe:
    """Watches an engine from now on, until `detach`. It reads, and touches nothing.

    Put it on while no request runs, because it is told of a prompt once, at its admission. The engine
    may have done steps before.

    Attributes:
        steps: one entry per step.
        ledgers: request id to its ledger, for requests that were admitted. An id that is used
            again starts a new one.
    """

    def __init__(self, engine: LLMEngine) -> None:
        self.core = engine.engine_core
        self.steps: list[BatchStep] = []
        self.ledgers: dict[str, RequestLedger] = {}
        self.core.step_observers.append(self.observe)

    def update_ledgers(self, record: StepRecord) -> tuple[list[str], list[str]]:
        """Bring the ledgers up to date, and say who prefilled and who decoded, in scheduling order."""
        output = record.scheduler_output
        for req_id in output.preempted_req_ids:
            ledger = self.ledgers[req_id]
            ledger.num_lost += ledger.num_computed_tokens
            ledger.num_computed_tokens = 0

        computed: dict[str, int] = {}  # before the step
        for new in output.scheduled_new_reqs:
            self.ledgers[new.req_id] = RequestLedger(len(new.prompt_token_ids))
            computed[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        admitted = {new.req_id for new in output.scheduled_new_reqs} | cached.resumed_req_ids

        prefills, decodes = [], []
        for req_id, num_tokens in output.num_scheduled_tokens.items():
            ledger = self.ledgers[req_id]
            if is_decode(ledger, computed[req_id]):
                decodes.append(req_id)
            else:
                prefills.append(req_id)
            if req_id in admitted:
                ledger.num_admissions += 1
                ledger.num_cached += computed[req_id]
            ledger.num_scheduled += num_tokens
            ledger.num_computed_tokens = computed[req_id] + num_tokens
        for news in record.outputs:
            ledger = self.ledgers[news.request_id]
            ledger.num_sampled += len(news.new_token_ids)
            ledger.finished = news.finish_reason is not None
        return prefills, decodes

    # -- given ------------------------------------------------------------------------------------

    def detach(self) -> None:
        self.core.step_observers.remove(self.observe)

    def observe(self, record: StepRecord) -> None:
        """Write down one step, also one without tokens: copies, not the engine's own dicts."""
        output, scheduler = record.scheduler_output, self.core.scheduler
        prefills, decodes = self.update_ledgers(record)
        joining = {new.req_id for new in output.scheduled_new_reqs}
        joining |= output.scheduled_cached_reqs.resumed_req_ids
        self.steps.append(
            BatchStep(
                record.index,
                dict(output.num_scheduled_tokens),
                prefills=tuple(prefills),
                decodes=tuple(decodes),
                joined=tuple(r for r in output.num_scheduled_tokens if r in joining),
                sampled=tuple(news.request_id for news in record.outputs),
                finished=tuple(n.request_id for n in record.outputs if n.finish_reason),
                preempted=tuple(sorted(output.preempted_req_ids)),
                waiting=tuple(request.request_id for request in scheduler.waiting),
                budget=scheduler.max_num_scheduled_tokens,
            )
        )


# ---- conservation --------------------------------------------------------------------------------


def expected_scheduled(ledger: RequestLedger) -> int:
    """The tokens that must have been computed for a request that has finished, to the token."""
    through = ledger.num_prompt_tokens + ledger.num_sampled - 1
    return through - ledger.num_cached + ledger.num_lost


# ---- a measure -----------------------------------------------------------------------------------


def time_to_first_token(steps: Sequence[BatchStep], request_id: str) -> tuple[int, int]:
    """From the first step that saw the request to its first token: steps, and tokens computed."""
    num_steps = num_tokens = 0
    for step in steps:
        if num_steps or request_id in step.waiting or request_id in step.num_scheduled_tokens:
            num_steps += 1
            num_tokens += step.num_tokens
        if request_id in step.sampled:
            return num_steps, num_tokens
    raise ValueError(f"request {request_id!r} has no token in these {len(steps)} steps")


# ---- given: more measures ------------------------------------------------------------------------


def longest_gap(steps: Sequence[BatchStep], request_id: str) -> int:
    """The most tokens that the engine computed from one token of the request to its next.

    The steps after the one that gave a token, through the one that gave the next, whether the
    request was in them or not. 0 for a request with fewer than two tokens.
    """
    longest = 0
    gap: int | None = None
    for step in steps:
        if gap is not None:
            gap += step.num_tokens
        if request_id in step.sampled:
            longest = max(longest, gap or 0)
            gap = 0
    return longest


def budget_use(steps: Sequence[BatchStep]) -> float:
    """The share of the token budget that was used, over all steps; 0.0 without steps."""
    budget = sum(step.budget for step in steps)
    return sum(step.num_tokens for step in steps) / budget if budget else 0.0


def batch_size(steps: Sequence[BatchStep]) -> float:
    """Requests in a step on average; 0.0 without steps."""
    if not steps:
        return 0.0
    return sum(len(step.num_scheduled_tokens) for step in steps) / len(steps)


def static_steps(num_output_tokens: Sequence[int], seats: int) -> int:
    """Steps that static batching takes for the same requests.

    It fills its `seats` with the next requests in line, runs them until the longest of them is
    finished, and only then lets the next ones in. Each request gets one token per step, the first in
    the step that computes its prompt.

    Args:
        num_output_tokens: of each request, in the order of arrival.
        seats: requests that run at once.
    """
    groups = range(0, len(num_output_tokens), seats)
    return sum(max(num_output_tokens[start : start + seats]) for start in groups)
