"""Where a release decides otherwise than the pin, and which rules account for it. Offline.

The engine decides the workloads by a release's rules. Where its digest is the recorded one, it has taken
every decision of that release. Each rule alone, put on the pin, shows in which workloads that rule matters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course.drift.record import fetch, record_one
from course.drift.workloads import STEPS, Case, cases, digest
from course.learner.labs import CourseError
from course.parity.decisions import mini_parts
from course.parity.record import record
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.releases import PIN, RELEASES, Rule, put_on, rules_of
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.core.sched.upstream_scheduler import UpstreamAsyncScheduler, UpstreamScheduler

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Results:
    """What a release came to.

    Attributes:
        release: whose scheduler decided.
        recorded: the date.
        outcomes: of each case, its digest, or a sentence where the release did not bring it to its end.
    """

    release: str
    recorded: str
    outcomes: tuple[str, ...]

    def save(self) -> Path:
        data = {"release": self.release, "recorded": self.recorded, "outcomes": {}}
        for case, outcome in zip(cases(), self.outcomes, strict=True):
            data["outcomes"].setdefault(case.group, []).append(outcome)  # type: ignore[attr-defined]
        path = RESULTS / f"{self.release}.json"
        lines = json.dumps(data, indent=None, separators=(", ", ": ")).replace('], "', '],\n"')
        path.write_text(lines + "\n", encoding="utf-8")
        return path


def recorded_releases() -> list[str]:
    """The releases with results, the pin first."""
    return sorted(
        (path.stem for path in RESULTS.glob("*.json")), key=lambda r: [int(n) for n in r.split(".")]
    )


def load(release: str) -> Results:
    """The committed results of a release.

    Raises CourseError if there are none, or if they are of other workloads.
    """
    path = RESULTS / f"{release}.json"
    if not path.is_file():
        raise CourseError(
            f"{release} is not recorded yet, only {', '.join(recorded_releases())}. To record it: "
            f"course drift {release} --record, in SETUP.md's second environment"
        )
    data = json.loads(path.read_text(encoding="utf-8"))
    outcomes = tuple(outcome for group in data["outcomes"].values() for outcome in group)
    if len(outcomes) != len(cases()):
        raise CourseError(
            f"{path} has {len(outcomes)} outcomes for {len(cases())} workloads: record it again"
        )
    return Results(data["release"], data["recorded"], outcomes)


def is_digest(outcome: str) -> bool:
    return len(outcome) == 10


def maker(
    case: Case, rules: Iterable[Rule], scheduler_class: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """What makes the scheduler of a workload, with these rules on it."""
    priority = case.work["config"]["policy"] == "priority"
    usual: Callable[..., Any]
    if case.ahead:
        usual = UpstreamAsyncScheduler if priority else AsyncScheduler
    else:
        usual = UpstreamScheduler if priority else Scheduler

    def make_scheduler(*args: Any) -> Any:
        scheduler = (scheduler_class or usual)(*args)
        put_on(scheduler, rules)
        manager = getattr(scheduler, "kv_cache_manager", None)
        if manager is not None:  # vLLM accepts what might come to need more than there is
            manager.max_blocks_needed = lambda *args: 0
        return scheduler

    return make_scheduler


def decide(
    case: Case,
    rules: Iterable[Rule] = (),
    scheduler_class: Callable[..., Any] | None = None,
    fields: Sequence[str] | None = None,
) -> str:
    """What the engine makes of a workload by these rules: its digest, or the error in a sentence.

    Args:
        scheduler_class: decides in the place of the engine's own, which does under `priority` what vLLM does.
        fields: of the steps, look at these only.
    """
    try:
        parts = mini_parts(case.work["config"], maker(case, rules, scheduler_class))
        return digest(record(case.work, parts, case.ahead, STEPS), fields)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class Comparison:
    """One workload of one release.

    Attributes:
        outcome: what the release came to.
        changed: whether that is not what the pin came to.
        explained: whether the engine decides as the release, by its rules. None: the release did not end.
    """

    case: Case
    outcome: str
    changed: bool
    explained: bool | None


def compare(release: str, scheduler_class: Callable[..., Any] | None = None) -> list[Comparison]:
    """Each workload of a release beside the pin's outcome, and beside the engine's by the release's rules, or
    beside that of another scheduler.

    A release that the engine does not know is compared with the newest that it knows.

    Raises CourseError as `load`.
    """
    known = release if release in RELEASES else RELEASES[-1]
    rules = rules_of(known) if scheduler_class is None else ()
    at_pin, results = load(PIN), load(release)
    found = []
    for case, before, now in zip(cases(), at_pin.outcomes, results.outcomes, strict=True):
        explained = decide(case, rules, scheduler_class) == now if is_digest(now) else None
        found.append(Comparison(case, now, now != before, explained))
    return found


def changed_by(rule: Rule) -> dict[str, int]:
    """In how many workloads of each group the rule matters in its first release: without it the engine would
    decide otherwise there."""
    rules = rules_of(rule.first)
    others = [other for other in rules if other is not rule]
    counts: dict[str, int] = {}
    for case in cases():
        if decide(case, rules) != decide(case, others):
            counts[case.group] = counts.get(case.group, 0) + 1
    return counts


def scheduled_otherwise(release: str) -> int:
    """In how many workloads that this release ends another request is scheduled or preempted than at the pin,
    or with another number of tokens. In the others only blocks differ, if anything does."""
    rules, fields = rules_of(release), ("scheduled", "preempted")
    ended = zip(cases(), load(release).outcomes, strict=True)
    return sum(
        decide(case, fields=fields) != decide(case, rules, fields=fields)
        for case, outcome in ended
        if is_digest(outcome)
    )


def explain_first(release: str, group: str, name: str) -> str:
    """The first step at which the engine by the release's rules differs from the release, each field of both.

    Raises CourseError if there is no such workload, or this environment cannot run vLLM.
    """
    number = next((i for i, c in enumerate(cases()) if (c.group, c.name) == (group, name)), None)
    if number is None:
        raise CourseError(
            f"there is no workload {group!r} {name!r}: course drift {release} names them"
        )
    case, theirs = cases()[number], record_one(fetch(release), number)
    rules = rules_of(release if release in RELEASES else RELEASES[-1])
    ours = record(case.work, mini_parts(case.work["config"], maker(case, rules)), case.ahead, STEPS)
    for step, (one, other) in enumerate(zip(theirs["steps"], ours["steps"], strict=False)):
        unlike = [key for key in one if one.get(key) != other.get(key)]
        if unlike:
            lines = [f"{case.work['config']}", f"step {step}:"]
            for key in unlike:
                lines += [f"  {key}", f"    vLLM {one.get(key)}", f"    here {other.get(key)}"]
            return "\n".join(lines)
    return f"{len(ours['steps'])} steps, none differs"
