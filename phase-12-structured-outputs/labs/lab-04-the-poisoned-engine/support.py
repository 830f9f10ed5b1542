"""What the tests and scripts share: real vLLM's outcomes, and an engine for your gate, well or poisoned."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from course.parity.decisions import mini_parts
from course.parity.workloads import Arrival, Config
from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.admission import AdmissionRule
from mini_vllm.core.sched.output import EngineCoreOutput
from mini_vllm.core.sched.scheduler import Scheduler

RECORDED = Path(__file__).resolve().parent / "recorded.json"
STEPS = 60
"""An engine that is not done after so many steps has hung."""


@cache
def recorded() -> dict[str, Any]:
    """What real vLLM 0.22.1 did.

    `rules`: of each rule which checks take it, and what engines make of it. `runs`: the outcomes of some
    engines' requests, one after another.
    """
    found: dict[str, Any] = json.loads(RECORDED.read_text("utf-8"))
    return found


def rule_of(lab: Any, name: str) -> Any:
    """A recorded rule as the learner's `Rule`."""
    facts = recorded()["rules"][name]
    return lab.Rule(name, name == "labels", facts["checked"], facts["compiled"])


def runs(setting: str) -> list[tuple[list[str], list[str]]]:
    """With a setting: the requests of each engine, and what became of them."""
    return [(r["requests"], r["outcomes"]) for r in recorded()["runs"] if r["setting"] == setting]


# ---- an engine -------------------------------------------------------------------------------------


class PanicException(BaseException):
    """What a library written in Rust raises, under this name: no Exception."""


@dataclass(frozen=True)
class Ended:
    """How a request ended."""

    tokens: tuple[int, ...]
    finish_reason: str | None
    stop_reason: int | str | None


class Watched(Future[Any]):
    """A future that does not let itself be waited for: a gate that waits would hang here for ever."""

    def result(self, timeout: float | None = None) -> Any:
        assert self.done(), (
            "the gate asks for a result that is not there: `is_ready` is not to wait"
        )
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        assert self.done(), (
            "the gate asks for the exception of a future that is not done: it is not to wait"
        )
        return super().exception(timeout)


RULES: dict[str, tuple[int, Callable[[Future[Any]], Any]]] = {
    "fine": (2, lambda f: f.set_result("grammar")),
    "slow": (6, lambda f: f.set_result("grammar")),
    "raises": (2, lambda f: f.set_exception(ValueError("this rule raises"))),
    "panics": (2, lambda f: f.set_exception(PanicException("this rule panics"))),
    "cancelled": (2, lambda f: f.cancel()),
}
"""Of each rule, how many steps its compilation takes, and how that ends."""


