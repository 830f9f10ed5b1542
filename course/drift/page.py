"""docs/RELEASES.md: what each release decides otherwise than the pin.

The tables are made of the committed results and of `releases.py`; how often a rule matters is counted once, when
the page is written (`python -m course.drift --page`), since it takes a minute a rule.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from course.drift.compare import RESULTS, is_digest, load, recorded_releases
from course.drift.workloads import RECORDED, SEEDS, cases
from course.parity.workloads import SHAPES
from mini_vllm.core.sched.releases import PIN, RELEASES, RULES, Rule, rules_of

PAGE = Path(__file__).parents[2] / "docs" / "RELEASES.md"
COUNTS = RESULTS / "counts.tsv"
GROUPS = (
    ("sync", "scheduler"),
    ("async", "async-scheduler"),
    ("drafts", "drafts"),
    ("groups", "kv-cache-groups"),
    ("block sizes", "kv-cache-block-sizes"),
    ("fresh", "fresh "),
)
_VLLM = "https://github.com/vllm-project/vllm"


def counts() -> dict[str, int]:
    """Of each rule's name, in how many workloads it matters in its first release, as counted last."""
    lines = COUNTS.read_text(encoding="utf-8").splitlines()
    return {name: int(count) for name, count in (line.split("\t") for line in lines)}


def make_page() -> str:
    """The page as it should be."""
    newest = recorded_releases()[-1]
    return "\n\n".join(
        (
            "# What changed in the scheduler since 0.22.1",
            f"The course is pinned at vLLM {PIN}; you work with a later release. This page says which "
            f"*decisions* changed up to {newest}, and which did not. The scheduler, KV cache manager and block "
            "pool of every release decided the same workloads, in the environment of the pin, and each decision "
            "was compared: who is scheduled with how many tokens, who is preempted, which blocks it gets, what "
            "is free. Runner V1, one device, no connector.",
            "## By release",
            _table_of_releases(),
            f"{len(cases())} workloads: {_golden_count()} recorded ones, and fresh ones of {len(SHAPES)} shapes, "
            f"{len(SEEDS)} seeds of each, synchronous and asynchronous. A cell says how many of them a release "
            f"decides otherwise than {PIN}. Most differ by the numbers of their blocks alone, which no user sees.",
            "## By rule",
            _table_of_rules(),
            "*Matters in*: workloads that the engine would decide otherwise in that release without the rule.",
            "## In the engine",
            f"`mini-vllm … --rules {newest}` and `EngineConfig(rules=…)` decide as a release does. The rules "
            "stand in [releases.py](../mini_vllm/core/sched/releases.py). With them every decision of every "
            "workload that a release brings to its end is the release's own: "
            f"{_explained()} digests of {len(recorded_releases())} releases. Greedy tokens stay the same under "
            "all of them.",
            "```console\n$ course drift 0.33.0\n$ course drift 0.33.0 --scheduler my_plugin.py:MyScheduler\n```",
            "## What does not end",
            _unended(),
            "## Unchanged",
            _unchanged(newest),
        )
    ) + "\n"


def _golden_count() -> int:
    return sum(case.group in RECORDED for case in cases())


def _table_of_releases() -> str:
    at_pin = load(PIN).outcomes
    rows = []
    before = at_pin
    for release in recorded_releases()[1:]:
        outcomes = load(release).outcomes
        cells = []
        for _, group in GROUPS:
            here = [
                i for i, case in enumerate(cases())
                if case.group == group or (group == "fresh " and case.group.startswith(group))
            ]  # fmt: skip
            cells.append(f"{sum(outcomes[i] != at_pin[i] for i in here)} of {len(here)}")
        since = sum(now != then for now, then in zip(outcomes, before, strict=True))
        new = [rule.name for rule in RULES if rule.first == release]
        ended = [rule.name for rule in RULES if rule.until == release]
        what = ", ".join([*new, *(f"no longer: {name}" for name in ended)]) or "nothing"
        rows.append(f"| {release} | {' | '.join(cells)} | {since} | {what} |")
        before = outcomes
    head = " | ".join(name for name, _ in GROUPS)
    return "\n".join(
        (
            f"| release | {head} | unlike the release before | new |",
            "| --- |" + " ---: |" * (len(GROUPS) + 1) + " --- |",
            *rows,
        )
    )


def _table_of_rules() -> str:
    counted = counts()
    rows = []
    for rule in RULES:
        span = rule.first if rule.until is None else f"{rule.first} to {_last_before(rule.until)}"
        rows.append(f"| {span} | {rule.name} | {rule.says} | {_link(rule)} | {counted[rule.name]} |")
    return "\n".join(
        ("| from | what | rule | source | matters in |", "| --- | --- | --- | --- | ---: |", *rows)
    )


def _last_before(release: str) -> str:
    return RELEASES[RELEASES.index(release) - 1]


def _link(rule: Rule) -> str:
    if rule.source is None:
        return "not found"
    return f"[{rule.source}]({_VLLM}/issues/{rule.source})"


def _explained() -> str:
    ended = sum(is_digest(outcome) for r in recorded_releases() for outcome in load(r).outcomes)
    return f"{ended:,}"


def _unended() -> str:
    found: dict[str, list[str]] = {}
    for release in recorded_releases():
        for outcome, count in Counter(o for o in load(release).outcomes if not is_digest(o)).items():
            what = "takes for ever" if outcome.startswith("does not end") else "ends the engine"
            found.setdefault(what, []).append(f"{release}: {count}")
    return "\n".join(
        (
            "Two kinds of workloads have no digest in some releases.",
            "",
            "- **Takes for ever** (" + ", ".join(found["takes for ever"]) + "). From 0.26.0 on a request may hold "
            "as many blocks of a window more as plans in flight can take, and it is admitted only if so many are "
            "free. In a pool that is smaller it waits for good. vLLM refuses such a pool when it starts; the "
            "engine refuses such a request by name.",
            "- **Ends the engine** (" + ", ".join(found["ends the engine"]) + "). A request that is admitted with "
            "one token left is padded to `1 + num_speculative_tokens`, and then cut to a smaller "
            f"`long_prefill_token_threshold`; from 0.29.0 on an assertion stands behind that ([54028]({_VLLM}/issues/54028), open). "
            "Before, the worker gets more placeholders than tokens. The engine refuses these settings.",
        )
    )


def _unchanged(newest: str) -> str:
    at_pin, now = load(PIN).outcomes, load(newest).outcomes
    rules = len(rules_of(newest))
    same = sum(a == b for a, b in zip(at_pin, now, strict=True))
    return (
        f"{rules} rules account for all of it, so whatever they do not name is as the course has it: running "
        "requests before waiting ones, one budget for prompts and decodes, chunks, the last of the running as "
        "the victim, recomputation from the prefix cache, no admission in a step that preempted, admission of "
        "whole sequences only, hits of whole blocks but for the last token, blocks published when they are "
        f"planned, priorities, stop conditions. Of the {len(now)} workloads {same} are decided by {newest} as by "
        f"{PIN} to the last block number."
    )


def write_counts(found: dict[str, int]) -> None:
    COUNTS.write_text(
        "".join(f"{name}\t{count}\n" for name, count in found.items()), encoding="utf-8"
    )


def main() -> None:
    """Count, and write the page."""
    from course.drift.compare import changed_by

    write_counts({rule.name: sum(changed_by(rule).values()) for rule in RULES})
    PAGE.write_text(make_page(), encoding="utf-8")
    print(json.dumps(counts(), indent=1))


if __name__ == "__main__":
    main()
