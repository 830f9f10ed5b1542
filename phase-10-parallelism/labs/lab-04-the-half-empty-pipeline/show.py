"""Given: the stages' time lines, without your rule and with it; or the same requests on real processes.

python show.py [solution | starter]              stages on paper
python show.py [solution | starter] --processes  two processes, with the engine's own queue and your rule
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_10_04_support")
DRAWN = ("two apart", "four")
ROWS = (
    "four",
    "four unequal",
    "four, 2 slots",
    "four, 4 stages",
    "long prompts",
)


def pictures(lab: Any) -> None:
    """Of two workloads, each step one tick per stage; the last with the rule, too."""
    for name in DRAWN:
        print(f"{name}\n{support.draw(support.play(lab, support.WORKLOADS[name]))}")
    print(
        f"four, with your rule\n{support.draw(support.play(lab, support.WORKLOADS['four'], 'flat', True))}"
    )


def table(lab: Any) -> None:
    """Ticks of some workloads under both costs."""
    print(f"\n{'':16} a tick a step  a tick a token")
    print(f"{'':16} {'alone':>6} {'rule':>6}  {'alone':>6} {'rule':>6} {'bound':>6}")
    for name in ROWS:
        work = support.WORKLOADS[name]
        ticks = [
            support.play(lab, work, cost, spread).ticks
            for cost in support.COSTS
            for spread in (False, True)
        ]
        bound = lab.lower_bound(work.lengths(), work.stages)
        print(f"{name:16} {ticks[0]:6} {ticks[1]:6}  {ticks[2]:6} {ticks[3]:6} {bound:6}")


def processes(lab: Any) -> None:
    """Four requests on a pipeline of two processes."""
    work = support.WORKLOADS["four"]
    found = [support.play_on_processes(work, hold_back) for hold_back in (None, lab.hold_back)]
    for what, played in zip(("alone", "with your rule"), found, strict=True):
        print(f"{what:15} {len(played.schedules)} schedules, {played.empty} of them empty")
    print("tokens", "equal" if found[0].tokens == found[1].tokens else "DIFFER")


def main(which: str = "starter", *flags: str) -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_10_04_{which}")
    if "--processes" in flags:
        processes(lab)
        return
    pictures(lab)
    table(lab)


if __name__ == "__main__":
    main(*sys.argv[1:])
