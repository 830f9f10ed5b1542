"""A small workload for each rule: decided without the rule and with it, up to where the two part.

python -m course.drift.shown     finds a workload for each rule that has none, a quarter of a minute a rule

Both runs have the other rules of the rule's first release. Of the workloads in which the rule matters it is
the shortest that the viewer can draw, or else the shortest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

from course.drift.compare import RESULTS, maker
from course.drift.workloads import STEPS, Case, cases
from course.learner.labs import CourseError
from course.parity.decisions import engine_config, mini_parts
from course.parity.record import record
from course.parity.traces import Trace
from course.parity.workloads import workload
from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.core.sched.output import DraftTokenIds, ModelRunnerOutput, SchedulerOutput
from mini_vllm.core.sched.releases import RULES, Rule, rules_of
from mini_vllm.core.stats import SchedulerStats
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.engine.step_record import StepRecord, StepResult
from mini_vllm.trace import types
from mini_vllm.trace.beside import beside
from mini_vllm.trace.recorder import TraceRecorder

SHOWN = RESULTS / "shown.tsv"
"""Of each rule its name, and the group and the name of its workload. One that is none of `cases` belongs to a
rule that matters in none of them."""
MOST_SAID, MOST_ITEMS = 4, 12
"""Requests of which a field is printed, and items of a list."""


def rule_named(name: str) -> Rule:
    """The rule of this name, or the only one with these words in it. Raises CourseError with all names."""
    found = [rule for rule in RULES if rule.name == name] or [r for r in RULES if name in r.name]
    if len(found) != 1:
        names = "\n".join(f"  {rule.name}" for rule in found or RULES)
        raise CourseError(f"{'no' if not found else 'more than one'} rule {name!r}:\n{names}")
    return found[0]


def case_of(rule: Rule) -> Case:
    """The rule's workload. Raises CourseError if none was found yet."""
    for line in SHOWN.read_text(encoding="utf-8").splitlines():
        known, group, name = line.split("\t")
        if known == rule.name:
            place = (group, name)
            return next((c for c in cases() if (c.group, c.name) == place), None) or _fresh(*place)
    raise CourseError(f"no workload shows {rule.name!r} yet: python -m course.drift.shown")


def _fresh(group: str, name: str) -> Case:
    seed, way = name.split()
    return Case(group, name, workload(int(seed), group.removeprefix("fresh ")), way == "async")


def _both(rule: Rule, case: Case) -> tuple[Trace, Trace]:
    with_it = rules_of(rule.first)
    without = [other for other in with_it if other is not rule]
    return _decided(case, without), _decided(case, with_it)


def _decided(case: Case, rules: Iterable[Rule]) -> Trace:
    parts = mini_parts(case.work["config"], maker(case, rules))
    return record(case.work, parts, case.ahead, STEPS)


def _config(rule: Rule, case: Case) -> ResolvedConfig:
    """The engine's settings for the workload. Raises CourseError where the viewer cannot draw what comes."""
    if "kv_cache_groups" in case.work["config"]:
        raise CourseError(
            f"{rule.name!r} matters only where a request has several block tables, and the viewer draws one"
        )
    try:
        config = engine_config(case.work["config"])
        return replace(config, async_scheduling=case.ahead, rules=rule.first)
    except ValueError as error:
        raise CourseError(f"the viewer cannot draw {case.group} {case.name}: {error}") from error


def can_be_drawn(rule: Rule, case: Case) -> bool:
    try:
        return bool(_config(rule, case))
    except CourseError:
        return False


def find(rule: Rule) -> Case | None:
    """The shortest workload in which the rule matters; None if it matters in none."""
    found: list[tuple[bool, int, int]] = []
    for number, case in enumerate(cases()):
        try:
            without, with_it = _both(rule, case)
        except Exception:  # what a release does not bring to its end, or the engine refuses
            continue
        if without != with_it:
            length = min(len(without["steps"]), len(with_it["steps"]))
            found.append((not can_be_drawn(rule, case), length, number))
    return cases()[min(found)[-1]] if found else None


