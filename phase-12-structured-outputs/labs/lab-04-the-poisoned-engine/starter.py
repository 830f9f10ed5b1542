"""Lab 12-04: the poisoned engine. Your work: every NotImplementedError."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.admission import AdmissionRule
from mini_vllm.core.sched.output import EngineCoreOutput
from mini_vllm.core.sched.scheduler import Scheduler


@dataclass(frozen=True)
class Rule:
    """What a request's rule does in vLLM, as recorded. Given.

    Attributes:
        pattern_properties: whether it is a JSON schema with `patternProperties` somewhere.
        checked: by backend (`xgrammar`, `guidance`, `outlines`), whether that backend's check takes the rule.
        compiled: by the backend whose check it has passed, and then by the engine's backend, what the
            engine's backend makes of it: `grammar`, `end only` or `raises`.
            `compiled["xgrammar"]["guidance"]`: passed by xgrammar's check, compiled by guidance. The first
            key is there only if that check takes the rule.
    """

    name: str
    pattern_properties: bool
    checked: Mapping[str, bool]
    compiled: Mapping[str, Mapping[str, str]]


def predictions() -> dict[str, Any]:
    """Your answers to the README's seven questions, under the names given there."""
    raise NotImplementedError


# ---- the two rules -------------------------------------------------------------------------------


def choose_backend(setting: str, rule: Rule) -> str | None:
    """The backend that a request is given; None: it is refused.

    Args:
        setting: `auto`, or the backend that the engine was started with.
    """
    raise NotImplementedError


def predict(setting: str, rules: list[Rule]) -> list[str]:
    """What becomes of a fresh engine's requests, which come one after another, in this order.

    Returns:
        For each `served`, `empty`, `refused` or `dead`, as the README says.
    """
    raise NotImplementedError


# ---- the fix -------------------------------------------------------------------------------------


class GrammarGate(AdmissionRule):
    """At the gate of admission a request waits for its grammar.

    Attributes:
        compiling: by request id the future of its grammar, from `add` until the request has its grammar
            or `end_failed` has dealt with it. If a client leaves, nothing tells the gate.
    """

    blocked_status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR

    def __init__(self) -> None:
        """Given."""
        self.compiling: dict[str, Future[Any]] = {}

    def add(self, request: Request, future: Future[Any]) -> None:
        """Given. A bound request has come: it is to wait. Called before the scheduler has the request."""
        request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        self.compiling[request.request_id] = future

    def is_ready(self, request: Request) -> bool:
        """Whether a request that waits has its grammar; then it is no longer in `compiling`.

        The scheduler calls this in each step for each request that waits, as long as there are places in
        the batch. It neither waits nor raises, however the compilation ended: a future that is not done
        is asked for neither result nor exception.
        """
        raise NotImplementedError

    def failed(self) -> dict[str, str]:
        """Those in `compiling` whose compilation has ended without a grammar, and why.

        The reason holds the text of whatever was raised, which may be no `Exception`: what a Rust library
        raises when it panics derives from `BaseException`. A cancelled compilation has failed, too; its
        reason is `cancelled`.
        """
        raise NotImplementedError


def end_failed(scheduler: Scheduler, gate: GrammarGate) -> list[EngineCoreOutput]:
    """End each request whose grammar failed, and no other. Called at the end of each step.

    `scheduler.finish_requests(request_id, RequestStatus.FINISHED_ERROR)` takes a request out of its queue,
    gives its blocks back and returns the ids that were alive: `[request_id]`, or `[]` if the client has left.
    Either way the request is then no longer in `compiling`. Several may fail in one step.

    Returns:
        For each request that was alive an output without tokens, whose `finish_reason` is `error` and whose
        `stop_reason` is the reason. `EngineCoreOutput` has the fields `request_id`, `new_token_ids`,
        `finish_reason` and `stop_reason`.
    """
    raise NotImplementedError


# ---- the test ------------------------------------------------------------------------------------


def check_no_request_stops_another(make_engine: Callable[[], Any]) -> None:
    """Raises an AssertionError if a rule that does not compile disturbs anything but its own request.

    Args:
        make_engine: each call makes a new engine, in which four requests run at once. It has:
            `add(request_id, rule)`: a request comes; its rule is None or the name of one. `fine` compiles,
                `raises` fails by a ValueError, `panics` by something that is no Exception.
            `run()`: steps until all requests have finished, or for 60 steps. What a step raises comes out.
                A grammar takes 2 steps, and then a request takes 4; add more when `run` has returned.
            `unfinished()`: a list of the ids of requests that have not finished.
            `ended`: by id how each finished request ended, with `tokens`, `finish_reason` and
                `stop_reason`; two are equal if the three are. Tokens depend on the id alone.

    A healthy engine passes. These do not:
        - something that a failed compilation raised comes out of `run`, of either kind;
        - the failed request, of either kind, never ends, or ends by something else than `error`, or its
          `stop_reason` does not hold the word `raises` or `panics`, which the exceptions' texts hold;
        - another request ends otherwise than without the failed one: one that came before or after it,
          bound or free, or one that comes when all others have finished.
    """
    raise NotImplementedError
