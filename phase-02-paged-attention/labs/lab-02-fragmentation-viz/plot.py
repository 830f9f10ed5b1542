"""Draw the pool with your allocators (needs matplotlib: the extra `plots`).

    python plot.py [--impl solution|starter|FILE] [--out fragmentation.png]

On the left the pool at one moment, twice; then what each way makes of it, and the sweep of block sizes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import report
import support

STEP = 500
"""The moment that the maps show."""
FREE, EMPTY, TOKENS = "#ffffff", "#f2c879", "#0072b2"
ROW = 512  # slots in a row of a map


def pool_map(lab: ModuleType, way: report.Way) -> tuple[np.ndarray, support.Moment]:
    """The slots of the pool at step STEP: 0 free, 1 somebody's and empty, 2 holds a token."""
    _, make, at_most = way
    allocator = make()
    moments = support.serve(allocator, support.load_requests(), at_most)
    moment = next(m for step, m in enumerate(moments, 1) if step == STEP)
    slots = np.zeros(support.NUM_SLOTS, int)
    for name, length in moment.lengths.items():
        if isinstance(allocator, lab.ContiguousAllocator):
            start, size = allocator.extents[name]
            mine = np.arange(start, start + size)
        else:
            blocks = np.array(allocator.tables[name])[:, None] * allocator.block_size
            mine = (blocks + np.arange(allocator.block_size)).ravel()
        slots[mine] = 1
        slots[mine[:length]] = 2
    return slots.reshape(-1, ROW), moment


def draw_map(axes: Any, lab: ModuleType, way: report.Way) -> None:
    from matplotlib.colors import ListedColormap

    slots, moment = pool_map(lab, way)
    axes.imshow(slots, cmap=ListedColormap([FREE, EMPTY, TOKENS]), vmin=0, vmax=2,
                aspect="auto", interpolation="nearest")  # fmt: skip
    free = sum(moment.holes)
    axes.set(title=f"{way[0]}\n{len(moment.lengths)} requests at step {STEP}", xticks=[], yticks=[])
    note = f"free: {free:,}, largest piece {max(moment.holes, default=0):,}"
    if moment.stuck:
        note += f"\nthe next one wants {moment.wanted:,}: refused"
    elif moment.wanted:
        note += f"\nthe next one wants {moment.wanted:,}: the pool is full"
    axes.set_xlabel(note, fontsize=9)


def draw_shares(axes: Any, lab: ModuleType) -> None:
    served = report.serve_all(lab)
    bottom = np.zeros(len(served))
    for label, color, share in (
        ("holds a token", TOKENS, [t.held for t in served.values()]),
        ("somebody's, empty", EMPTY, [t.reserved for t in served.values()]),
        ("free", FREE, [t.free for t in served.values()]),
    ):
        heights = 100 * np.array(share)
        axes.bar(
            range(len(served)), heights, 0.7, bottom, color=color, edgecolor="0.3", label=label
        )
        bottom += heights
    for at, t in enumerate(served.values()):
        axes.text(at, 102, f"{t.running:.0f} at once", ha="center", fontsize=8)
    names = [name.replace(" ", "\n", 2) for name in served]
    axes.set_xticks(range(len(served)), names, fontsize=8)
    axes.set(title="256 requests, while somebody waits", ylabel="% of the pool", ylim=(0, 112))
    axes.legend(fontsize=8, loc="lower right")


def draw_sweep(axes: Any, lab: ModuleType) -> None:
    sizes = [2**power for power in range(11)]
    rows = lab.sweep([request.length for request in support.load_requests()], sizes)
    axes.plot(sizes, [100 * row.waste for row in rows], "o-", color="#d55e00", ms=4)
    axes.set(
        title="The size of a block", xscale="log", xlabel="slots of a block", xticks=sizes[::2]
    )
    axes.set_xticks(sizes[::2], [str(size) for size in sizes[::2]])
    axes.set_ylabel("% of the slots taken that are wasted", color="#d55e00")
    axes.axvline(16, color="0.7", lw=1, zorder=0)
    other = axes.twinx()
    other.plot(sizes, [row.longest_table for row in rows], "s--", color="#009e73", ms=4)
    other.set(yscale="log")
    other.set_ylabel("entries of the longest table", color="#009e73")


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the pool and what becomes of it.")
    parser.add_argument("--impl", help="solution (default), starter or a file")
    parser.add_argument("--out", type=Path, default=Path("fragmentation.png"))
    args = parser.parse_args()
    try:
        import matplotlib
    except ImportError:
        raise SystemExit('matplotlib is missing: pip install -e ".[plots]"') from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    lab = report.load_lab(args.impl)
    ways = {way[0]: way for way in report.ways(lab)}
    figure, panels = pyplot.subplots(
        1, 4, figsize=(15, 4.6), layout="constrained", width_ratios=(1, 1, 1.45, 1.35)
    )
    draw_map(panels[0], lab, ways["the client's maximum"])
    draw_map(panels[1], lab, ways["blocks of 16"])
    draw_shares(panels[2], lab)
    draw_sweep(panels[3], lab)
    figure.savefig(args.out, dpi=100)
    print(f"wrote {args.out}")


if __name__ == "__main__":
    report.run_script(main)
