"""The recorded step, part by part, with your functions: time beside FLOPs and bytes, and Ilse's model.

python show.py [solution | starter]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[2]))  # the repository, where it is not installed

from course.learner.labs import load_module  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402


def main() -> None:
    which = sys.argv[1] if len(sys.argv) > 1 else "starter"
    lab = load_module(HERE / f"{which}.py", f"lab_07_05_{which}")
    [step] = lab.steps_of(json.loads((HERE / "step.trace.json").read_text(encoding="utf-8")))
    own = lab.self_times(step.events)
    running = sum(own.values())
    print(f"{step.name}: {step.duration / 1e3:.2f} ms, operators {running / 1e3:.2f}")
    print(
        "         calls  of the step   of FLOPs   of bytes   Ilse: FLOPs, alone   bytes, alone   bytes of 16"
    )
    tiny, alone, many = (
        lab.work(lab.TINY, 16, 4), lab.work(lab.ILSES, 1, 2), lab.work(lab.ILSES, 16, 2)
    )  # fmt: skip
    columns = [lab.shares({part: work[i] for part, work in table.items()})
               for table, i in ((tiny, 0), (tiny, 1), (alone, 0), (alone, 1), (many, 1))]  # fmt: skip
    for part in lab.PARTS:
        calls = [event for event in step.events if lab.part_of(event, lab.TINY) == part]
        time = sum(call.duration for call in calls) / step.duration
        a, b, c, d, e = (column[part] for column in columns)
        print(f"{part:8}{len(calls):6}{time:13.1%}{a:11.1%}{b:11.1%}{c:21.1%}{d:15.1%}{e:14.1%}")


if __name__ == "__main__":
    run_script(main)
