"""The tables of docs/RELEASES.md, made of the committed results and of `releases.py`.

python -m course.drift.page            writes them
python -m course.drift.page --count    counts first how often each rule matters, half a minute a rule
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

from course.cite.text import find_all
from course.docs.pages import ROOT
from course.drift import cited
from course.drift.compare import (
    RESULTS,
    changed_by,
    is_digest,
    load,
    recorded_releases,
    scheduled_otherwise,
)  # fmt: skip
from course.drift.defaults import CHANGES, MACHINES
from course.drift.parts import table as parts_table
from course.drift.workloads import cases
from course.learner.labs import CourseError
from mini_vllm.core.sched.releases import PIN, RELEASES, RULES, Rule

PAGE = Path(__file__).parents[2] / "docs" / "RELEASES.md"
COUNTS = RESULTS / "counts.tsv"
GROUPS = {
    "sync": "scheduler",
    "async": "async-scheduler",
    "drafts": "drafts",
    "groups": "kv-cache-groups",
    "block sizes": "kv-cache-block-sizes",
    "fresh": "fresh ",
}
"""The columns, and how the groups in them begin."""
_VLLM = "https://github.com/vllm-project/vllm/issues"


def read_counts() -> dict[str, int]:
    """As counted last: of each rule's name, in how many workloads it matters in its first release; of each
    release, in how many something else is scheduled."""
    lines = COUNTS.read_text(encoding="utf-8").splitlines() if COUNTS.is_file() else []
    counted = {name: int(count) for name, count in (line.split("\t") for line in lines)}
    missing = {*(rule.name for rule in RULES), *recorded_releases()[1:]} - counted.keys()
    if missing:
        raise CourseError(f"not counted yet: {', '.join(sorted(missing))}. Run with --count")
    return counted


def make_page(text: str) -> str:
    """The page with its tables as they should be. Each stands between `<!-- table: NAME -->` and
    `<!-- end -->`."""
    tables = {
        "releases": releases(),
        "rules": rules(),
        "unended": unended(),
        "parts": parts(),
        "defaults": defaults(),
        "pages": pages(),
    }
    for name, table in tables.items():
        pattern = rf"(<!-- table: {name} -->\n).*?(\n<!-- end -->)"
        found = re.search(pattern, text, re.DOTALL)
        if found is None:
            raise CourseError(f"the page has no place for the table {name}")
        text = f"{text[: found.end(1)]}\n{table}\n{text[found.start(2) :]}"
    return text


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def releases() -> str:
    """A row a release: workloads of each column that it decides otherwise than the pin."""
    at_pin = before = load(PIN).outcomes
    counted = read_counts()
    columns = {
        name: [
            i
            for i, case in enumerate(cases())
            if (case.group.startswith(begin) if begin.endswith(" ") else case.group == begin)
        ]
        for name, begin in GROUPS.items()
    }
    rows = []
    for release in recorded_releases()[1:]:
        outcomes = load(release).outcomes
        cells = [str(sum(outcomes[i] != at_pin[i] for i in here)) for here in columns.values()]
        since = sum(now != then for now, then in zip(outcomes, before, strict=True))
        rows.append([release, *cells, str(counted[release]), str(since)])
        before = outcomes
    names = [f"{name} ({len(here)})" for name, here in columns.items()]
    return _table(["release", *names, "scheduled", "since last"], rows)


def rules() -> str:
    """A row a rule."""
    counted = read_counts()
    rows = []
    for rule in sorted(RULES, key=lambda rule: RELEASES.index(rule.first)):
        span = rule.first
        if rule.until is not None:
            last = RELEASES[RELEASES.index(rule.until) - 1]
            span += " only" if last == rule.first else f" to {last}"
        rows.append([span, rule.name, rule.says, _link(rule), str(counted[rule.name])])
    return _table(["from", "what", "rule", "source", "matters in"], rows)


def _link(rule: Rule) -> str:
    return "not found" if rule.source is None else f"[{rule.source}]({_VLLM}/{rule.source})"


def unended() -> str:
    """A row a release that does not bring all workloads to an end."""
    rows = []
    for release in recorded_releases():
        found = Counter(o for o in load(release).outcomes if not is_digest(o))
        never = sum(n for outcome, n in found.items() if outcome.startswith("does not end"))
        if found:
            rows.append([release, str(never), str(found.total() - never)])
    return _table(["release", "never admitted", "ends the engine"], rows)


def parts() -> str:
    """A row for each part that was compared beside the scheduler."""
    return _table(["part", "cases", "unchanged to", "then"], parts_table())


def defaults() -> str:
    """A row for each default that changed in a release, with the machines and front ends where it did."""
    where: dict[tuple[str, ...], list[str]] = {}
    for line in CHANGES.read_text(encoding="utf-8").splitlines():
        release, machine, key, before, now = line.split("\t")
        place, _, name = key.rpartition(" ")
        declared = place not in ("LLM", "vllm serve")
        change = (release, f"{place} {name}" if declared else name, before, now)
        where.setdefault(change, []).append("everywhere" if declared else f"{machine} {place}")
    return _table(
        ["release", "default", "before", "now", "where"],
        [
            [release, f"`{name}`", f"`{before}`", f"`{now}`", _where(places)]
            for (release, name, before, now), places in where.items()
        ],
    )


def _where(places: list[str]) -> str:
    """ "H100 LLM", "H100 vllm serve" and so on, said shortly."""
    if len(places) == 2 * len(MACHINES):
        return "everywhere"
    both = [m for m in MACHINES if f"{m} LLM" in places and f"{m} vllm serve" in places]
    others = [place for place in places if place.split()[0] not in both]
    return ", ".join([*both, *others])


def pages() -> str:
    """A row a phase, and one for what else cites vLLM: what became of the citations, as kept."""
    release, fates = cited.load()
    rows: dict[str, Counter[str]] = {}
    for file, counts in sorted(cited.by_page(find_all(ROOT, PIN).citations, fates).items()):
        folder = file.partition("/")[0]
        place = folder if folder.startswith("phase-") else "the rest"
        place = "`mini_vllm/`" if folder == "mini_vllm" else place
        rows.setdefault(place, Counter()).update(counts)
    kinds = [kind for kind in cited.KINDS if any(counts[kind] for counts in rows.values())]
    heads = {
        "code": "same code",
        "statement": "same statement",
        "decides": "decides the same, but for rules",
    }
    heads |= {"changed": "to read again", "unknown": "not looked at"}
    order = sorted(rows, key=lambda place: (not place.startswith("phase-"), place))
    table = [
        [place, str(rows[place].total()), *(str(rows[place][kind]) for kind in kinds)]
        for place in order
    ]
    total = sum(rows.values(), Counter())
    table.append([f"all, to {release}", str(total.total()), *(str(total[kind]) for kind in kinds)])
    return _table(["where", "citations", *(heads.get(kind, kind) for kind in kinds)], table)


def main(argv: list[str] | None = None) -> int:
    if "--count" in (sys.argv[1:] if argv is None else argv):
        counted = {rule.name: sum(changed_by(rule).values()) for rule in RULES}
        counted |= {release: scheduled_otherwise(release) for release in recorded_releases()[1:]}
        COUNTS.write_text("".join(f"{n}\t{c}\n" for n, c in counted.items()), encoding="utf-8")
    PAGE.write_text(make_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
