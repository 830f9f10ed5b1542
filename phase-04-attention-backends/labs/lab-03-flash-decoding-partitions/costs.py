"""What cutting costs Ida, and how long the busiest multiprocessor works: from your `busiest`.

    python costs.py [--impl solution|starter|FILE]

An H100 with 132 multiprocessors; one layer of Llama-3-8B, with 32 query heads on 8 KV heads of 128 numbers;
4,096 tokens.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[2]))  # the repository, where it is not installed

from course.learner.labs import load_module  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402

KEYS, HEADS, KV_HEADS, HEAD_SIZE, SMS = 4096, 32, 8, 128, 132


def main() -> None:
    parser = argparse.ArgumentParser(description="When cutting the keys pays.")
    parser.add_argument("--impl", help="solution (default), starter or a file")
    choice = parser.parse_args().impl or os.environ.get("LAB_IMPL", "").strip() or "solution"
    path = HERE / f"{choice}.py" if choice in ("starter", "solution") else Path(choice)
    if not path.is_file():
        raise SystemExit(f"--impl {choice}: there is no file {path}")
    lab = load_module(path, "lab_04_03_for_scripts")

    def busiest(num_seqs: int, num_splits: int) -> int:
        keys: int = lab.busiest(num_seqs, KV_HEADS, KEYS, num_splits, SMS)
        return keys

    kv = KEYS * 2 * KV_HEADS * HEAD_SIZE * 2
    states = 2 * 4 * (HEAD_SIZE + 2) * HEADS
    print("1 request      busiest   more bytes")
    for num_splits in (1, 8, 16, 17, 33):
        more = states * num_splits / kv if num_splits > 1 else 0
        print(f"{num_splits:3} parts  {busiest(1, num_splits):7,} keys  {more:9.1%}")
    print("\nrequests    1 part   16 parts")
    for num_seqs in (1, 4, 16, 64):
        print(f"{num_seqs:8}{busiest(num_seqs, 1):10,}{busiest(num_seqs, 16):11,}")


if __name__ == "__main__":
    run_script(main)
