"""What `mini-vllm simulate --plot` draws: the run over time. Needs matplotlib, the extra `plots`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from mini_vllm.sim import ServingMetrics
from mini_vllm.utils.extras import how_to_get
from mini_vllm.utils.untrusted import shorten_repr

ENDINGS = (".png", ".svg", ".pdf")


def check_plot(path: Path) -> None:
    """Raises ValueError for a name of no known form, and where matplotlib is missing."""
    if path.suffix not in ENDINGS:
        raise ValueError(
            f"--plot {shorten_repr(str(path))}: the name must end in {', '.join(ENDINGS)}"
        )
    if find_spec("matplotlib") is None:
        raise ValueError(f"--plot needs matplotlib: {how_to_get('plots')}")


def write_plot(path: Path, metrics: ServingMetrics, title: str) -> None:
    """Two panels with one time axis: requests running and waiting; the share of the KV cache in use."""
    from matplotlib.figure import Figure

    rows = metrics.timeline.rows
    times = [row[0] for row in rows]
    figure = Figure(figsize=(8, 5), layout="constrained")
    requests, usage = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    requests.plot(times, [row[1] for row in rows], label="running")
    requests.plot(times, [row[2] for row in rows], label="waiting")
    requests.set_ylabel("requests")
    requests.set_title(title)
    requests.legend()
    usage.plot(times, [100 * row[3] for row in rows])
    usage.set_ylabel("KV cache in use, %")
    usage.set_xlabel("seconds of the virtual clock")
    usage.set_ylim(0, 105)
    figure.savefig(path)
