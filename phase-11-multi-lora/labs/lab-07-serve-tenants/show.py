"""Given: where `mini_vllm`'s morning and vLLM's, as recorded, differ or read, and your plan for the week.

    python show.py [solution | starter]

Needs the extra `serve`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_11_07_support")


def counts(lab: Any, note: Any) -> str:
    """How often the call read a file, how often in a step, and how many tokens it found in the cache."""
    inside = sum(read["step"] is not None for read in note["reads"])
    cached = lab.cached_tokens(note["answer"]) if "answer" in note else ""
    return f"{len(note['reads']):6}{inside:8}{cached!s:>7}"


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_11_07_{which}")
    theirs, ours = (
        support.by_call(m) for m in (support.recorded()["morning"], support.play_here())
    )
    print(f"{'':18}{'vLLM':23}mini_vllm")
    print(f"{'':18}{'  '.join([' reads in step cached'] * 2)}")
    for call in support.MORNING:
        name = call["call"]
        if name not in "ehijk":
            continue
        what = f"ask {call['ask']}" if "ask" in call else f"load {call['load']}"
        print(f"{name}  {what:15}{counts(lab, theirs[name])}  {counts(lab, ours[name])}".rstrip())
    week, capacity = support.WEEK, support.CAPACITY
    plan = lab.plan_touches(week, capacity)
    print(f"\n{'a burst of':15}{'touch before it':17}reads before, in it; without plan")
    alone = support.count_reads(week, [[]] * len(week), capacity)
    for burst, before, (quiet, loud), (_, bare) in zip(
        week, plan, support.count_reads(week, plan, capacity), alone, strict=True
    ):
        print(f"{' '.join(burst):15}{' '.join(before):17}{quiet}, {loud}; {bare}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