@dataclass(frozen=True)
class Shown:
    """A rule's workload, decided both ways.

    Attributes:
        at: the first of the steps that differs; with asynchronous scheduling, of the calls.
    """

    rule: Rule
    case: Case
    without: Trace
    with_it: Trace
    at: int

    @property
    def number(self) -> int:
        """The step's number, from 1; of a call, that of its plan."""
        steps: list[Any] = self.without["steps"][: self.at + 1]
        kind = steps[-1].get("call", "")
        return sum(step.get("call", "") == kind for step in steps)


def show(rule: Rule) -> Shown:
    """The rule's workload, decided without the rule and with it.

    Raises CourseError if there is none, or if the rule does not matter there any more.
    """
    case = case_of(rule)
    without, with_it = _both(rule, case)
    both = zip(without["steps"], with_it["steps"], strict=False)
    at = next((n for n, (before, since) in enumerate(both) if before != since), None)
    if at is None:
        raise CourseError(f"{rule.name!r} does not matter in {case.group} {case.name} any more")
    return Shown(rule, case, without, with_it, at)


# --- in words ---


def in_words(shown: Shown, matters_in: int) -> Iterator[str]:
    """What the rule is, its workload, and the first step that differs: both decisions, a field a line.

    Args:
        matters_in: of how many of the 445 workloads that is known.
    """
    rule, case = shown.rule, shown.case
    yield f"{rule.name}, from {rule.first}: {rule.says}"
    here = f"{case.group} {case.name}"
    if matters_in:
        yield f"It matters in {matters_in} of {len(cases())} workloads, for instance in {here}."
    else:
        yield f"It matters in none of the {len(cases())} workloads, but in another one: {here}."
    settings = [f"{k}={v}" for k, v in case.work["config"].items() if v is not True and v != 0]
    yield f"{len(case.work['requests'])} requests, {', '.join(settings)}"
    one: Any = shown.without["steps"][shown.at]
    other: Any = shown.with_it["steps"][shown.at]
    called = {"schedule": "Plan", "update": "The result of plan"}.get(one.get("call"), "Step")
    yield (
        f"{called} {shown.number} is the first that differs. Without the rule, but with the others of "
        f"{rule.first}, and with it:"
    )
    for field in dict.fromkeys((*one, *other)):
        before, since = one.get(field), other.get(field)
        if before != since:
            yield f"  {field.replace('_', ' ')}"
            yield from _field(before, since)


def _field(before: Any, since: Any) -> Iterator[str]:
    if not (isinstance(before, dict) and isinstance(since, dict)):
        yield f"    {_pair(before, since)}"
        return
    unlike = [key for key in dict.fromkeys((*before, *since)) if before.get(key) != since.get(key)]
    if not unlike:
        yield f"    in the order {_pair(list(before), list(since))}"
    for key in unlike[:MOST_SAID]:
        one, other = before.get(key), since.get(key)
        if one and other and _of_lists(one) and _of_lists(other):
            for group, tables in enumerate(zip(one, other, strict=True)):
                if tables[0] != tables[1]:
                    yield f"    {key}, group {group}: {_pair(*tables)}"
        else:
            yield f"    {key}: {_pair(one, other)}"
    if len(unlike) > MOST_SAID:
        yield f"    and {len(unlike) - MOST_SAID} more"


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, int) for each in value)


def _of_lists(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(each, list) for each in value)


def _pair(before: Any, since: Any) -> str:
    """Both; of two tables what follows the part that is the same."""
    start = 0
    if _is_table(before) and _is_table(since):
        both = zip(before, since, strict=False)
        same = next((n for n, (one, other) in enumerate(both) if one != other), None)
        start = min(len(before), len(since)) if same is None else same
    return f"{_short(before, start)}  |  {_short(since, start)}"


def _short(value: Any, start: int) -> str:
    if value is None or value == []:
        return "none"
    if not isinstance(value, list):
        return str(value)
    shown = [str(each) for each in value[start : start + MOST_ITEMS]]
    more = len(value) - start - len(shown)
    return " ".join((["…"] if start else []) + shown + (["…"] if more > 0 else []))


# --- as a page ---


