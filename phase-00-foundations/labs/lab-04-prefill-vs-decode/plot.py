"""Draw the roofline with your functions (needs matplotlib: the extra `plots`).

    python plot.py [--impl solution|starter|FILE] [--measured measured.json] [--out roofline.png]

On the left the GPUs of gpus.json with Llama-3-8B on one of them; on the right this CPU with the points
that measure.py has saved, if it has.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import hardware
import numpy as np

GPU = "H100 SXM"
DECODE_BATCHES = (1, 8, 64, 296)
PROMPTS = (128, 2048)
LONG = (64, 8192)  # batch and context of the point that shows the KV reads
DECODE, PREFILL, KV = "#0072b2", "#d55e00", "#009e73"  # told apart by colour-blind readers too


def draw_roofs(axes: Any, lab: ModuleType, devices: list[Any], highlight: str) -> None:
    """The roof of each device over the intensity, and the ridge of each as a small mark."""
    intensity = np.logspace(-1, 4, 400)
    labels: dict[float, list[Any]] = {}
    for device in devices:
        main = device.name == highlight
        roof = [lab.attainable_flops(device, float(x)) for x in intensity]
        ridge = lab.ridge_point(device)
        axes.plot(
            intensity, roof, lw=2.5 if main else 1, color="black" if main else "0.6", zorder=1
        )
        axes.plot([ridge], [lab.attainable_flops(device, ridge)], "|", color="black", zorder=2)
        labels.setdefault(round(math.log(roof[-1]), 1), []).append((device, roof[-1], ridge))
    for level in labels.values():  # devices of the same peak share one line of text
        text = ", ".join(f"{device.name} ({ridge:.0f})".strip() for device, _, ridge in level)
        axes.text(1.1e4, level[0][1], text, va="center", fontsize=8)
    axes.set(xscale="log", yscale="log", xlim=(0.3, 1e4), xlabel="FLOP per byte read")
    axes.grid(alpha=0.25, which="both", lw=0.5)


def draw_point(axes: Any, x: float, y: float, text: str, color: str, **where: Any) -> None:
    axes.plot([x], [y], "o", color=color, ms=6, zorder=3)
    offset = where.pop("offset", (7, -4))
    axes.annotate(
        text, (x, y), xytext=offset, textcoords="offset points", fontsize=8, color=color, **where
    )


def draw_gpus(axes: Any, lab: ModuleType) -> None:
    """All GPUs, and where the steps of Llama-3-8B lie on one."""
    devices = [lab.device_from_datasheet(sheet) for sheet in hardware.load_sheets()]
    draw_roofs(axes, lab, devices, GPU)
    device = next(d for d in devices if d.name == GPU)
    model = lab.LLAMA_3_8B
    for batch in DECODE_BATCHES:
        x = lab.arithmetic_intensity(model, batch)
        draw_point(
            axes, x, lab.attainable_flops(device, x), f"decode {batch}", DECODE, offset=(9, -9)
        )
    for tokens in PROMPTS:
        x = lab.arithmetic_intensity(model, tokens)
        y = lab.attainable_flops(device, x)
        above = tokens == PROMPTS[-1]
        offset = (-20, 8) if above else (-68, 4)
        draw_point(axes, x, y, f"prefill {tokens:,}", PREFILL, offset=offset)
    batch, context = LONG
    x = lab.arithmetic_intensity(model, batch, batch * context)
    text = f"decode {batch},\ncontext {context:,}"
    draw_point(axes, x, lab.attainable_flops(device, x), text, KV, offset=(-76, 6))
    axes.set(
        title=f"{model.name} in 16 bits on an {GPU}", ylabel="FLOP/s at most", ylim=(1e11, 5e15)
    )


def draw_cpu(axes: Any, lab: ModuleType, measured: dict[str, Any]) -> None:
    """The measured CPU's roof, and what the numpy Llama reached under it."""
    device = lab.Device("", **measured["device"])
    draw_roofs(axes, lab, [device], "")
    per_token = 2 * measured["model"]["num_params"]
    for row in measured["rows"]:
        color = DECODE if row["step"] == "decode" else PREFILL
        y = row["tok/s"] * per_token
        label = f"{row['step']} {row['tokens']:,}" if row["tokens"] in (1, 2, 128, 1024) else ""
        draw_point(axes, row["FLOP/byte"], y, label, color)
    processor = measured["machine"]["processor"]
    axes.set(title=f"numpy Llama, one core of an {processor}", ylabel="FLOP/s", ylim=(2e9, 5e11))


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the roofline.")
    parser.add_argument("--impl", help="solution (default), starter or a file")
    parser.add_argument("--measured", type=Path, default=hardware.HERE / "measured.json")
    parser.add_argument("--out", type=Path, default=Path("roofline.png"))
    args = parser.parse_args()
    try:
        import matplotlib
    except ImportError:
        raise SystemExit('matplotlib is missing: pip install -e ".[plots]"') from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    lab = hardware.load_lab(args.impl)
    measured = None
    if args.measured.is_file():
        measured = json.loads(args.measured.read_text(encoding="utf-8"))
    figure, panels = pyplot.subplots(
        1,
        2 if measured else 1,
        figsize=(13 if measured else 7.5, 5),
        layout="constrained",
        squeeze=False,
    )
    draw_gpus(panels[0, 0], lab)
    if measured:
        draw_cpu(panels[0, 1], lab, measured)
    figure.savefig(args.out, dpi=110)
    print(f"wrote {args.out}")


if __name__ == "__main__":
    hardware.run(main)
