"""Lab 04-07: look for the near tie that flips, over the course's own pages, in float32.

    python phase-04-attention-backends/labs/lab-07-greedy-yet-different/search.py --positions 50000
    python phase-04-attention-backends/labs/lab-07-greedy-yet-different/search.py --replay
    python phase-04-attention-backends/labs/lab-07-greedy-yet-different/search.py --record

The pages of phases 00 to 03 are cut into windows of 256 tokens, and one step gives the logits of each of
their positions. Where the best two are nearer than 2e-5, the prompt up to there is put to the numpy engine
again: alone and beside one other prompt; and its last token as a decode, alone and beside one. `--record`
writes ties.json, from a million positions (two minutes). Which ties flip depends on numpy's BLAS, and with
it on the processor.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.append(str(ROOT))  # the repository, where it is not installed

from course.learner.labs import load_module, load_support  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402
from mini_vllm.utils.blas import blas_threads  # noqa: E402

support = load_support(__file__)
RECORD = HERE / "ties.json"
COMMAND = f"python {Path(__file__).resolve().relative_to(ROOT)} --record"
WINDOW = 256
NEAR = 2e-5
JON = "Who waits, and for what?"
LIMITS = (1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)


def windows(offset: int) -> Iterator[list[int]]:
    """The pages, cut into windows that begin as a prompt does; another offset cuts elsewhere."""
    pages = sorted(ROOT.glob("phase-0[0-3]-*/**/*.md"))
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    bos, *ids = support.tokenizer().encode(text, True)
    for start in range(offset, len(ids) - WINDOW, WINDOW - 1):
        yield [bos, *ids[start : start + WINDOW - 1]]


def two_ways(tokens: list[int]) -> dict[str, Any]:
    """The logits after a prompt, alone and beside another; as a prefill and as a decode."""
    jon = support.tokenizer().encode(JON, True)
    told: dict[str, Any] = {}
    for how in ("prefill", "decode"):
        seen = []
        for beside in (0, 1):
            desk = support.Desk(support.model(), 32)
            seats = [desk.seat(tokens), *[desk.seat(jon) for _ in range(beside)]]
            if how == "decode":
                for seat in seats:
                    last = seat.tokens.pop()
                    desk.logits([seat])
                    seat.tokens.append(last)
            seen.append(desk.logits(seats)[0])
        second, first = np.sort(seen[0].astype(np.float64))[-2:]
        told[how] = {
            "margin": float(first - second),
            "noise": float(np.abs(seen[0] - seen[1]).max()),
            "tokens": [int(logits.argmax()) for logits in seen],
        }
    return told


def search(most: int) -> dict[str, Any]:
    """Look at `most` positions, or a few more."""
    model, positions = support.model(), 0
    below = dict.fromkeys(LIMITS, 0)
    ties: list[dict[str, Any]] = []
    rounds = (window for offset in range(0, WINDOW, 16) for window in windows(offset))
    for window in rounds:
        if positions >= most:
            break
        desk = support.Desk(model, WINDOW // support.BLOCK_SIZE)
        logits = model.compute_logits(desk.step([desk.seat(window)]))
        best = np.partition(logits, -2, axis=1)[:, -2:]
        margins = best[:, 1] - best[:, 0]
        positions += len(window)
        for limit in LIMITS:
            below[limit] += int(np.count_nonzero(margins < limit))
        for at in np.flatnonzero(margins < NEAR).tolist():
            tokens = window[: at + 1]
            if all(tokens != tie["tokens"] for tie in ties):
                ties.append({"tokens": tokens, **two_ways(tokens)})
    ties.sort(key=lambda tie: tie["prefill"]["margin"])
    return {"positions": positions, "below": {str(k): v for k, v in below.items()}, "ties": ties}


def show(found: dict[str, Any]) -> None:
    """What was looked at, and the ties that flip."""
    ties = found["ties"]
    print(f"{found['positions']:,} positions. The best two logits are nearer than")
    for limit, count in found["below"].items():
        print(f"  {float(limit):<8g}{count:>9,}  one in {found['positions'] / max(count, 1):,.0f}")
    for how in ("prefill", "decode"):
        flipped = [tie for tie in ties if len(set(tie[how]["tokens"])) > 1]
        noise = [tie[how]["noise"] for tie in ties] or [0.0]
        print(
            f"{how}: {len(ties)} ties nearer than {NEAR}; beside one other, logits move by up to "
            f"{max(noise):.1e}, "
            f"and {len(flipped)} flip"
        )
        for tie in flipped:
            text = support.tokenizer().decode(tie["tokens"])[-40:]
            a, b = (support.tokenizer().decode([t]) for t in tie[how]["tokens"])
            print(
                f"  margin {tie[how]['margin']:.1e}  {text!r} goes on with {a!r} alone, with {b!r} beside one"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--positions", type=int, default=1_000_000)
    parser.add_argument("--record", action="store_true", help="write ties.json")
    parser.add_argument("--replay", action="store_true", help="read ties.json, compute nothing")
    args = parser.parse_args()
    if args.replay:
        found = json.loads(RECORD.read_text(encoding="utf-8"))
    else:
        with blas_threads(1):
            found = search(args.positions)
    if args.record:
        capture = load_module(HERE / "capture.py", "lab_04_07_capture")
        made = {
            "command": COMMAND,
            "date": datetime.date.today().isoformat(),
            "hardware": capture.processor(),
            "versions": {"python": platform.python_version(), "numpy": np.__version__},
        }
        found = made | found
        RECORD.write_text(json.dumps(found) + "\n", encoding="utf-8")
    show(found)


if __name__ == "__main__":
    run_script(main)
