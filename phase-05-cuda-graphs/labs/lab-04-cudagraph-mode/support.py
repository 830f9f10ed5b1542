"""Given for lab 05-04: vLLM's answers, and comparisons that say what is different."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from course.learner.labs import load_module
from mini_vllm.cudagraph import AttentionCGSupport, CUDAGraphMode

ROOT = Path(__file__).resolve().parents[3]
grid = load_module(ROOT / "tests/engine/helpers/cudagraph_grid.py", "lab_05_04_grid")
DEFAULT = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
"""The ladder for 256 requests and steps of 8,192 tokens (lab 05-03)."""


@cache
def recorded(kind: str) -> list[tuple[Any, str]]:
    """Questions and vLLM's answers: `resolves` or `tables`."""
    _, theirs = grid.load()
    asked = list({"resolves": grid.resolves, "tables": grid.tables}[kind]())
    return list(zip(asked, theirs[kind], strict=True))


@cache
def ladder(one: Any) -> list[int]:
    """vLLM's ladder, before anything is rounded."""
    sizes: list[int] = grid.mini().sizes(one)
    return sizes


def yours(lab: ModuleType) -> Any:
    """The three parts of the learner's, as the grid asks them."""

    def resolve(one: Any) -> tuple[str, list[int]]:
        mode = lab.resolve_cudagraph_mode(
            CUDAGraphMode[one.mode],
            AttentionCGSupport[one.support],
            uniform_decode_query_len=one.ladder.query_len,
            is_attention_compiled_piecewise=one.pieces,
        )
        sizes = list(ladder(one.ladder))
        if mode.decode_mode() is CUDAGraphMode.FULL and one.ladder.query_len > 1:
            sizes = lab.adjust_cudagraph_sizes_for_spec_decode(sizes, one.ladder.query_len)
        return mode.name, sizes

    def dispatch(table: Any) -> Any:
        mode, sizes = resolve(grid.Resolve(table.ladder, table.mode, "ALWAYS", True))
        made = lab.CudagraphDispatcher(
            CUDAGraphMode[mode], sizes, table.ladder.max_num_seqs, table.ladder.query_len
        )
        forbidden = {names: frozenset(CUDAGraphMode[n] for n in names) for _, names in grid.ROWS}
        return lambda num_tokens, uniform, names: made.dispatch(
            num_tokens, uniform, forbidden[names]
        )

    return grid.Steps(ladder, resolve, dispatch)


def resolves_are_vllms(lab: ModuleType, wanted: Any) -> None:
    """`lab` leaves the modes and sizes that vLLM leaves, wherever `wanted(question)` holds."""
    side, count, wrong, first = yours(lab), 0, 0, ""
    for one, theirs in recorded("resolves"):
        if not wanted(one):
            continue
        count += 1
        mine = grid.answer(side, one)
        if mine != theirs:
            wrong += 1
            first = first or (
                f"{one.mode}, support {one.support}, {'' if one.pieces else 'not '}split, decodes of "
                f"{one.ladder.query_len}, ladder {_short(ladder(one.ladder))}: {_apart(theirs, mine)}"
            )
    assert count, "the record has no such question: do not change it"
    assert not wrong, f"{wrong} of {count} answers are not the same. The first: {first}"


def _apart(theirs: str, mine: str) -> str:
    """Where two answers, a mode and its sizes each, part: the mode if it does, else the first sizes."""
    (mode, *sizes), (my_mode, *my_sizes) = theirs.split(" "), mine.split(" ")
    if "error" in (mode, my_mode):
        return f"vLLM has {_cut(theirs)}, you {_cut(mine)}"
    if mode != my_mode:
        rule = "first the wish for mixed batches is lowered, then what is left for decodes"
        return f"vLLM leaves {mode}, you {my_mode}; {rule}"
    same = [a == b for a, b in zip(sizes, my_sizes, strict=False)]
    at = max(0, [*same, False].index(False) - 1)
    rule = "sizes are rounded up to whole requests, and none above the old top is left"
    both = f"vLLM has {_some(sizes[at:])}, you {_some(my_sizes[at:])}"
    return f"{mode}, and from size {at + 1} on {both}; {rule}"


def _some(sizes: list[str]) -> str:
    return (" ".join(sizes[:5]) + " …" * (len(sizes) > 5)) or "none"


def _short(sizes: list[int]) -> str:
    return str(sizes) if len(sizes) < 8 else f"{sizes[0]}, {sizes[1]}, {sizes[2]}, … {sizes[-1]}"


def _cut(answer: str) -> str:
    return answer if len(answer) < 60 else f"{answer[:40]} … {answer[-12:]}"


def tables_are_vllms(lab: ModuleType, every: int) -> None:
    """`lab.CudagraphDispatcher` says what vLLM's says, for every `every`-th table of 4,096 steps."""
    side = yours(lab)
    for one, theirs in recorded("tables")[::every]:
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
