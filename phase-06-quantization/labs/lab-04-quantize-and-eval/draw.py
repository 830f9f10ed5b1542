"""The trade-off as a picture: bits a weight against what was lost, in both engines. measure.py calls it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FAMILIES = {
    "int8": "W8A16", "fp8": "W8A8", "w8a8": "W8A8", "smoothquant-w8a8": "W8A8",
}  # fmt: skip
COLOURS = {"W8A16": "#4e79a7", "W8A8": "#59a14f", "W4A16": "#b5483a"}
BESIDE = {"w8a8": (6, -12), "smoothquant-w8a8": (6, 4), "int4-g128": (6, 4), "awq": (-26, 4)}
"""Where a name stands, in points from its dot, where the usual place is taken."""


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
    figure, axes = plt.subplots(figsize=(7.5, 4.6))
    for name, row in mini.items():
        if name == "none":
            continue
        family = FAMILIES.get(name, "W4A16")
        bits = 32 * row["linear bytes"] / whole
        axes.plot(bits, row["kl"], "o", color=COLOURS[family], markersize=7)
        beside = BESIDE.get(name, (7, -3))
        axes.annotate(name, (bits, row["kl"]), beside, textcoords="offset points", fontsize=8)
        theirs = real.get(name, {})
        if "kl" in theirs:
            axes.plot(bits, theirs["kl"], "+", color=COLOURS[family], markersize=11)
    floor = real["none, bfloat16"]["kl from mini_vllm"]
    axes.axhline(floor, color="#888888", linewidth=0.8, linestyle=":")
    axes.annotate("bfloat16 alone", (6.2, floor), (0, 4), textcoords="offset points", fontsize=8)
    for family, colour in COLOURS.items():
        axes.plot([], [], "o", color=colour, label=family)
    axes.plot([], [], "+", color="#555555", markersize=11, label="the same files in vLLM")
    axes.set_yscale("log")
    axes.set_xlabel("bits a weight of the linears, scales included")
    axes.set_ylabel("KL from the unquantised model, nats a token")
    axes.set_xlim(3.9, 9.2)
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
