"""The proof of the kernel bench: every planted fault refused by its judge, every correct kernel accepted.

    python tests/authors/kernel_proof.py [WORD ...]

With words, only what has one of them in its name. The whole takes some twenty minutes of processor time:
the interpreter runs each kernel, and those whose fault shows in machine code are compiled. Exit status 1 if
anything is amiss. `kernel_faults/` holds the correct kernels and, in faults.txt, the faults.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

HERE = Path(__file__).resolve().parent / "kernel_faults"
sys.path.insert(0, str(HERE.parents[2]))

from course.kernels import JUDGES, Report, judge_many  # noqa: E402

# The correct kernels, each in another style, with the problem that they solve.
PROBLEM_OF = {
    "plain.py": "decode",
    "grouped.py": "decode",
    "split.py": "decode",
    "last_merges.py": "decode",
    "tuned.py": "decode",
    "one.py": "decode-one",
    "fetches_ahead.py": "decode-one",
    "two_stages.py": "split-decode",
    "keeps_memory.py": "split-decode",
    "chunks.py": "prefill",
    "nibbles.py": "w4a16",
    "experts_left.py": "fused-moe",
    "walks_outputs.py": "fused-moe",
    "wraps_outputs.py": "fused-moe",
}
# What is asked for a fault of each judge: that judge, and those that come before it.
ASKED = {judge: JUDGES[: number + 1] for number, judge in enumerate(JUDGES)}
MINIMUM = 0.95  # of the faults must be refused by the right judge


@dataclass(frozen=True)
class Fault:
    name: str
    base: str  # the correct kernel that it is planted into
    judge: str
    says: str
    changes: tuple[tuple[str, str], ...]

    @property
    def problem(self) -> str:
        return problem_of(self.base)

    def text(self) -> str:
        """The kernel file with the fault in it."""
        text = (HERE / self.base).read_text(encoding="utf-8")
        for old, new in self.changes:
            if old not in text:
                raise ValueError(f"{self.name}: {self.base} does not hold {old!r}")
            text = text.replace(old, new)
        return text


def problem_of(name: str) -> str:
    return PROBLEM_OF[name]


def read_faults() -> list[Fault]:
    """The faults of faults.txt, in its order."""
    text = (HERE / "faults.txt").read_text(encoding="utf-8")
    faults = []
    for part in text.split("\n== ")[1:]:
        head, *lines = part.splitlines()
        name, base, judge, *says = head.split(" | ")
        kept = [line for line in lines if line[:1] in ("-", "+")]
        blocks = ["\n".join(x[2:] for x in block) for _, block in groupby(kept, lambda x: x[0])]
        changes = tuple(zip(blocks[::2], blocks[1::2], strict=True))
        faults.append(Fault(name, base, judge, says[0] if says else "", changes))
    return faults


def correct(
    names: Sequence[str], judges: Sequence[str] = JUDGES, vllm: bool = True
) -> Iterator[Report]:
    """The reports on the correct kernels of these names."""
    for problem, group in groupby(names, problem_of):
        yield from judge_many([HERE / name for name in group], problem, judges, vllm=vllm)


def planted(faults: Sequence[Fault]) -> Iterator[tuple[Fault, Report]]:
    """The faults, each with the report on the kernel that has it."""

    def kind(fault: Fault) -> tuple[int, str]:
        return JUDGES.index(fault.judge), fault.problem

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

    Its judge must refuse, with its words. The earlier judges must accept, but where programs race: some
    races also give wrong numbers, because the programs are run in several orders.
    """
    if fault.judge not in report.refused_by:
        others = f", only by {', '.join(report.refused_by)}" if report.refused_by else ""
        return f"not refused by {fault.judge}{others}"
    if fault.judge != "races" and report.refused_by[0] != fault.judge:
        return f"refused by {report.refused_by[0]} before {fault.judge}"
    messages = " ".join(finding.message for finding in report.of(fault.judge))
    return "" if fault.says in messages else f"refused, but not because {fault.says!r}"


def main(words: Sequence[str]) -> int:
    def chosen(name: str) -> bool:
        return not words or any(word in name for word in words)

    accepted = refused = 0
    names = [name for name in PROBLEM_OF if chosen(name)]
    for report in correct(names):
        accepted += report.ok
        print(f"{'accepted' if report.ok else 'REFUSED':10} {Path(report.path).name}", flush=True)
        print(report.refusals(), end="\n" * (not report.ok))
    faults = [fault for fault in read_faults() if chosen(fault.name)]
    for fault, report in planted(faults):
        why = amiss(fault, report)
        refused += not why
        print(f"{fault.judge:10} {fault.name:38} {why or 'refused'}", flush=True)
        if why or words:
            print(report.refusals() or "nothing was refused")
    print(f"{refused} of {len(faults)} faults refused by the right judge", end="; ")
    print(f"{accepted} of {len(names)} correct kernels accepted")
    return int(accepted < len(names) or refused < MINIMUM * len(faults))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
