"""The three judges that run a kernel in Triton's interpreter, in a child with TRITON_INTERPRET=1."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from course.kernels import races, right, traffic
from course.kernels.loading import Refused, call, load_entry
from course.kernels.memory import memory_of
from course.kernels.problems.case import Case
from course.kernels.record import ORDERS, Recorder
from course.kernels.report import Finding

SEGMENTS = 16  # what vLLM splits a sequence into where its kernel runs segmented
MOST_FINDINGS = 3  # of one judge about one file; the rest says the same


class Interpreted:
    """Judges files on the cases of one problem. What is the same for all files is computed once."""

    def __init__(self, problem: Any, judges: Iterable[str], vllm: bool) -> None:
        # torch.empty then holds NaN: a result that nothing stored to cannot be right by accident.
        torch.use_deterministic_algorithms(True)
        torch.set_num_threads(1)
        self.problem, self.judges = problem, tuple(judges)
        self.cases: list[Case] = problem.cases() if {"right", "races"} & set(self.judges) else []
        self.long: Case | None = problem.traffic() if "bytes" in self.judges else None
        self.vllm_bytes: dict[str, float] = {}
        self.vllm = vllm and importlib.util.find_spec("vllm") is not None
        if self.vllm:
            self._ask_vllm()

    def _ask_vllm(self) -> None:
        """vLLM's kernel on every case: its error, for the tests of this bench, and its bytes."""
        for name, segments in (("2D", 0), ("segmented", SEGMENTS)):
            for case in self.cases if "right" in self.judges else []:
                out = self.problem.vllm(case, segments)
                excess = ((out.double() - case.expected).abs() / case.tolerance).max()
                if not excess <= 1:
                    raise AssertionError(
                        f"vLLM's kernel ({name}) and float64 disagree: {case.label}"
                    )
                case.about[name] = out.double()
            if self.long is not None:
                recorder = Recorder(self.long.inputs | {"out": None})
                with recorder.watching():
                    self.problem.vllm(self.long, segments)
                least = sum(self.long.least.values())
                self.vllm_bytes[name] = traffic.count(recorder.accesses).total / least

    def judge(self, path: Path) -> list[Finding]:
        try:
            entry = load_entry(path, self.problem.ENTRY)
            found = [*self._numbers(entry, path), *self._bytes(entry, path)]
        except Refused as refused:
            found = [Finding(self.judges[0], False, str(refused))]
            return found + [
                Finding(judge, None, "not judged: the kernel did not run")
                for judge in self.judges[1:]
            ]
        return [finding for judge in self.judges for finding in found if finding.judge == judge]

    def _numbers(self, entry: Any, path: Path) -> list[Finding]:
        """The judges `right` and `races`, on every case, in a different order of programs each time."""
        found: dict[str, list[Finding]] = {"right": [], "races": []}
        failed, far = 0, dict.fromkeys(("float64", "2D", "segmented"), 0.0)
        for number, case in enumerate(self.cases):
            order = ORDERS[number % len(ORDERS)]
            before = right.snapshot(case)
            recorder = Recorder(case.inputs, order)
            with recorder.watching():
                got = call(entry, case.inputs, path)
            launches = recorder.launches
            wrong = list(right.judge_case(case, got, launches, before, self.problem.explain))
            failed += bool(wrong)
            found["right"] += wrong
            found["races"] += races.judge_races(launches, case.label)
            if not wrong:
                references = {"float64": case.expected} | case.about
                for name in far.keys() & references.keys():
                    far[name] = max(far[name], _error(got, references[name]))
            _undo(case, before)
        count = len(self.cases)
        figures: dict[str, Any] = {"cases": count, "failed": failed, "max_error": far["float64"]}
        passed = f"{count} ragged cases, three orders of programs: within {far['float64']:.0e} of float64"
        if self.vllm:
            figures |= {"vllm_2d": far["2D"], "vllm_segmented": far["segmented"]}
            passed += (
                f", {far['2D']:.0e} of vLLM's kernel, {far['segmented']:.0e} of its segmented one"
            )
        passed += " (of a case's largest number). No access left its tensor."
        if not self.vllm:
            passed += " vLLM is not installed, or was left out."
        results = []
        if "right" in self.judges:
            if failed:
                results += _first_of_each(
                    found["right"], f"{failed} of {count} cases fail", figures
                )
            else:
                results.append(Finding("right", True, passed, figures))
        if "races" in self.judges:
            none = f"{count} cases: no address that one program writes is touched by another."
            results += _first_of_each(found["races"], "", {}) or [Finding("races", True, none)]
        return results

    def _bytes(self, entry: Any, path: Path) -> list[Finding]:
        if self.long is None:
            return []
        case = self.long
        before = right.snapshot(case)
        recorder = Recorder(case.inputs)
        with recorder.watching():
            call(entry, case.inputs, path)
        _undo(case, before)
        beside = self.vllm_bytes if self.vllm else {}
        return [traffic.judge_bytes(case, recorder.launches, self.problem, beside)]


def _undo(case: Case, before: dict[str, torch.Tensor]) -> None:
    """Give the inputs their values back, for the next file."""
    for name, memory in before.items():
        memory_of(case.inputs[name]).copy_(memory)


def _error(got: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    return float((got.double() - reference).abs().max() / reference.abs().max())


def _first_of_each(found: list[Finding], how_many: str, figures: dict[str, Any]) -> list[Finding]:
    """The first few findings that differ in where they point, not one for each case."""
    kept: dict[str, Finding] = {}
    for finding in found:
        key = finding.message.split(":")[0].split(" is ")[0][:40]
        kept.setdefault("out" if key.startswith("out[") else key, finding)
    first = list(kept.values())[:MOST_FINDINGS]
    if first and how_many:
        one = first[0]
        first[0] = Finding(one.judge, False, f"{one.message} ({how_many})", figures | one.figures)
    return first