def page(shown: Shown) -> str:
    """Both runs side by side in the viewer, open at the step that differs.

    Raises CourseError where the viewer cannot draw them.
    """
    rule, case = shown.rule, shown.case
    rules = rules_of(rule.first)
    without = _drawn(case, [r for r in rules if r is not rule], rule, "Without the rule")
    with_it = _drawn(case, rules, rule, "With it")
    before: Any = shown.without["steps"][shown.at]
    since: Any = shown.with_it["steps"][shown.at]
    who = [
        i
        for field in ("scheduled", "blocks")
        for i in since.get(field, ())
        if before.get(field, {}).get(i) != since[field][i]
    ]
    title = f"{rule.name}, from vLLM {rule.first} on"
    return beside(
        f"{title[0].upper()}{title[1:]}: step {shown.number} is the first that differs",
        (without, with_it),
        shown.number,
        who[0] if who else None,
    )


def _drawn(case: Case, rules: Iterable[Rule], rule: Rule, title: str) -> types.Trace:
    parts = mini_parts(case.work["config"], maker(case, rules))
    core = _Core(_config(rule, case), parts.scheduler)
    front = SimpleNamespace(request_states={})
    engine = SimpleNamespace(engine_core=core, output_processor=front, tokenizer=None)
    about = f"Both have the other rules of {rule.first}. No model runs: the tokens are made up."
    recorder = TraceRecorder(
        cast(LLMEngine, engine), title, f"{rule.says.replace('`', '')} {about}"
    )
    record(case.work, parts, case.ahead, STEPS)
    return recorder.trace


class _Queue:
    """What the recorder watches of a queue of plans in flight."""

    def __init__(self) -> None:
        self.plan_observers: list[Callable[[SchedulerOutput, float], None]] = []

    def __len__(self) -> int:
        return 0


class _Core:
    """What the recorder watches of an engine core: here a scheduler alone, which `course.parity` drives."""

    def __init__(self, config: ResolvedConfig, scheduler: Any) -> None:
        self.config, self.scheduler = config, scheduler
        self.kv_cache_manager = scheduler.kv_cache_manager
        self.batch_queue = _Queue() if config.async_scheduling else None
        self.step_observers: list[Callable[[StepRecord], None]] = []
        self.num_steps = 0
        self.grammars = self.make_grammars = None  # no workload of these has a rule
        schedule, update = scheduler.schedule, scheduler.update_from_output
        take_drafts = scheduler.update_draft_token_ids
        drafts_follow = config.speculation is not None and self.batch_queue is None
        results: list[StepResult] = []

        def watched_schedule() -> SchedulerOutput:
            plan: SchedulerOutput = schedule()
            if self.batch_queue is not None:
                for observer in self.batch_queue.plan_observers:
                    observer(plan, 0.0)
            return plan

        def watched_update(plan: SchedulerOutput, sampled: ModelRunnerOutput) -> Any:
            outputs = update(plan, sampled)
            results.append(StepResult(plan, sampled, outputs, 0.0, 0.0, 0.0))
            if not drafts_follow:
                tell()
            return outputs

        def watched_drafts(drafts: DraftTokenIds) -> None:
            take_drafts(drafts)
            tell()

        def tell() -> None:
            self.num_steps += 1
            for observer in self.step_observers:
                observer(StepRecord.from_result(self.num_steps, results[-1], SchedulerStats()))

        scheduler.schedule, scheduler.update_from_output = watched_schedule, watched_update
        scheduler.update_draft_token_ids = watched_drafts


def main() -> int:
    """Find a workload for each rule that has none."""
    lines = SHOWN.read_text(encoding="utf-8").splitlines() if SHOWN.is_file() else []
    places = {line.split("\t")[0]: line for line in lines}
    for rule in RULES:
        if rule.name not in places:
            case = find(rule)
            if case is None:
                print(f"{rule.name}: matters in none of the workloads; name another in {SHOWN}")
                continue
            places[rule.name] = f"{rule.name}\t{case.group}\t{case.name}"
    kept = [places[rule.name] for rule in RULES if rule.name in places]
    SHOWN.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
