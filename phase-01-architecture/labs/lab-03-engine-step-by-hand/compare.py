"""Lab 01-03: your engine beside `LLMEngine`, step by step.

    python phase-01-architecture/labs/lab-03-engine-step-by-hand/compare.py
    python ….py --impl starter

Four requests in a pool that is too small for them: prompts in chunks, prefix hits, a preemption, a
client that leaves. What is printed does not depend on what the model says. Nothing here is graded.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.learner.labs import load_module  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402
from mini_vllm import EngineConfig, LLMEngine, SamplingParams  # noqa: E402
from mini_vllm.config.engine import DEFAULT_MODEL  # noqa: E402
from mini_vllm.engine.step_record import StepRecord  # noqa: E402
from mini_vllm.model_loader import load_model  # noqa: E402
from mini_vllm.tokenizer import Tokenizer  # noqa: E402

CONFIG = EngineConfig(
    block_size=4, num_gpu_blocks=15, max_model_len=48, max_num_seqs=4, max_num_batched_tokens=16
)
ARRIVALS = {  # before which step: id, prompt, seed, tokens
    1: [("A", "The KV cache", None, 10), ("B", "The KV cache holds", 1, 12)],
    3: [("C", "The KV cache is", None, 14), ("D", "A block", 2, 8)],
}
LEAVES = {14: "C"}


def run(engine: Any) -> list[dict[str, list[int]]]:
    """The tokens that each step gave to each request."""
    told: list[dict[str, list[int]]] = []
    while not told or engine.has_unfinished_requests():
        for request_id, prompt, seed, most in ARRIVALS.get(len(told) + 1, []):
            params = SamplingParams(
                temperature=0.0 if seed is None else 1.0,
                seed=seed,
                max_tokens=most,
                ignore_eos=True,
            )
            engine.add_request(request_id, prompt, params)
        if leaver := LEAVES.get(len(told) + 1):
            engine.abort_request(leaver)
        told.append({o.request_id: list(o.outputs[0].token_ids) for o in engine.step()})
    return told


def describe(record: StepRecord, ended: set[str]) -> str:
    """One line for a step; `ended` has the ids that have come to their end so far."""
    output = record.scheduler_output
    notes = [f"{request_id} has left" for request_id in sorted(output.finished_req_ids - ended)]
    batch = ", ".join(f"{r} {n}" for r, n in output.num_scheduled_tokens.items())
    for new in output.scheduled_new_reqs:
        hits = f" with {new.num_computed_tokens} cached" if new.num_computed_tokens else ""
        notes.append(f"{new.req_id} joins{hits}")
    cached = output.scheduled_cached_reqs
    for request_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
        if request_id in cached.resumed_req_ids:
            notes.append(f"{request_id} resumes with {computed} cached")
    notes += [f"{request_id} preempted" for request_id in sorted(output.preempted_req_ids)]
    ends = [o.request_id for o in record.outputs if o.finish_reason]
    ended.update(ends)
    notes += [f"{request_id} ends" for request_id in ends]
    sampled = "".join(o.request_id for o in record.outputs) or "-"
    return f"{record.index:4}  {batch:24} {sampled:8} {'; '.join(notes)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--impl", default="solution", help="solution, starter or a file")
    args = parser.parse_args()
    named = {"solution": HERE / "solution.py", "starter": HERE / "starter.py"}
    lab = load_module(named.get(args.impl, Path(args.impl)), "lab_01_03_compared")

    model, tokenizer = load_model(DEFAULT_MODEL), Tokenizer.from_folder(DEFAULT_MODEL)
    reference = LLMEngine(model, CONFIG, tokenizer=tokenizer)
    lines: list[str] = []
    ended: set[str] = set()
    reference.engine_core.step_observers.append(lambda r: lines.append(describe(r, ended)))
    theirs = run(reference)
    mine = run(lab.HandEngine(model, CONFIG, tokenizer))

    print("step  tokens computed          sampled")
    for i, line in enumerate(lines):
        same = i < len(mine) and mine[i] == theirs[i]
        print((line if same else line + "   <- yours differs here").rstrip())
        if not same:
            break
    steps = sum(a == b for a, b in zip(mine, theirs, strict=False))
    print(f"\nsteps in which every client was told the same: {steps} of {len(theirs)}")


if __name__ == "__main__":
    run_script(main)