class Engine:
    """`mini_vllm`'s scheduler, with a gate, a compiler that takes steps, and no model.

    A request's tokens depend on nothing but its id, so a change in them is a change in what was scheduled
    for it. A request has a prompt of 8 tokens and wants 4.

    Args:
        gate: as the starter's `GrammarGate`.
        end_failed: as the starter's.
        places: `max_num_seqs`.

    Attributes:
        ended: by id how each finished request ended, and in `last_step` in which step.
    """

    def __init__(
        self,
        gate: Any,
        end_failed: Callable[[Scheduler, Any], list[EngineCoreOutput]],
        places: int = 4,
        num_blocks: int = 32,
    ) -> None:
        config: Config = {
            "block_size": 4, "num_blocks": num_blocks, "max_num_seqs": places,
            "max_num_batched_tokens": 64, "long_prefill_token_threshold": 0,
            "enable_prefix_caching": False, "max_model_len": 64, "policy": "fcfs",
        }  # fmt: skip
        self.gate, self.end_failed = gate, end_failed

        def make_scheduler(config: Any) -> Scheduler:
            return Scheduler(config, admission_rules=[gate])

        self.parts = mini_parts(config, make_scheduler)
        self.scheduler: Scheduler = self.parts.scheduler
        self.step_number = 0
        self.ended: dict[str, Ended] = {}
        self.last_step: dict[str, int] = {}
        self.compiling: list[tuple[int, str, Future[Any]]] = []
        self._tokens: dict[str, list[int]] = {}

    def add(self, request_id: str, rule: str | None) -> None:
        """A request comes, with a rule of RULES or none."""
        arrival: Arrival = {
            "id": request_id, "step": 0, "prompt": [5] * 8, "max_tokens": 4, "ignore_eos": True,
            "priority": 0, "abort": None,
        }  # fmt: skip
        request = self.parts.make_request(arrival, len(self._tokens))
        self._tokens[request_id] = []
        if rule is not None:
            future = Watched()
            self.compiling.append((self.step_number + RULES[rule][0], rule, future))
            self.gate.add(request, future)
        self.scheduler.add_request(request)

    def abort(self, request_id: str) -> None:
        """A client leaves. The gate is not told."""
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def step(self) -> list[EngineCoreOutput]:
        """One step. What the gate or `end_failed` raises comes out of it."""
        for due, rule, future in self.compiling:
            if due == self.step_number:
                RULES[rule][1](future)
        self.step_number += 1
        plan = self.scheduler.schedule()
        ids = list(plan.num_scheduled_tokens)
        sampled = [[10 + (len(self._tokens[i]) + len(i)) % 7] for i in ids]
        outputs = self.scheduler.update_from_output(plan, self.parts.make_output(ids, sampled))
        outputs = [*outputs, *self.end_failed(self.scheduler, self.gate)]
        for output in outputs:
            self._tokens[output.request_id] += output.new_token_ids
            if output.finish_reason is not None:
                tokens = tuple(self._tokens[output.request_id])
                ended = Ended(tokens, output.finish_reason, output.stop_reason)
                self.ended[output.request_id] = ended
                self.last_step[output.request_id] = self.step_number
        return outputs

    def run(self) -> None:
        """Steps until every request has finished, or STEPS are over."""
        for _ in range(STEPS):
            if not self.unfinished():
                break
            self.step()

    def unfinished(self) -> list[str]:
        """The ids of requests that have not finished."""
        return list(self.scheduler.requests)

    def free_blocks(self) -> int:
        """KV blocks that no request holds."""
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


# ---- engines that are not well ---------------------------------------------------------------------


class _Gate(AdmissionRule):
    """A gate that is right, on which the poisoned ones are built."""

    blocked_status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR

    def __init__(self) -> None:
        self.futures: dict[str, Future[Any]] = {}

    def add(self, request: Request, future: Future[Any]) -> None:
        request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        self.futures[request.request_id] = future

    def is_ready(self, request: Request) -> bool:
        future = self.futures[request.request_id]
        return future.done() and not _why(future)


def _why(future: Future[Any]) -> str:
    """Why a future that is done has no result."""
    try:
        error = future.exception()
    except CancelledError:
        return "cancelled"
    return "" if error is None else str(error)


def _failed(scheduler: Scheduler, gate: _Gate) -> dict[str, str]:
    return {
        i: why for i, f in gate.futures.items() if i in scheduler.requests and f.done() and (why := _why(f))
    }  # fmt: skip


def _end(scheduler: Scheduler, ids: list[str], reason: str, why: str) -> list[EngineCoreOutput]:
    ended = scheduler.finish_requests(ids, RequestStatus.FINISHED_ERROR)
    return [EngineCoreOutput(i, [], reason, why) for i in ended]


def _well(scheduler: Scheduler, gate: _Gate) -> list[EngineCoreOutput]:
    failed = _failed(scheduler, gate)
    return [output for i, why in failed.items() for output in _end(scheduler, [i], "error", why)]


class _AsThePin(_Gate):
    """The exception comes out of whatever asks for the grammar."""

    def is_ready(self, request: Request) -> bool:
        future = self.futures[request.request_id]
        return future.done() and future.result() is not None


def _only_exceptions(scheduler: Scheduler, gate: _Gate) -> list[EngineCoreOutput]:
    outputs = []
    for request_id, why in _failed(scheduler, gate).items():
        if isinstance(gate.futures[request_id].exception(), Exception):
            outputs += _end(scheduler, [request_id], "error", why)
    return outputs


def _only_panics(scheduler: Scheduler, gate: _Gate) -> list[EngineCoreOutput]:
    outputs = []
    for request_id, why in _failed(scheduler, gate).items():
        if not isinstance(gate.futures[request_id].exception(), Exception):
            outputs += _end(scheduler, [request_id], "error", why)
    return outputs


