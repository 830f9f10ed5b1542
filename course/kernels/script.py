"""What the `show.py` of every kernel lab begins with: options, the file that they name, a batch to run it on.

Triton reads TRITON_INTERPRET when it is imported, so this module imports neither it nor torch at the top, and
a script calls `options` first.
"""

from __future__ import annotations

import argparse
import os
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from course.learner.labs import load_module
from course.learner.stubs import unwritten

if TYPE_CHECKING:
    from torch import Tensor

HEADS, KV_HEADS, HEAD_SIZE, BLOCK_SIZE = 8, 2, 64, 16  # of the batch that `draw` makes
SPARE = 3  # blocks of the pool that belong to no sequence


def options(doc: str | None) -> argparse.Namespace:
    """What the command line says: `impl`, `device` and `json`.

    For the CPU it sets TRITON_INTERPRET, so call it before triton is imported. `--help` shows the first line
    of `doc`, the script's docstring.
    """
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("--impl", default="starter", help="starter (default), solution, or a file")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", action="store_true", help="the figures only, for a program")
    args = parser.parse_args()
    if missing := [name for name in ("torch", "triton") if find_spec(name) is None]:
        raise SystemExit(
            f"{' and '.join(missing)} missing; see SETUP.md. Triton is built for Linux alone."
        )
    if args.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    return args


def load(impl: str, folder: Path, *kernels: str) -> ModuleType:
    """The module that `impl` names: starter.py or solution.py of the lab in `folder`, or a file.

    Ends the script with one sentence where one of `kernels` is not written yet.
    """
    path = folder / f"{impl}.py" if impl in ("starter", "solution") else Path(impl).resolve()
    missing = unwritten(path.read_text(encoding="utf-8"))
    for name in kernels:
        if name in missing:
            raise SystemExit(
                f"{name} is not written yet. Finish it in starter.py, or run with --impl solution."
            )
    return load_module(path, "kernel_under_test")


def draw(
    seq_lens: list[int], num_tokens: int, device: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Random sequences in a paged cache, their blocks in no order; the same numbers on every run.

    Args:
        seq_lens: tokens of each sequence, those of this step included.
        num_tokens: query tokens of all sequences together.
        device: "cpu" or "cuda".

    Returns:
        query: float16 `[num_tokens, HEADS, HEAD_SIZE]`.
        key_cache, value_cache: float16 `[num_blocks, BLOCK_SIZE, KV_HEADS, HEAD_SIZE]`.
        block_table: int32 `[num_seqs, blocks of the longest]`; 0 past a sequence's last block.
        seq_lens: int32 `[num_seqs]`.
    """
    import torch

    rng = torch.Generator().manual_seed(0)
    needed = [-(-length // BLOCK_SIZE) for length in seq_lens]
    num_blocks = sum(needed) + SPARE
    ids = torch.randperm(num_blocks, generator=rng).int()
    table = torch.zeros(len(seq_lens), max(needed), dtype=torch.int32)
    for row, count in enumerate(needed):
        table[row, :count], ids = ids[:count], ids[count:]
    query = torch.randn(num_tokens, HEADS, HEAD_SIZE, generator=rng)
    pool = (num_blocks, BLOCK_SIZE, KV_HEADS, HEAD_SIZE)
    key, value = (torch.randn(pool, generator=rng) for _ in "kv")
    query, key, value = (t.half().to(device) for t in (query, key, value))
    return query, key, value, table.to(device), torch.tensor(seq_lens).int().to(device)
