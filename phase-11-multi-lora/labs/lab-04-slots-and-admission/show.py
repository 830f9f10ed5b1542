"""Given: who waits for whom at your gate and at a barrier, and what more memory saves with your manager.

python show.py [solution | starter]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_11_04_support")


def draw(work: Any, rules: list[Any]) -> None:
    """A line per request, a character per step: a dot while it waits, # while it runs."""
    for request, steps in zip(
        work["requests"], support.timeline(work, rules).values(), strict=True
    ):
        waits = steps[0] - 1 - request["step"]
        print(f"{request['id']:7} {' ' * request['step']}{'.' * waits}{'#' * len(steps)}")


def traffic(lab: Any, max_loras: int) -> list[tuple[int, ...]]:
    """The adapters of each step of a workload of 37 requests, in the order of the step's requests."""
    work = support.workload(58, "mixed")
    parts = support.make_parts(work, [lab.LoRAGate(max_loras)])
    found = []
    for step in support.decide(work, parts):
        ids = [support.adapter_of(i, work["seed"]) for i in step.decision["scheduled"]]
        found.append(tuple(dict.fromkeys(i for i in ids if i)))
    return found


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_11_04_{which}")
    work = support.scene(support.STREAM)
    print("your gate")
    draw(work, [lab.LoRAGate(2)])
    print("\na barrier")
    draw(work, [support.Barrier(lab.LoRAGate(2))])
    steps = traffic(lab, 2)
    print(f"\n37 requests with 5 adapters or none, {len(steps)} steps, 2 slots")
    print("max_cpu_loras  read from disk  slots filled")
    for max_cpu_loras in range(2, 6):
        trace = support.Trace(2, max_cpu_loras, tuple(support.Operation("=", s) for s in steps))
        seen = list(support.play_trace(lab.SlotManager, trace))
        reads, fills = sum(len(s.loads) for s in seen), sum(len(s.fills) for s in seen)
        print(f"{max_cpu_loras:13}{reads:16}{fills:14}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
