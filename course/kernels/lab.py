"""What the tests of the kernel labs share: each asks one judge of the bench about the file under test.

The judges work in processes of their own, which takes seconds. So one report serves all tests that read it,
and what is slow waits until the kernel is right, without races and frugal. Where the tests run on many files,
as in the proof of a lab, the first that asks has `FIRST` judge all of them in one process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from course.kernels.bench import DIED, judge_many
from course.kernels.bench import judge as ask
from course.kernels.report import Report, from_data, to_data
from course.learner.labs import TOGETHER
from course.learner.stubs import unwritten

FIRST = ("right", "races", "bytes")  # one process: they all run the kernel in the interpreter


class Kernels:
    """A problem of the bench, and the kernels that a lab's file must define for it.

    Args:
        problem: a key of `course.kernels.PROBLEMS`.
        kernels: the names of what the learner writes for it, in order.
        wanted: what the slow tests wait for, in words; a skipped test says "first" and this.
        after: what must be accepted before anything else is asked about this one.
    """

    def __init__(
        self, problem: str, kernels: list[str], wanted: str, after: Kernels | None = None
    ) -> None:
        self.problem, self.kernels, self.wanted, self.after = problem, kernels, wanted, after
        self.reports: dict[tuple[str, tuple[str, ...], bool], Report] = {}

    def judged(
        self, lab: ModuleType, judge: str, beside: tuple[str, ...] = FIRST, vllm: bool = False
    ) -> None:
        """Fails with what `judge` has against the kernel.

        `beside` are the judges that are asked in one go, this one among them. With `vllm` they hold it
        against vLLM's own kernel as well.
        """
        if self.after:
            self.after.accepted(lab)
        self.started(lab)
        report = self.report(lab, beside, vllm)
        against = [f.message for f in report.of(judge) if f.ok is not True]
        if not report.of(judge):  # an earlier judge saw what makes this one pointless
            against = [f"judge {f.judge}: {f.message}" for f in report.findings if f.ok is not True]
        assert not against, "\n".join(against)

    def accepted(self, lab: ModuleType) -> None:
        """Skips what is pointless, and takes long, as long as `FIRST` have something against the kernel."""
        import pytest

        self.started(lab)
        if not self.report(lab, FIRST, False).ok:
            pytest.skip(f"first {self.wanted}")

    def started(self, lab: ModuleType) -> None:
        """Raise what an unwritten kernel raises here, where the grader can see it."""
        missing = unwritten(Path(str(lab.__file__)).read_text(encoding="utf-8"))
        for name in self.kernels:
            if name in missing:
                kernel = getattr(lab, name).fn
                kernel(*[None] * kernel.__code__.co_argcount)

    def report(self, lab: ModuleType, judges: tuple[str, ...], vllm: bool) -> Report:
        """What these judges say about the file of `lab`; they are asked once."""
        asked = str(lab.__file__), judges, vllm
        if asked not in self.reports and (judges, vllm) == (FIRST, False):
            self._judge_together(asked[0])
        if asked not in self.reports:
            self.reports[asked] = ask(asked[0], self.problem, judges, vllm=vllm)
        return self.reports[asked]

    def _judge_together(self, path: str) -> None:
        """Take what `FIRST` say of this file and of all those named beside it, if any are.

        A process that has died may have died of the file before: whoever it says that of is asked alone.
        """
        if not (place := os.environ.get(TOGETHER)):
            return
        import fcntl  # the files are named on Linux only

        kept = Path(f"{place}.{self.problem}")
        with Path(place).open(encoding="utf-8") as named, Path(f"{place}.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                files = [file for file in json.load(named) if self._is_written(Path(file))]
                reports = judge_many(files, self.problem, FIRST, vllm=False) if files else []
                found = {r.path: to_data(r.findings) for r in reports if not _died(r)}
                kept.write_text(json.dumps(found), encoding="utf-8")
        findings = json.loads(kept.read_text(encoding="utf-8")).get(path)
        if findings is not None:
            self.reports[path, FIRST, False] = Report(path, self.problem, from_data(findings))

    def _is_written(self, file: Path) -> bool:
        return not set(self.kernels) & set(unwritten(file.read_text(encoding="utf-8")))


def _died(report: Report) -> bool:
    return any(finding.message.startswith(DIED) for finding in report.findings)


def runs_alone(
    lab: ModuleType,
    script: Path,
    device: str,
    other: str = "attention over a gathered copy",
    dtype: str = "float16",
) -> dict[str, float]:
    """What `script`, a lab's show.py, prints as JSON; fails where it ends badly with the file of `lab`, or
    its result, in `dtype`, is far from `other`."""
    command = [sys.executable, str(script), "--impl", str(lab.__file__), "--device", device]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([*command, "--json"], env=env, capture_output=True, encoding="utf-8")
    assert ran.returncode == 0, f"show.py failed: {ran.stderr.strip().splitlines()[-1:]}"
    printed: dict[str, float] = json.loads(ran.stdout)
    error = printed["error"]
    assert error < 2e-3, f"on {device}, in {dtype}, your kernel is {error:.1e} away from {other}"
    return printed
