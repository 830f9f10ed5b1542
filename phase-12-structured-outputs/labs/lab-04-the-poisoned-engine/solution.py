"""Lab 12-04: the poisoned engine. The reference solution."""

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
    """What a request's rule does in vLLM, as recorded.

    Attributes:
        pattern_properties: whether it is a JSON schema with `patternProperties` somewhere.
        checked: by backend, whether that backend's check takes the rule.
        compiled: by the backend whose check it has passed, and then by the engine's backend, what the
            engine's backend makes of it: `grammar`, `end only` or `raises`.
    """

    name: str
    pattern_properties: bool
    checked: Mapping[str, bool]
    compiled: Mapping[str, Mapping[str, str]]


def predictions() -> dict[str, Any]:
    """Answers to the README's seven questions."""
    return {
        "part, name": ("served", "dead"),
        "name, part": ("served", "served"),
        "name, not 7": ("served", "empty"),
        "labels, kind": ("served", "dead"),
        "set, name, part": ("refused", "served", "served"),
        "named": ("served", "refused"),
        "alone": ["nothing", "off"],
    }


# ---- the two rules -------------------------------------------------------------------------------


def choose_backend(setting: str, rule: Rule) -> str | None:
    """The backend that a request is given; None: it is refused."""
    if setting != "auto":
        chosen = setting
    elif rule.checked["xgrammar"]:
        chosen = "xgrammar"
    else:
        chosen = "outlines" if rule.pattern_properties else "guidance"
    return chosen if rule.checked[chosen] else None


def predict(setting: str, rules: list[Rule]) -> list[str]:
    """What becomes of an engine's requests, one after another."""
    engine: str | None = None
    outcomes: list[str] = []
    for rule in rules:
        chosen = choose_backend(setting, rule)
        if outcomes and outcomes[-1] == "dead":
            outcomes.append("dead")
            continue
        if chosen is None:
            outcomes.append("refused")
            continue
        engine = engine or chosen
        made = rule.compiled[chosen][engine]
        outcomes.append({"grammar": "served", "end only": "empty", "raises": "dead"}[made])
    return outcomes


# ---- the fix -------------------------------------------------------------------------------------


class GrammarGate(AdmissionRule):
    """At the gate of admission a request waits for its grammar.

    Attributes:
        compiling: by request id the future of its grammar, from `add` until the request has its grammar
            or has ended.
    """

    blocked_status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR

    def __init__(self) -> None:
        self.compiling: dict[str, Future[Any]] = {}

    def add(self, request: Request, future: Future[Any]) -> None:
        """A bound request has come: it is to wait."""
        request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        self.compiling[request.request_id] = future

    def is_ready(self, request: Request) -> bool:
        """Whether the grammar is there. Neither waits nor raises."""
        future = self.compiling[request.request_id]
        if not future.done() or reason_of(future) is not None:
            return False
        del self.compiling[request.request_id]
        return True

    def failed(self) -> dict[str, str]:
        """By request id why there will be no grammar."""
        reasons = {i: reason_of(future) for i, future in self.compiling.items() if future.done()}
        return {i: reason for i, reason in reasons.items() if reason is not None}


def reason_of(future: Future[Any]) -> str | None:
    """Of a future that is done: why it has no result; None: it has one."""
    if future.cancelled():
        return "cancelled"
    error = future.exception()
    return None if error is None else f"{type(error).__name__}: {error}"


def end_failed(scheduler: Scheduler, gate: GrammarGate) -> list[EngineCoreOutput]:
    """End each request whose grammar failed, and no other."""
    outputs = []
    for request_id, reason in gate.failed().items():
        del gate.compiling[request_id]
        if scheduler.finish_requests(request_id, RequestStatus.FINISHED_ERROR):
            outputs.append(EngineCoreOutput(request_id, [], "error", reason))
    return outputs


# ---- the test ------------------------------------------------------------------------------------


def check_no_request_stops_another(make_engine: Callable[[], Any]) -> None:
    """Fails by an AssertionError if a rule that does not compile disturbs anything but its own request."""

    def play(*bad: str) -> dict[str, Any]:
        engine = make_engine()
        engine.add("before", "fine")
        if bad:
            engine.add("bad", bad[0])
        engine.add("bound", "fine")
        engine.add("free", None)
        try:
            engine.run()
            engine.add("after", "fine")
            engine.run()
        except BaseException as error:  # a library written in Rust raises what is no Exception
            raise AssertionError(f"the engine stopped: {error}") from error
        assert not engine.unfinished(), f"unfinished: {engine.unfinished()}"
        return dict(engine.ended)

    alone = play()
    for rule in ("raises", "panics"):
        ended = play(rule)
        bad = ended.pop("bad", None)
        assert bad is not None, "the bad request never ends"
        assert bad.finish_reason == "error", f"the bad request ends by {bad.finish_reason}"
        assert rule in str(bad.stop_reason), "the reason does not name what happened"
        assert ended == alone, "others' outputs have changed"
