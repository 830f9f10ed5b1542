"""Given: the ledger of a step on `mini_vllm`'s ranks, which are processes, beside your prediction.

python show.py [solution | starter] [TP] [PP]
"""

from __future__ import annotations

import sys
from pathlib import Path

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_10_03_support")


def main(which: str = "starter", tp: str = "2", pp: str = "1") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_10_03_{which}")
    split = lab.Split(int(tp), int(pp))
    model = lab.Model(**support.TINY)
    steps = support.play("tiny-llama", {"tp": split.tp, "pp": split.pp}, support.LENGTHS, 48)
    for number, (tokens, logits, calls) in enumerate(steps):
        if number > 3:
            break
        print(f"step {number}: {tokens} tokens, {logits} rows of logits")
        for rank, mine in enumerate(calls):
            predicted = lab.step_calls(model, split, rank, lab.Step(tokens, logits))
            words = "; ".join(
                f"{n} x {kind} {shape}" for (kind, shape, _), n in sorted(mine.items())
            )
            same = "as you say" if mine == predicted else f"you say {dict(predicted)}"
            print(f"  rank {rank}  {words}  {support.nbytes(mine):,} bytes, {same}")
    print(f"rank {lab.output_rank(split)} answers")


if __name__ == "__main__":
    main(*sys.argv[1:])
