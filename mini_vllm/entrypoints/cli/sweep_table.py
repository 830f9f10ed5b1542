"""The table that `mini-vllm sweep` prints: a line per point, with what varies in front of its figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mini_vllm.entrypoints.cli.sweep_point import Point

_LATENCIES = ("ttft", "tpot")


def table(rows: Sequence[dict[str, Any]], points: Sequence[Point]) -> str:
    """The rows' settings and main figures; times in milliseconds, rates per second.

    All figures are in the rows, as `mini-vllm simulate --json` has them; these are the ones that a choice is
    made by.
    """
    settings = list(dict.fromkeys(name for point in points for name in point.settings))
    if any(point.run_number for point in points):
        settings.append("run_number")
    shown = ["request_throughput", "output_throughput"]
    if any(row.get("request_goodput") is not None for row in rows):
        shown.insert(1, "request_goodput")
    found = {name for row in rows for name in row}
    for latency in _LATENCIES:
        shown += [f"median_{latency}_ms"]
        shown += [n for n in sorted(found) if n.startswith("p") and n.endswith(f"_{latency}_ms")]
    titles = {
        "request_throughput": "req/s",
        "request_goodput": "good/s",
        "output_throughput": "tok/s",
    }
    header = [*settings, *(titles.get(n, n.removesuffix("_ms").replace("_", " ")) for n in shown)]
    lines = [header]
    for row in rows:
        cells = [_shown(row.get(name, "")) for name in settings]
        if "error" in row:
            lines.append([*cells, "failed", *[""] * (len(shown) - 1)])
        else:
            lines.append([*cells, *(f"{row[name]:.2f}" for name in shown)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        + "\n"
        for line in lines
    )


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
