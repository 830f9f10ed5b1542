"""Lab 01-04: three workloads through your probe.

    python phase-01-architecture/labs/lab-04-watch-the-batch/watch.py
    python ….py --impl starter

Prints a batch step by step, static against continuous batching, and what budget and chunking do to a
short request behind a long prompt. Counts only, no clock: it prints the same everywhere, whatever the
model says. Nothing here is graded.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.learner.labs import load_module  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402
from mini_vllm import EngineConfig, LLMEngine, SamplingParams  # noqa: E402
from mini_vllm.config.engine import DEFAULT_MODEL  # noqa: E402
from mini_vllm.model_loader import load_model  # noqa: E402
from mini_vllm.tokenizer import Tokenizer  # noqa: E402


class Bench:
    """Engines on one loaded model, each with a probe on it."""

    def __init__(self, lab: ModuleType) -> None:
        self.lab = lab
        self.model = load_model(DEFAULT_MODEL)
        self.tokenizer = Tokenizer.from_folder(DEFAULT_MODEL)

    def run(self, arrivals: dict[int, list[tuple[str, Any, int]]], **settings: Any) -> Any:
        """Run requests (id, prompt, tokens), added before the step that is their key; the probe."""
        engine = LLMEngine(self.model, EngineConfig(**settings), tokenizer=self.tokenizer)
        probe = self.lab.BatchProbe(engine)
        step = 1
        while engine.has_unfinished_requests() or step <= max(arrivals):
            for request_id, prompt, most in arrivals.get(step, []):
                engine.add_request(
                    request_id,
                    prompt,
                    SamplingParams(temperature=0, max_tokens=most, ignore_eos=True),
                )
            engine.step()
            step += 1
        return probe


def prompt_of(length: int, first: int) -> dict[str, list[int]]:
    """`length` tokens that share no block with those of another `first`."""
    return {"prompt_token_ids": [1, *(8 + (first + i) % 256 for i in range(length - 1))]}


def step_by_step(bench: Bench) -> None:
    probe = bench.run(
        {1: [("A", "The KV cache", 4), ("B", "Paged", 4)]}, max_num_batched_tokens=8, max_num_seqs=4
    )
    print("step  prefill     decode  waits  samples  ends  idle  mixed")
    for step in probe.steps:
        parts = (
            " ".join(f"{r}:{step.num_scheduled_tokens[r]}" for r in step.prefills),
            " ".join(step.decodes),
            " ".join(step.waiting),
            " ".join(step.sampled),
            " ".join(step.finished),
        )
        a, b, c, d, e = (part or "-" for part in parts)
        mixed = "yes" if bench.lab.is_mixed(step) else "no"
        idle = step.budget - step.num_tokens
        print(f"{step.index:4}  {a:10}  {b:6}  {c:5}  {d:7}  {e:4}  {idle:4}  {mixed}")
    for request_id, ledger in probe.ledgers.items():
        print(
            f"{request_id}: {ledger.num_scheduled} tokens computed, "
            f"{bench.lab.expected_scheduled(ledger)} expected"
        )


def static_against_continuous(bench: Bench) -> None:
    lengths = [4, 30, 6, 8, 25, 5, 7, 40, 6, 4, 9, 5]
    print("seats  static steps  continuous steps  in a step")
    for seats in (2, 4, 8):
        requests = [(f"r{i}", prompt_of(10, 20 * i), n) for i, n in enumerate(lengths)]
        probe = bench.run({1: requests}, max_num_seqs=seats)
        static = bench.lab.static_steps(lengths, seats)
        size = bench.lab.batch_size(probe.steps)
        print(f"{seats:5}{static:14}{len(probe.steps):18}{size:11.2f}")


def behind_a_long_prompt(bench: Bench) -> None:
    settings: list[tuple[str, dict[str, Any]]] = [
        ("off", {"max_num_batched_tokens": 1024, "enable_chunked_prefill": False}),
        ("1024", {"max_num_batched_tokens": 1024}),
        ("256", {"max_num_batched_tokens": 256}),
        ("64", {"max_num_batched_tokens": 64}),
        ("256, at most 128", {"max_num_batched_tokens": 256, "long_prefill_token_threshold": 128}),
        ("64, at most 32", {"max_num_batched_tokens": 64, "long_prefill_token_threshold": 32}),
    ]
    arrivals = {
        1: [("decoding", prompt_of(10, 0), 60)],
        5: [("long", prompt_of(900, 40), 4), ("short", prompt_of(20, 140), 4)],
    }
    print("                  first token of short   of long        longest gap")
    print("budget            steps  tokens          steps  tokens  of decoding  steps  used")
    for name, kwargs in settings:
        probe = bench.run(arrivals, max_model_len=1024, max_num_seqs=8, **kwargs)
        steps, lab = probe.steps, bench.lab
        short, long = (lab.time_to_first_token(steps, r) for r in ("short", "long"))
        gap = lab.longest_gap(steps, "decoding")
        print(
            f"{name:16}{short[0]:7}{short[1]:8}{long[0]:15}{long[1]:8}{gap:13}{len(steps):7}"
            f"{lab.budget_use(steps):6.0%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--impl", default="solution", help="solution, starter or a file")
    args = parser.parse_args()
    named = {"solution": HERE / "solution.py", "starter": HERE / "starter.py"}
    bench = Bench(load_module(named.get(args.impl, Path(args.impl)), "lab_01_04_watched"))
    step_by_step(bench)
    print()
    static_against_continuous(bench)
    print()
    behind_a_long_prompt(bench)


if __name__ == "__main__":
    run_script(main)
