"""The whole proof of the kernel bench: every fault refused by its judge, every correct kernel accepted.

    python tests/authors/kernel_faults/prove.py [WORD ...]

With words, only what has one of them in its name. Takes several minutes: each kernel is run by the
interpreter, and those whose fault shows in machine code are compiled. Exit status 1 if anything is amiss.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2])]

from faults import CORRECT, CORRECT_ONE, FAULTS, Fault  # noqa: E402

from course.kernels import JUDGES, Report, judge_many  # noqa: E402

# What is asked for a fault of each judge: that judge, and those that come before it.
ASKED = {
    "right": ("right",),
    "races": ("right", "races"),
    "bytes": ("right", "races", "bytes"),
    "compiled": JUDGES,
}
MINIMUM = 0.95


def correct(words: Sequence[str] = (), vllm: bool = True) -> Iterator[tuple[str, Report]]:
    """The correct kernels, each with its report."""
    for problem, names in (("decode", CORRECT), ("decode-one", CORRECT_ONE)):
        chosen = [HERE / name for name in names if _wanted(name, words)]
        if chosen:
            reports = judge_many(chosen, problem, vllm=vllm)
            yield from zip((path.name for path in chosen), reports, strict=True)


def planted(faults: Sequence[Fault]) -> Iterator[tuple[Fault, Report]]:
    """The faults, each with the report on the kernel that has it."""
    key = {judge: number for number, judge in enumerate(JUDGES)}

    def kind(fault: Fault) -> tuple[int, str]:
        return key[fault.judge], fault.problem

    with tempfile.TemporaryDirectory() as folder:
        for (_, problem), group in groupby(sorted(faults, key=kind), kind):
            these = list(group)
            paths = [Path(folder) / f"{fault.name}.py" for fault in these]
            for path, fault in zip(paths, these, strict=True):
                path.write_text(fault.text(), encoding="utf-8")
            reports = judge_many(paths, problem, ASKED[these[0].judge], vllm=False)
            yield from zip(these, reports, strict=True)


def amiss(fault: Fault, report: Report) -> str:
    """Why this is not the refusal that the fault deserves; "" if it is.

    The judge named must refuse, with the words named. The earlier ones must accept, but for races: some of
    those also give wrong numbers, since the programs run in several orders.
    """
    if fault.judge not in report.refused_by:
        others = f", only by {', '.join(report.refused_by)}" if report.refused_by else ""
        return f"not refused by {fault.judge}{others}"
    if fault.judge != "races" and report.refused_by[0] != fault.judge:
        return f"refused by {report.refused_by[0]} before {fault.judge}"
    messages = " ".join(finding.message for finding in report.of(fault.judge))
    return "" if fault.says in messages else f"refused, but not because {fault.says!r}"


def _wanted(name: str, words: Sequence[str]) -> bool:
    return not words or any(word in name for word in words)


def main(words: Sequence[str]) -> int:
    good = bad = refused = total = 0
    for name, report in correct(words):
        good += report.ok
        bad += not report.ok
        print(f"{'accepted' if report.ok else 'REFUSED':10} {name}")
        print(report.refusals() + "\n" if not report.ok else "", end="", flush=True)
    for fault, report in planted([fault for fault in FAULTS if _wanted(fault.name, words)]):
        why = amiss(fault, report)
        total += 1
        refused += not why
        print(f"{fault.judge:10} {fault.name:38} {why or 'refused'}", flush=True)
        if why or words:
            print(report.refusals() or "    nothing was refused")
    print(
        f"{refused} of {total} faults refused by the right judge; {good} of {good + bad} correct kernels accepted"
    )
    return int(bad > 0 or refused < MINIMUM * total)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
