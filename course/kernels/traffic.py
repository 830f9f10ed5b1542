"""The third judge: bytes asked for, against the least that the shape needs.

A decode kernel waits for memory, so what it loads twice it pays twice. Counted is what the programs ask
for: a byte that one instruction fetches for many lanes counts once, a byte that is fetched again, by the
same program or by another, counts again. A cache may serve the second time; nobody promises that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from course.kernels.case import Case
from course.kernels.record import Access, Launch
from course.kernels.report import Finding

JUDGE = "bytes"


@dataclass
class Traffic:
    """Bytes loaded and stored, all in all and by tensor."""

    loaded: int = 0
    stored: int = 0
    tensors: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    lines: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))

    @property
    def total(self) -> int:
        return self.loaded + self.stored


def count(accesses: Iterable[Access]) -> Traffic:
    """The bytes of a log. An atomic loads and stores."""
    traffic = Traffic()
    for access in accesses:
        size = access.addresses.size * access.size
        if access.kind != "store":
            traffic.loaded += size
        if access.kind != "load":
            traffic.stored += size
        traffic.tensors[access.region.name] += size
        traffic.lines[access.region.name, access.line] += size
    return traffic


def touched(accesses: Iterable[Access], name: str) -> int:
    """Bytes of the tensor `name` that were loaded at least once."""
    seen: dict[int, set[int]] = defaultdict(set)
    for access in accesses:
        if access.region.name == name and access.kind != "store":
            seen[access.size].update(access.addresses.tolist())
    return sum(size * len(addresses) for size, addresses in seen.items())


def judge_bytes(
    case: Case, launches: list[Launch], problem: Any, beside: dict[str, float]
) -> Finding:
    """The finding about one long case. `beside` are the ratios of vLLM's own kernels."""
    accesses = [access for launch in launches for access in launch.accesses]
    traffic = count(accesses)
    least = sum(case.least.values())
    ratio = traffic.total / least
    times = {
        name: traffic.tensors[name] / n for name, n in case.least.items() if name in case.inputs
    }
    figures = {
        "case": case.label,
        "least": least,
        "loaded": traffic.loaded,
        "stored": traffic.stored,
        "ratio": round(ratio, 3),
        "times": {name: round(value, 3) for name, value in times.items()},
        "vllm": {name: round(value, 3) for name, value in beside.items()},
    }
    for name in problem.NEEDED:
        read = touched(accesses, name)
        must = case.distinct.get(name, case.least[name])
        if read < must:
            message = (
                f"the kernel reads {read:,} of the {must:,} bytes of {name} that the answer "
                f"depends on ({case.label}). What reads the rest? A copy made before the kernel starts costs "
                "them twice."
            )
            return Finding(JUDGE, False, message, figures)
    yardstick = getattr(problem, "YARDSTICK", "the least")
    said = f"{traffic.total:,} bytes loaded and stored, {ratio:.2f} times {yardstick}"
    if beside:
        said += f" (vLLM's kernel: {', '.join(f'{name} {value:.2f}' for name, value in beside.items())})"
    if ratio <= problem.MOST_BYTES:
        return Finding(JUDGE, True, f"{said}; {case.label}.", figures)
    worst = max(traffic.tensors, key=lambda name: traffic.tensors[name] - case.least.get(name, 0))
    lines = sorted(line for name, line in traffic.lines if name == worst)
    by = f"line {lines[0]}" if len(lines) == 1 else f"lines {' and '.join(map(str, lines))}"
    often = f"{times[worst]:.2f} times" if worst in times else f"{traffic.tensors[worst]:,} bytes"
    message = (
        f"{said}; the limit is {problem.MOST_BYTES:g} times. The most in {worst}: {often}, by {by}. Which "
        "bytes are fetched again, by a second load or by another program, and which for nothing? "
        f"({case.label})"
    )
    return Finding(JUDGE, False, message, figures)
