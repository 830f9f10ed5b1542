"""The trade-off as a picture: bits a weight against what was lost, in both engines. measure.py calls it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FAMILIES = {"int8": "W8A16", "fp8": "W8A8", "w8a8": "W8A8", "smoothquant-w8a8": "W8A8"}
COLOURS = {"W4A16": "#b5483a", "W8A16": "#4e79a7", "W8A8": "#59a14f"}
BESIDE = {
    "int4-row": (-24, 9),
    "int4-g128": (7, 3),
    "awq": (-24, -10),
    "awq-g32": (-18, 8),
    "gptq": (-26, -10),
    "smoothquant-w8a8": (-92, -8),
}
"""Where a name stands, in points from its dot, where the usual place is taken."""
PANELS = ((3.95, 5.05), (7.8, 8.5))
"""Bits from and to."""


def draw(results: dict[str, Any], file: Path) -> None:
    """Write the SVG. Raises SystemExit where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        raise SystemExit('matplotlib is missing: pip install -e ".[plots]"') from None
    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "lab 06-04"
    mini, real = results["mini_vllm"]["methods"], results["vllm"]["methods"]
    whole = mini["none"]["linear bytes"]
    figure, panels = plt.subplots(1, 2, figsize=(8.5, 4.4))
    for axes, (low, high) in zip(panels, PANELS, strict=True):
        for name, row in mini.items():
            bits = 32 * row["linear bytes"] / whole
            if not low < bits < high:
                continue
            colour = COLOURS[FAMILIES.get(name, "W4A16")]
            axes.plot(bits, row["kl"], "o", color=colour, markersize=6)
            beside = BESIDE.get(name, (8, -3))
            axes.annotate(name, (bits, row["kl"]), beside, textcoords="offset points", fontsize=8)
            if "kl" in real.get(name, {}):
                axes.plot(bits, real[name]["kl"], "+", color=colour, markersize=11)
        axes.set_yscale("log")
        axes.set_xlim(low, high)
        axes.set_xlabel("bits per weight of the linears, scales included")
        axes.spines[["top", "right"]].set_visible(False)
    left, right = panels
    left.set_ylim(0.01, 0.1)
    right.set_ylim(0.00005, 0.01)
    left.set_ylabel("KL from the unquantised model, nats per token")
    floor = real["none, bfloat16"]["kl from mini_vllm"]
    right.axhline(floor, color="#888888", linewidth=0.8, linestyle=":")
    right.annotate("bfloat16 alone", (7.82, floor), (0, 4), textcoords="offset points", fontsize=8)
    for family, colour in COLOURS.items():
        left.plot([], [], "o", color=colour, label=family)
    count = results["vllm"]["documents"]
    label = f"the same files in vLLM, {count} of the documents"
    left.plot([], [], "+", color="#555555", markersize=11, label=label)
    left.legend(fontsize=8, frameon=False, loc="lower left")
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    plt.close(figure)
