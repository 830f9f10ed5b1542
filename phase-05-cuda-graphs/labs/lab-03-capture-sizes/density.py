"""Given: ladders against each other, on the steps of the night, by your functions or the solution's.

    python density.py                   # by the solution
    python density.py --impl starter    # by yours

Seconds are captures times what one took: 0.055 s in a trial of pull request 22897, 0.97 s (65 s for 67) in
issue 16716, both on GPUs and models of others. Nothing is timed here.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from course.learner.labs import load_module
from course.learner.stubs import run_script

HERE = Path(__file__).resolve().parent
QUICK_US, SLOW_US = 55_000, 65_000_000 // 67


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--impl", default="solution", help="solution, starter or a file")
    impl = parser.parse_args().impl
    named = {"solution": HERE / "solution.py", "starter": HERE / "starter.py"}
    lab = load_module(named.get(impl, Path(impl)), "lab_05_03_density")
    support = load_module(HERE / "support.py", "lab_05_03_support")
    steps = load_module(HERE / "steps.py", "lab_05_03_night").night()
    night = [step.num_tokens for step in steps]
    fits = [num_tokens for num_tokens in night if num_tokens <= 512]
    ladders = {
        "vLLM 0.22.1": lab.capture_sizes(256, 8192),
        "interactivity": lab.capture_sizes(256, 8192, performance_mode="interactivity"),
        "as in 0.8.3": [1, 2, 4, *range(8, 513, 8)],
        "every count": list(range(1, 513)),
        "powers of two": [2**i for i in range(10)],
        "only up to 40": lab.capture_sizes(256, 8192, max_cudagraph_capture_size=40),
        "the best 8": support.best_sizes(fits, 8),
        "the best 16": support.best_sizes(fits, 16),
        "the best 51": support.best_sizes(fits, 51),
        "eager": [],
    }
    print(
        f"{'ladder':15} rungs  captures  start, s       stepped on  without graph  padding, of its rows"
    )
    for name, sizes in ladders.items():
        count = sum(lab.captures(sizes, 256))
        found = lab.waste(night, sizes)
        rows = found.tokens + found.padding
        share = f"{found.padding / rows:20.1%}" if rows else f"{'none':>20}"
        seconds = f"{count * QUICK_US / 1e6:4.1f} to {count * SLOW_US / 1e6:5.1f}"
        print(
            f"{name:15} {len(sizes):5}  {count:8}  {seconds}  {len(lab.visited(night, sizes)):10}  "
            f"{found.above:13}  {share}"
        )
    eight = " ".join(map(str, ladders["the best 8"]))
    print(f"the best 8 are {eight}")
    vllm = ladders["vLLM 0.22.1"]
    mixed = lab.visited([step.num_tokens for step in steps if step.most > 1], vllm)
    full = lab.visited([step.num_tokens for step in steps if step.most == 1], vllm)
    print(f"of vLLM's captures the night needs {len(mixed)} in pieces and {len(full)} FULL")


if __name__ == "__main__":
    run_script(main)
