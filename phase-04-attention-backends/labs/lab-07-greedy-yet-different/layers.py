"""Lab 04-07: where two runs of Ida's prompt part, layer by layer, in the numpy engine.

    python phase-04-attention-backends/labs/lab-07-greedy-yet-different/layers.py [--impl
    solution|starter|FILE]

Each line changes one thing and names the first part of the model whose result for Ida's last row has
another bit. The products are your numpy's own BLAS here, so what you see may differ from the page: that is
the subject. With `--on machine` they are those of machine.py, and with `--on mine` your own.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[2]))  # the repository, where it is not installed

from course.learner.labs import load_module, load_support  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402
from mini_vllm.attention import PagedAttention, tiled  # noqa: E402
from mini_vllm.utils.blas import blas_threads  # noqa: E402

support = load_support(__file__)
IDA = "A step is one forward pass over a flat batch of tokens. The scheduler decides who is in it. "
JON = ("Blocks of 16 tokens. ", "Who waits, and for what? ", "The table says where. ")
Stages = list[tuple[str, Any]]


def neighbours(desk: Any, count: int, repeat: int) -> list[Any]:
    """So many prompts of different lengths."""
    encode = support.tokenizer().encode
    return [desk.seat(encode(JON[i % 3] * (1 + i % repeat), True), room=8) for i in range(count)]


def prefill(llama: Any, beside: int = 0, repeat: int = 2) -> Stages:
    """Ida's whole prompt in one step, with the prompts of others."""
    desk = support.Desk(llama, 512)
    ida = desk.seat(support.tokenizer().encode(IDA * repeat, True))
    stages: Stages = support.record(desk, [ida, *neighbours(desk, beside, repeat)], 0)
    return stages


def decode(llama: Any, beside: int = 0, repeat: int = 2) -> Stages:
    """Her next token, from the same cache, with others who decode."""
    desk = support.Desk(llama, 512)
    ida = desk.seat(support.tokenizer().encode(IDA * repeat, True), room=8)
    seats = [ida, *neighbours(desk, beside, repeat)]
    for seat in seats:
        desk.logits([seat])  # each prompt by itself, so the cache is the same in every run
    for seat in seats:
        seat.tokens.append(65)
    stages: Stages = support.record(desk, seats, 0)
    return stages


def chunks(llama: Any, size: int, repeat: int = 2) -> Stages:
    """Ida's prompt in chunks of `size`; the last chunk is recorded."""
    desk = support.Desk(llama, 512)
    ida = desk.seat(support.tokenizer().encode(IDA * repeat, True))
    whole, stages = ida.tokens, []
    for end in range(size, len(whole) + size, size):
        ida.tokens = whole[:end]
        stages = support.record(desk, [ida], 0)
    return stages


def changes(llama: Any, small: bool) -> Iterator[tuple[str, Stages, Stages]]:
    """What is changed, the run without and the run with it."""
    repeat = 1 if small else 2
    base = decode(llama, 0, repeat)
    for beside in (1, 3, 31) if not small else (1, 3, 8):
        yield f"decode, {beside} beside her", base, decode(llama, beside, repeat)
    yield "decode, 1 and 3 beside her", decode(llama, 1, repeat), decode(llama, 3, repeat)
    base = prefill(llama, 0, repeat)
    for beside in (1, 3):
        yield f"prefill, {beside} beside her", base, prefill(llama, beside, repeat)
    for size in (64, 16):
        yield f"her prompt in chunks of {size}", base, chunks(llama, size, repeat)
    if (
        isinstance(llama.attention, PagedAttention)
        and type(llama.attention) is tiled.TiledAttention
    ):
        was = tiled.QUERY_TILE
        for size in (64, 32):
            tiled.QUERY_TILE = size
            try:
                yield f"query tiles of {size}, not {was}", base, prefill(llama, 0, repeat)
            finally:
                tiled.QUERY_TILE = was


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--impl", help="solution (default), starter or a file")
    parser.add_argument("--on", choices=("numpy", "machine", "mine"), default="numpy")
    args = parser.parse_args()
    choice = args.impl or os.environ.get("LAB_IMPL", "").strip() or "solution"
    path = HERE / f"{choice}.py" if choice in ("starter", "solution") else Path(choice)
    if not path.is_file():
        raise SystemExit(f"--impl {choice}: there is no file {path}")
    lab = load_module(path, "lab_04_07_for_scripts")
    llama = support.model()
    if args.on != "numpy":
        kernels = (
            lab if args.on == "mine" else load_module(HERE / "machine.py", "lab_04_07_machine")
        )
        llama = support.rebuilt(llama, kernels)
    print(f"{'changed':32}{'first part that differs':34}{'steps':>6}{'share':>7}{'logits by':>11}")
    with blas_threads(1):
        for what, alone, other in changes(llama, args.on != "numpy"):
            found = lab.first_difference(alone, other)
            if found is None:
                print(f"{what:32}none")
                continue
            by = np.abs(alone[-1][1] - other[-1][1]).max()
            line = f"{found.stage:34}{found.most_ulps:6}{found.share:7.0%}{by:11.1e}"
            print(f"{what:32}{line}")


if __name__ == "__main__":
    run_script(main)
