"""Given: what n = 4 costs by your law, and what the engine of this course did.

python show.py [solution | starter]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_09_03_support")
SERVERS: tuple[dict[str, Any], ...] = (
    {},
    {"max_num_seqs": 1},
    {"max_num_batched_tokens": 128},
    {"served_before": True},
    {"prompt_logprobs": True},
)


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_09_03_{which}")
    print(f"{'P':>3}  {'case':29}{'share':7}{'first step':22}the engine")
    for length, changes in [*((n, {}) for n in (16, 40)), *((120, one) for one in SERVERS)]:
        fields = {"num_prompt_tokens": length, "n": 4, **changes}
        case, played = lab.Case(**fields), support.play(tuple(fields.items()))
        same = (played.cached, played.first_step) == (lab.cached_tokens(case), lab.first_step(case))
        words = ", ".join(f"{name} {value}" for name, value in changes.items())
        print(
            f"{length:3}  {words:29}{lab.cached_share(case):<7.0%}{lab.first_step(case)!s:22}"
            f"{'the same' if same else f'{played.cached}, {played.first_step}'}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:2])
