"""Lab 01-04: watch the batch. Your work: `is_decode`, `BatchProbe.update_ledgers`,
`expected_scheduled` and `time_to_first_token`.

The engine hands each of its `step_observers` a `StepRecord` when a step is over, after the tokens
have been taken in:

    record.index                   number of the step, from 1
    record.scheduler_output        what `schedule()` decided, a `SchedulerOutput`
                                   (mini_vllm/core/sched/output.py)
    record.outputs                 one `EngineCoreOutput` for each request that got a token in it:
                                   request_id, new_token_ids, finish_reason (None: the core goes on)

The counters of the scheduler's own requests have moved by then, and those that finished are no
longer there. So take counts from the record: `scheduler_output` has them as they were before the
step.
"""

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
    """Whether a request that has so many tokens computed needs only the one it sampled last.

    Not the same as "one token in this step": a chunk may be one token long, and so may a prompt.

    Args:
        ledger: as it was before the step.
        num_computed_tokens: before the step, prefix hits included.
    """
    raise NotImplementedError


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
        """Bring the ledgers up to date with one step; `observe` calls it once for each.

        `record.scheduler_output` has:

        - `num_scheduled_tokens`: request id to tokens, in scheduling order;
        - `scheduled_new_reqs`: `req_id`, `prompt_token_ids`, and `num_computed_tokens`, which for
          them is what the prefix cache had. An id that is used again starts a new ledger;
        - `scheduled_cached_reqs`: parallel lists `req_ids` and `num_computed_tokens`, and the set
          `resumed_req_ids` of those that come back from a preemption. For them the count is a
          prefix hit too;
        - `preempted_req_ids`: had their blocks taken while this step was scheduled, with all that
          they had computed in earlier steps. A step without tokens may have some, too.

        Change nothing in what you are given.

        Returns:
            The ids of the requests that read in this step, and of those that decode, each list in
            scheduling order: ask `is_decode`.
        """
        raise NotImplementedError

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
    """The tokens that must have been computed for a request that has finished, to the token.

    A formula of the ledger's other entries: of prompt, sampled, cached and lost. It must equal
    `ledger.num_scheduled`. The README says how to derive it with a pencil.
    """
    raise NotImplementedError


# ---- a measure -----------------------------------------------------------------------------------


def time_to_first_token(steps: Sequence[BatchStep], request_id: str) -> tuple[int, int]:
    """From the first step that saw the request to its first token: steps, and tokens computed.

    A step sees a request that is scheduled in it or waits when it is over. Both ends count, and all
    tokens of these steps, for whichever request: the client waits for all of them.

    Raises ValueError, which names the request, if it has no token in these steps.
    """
    raise NotImplementedError


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