def _with_others(
    who: Callable[[list[str], str, _Gate], list[str]],
) -> Callable[[Scheduler, _Gate], list[EngineCoreOutput]]:
    """Ends, beside a failed request, those that `who` picks of all that are alive, in the order they came."""

    def end(scheduler: Scheduler, gate: _Gate) -> list[EngineCoreOutput]:
        outputs = []
        for request_id, why in _failed(scheduler, gate).items():
            others = who(list(scheduler.requests), request_id, gate)
            outputs += _end(scheduler, [request_id, *others], "error", why)
        return outputs

    return end


def _earlier(alive: list[str], failed: str, gate: _Gate) -> list[str]:
    return alive[: alive.index(failed)]


def _later_and_bound(alive: list[str], failed: str, gate: _Gate) -> list[str]:
    return [i for i in alive[alive.index(failed) + 1 :] if i in gate.futures]


def _free(alive: list[str], failed: str, gate: _Gate) -> list[str]:
    return [i for i in alive if i not in gate.futures]


def _silently(scheduler: Scheduler, gate: _Gate) -> list[EngineCoreOutput]:
    """As guidance's grammar does that allows the end token alone."""
    return [o for i in _failed(scheduler, gate) for o in _end(scheduler, [i], "stop", "")]


def _aborted(scheduler: Scheduler, gate: _Gate) -> list[EngineCoreOutput]:
    return [
        o for i, why in _failed(scheduler, gate).items() for o in _end(scheduler, [i], "abort", why)
    ]


def _without_reason(scheduler: Scheduler, gate: _Gate) -> list[EngineCoreOutput]:
    return [o for i in _failed(scheduler, gate) for o in _end(scheduler, [i], "error", "failed")]


def _never(scheduler: Scheduler, gate: _Gate) -> list[EngineCoreOutput]:
    return []


class _CatchesExceptions(_Gate):
    """A panic comes out."""

    def is_ready(self, request: Request) -> bool:
        future = self.futures[request.request_id]
        try:
            return future.done() and future.result() is not None
        except Exception:
            return False


class _LosesItsCompiler(_Gate):
    """The rules of requests that come after a failure are never ready."""

    def __init__(self) -> None:
        super().__init__()
        self.stuck: set[str] = set()

    def add(self, request: Request, future: Future[Any]) -> None:
        if any(f.done() and _why(f) for f in self.futures.values()):
            self.stuck.add(request.request_id)
        super().add(request, future)

    def is_ready(self, request: Request) -> bool:
        return super().is_ready(request) and request.request_id not in self.stuck


class _MixesTokens(Engine):
    """A failure changes the latest token of each request that is running; all end as usual."""

    def step(self) -> list[EngineCoreOutput]:
        outputs = super().step()
        if any(output.finish_reason == "error" for output in outputs):
            for tokens in self._tokens.values():
                tokens[-1:] = [99] * len(tokens[-1:])
        return outputs


WELL: Callable[[], Engine] = lambda: Engine(_Gate(), _well)  # noqa: E731
POISONED: dict[str, Callable[[], Engine]] = {
    "as the pin": lambda: Engine(_AsThePin(), _never),
    "a failed request waits for ever": lambda: Engine(_Gate(), _never),
    "a panic gets out": lambda: Engine(_CatchesExceptions(), _only_exceptions),
    "a panic is overlooked": lambda: Engine(_Gate(), _only_exceptions),
    "an exception is overlooked": lambda: Engine(_Gate(), _only_panics),
    "earlier requests end, too": lambda: Engine(_Gate(), _with_others(_earlier)),
    "later bound requests end, too": lambda: Engine(_Gate(), _with_others(_later_and_bound)),
    "free requests end, too": lambda: Engine(_Gate(), _with_others(_free)),
    "an empty answer": lambda: Engine(_Gate(), _silently),
    "it ends as if aborted": lambda: Engine(_Gate(), _aborted),
    "others' tokens are mixed up": lambda: _MixesTokens(_Gate(), _well),
    "no reason": lambda: Engine(_Gate(), _without_reason),
    "later rules never compile": lambda: Engine(_LosesItsCompiler(), _well),
}
