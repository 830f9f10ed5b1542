"""The three judges that run a kernel in Triton's interpreter, in a child with TRITON_INTERPRET=1."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from course.kernels import beside, races, right, traffic
from course.kernels.loading import Entry, Refused, call, load_entry
from course.kernels.memory import memory_of
from course.kernels.problems.case import Case
from course.kernels.record import ORDERS, Recorder, lighten
from course.kernels.report import Finding

MOST_FAILED = 3  # cases; a kernel that is wrong in so many is judged
MOST_FINDINGS = 3  # of one judge about one file; the rest says the same


class Interpreted:
    """Judges files on the cases of one problem. What is the same for all files is computed once."""

    def __init__(self, problem: Any, judges: Iterable[str], vllm: bool) -> None:
        # torch.empty then holds NaN: a result that nothing stored to cannot be right by accident.
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_num_threads(1)
        lighten()
        self.problem, self.judges = problem, tuple(judges)
        self.cases: list[Case] = problem.cases() if {"right", "races"} & set(self.judges) else []
        self.long: Case | None = problem.traffic() if "bytes" in self.judges else None
        self.vllm, self.alone = beside.Beside({}, {}), beside.why_not(vllm)
        if not self.alone:
            try:
                self.vllm = beside.ask_vllm(problem, self.cases, self.long)
            except beside.DisagreementError:
                raise
            except (
                Exception
            ) as error:  # a build of vLLM that cannot do it here; the kernel can be judged
                self.alone = f"not to be run here, {type(error).__name__}: {error}"

    def judge(self, path: Path) -> list[Finding]:
        """Every finding about one file, in the order of the judges."""
        try:
            entry = load_entry(path, self.problem.ENTRY)
            found = [*self._numbers(entry, path), *self._bytes(entry, path)]
        except Refused as refused:
            first, *others = self.judges
            unable = "not judged, because the kernel did not run"
            return [
                Finding(first, False, str(refused)),
                *(Finding(j, None, unable) for j in others),
            ]
        return [finding for judge in self.judges for finding in found if finding.judge == judge]

    def _numbers(self, entry: Entry, path: Path) -> list[Finding]:
        """The judges `right` and `races`, on case after case, in another order of programs each time."""
        numbers: list[Finding] = []
        raced: list[Finding] = []
        tried = failed = 0
        far: dict[str, float] = {}
        for tried, case in enumerate(self.cases, 1):
            got, recorder = self._run(entry, path, case, ORDERS[tried % len(ORDERS)])
            raced += races.judge_races(recorder.launches, case.label)
            wrong = list(right.judge_case(case, got, recorder, self.problem.explain))
            if not wrong and hasattr(self.problem, "rules"):
                said = self.problem.rules(case, recorder.launches, got)
                wrong = [Finding("right", False, f"{text} ({case.label}).") for text in said]
            numbers += wrong
            failed += bool(wrong)
            if failed == MOST_FAILED:
                break
            if not wrong:
                kind = str(got.dtype).removeprefix("torch.")
                far[kind] = max(far.get(kind, 0.0), _error(got, case.expected))
                for form, outputs in self.vllm.outputs.items():
                    if tried <= len(outputs):
                        name = f"{kind}, vLLM {form}"
                        far[name] = max(far.get(name, 0.0), _error(got, outputs[tried - 1]))
        figures = {"cases": tried, "failed": failed, "error": far}
        if failed:
            how_many = f"{failed} of {tried} cases fail"
        else:
            how_many = f"{tried} ragged cases"
            form = next(iter(beside.forms(self.problem)))
            numbers = [Finding("right", True, f"{how_many}: {_praise(far, self.alone, form)}")]
        numbers[:1] = [
            Finding("right", one.ok, one.message, figures | one.figures) for one in numbers[:1]
        ]
        if not raced:
            none = f"{tried} cases: no address that one program writes is touched by another."
            raced = [Finding("races", True, none, {"cases": tried})]
        return [*_telling(numbers, how_many), *_telling(raced, "")]

    def _bytes(self, entry: Entry, path: Path) -> list[Finding]:
        if self.long is None:
            return []
        _, recorder = self._run(entry, path, self.long, ORDERS[0])
        return [traffic.judge_bytes(self.long, recorder.launches, self.problem, self.vllm.bytes)]

    def _run(self, entry: Entry, path: Path, case: Case, order: str) -> tuple[Any, Recorder]:
        """The kernel's answer and its log. What it wrote to its inputs is noted in the log, and undone."""
        before = right.snapshot(case)
        recorder = Recorder(case.inputs, order)
        with recorder.watching():
            got = call(entry, case.inputs, path)
        for name, memory in before.items():
            if not torch.equal(memory_of(case.inputs[name]), memory):
                recorder.overwritten.append(name)
                memory_of(case.inputs[name]).copy_(memory)
        return got, recorder


def _error(got: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    return float((got.double() - reference).abs().max() / reference.abs().max())


def _praise(far: dict[str, float], alone: str, form: str) -> str:
    """The errors of a kernel that is right, by dtype, also from this form of vLLM's; `alone` says why that
    does not stand beside it."""
    text = "from float64 at most "
    text += ", ".join(f"{error:.0e} in {kind}" for kind, error in far.items() if "," not in kind)
    mark = f", vLLM {form}"
    theirs = [
        f"{error:.0e} in {kind.removesuffix(mark)}"
        for kind, error in far.items()
        if kind.endswith(mark)
    ]
    if theirs:
        text += f"; from vLLM's own kernel {', '.join(theirs)}"
    else:
        text += f"; vLLM's kernel: {alone}"
    return f"{text} (shares of a case's largest number). No access left its tensor."


def _telling(found: list[Finding], how_many: str) -> list[Finding]:
    """One finding for each line or tensor that it points to, not one for each case."""
    kept: dict[object, Finding] = {}
    for finding in found:
        figures = finding.figures
        where = next((figures[key] for key in ("line", "tensor", "index") if key in figures), None)
        kept.setdefault("index" if isinstance(where, list) else where, finding)
    first, *others = list(kept.values())[:MOST_FINDINGS]
    if first.ok is False and how_many:
        first = Finding(first.judge, False, f"{first.message} ({how_many})", first.figures)
    return [first, *others]
