"""Lab 01-01: print the events of a run as a table, with your tracer.

    python phase-01-architecture/labs/lab-01-trace-a-request/show.py --impl starter "The KV cache"
    python ….py --impl starter --blocks 6 "The pool has five block" "Later the last one goes"

All prompts are there from the beginning. Nothing here is graded.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))  # the repository, where it is not installed

from course.learner.labs import load_module  # noqa: E402
from mini_vllm import EngineConfig, LLMEngine, SamplingParams  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("prompts", nargs="*", default=["The KV cache"], metavar="PROMPT")
    parser.add_argument("--impl", default="solution", help="what runs: solution, starter or a file")
    parser.add_argument("--max-tokens", type=int, default=4, help="tokens to generate for each")
    parser.add_argument("--budget", type=int, default=4096, help="max_num_batched_tokens")
    parser.add_argument("--seqs", type=int, default=4, help="max_num_seqs")
    parser.add_argument("--blocks", type=int, help="KV blocks, the null block included")
    args = parser.parse_args()
    named = {"solution": HERE / "solution.py", "starter": HERE / "starter.py"}
    print(f"implementation: {args.impl}", file=sys.stderr)
    lab = load_module(named.get(args.impl, Path(args.impl)), "lab_01_01_shown")
    config = EngineConfig(
        max_num_batched_tokens=args.budget, max_num_seqs=args.seqs, num_gpu_blocks=args.blocks
    )
    tracer = lab.Tracer(LLMEngine(config=config))
    params = SamplingParams(temperature=0, max_tokens=args.max_tokens, ignore_eos=True)
    for name, prompt in zip("abcdefghijklmnopqrstuvwxyz", args.prompts, strict=False):
        tracer.add_request(name, prompt, params)
    events = tracer.run()
    print(lab.table(events))
    for name in tracer.requests:
        path = " > ".join(lab.path(events, name))
        print(f"{name}: {path}; first token after {lab.steps_to_first_token(events, name)} steps")


if __name__ == "__main__":
    main()
