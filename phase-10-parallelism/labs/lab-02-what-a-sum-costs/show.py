"""Given: what the sums of a step cost, and where one shot stops being faster.

python show.py [solution | starter]   Noor's model, with your numbers
python show.py --measure              run the tiny Llama on two ranks, and print what each has said
python show.py --record               the same, into measured.json
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from course.learner.labs import load_module
from mini_vllm.sim.collectives import CUSTOM_MAX_BYTES, CUSTOM_MAX_SIZES

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_10_02_support")
STEPS = (("decode-1", 1, 1), ("decode-64", 64, 64), ("chunk", 2048, 1))
KIB = 1024


def measure() -> dict[str, Any]:
    found: dict[str, Any] = support.measure()
    print(f"the tiny Llama on {found['ranks']} ranks, two prompts, 24 steps; each rank has said:")
    for kind, shape, nbytes, count in found["calls"]:
        print(f"{count:4} x {kind} of {tuple(shape)!s:10}{nbytes:7,} bytes")
    return found


def main(which: str = "starter") -> None:
    if which in ("--measure", "--record"):
        found = measure()
        if which == "--record":
            support.MEASURED.write_text(json.dumps(found) + "\n", encoding="utf-8")
        return
    lab = load_module(HERE / f"{which}.py", f"lab_10_02_{which}")
    print("ranks  step       bytes per sum (161 of them)  way       sums, ms  gather, ms")
    for ranks in (2, 8):
        for name, tokens, requests in STEPS:
            ledger = support.noors_step(ranks, tokens, requests)
            (nbytes,) = [size for kind, _, size in ledger if kind == "all_reduce"]
            took = lab.step_seconds(support.NVLINK, ranks, ledger)
            way = "one-shot" if nbytes < lab.crossing(support.NVLINK, ranks) else "ring"
            print(
                f"{ranks:5}  {name:11}{nbytes:27,}  {way:8}"
                f"{1e3 * took['all_reduce']:10.3f}{1e3 * took['all_gather']:12.3f}"
            )
    print("\n       one shot is faster, KiB    vLLM's own kernel, KiB")
    print("ranks    than ring  two steps        alone    symmetric")
    link = support.NVLINK
    for ranks in (2, 4, 6, 8):
        two_steps = lab.Way(2, 2 * (ranks - 1) / ranks)
        limit = min(CUSTOM_MAX_BYTES, CUSTOM_MAX_SIZES["9.0"][ranks])
        found = [lab.crossing(link, ranks), support.cross(lab, link, ranks, two_steps)]
        around, two = (f"{at / KIB:,.0f}" if at < math.inf else "always" for at in found)
        print(f"{ranks:5}{around:>13}{two:>11}{CUSTOM_MAX_BYTES // KIB:13,}{limit // KIB:13,}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
