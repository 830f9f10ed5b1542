"""Given for lab 05-04: vLLM's answers, and comparisons that say what is different."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from course.learner.labs import load_module
from mini_vllm.cudagraph import CUDAGraphMode

ROOT = Path(__file__).resolve().parents[3]
grid = load_module(ROOT / "tests/engine/helpers/cudagraph_grid.py", "lab_05_04_grid")
DEFAULT = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
"""The ladder for 256 requests and steps of 8,192 tokens (lab 05-03)."""


@cache
def recorded() -> list[tuple[Any, str]]:
    """Tables of steps, and how vLLM's dispatcher ran them."""
    _, theirs = grid.load()
    return list(zip(grid.tables(), theirs["tables"], strict=True))


@cache
def ladder(one: Any) -> list[int]:
    """vLLM's ladder, before anything is rounded."""
    sizes: list[int] = grid.mini().sizes(one)
    return sizes


def yours(lab: ModuleType) -> Any:
    """The learner's dispatcher as the grid asks it; the mode that is left and its sizes are the engine's."""
    mini = grid.mini()

    def dispatch(table: Any) -> Any:
        mode, sizes = mini.resolve(grid.Resolve(table.ladder, table.mode, "ALWAYS", True))
        made = lab.CudagraphDispatcher(
            CUDAGraphMode[mode], sizes, table.ladder.max_num_seqs, table.ladder.query_len
        )
        forbidden = {names: frozenset(CUDAGraphMode[n] for n in names) for _, names in grid.ROWS}
        return lambda num_tokens, uniform, names: made.dispatch(
            num_tokens, uniform, forbidden[names]
        )

    return grid.Steps(ladder, mini.resolve, dispatch)


def _short(sizes: list[int]) -> str:
    return str(sizes) if len(sizes) < 8 else f"{sizes[0]}, {sizes[1]}, {sizes[2]}, … {sizes[-1]}"


def _cut(answer: str) -> str:
    return answer if len(answer) < 60 else f"{answer[:40]} … {answer[-12:]}"


def tables_are_vllms(lab: ModuleType, every: int) -> None:
    """`lab.CudagraphDispatcher` says what vLLM's says, for every `every`-th table of 4,096 steps."""
    side = yours(lab)
    for one, theirs in recorded()[::every]:
        mine = grid.answer(side, one)
        assert mine == theirs, f"{about(one)}: {first_difference(theirs, mine)}"


def about(table: Any) -> str:
    """A table's settings."""
    return (
        f"{table.mode}, max_num_seqs={table.ladder.max_num_seqs}, decodes of {table.ladder.query_len} "
        f"tokens, ladder {_short(ladder(table.ladder))}"
    )


def first_difference(theirs: str, mine: str) -> str:
    """The first step that runs otherwise."""
    if "error" in (theirs, mine):
        return f"vLLM has {_cut(theirs)}, you {_cut(mine)}"
    for (uniform, invalid), *both in zip(
        grid.ROWS, theirs.split("; "), mine.split("; "), strict=True
    ):
        here, there = (cells(row) for row in both)
        for num_tokens, (a, b) in enumerate(zip(here, there, strict=True), 1):
            if a != b:
                kind = "a uniform decode" if uniform else "mixed"
                without = ", FULL forbidden" if invalid else ""
                return f"a step of {num_tokens} tokens, {kind}{without}: vLLM has {a}, you {b}"
    return "the same"


def cells(row: str) -> list[str]:
    """A row of the record, cell by cell: mode and tokens/requests."""
    found: list[str] = []
    for run in row.split(", "):
        end, said = run.split(" ", 1)
        found += [said] * (int(end) - len(found))
    return found
