"""Lab 00-02: the table for every model in configs/, from your functions.

    python phase-00-foundations/labs/lab-02-kv-memory-calculator/calculator.py
    python ….py --impl starter --gib 40 --tokens 32768 --kv-cache-dtype fp8

`--gib` is the memory left for the KV cache, `--tokens` the length of a request. Nothing here is graded.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))

from course.learner.labs import load_module  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--impl", default="solution", help="solution, starter or a file")
    parser.add_argument("--gib", type=float, default=40, help="GiB for the KV cache (default 40)")
    parser.add_argument("--tokens", type=int, default=8192, help="tokens a request (default 8192)")
    parser.add_argument("--kv-cache-dtype", default="auto", help="auto, fp8, bfloat16, ...")
    args = parser.parse_args()

    named = {"solution": HERE / "solution.py", "starter": HERE / "starter.py"}
    lab = load_module(named.get(args.impl, Path(args.impl)), "lab_00_02_calculator")
    configs = {path.stem: lab.read_config(path.stem) for path in sorted(lab.CONFIGS.glob("*.json"))}
    shipped = ROOT / "mini_vllm" / "checkpoints" / "tiny-llama" / "config.json"
    configs["tiny-llama"] = lab.read_config(str(shipped))

    print(
        f"{args.gib:g} GiB for KV, type {args.kv_cache_dtype}, requests of {args.tokens:,} tokens\n"
    )
    print("model             KiB a token  MiB a request     blocks  reported  at once")
    for name, config in configs.items():
        per_token = lab.kv_bytes_per_token(config, args.kv_cache_dtype)
        blocks = lab.num_kv_blocks(int(args.gib * lab.GIB), config, 16, args.kv_cache_dtype)
        print(
            f"{name:17}{per_token / 1024:12.2f}{per_token * args.tokens / 1024**2:15.1f}"
            f"{blocks:11,}{lab.reported_concurrency(blocks, args.tokens):9.2f}x"
            f"{lab.requests_at_once(blocks, args.tokens):9,}"
        )


if __name__ == "__main__":
    main()
