"""The 256 requests served on your allocators: one line a way to share the pool, then the block sizes.

python report.py [--impl solution|starter|FILE]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[2]))  # the repository, where it is not installed

import support  # noqa: E402

from course.learner.labs import load_module  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402

BLOCK_SIZES = (1, 4, 16, 64, 256, 1024)
Way = tuple[str, Callable[[], Any], Callable[[support.Request], int]]


def load_lab(choice: str | None) -> ModuleType:
    """`starter.py` or `solution.py` beside this file, or any other path; else what LAB_IMPL says."""
    choice = choice or os.environ.get("LAB_IMPL", "").strip() or "solution"
    path = HERE / f"{choice}.py" if choice in ("starter", "solution") else Path(choice)
    if not path.is_file():
        raise SystemExit(f"--impl {choice}: there is no file {path}")
    return load_module(path, "lab_02_02_for_scripts")


def ways(lab: ModuleType) -> list[Way]:
    """The ways to share the pool, each with a name and what it reserves."""
    slots = support.NUM_SLOTS
    return [
        ("the model's maximum", lambda: lab.ContiguousAllocator(slots), support.the_models_maximum),
        (
            "the client's maximum",
            lambda: lab.ContiguousAllocator(slots),
            support.the_clients_maximum,
        ),
        (
            "blocks of 256",
            lambda: lab.PagedAllocator(slots // 256, 256),
            support.the_models_maximum,
        ),
        ("blocks of 16", lambda: lab.PagedAllocator(slots // 16, 16), support.the_models_maximum),
    ]


def serve_all(lab: ModuleType) -> dict[str, support.Totals]:
    """What serving all requests comes to, for each way."""
    requests = support.load_requests()
    return {
        name: support.totals(support.serve(make(), requests, at_most), support.NUM_SLOTS)
        for name, make, at_most in ways(lab)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve 256 real requests on your allocators.")
    parser.add_argument("--impl", help="solution (default), starter or a file")
    lab = load_lab(parser.parse_args().impl)
    requests = support.load_requests()
    lengths = [request.length for request in requests]
    print(
        f"{len(requests)} requests of {sum(lengths) / len(lengths):,.0f} tokens on average, "
        f"{min(lengths):,} to {max(lengths):,}; a pool of {support.NUM_SLOTS:,} slots"
    )
    print(f"\n{'while somebody waits':22}{'at once':>8}{'tokens':>8}{'empty':>8}{'free':>8}"
          f"{'stuck':>8}{'thrown out':>12}{'steps':>8}")  # fmt: skip
    for name, t in serve_all(lab).items():
        print(f"{name:22}{t.running:8.1f}{t.held:8.1%}{t.reserved:8.1%}{t.free:8.1%}"
              f"{t.stuck:8.0%}{t.preempted:12}{t.steps:8,}")  # fmt: skip
    print(f"\n{'block size':>10}{'wasted':>10}{'longest table':>16}")
    for row in lab.sweep(lengths, BLOCK_SIZES):
        print(f"{row.block_size:10,}{row.waste:10.2%}{row.longest_table:16,}")


if __name__ == "__main__":
    run_script(main)
