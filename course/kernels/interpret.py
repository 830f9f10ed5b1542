"""The three judges that run a kernel in Triton's interpreter, in a child with TRITON_INTERPRET=1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from course.kernels import beside, races, right, traffic
from course.kernels.bench import DIED
from course.kernels.case import Case
from course.kernels.loading import Refused, stand_in_driver
from course.kernels.ran import Ran
from course.kernels.record import ORDERS, lighten
from course.kernels.report import Finding
from course.kernels.runner import GoneError, Runner
from course.kernels.starts import Start

MOST_FAILED = 3  # cases; a kernel that is wrong in so many is judged
MOST_FINDINGS = 3  # of one judge about one file; the rest says the same


class Interpreted:
    """Judges files on the cases of one problem. What is the same for all files is computed once."""

    def __init__(self, problem: Any, judges: Iterable[str], vllm: bool) -> None:
        # torch.empty then holds NaN: a result that nothing stored to cannot be right by accident.
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_num_threads(1)
        lighten()
        stand_in_driver()
        self.problem, self.judges = problem, tuple(judges)
        cases: list[Case] = problem.cases()
        self.cases = cases if {"right", "races"} & set(self.judges) else []
        self.long: Case = problem.traffic()
        self.others: dict[int, Case] = {}
        self.flipped: Case | None = None
        # Before any answer is computed: the process that runs the kernels must not hold one.
        seen = [case.inputs for case in (*cases, self.long)]
        self.runner = Runner(problem.ENTRY, [*self.cases, self.long], seen)
        self.vllm, self.alone = beside.Beside({}, {}), beside.why_not(vllm)
        if not self.alone:
            long = self.long if "bytes" in self.judges else None
            try:
                self.vllm = beside.ask_vllm(problem, self.cases, long)
            except beside.DisagreementError:
                raise
            except (
                Exception
            ) as error:  # a build of vLLM that cannot do it here; the kernel can be judged
                self.alone = f"not to be run here, {type(error).__name__}: {error}"

    def judge(self, path: Path) -> tuple[list[Finding], list[list[Start]]]:
        """Every finding about one file, in the order of the judges; and what it starts, by case."""
        starts: list[list[Start]] = []
        try:
            self.runner.open(path)
            starts = self.runner.starts()
            found = [*self._numbers(), *self._bytes()]
        except (Refused, GoneError) as error:
            message = str(error)
            if isinstance(error, GoneError):
                message = f"{DIED}{message}"
            unable = "not judged, because the kernel did not run"
            found = [Finding(judge, None, unable) for judge in self.judges]
            found[:1] = [Finding(judge, False, message) for judge in self.judges[:1]]
        finally:
            self.runner.close()
        ordered = [f for judge in self.judges for f in found if f.judge == judge]
        return ordered, starts

    def end(self) -> None:
        """No more files."""
        self.runner.end()

    def _numbers(self) -> list[Finding]:
        """The judges `right` and `races`, on case after case, in another order of programs each time."""
        numbers: list[Finding] = []
        raced: list[Finding] = []
        tried = failed = 0
        configs = 1
        far: dict[str, float] = {}
        for tried, case in enumerate(self.cases, 1):
            wrong: list[Finding] = []
            for ran, right_ones, found in self._calls(tried - 1, case):
                configs = max(configs, ran.configs)
                raced += races.judge_races(ran.launches, right_ones.label)
                wrong = found
                if wrong:
                    break
                if right_ones is case and ran.got is not None:
                    self._measure(far, tried - 1, case, ran.got)
            numbers += wrong
            failed += bool(wrong)
            if failed == MOST_FAILED or any("elsewhere" in f.figures for f in wrong):
                break
        if not tried:
            return []
        figures = {"cases": tried, "failed": failed, "error": far, "configs": configs}
        if failed:
            how_many = f"{failed} of {tried} cases fail"
        else:
            how_many = f"{tried} ragged cases, each twice"
            if configs > 1:
                how_many += f", {configs} configurations"
            form = next(iter(beside.forms(self.problem)))
            numbers = [Finding("right", True, f"{how_many}: {_praise(far, self.alone, form)}")]
        numbers[:1] = [
            Finding("right", one.ok, one.message, figures | one.figures) for one in numbers[:1]
        ]
        if not raced:
            none = f"{tried} cases: no address that one program writes is touched by another."
            raced = [Finding("races", True, none, {"cases": tried})]
        return [*_telling(numbers, how_many), *_telling(raced, "")]

    def _calls(self, number: int, case: Case) -> Iterator[tuple[Ran, Case, list[Finding]]]:
        """One call after the other with the shape of a case, each with the case that has its answer, and what
        is wrong with it: with each configuration, with inputs that are right only while kernels run, and
        with other numbers."""
        order = ORDERS[(number + 1) % len(ORDERS)]
        ran = self.runner.run(number, "first", order)
        first = ran.got
        yield ran, case, self._wrong(case, ran)
        for config in range(1, ran.configs):
            ran = self.runner.run(number, "first", order, config)
            found = [_of_config(f, config) for f in self._wrong(case, ran)]
            yield ran, case, found
        if number == 0 and case.flip:
            flipped = self.flipped = self.flipped or case.flipped()
            ran = self.runner.run(number, "flipped", order)
            found = list(right.judge_flipped(flipped, ran))
            if found:  # or is it wrong with these numbers anyway?
                ran = self.runner.run(number, "whole", order)
                case.flip()
                found = self._wrong(flipped, ran, right.KEPT) or found
                case.flip()
            yield ran, flipped, found
        if case.other:
            other = self.others.setdefault(number, case.other())
            ran = self.runner.run(number, "again", ORDERS[number % len(ORDERS)])
            same = first is not None and ran.got is not None and torch.equal(first, ran.got)
            note = right.LAST if same else right.KEPT
            yield ran, other, self._wrong(other, ran, note)

    def _wrong(self, case: Case, ran: Ran, note: str = "") -> list[Finding]:
        found = list(right.judge_case(case, ran, self.problem.explain, note))
        if not found and hasattr(self.problem, "rules"):
            said = self.problem.rules(case, ran.launches, ran.got)
            found = [Finding("right", False, f"{text} ({case.label}).") for text in said]
        return found

    def _measure(self, far: dict[str, float], number: int, case: Case, got: torch.Tensor) -> None:
        """The largest errors so far, by dtype."""
        kind = str(got.dtype).removeprefix("torch.")
        far[kind] = max(far.get(kind, 0.0), _error(got, case.expected))
        for form, outputs in self.vllm.outputs.items():
            if number < len(outputs):
                name = f"{kind}, vLLM {form}"
                far[name] = max(far.get(name, 0.0), _error(got, outputs[number]))

    def _bytes(self) -> list[Finding]:
        """The judge `bytes`; of several configurations, on that which asks for most."""
        if "bytes" not in self.judges:
            return []
        number, found = len(self.cases), []
        configs = ran = None
        for config in range(64):
            ran = self.runner.run(number, "first", ORDERS[0], config)
            configs = ran.configs
            finding = traffic.judge_bytes(self.long, ran.launches, self.problem, self.vllm.bytes)
            found.append(finding if configs == 1 else _of_config(finding, config))
            if config + 1 >= configs:
                break
        refused = [finding for finding in found if not finding.ok]
        return (refused or found)[:1]


def _of_config(finding: Finding, config: int) -> Finding:
    if finding.ok:
        return finding
    message = f"configuration {config + 1} of the autotuner: {finding.message}"
    return Finding(finding.judge, finding.ok, message, finding.figures)


def _error(got: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    return float((got.double() - reference).abs().max() / reference.abs().max())


def _praise(far: dict[str, float], alone: str, form: str) -> str:
    """The errors of a kernel that is right, by dtype, also from this form of vLLM's; `alone` says why that
    does not stand beside it. Integers are right or wrong."""
    if set(far) <= {"int64", f"int64, vLLM {form}"}:
        theirs = f"not held against vLLM's kernel, {alone}" if alone else "equal to vLLM's own"
        text = f"each number as it must be, the first {beside.CASES} cases {theirs}"
        return f"{text}. No access left its tensor."
    text = "from float64 at most "
    text += ", ".join(f"{error:.0e} in {kind}" for kind, error in far.items() if "," not in kind)
    mark = f", vLLM {form}"
    errors = [
        f"{error:.0e} in {kind.removesuffix(mark)}"
        for kind, error in far.items()
        if kind.endswith(mark)
    ]
    if errors:
        text += f"; from vLLM's own kernel {', '.join(errors)}"
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
