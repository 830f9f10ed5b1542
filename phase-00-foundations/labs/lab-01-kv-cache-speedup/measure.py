"""Lab 00-01: run both loops, count their work, time every pass, draw the curves.

    python phase-00-foundations/labs/lab-01-kv-cache-speedup/measure.py
    python ….py --impl starter --plot curves.png

Needs the lab to be solved: in solution.py (the default), in starter.py (`--impl starter`), or in a file
that you name. `--plot` needs matplotlib (`pip install -e ".[plots]"`). Nothing here is graded.

The time of a pass is that of the clock on the wall, the best of three runs. On a machine that is busy with
other work `--clock cpu` tells more: the time for which the processor worked on this process. On an idle
machine the two agree, since everything runs on one thread; the last line says how far they do.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

# One thread, unless you say otherwise: threads that share a busy core only add noise.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from benchmarks.machine import describe  # noqa: E402
from course.learner.labs import load_module  # noqa: E402
from mini_vllm.config.engine import DEFAULT_MODEL  # noqa: E402
from mini_vllm.model_loader import load_model  # noqa: E402

PROMPT_LEN = 32
REPEATS = 3
CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}


class Timed:
    """The model, with the seconds of each pass: from one call of forward to its logits."""

    def __init__(self, model: Any, clock: Callable[[], float]) -> None:
        self._model = model
        self._clock = clock
        self.seconds: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, *args: Any) -> Any:
        self.seconds.append(-self._clock())
        return self._model.forward(*args)

    def compute_logits(self, hidden: Any) -> Any:
        logits = self._model.compute_logits(hidden)
        self.seconds[-1] += self._clock()
        return logits


def measure(
    lab: ModuleType, name: str, model: Any, new: int, clock: Callable[[], float]
) -> tuple[Any, list[float]]:
    """One loop's result, and the seconds of each of its passes: the best of `REPEATS` runs."""
    text = b"The scheduler picks requests. " * 2
    prompt = [1, *(8 + b for b in text[: PROMPT_LEN - 1])]
    best: list[float] = []
    for _ in range(REPEATS):
        timed = Timed(model, clock)
        generation = getattr(lab, name)(timed, prompt, new)
        best = [min(pair) for pair in zip(best or timed.seconds, timed.seconds, strict=True)]
    return generation, best


def draw(path: Path, without: list[float], cached: list[float], machine: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"font.size": 9})
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    n = range(1, len(without) + 1)
    for seconds, label, color in (
        (without, "no cache", "#c2410c"),
        (cached, "with cache", "#1d4ed8"),
    ):
        left.plot(n, [1e3 * s for s in seconds], label=label, color=color, lw=1)
        right.plot(n, list(accumulate(seconds)), label=label, color=color, lw=1.6)
    left.set(title="one pass", xlabel="new token", ylabel="milliseconds", ylim=(0, None))
    right.set(title="all passes so far", xlabel="new tokens", ylabel="seconds (log scale)")
    right.set_xlim(left.get_xlim())
    right.set_yscale("log")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.suptitle(f"Lab 00-01, tiny-llama, prompt of {PROMPT_LEN} tokens · {machine}", fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--impl", default="solution", help="solution, starter or a file")
    parser.add_argument("--new", type=int, default=960, help="tokens to generate (default 960)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="which time to measure")
    parser.add_argument("--plot", type=Path, help="draw the curves into this .svg or .png")
    args = parser.parse_args()

    named = {"solution": HERE / "solution.py", "starter": HERE / "starter.py"}
    lab = load_module(named.get(args.impl, Path(args.impl)), "lab_00_01_measured")
    model = load_model(DEFAULT_MODEL)
    room = model.config.max_position_embeddings
    if not 1 <= args.new <= room - PROMPT_LEN + 1:
        parser.error(f"--new must be from 1 to {room - PROMPT_LEN + 1}, got {args.new}")

    clock = CLOCKS[args.clock]
    wall, cpu = time.perf_counter(), time.thread_time()
    cached, cached_seconds = measure(lab, "generate_with_cache", model, args.new, clock)
    without, seconds = measure(lab, "generate_without_cache", model, args.new, clock)
    share = (time.thread_time() - cpu) / (time.perf_counter() - wall)

    same = sum(a == b for a, b in zip(without.token_ids, cached.token_ids, strict=True))
    print(f"tokens that are the same: {same} of {args.new}\n")
    print(f"   new      K/V computed               seconds ({args.clock})")
    print("tokens  no cache  cache  ratio   no cache   cache  ratio")
    points = sorted({args.new, *(4**k for k in range(6) if 4**k <= args.new)})
    for n in points:
        work, one = sum(without.kv_computed[:n]), sum(cached.kv_computed[:n])
        slow, fast = sum(seconds[:n]), sum(cached_seconds[:n])
        print(
            f"{n:6}{work:10}{one:7}{work / one:7.1f}{slow:11.4f}{fast:8.4f}{slow / fast:7.1f}",
        )
    first, slow, fast = (1e3 * s for s in (cached_seconds[0], seconds[-1], cached_seconds[-1]))
    print(f"\nfirst pass, {PROMPT_LEN} tokens: {first:.2f} ms")
    print(f"last pass: {slow:.2f} ms without the cache, {fast:.2f} ms with it")
    print(f"the processor worked on this for {share:.0%} of the time on the wall")
    machine = describe()
    where = f"{machine['processor']}, one thread, numpy {machine['versions']['numpy']}"
    if args.plot:
        draw(args.plot, seconds, cached_seconds, where)
        print(f"drawn: {args.plot}")


if __name__ == "__main__":
    main()
