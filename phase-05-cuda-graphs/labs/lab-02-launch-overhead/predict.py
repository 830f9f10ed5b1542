"""What your functions say of a step with and without graphs: derived, not measured.

    python predict.py [--impl solution|starter|FILE] [--model KIMS|LLAMA_3_8B|DIR] [--card NAME]
                      [--context N] [--launch-us LOW HIGH]

A model may also be a checkpoint folder, of which only `config.json` is read. Lab 05-05 measures, and holds
what it sees against this table. The launch costs are others' measurements (README); the card's share is the
roofline, so the least that it can take. Planning, logits' launches and sampling are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.append(str(ROOT))  # the repository, where it is not installed

from course.learner.labs import load_module  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402
from mini_vllm.config.model import LlamaConfig  # noqa: E402

MODES = ("NONE", "PIECEWISE", "FULL")
LAUNCH_S = (3e-6, 6e-6)
"""The range of what others have measured."""
BATCHES = (1, 8, 64)


class Prediction(NamedTuple):
    """A row of the table. Pairs are for the low and the high end of `LAUNCH_S`, in seconds."""

    batch: int
    mode: str
    launches: int
    launching_s: tuple[float, float]
    device_s: float
    step_s: tuple[float, float]


def load_lab(choice: str | None = None) -> ModuleType:
    """`starter.py` or `solution.py` of this folder, or another path. Without a choice LAB_IMPL decides."""
    choice = choice or os.environ.get("LAB_IMPL", "").strip() or "solution"
    path = HERE / f"{choice}.py" if choice in ("starter", "solution") else Path(choice)
    if not path.is_file():
        raise SystemExit(f"--impl {choice}: there is no file {path}")
    return load_module(path, "lab_05_02_for_scripts")


def cards(lab: ModuleType) -> dict[str, Any]:
    """The data sheets of lab 00-04 as `Card`s: dense, whole operations and bytes a second."""
    [file] = ROOT.glob("phase-00*/labs/lab-04*/gpus.json")
    found = {}
    for sheet in json.loads(file.read_text(encoding="utf-8")):
        flops = sheet["printed_tflops"] * 1e12 / (2 if sheet["with_sparsity"] else 1)
        gigabytes = sheet.get("bandwidth_gb_s") or sheet["bus_bits"] * sheet["gbit_per_pin"] / 8
        found[sheet["name"]] = lab.Card(sheet["name"], flops, gigabytes * 1e9)
    return found


def model_of(lab: ModuleType, folder: Path) -> Any:
    """A Llama as a `Model` from its checkpoint folder, in the type that it was saved in.

    Raises ValueError for a configuration that `mini_vllm` does not know, OSError.
    """
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    c = LlamaConfig.from_dict(raw)
    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    layer = c.hidden_size * (2 * q + 2 * kv + 3 * c.intermediate_size + 2)
    tables = c.vocab_size * c.hidden_size * (1 if c.tie_word_embeddings else 2)
    size = 4 if c.dtype == "float32" else 2
    return lab.Model(
        folder.name,
        c.num_hidden_layers * layer + tables + c.hidden_size,
        2 * c.num_hidden_layers * kv * size,
        lab.Kernels(c.num_hidden_layers),
        size,
    )


def predict(
    lab: ModuleType,
    card: Any,
    model: Any,
    batch: int,
    mode: str,
    context: int = 0,
    launch_s: tuple[float, float] = LAUNCH_S,
) -> Prediction:
    """One step in which `batch` requests with `context` tokens each decode, planned ahead.

    The batch is taken to be a size that is captured, so nothing is padded.
    """
    count = lab.launches(model.kernels, mode)
    low, high = launch_s
    return Prediction(
        batch,
        mode,
        count,
        (count * low, count * high),
        lab.device_time(card, model, batch, batch * context),
        tuple(lab.decode_time(card, model, mode, batch, s, context) for s in launch_s),  # type: ignore[arg-type]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="A step with and without graphs, derived.")
    parser.add_argument("--impl", help="solution (default), starter or a file")
    parser.add_argument("--model", default="KIMS", help="KIMS, LLAMA_3_8B or a checkpoint folder")
    parser.add_argument("--card", default="H100 SXM", help="a name of lab 00-04's gpus.json")
    parser.add_argument("--context", type=int, default=1000, help="tokens a request has (1000)")
    parser.add_argument(
        "--launch-us",
        type=float,
        nargs=2,
        metavar=("LOW", "HIGH"),
        help="what a launch costs (3 6)",
    )
    args = parser.parse_args()
    lab = load_lab(args.impl)
    known = cards(lab)
    if args.card not in known:
        raise SystemExit(f"--card {args.card!r}: one of {', '.join(known)}")
    if args.context < 0:
        raise SystemExit(f"--context must be at least 0, got {args.context}")
    card = known[args.card]
    try:
        given = args.model in ("KIMS", "LLAMA_3_8B")
        model = getattr(lab, args.model) if given else model_of(lab, Path(args.model))
    except (OSError, ValueError) as error:
        raise SystemExit(f"--model {args.model}: {error}") from None
    launch_s = tuple(us / 1e6 for us in args.launch_us) if args.launch_us else LAUNCH_S
    if not 0 < launch_s[0] <= launch_s[1]:
        raise SystemExit(
            f"--launch-us wants two numbers above 0, the lower first, got {args.launch_us}"
        )
    us = " to ".join(f"{s * 1e6:g}" for s in launch_s)
    print(f"{model.name} on {card.name}, {args.context:,} tokens a request, {us} us a launch")
    print("derived, not measured: launches times their cost, and the card's roofline\n")
    print(
        "batch  mode       launches   launching, ms  card, ms        step, ms     tokens a second"
    )
    for batch in BATCHES:
        for mode in MODES:
            row = predict(lab, card, model, batch, mode, args.context, launch_s)
            low, high = (f"{s * 1e3:.2f}" for s in row.launching_s)
            step = " to ".join(f"{s * 1e3:.2f}" for s in row.step_s)
            rate = " to ".join(f"{batch / s:,.0f}" for s in reversed(row.step_s))
            print(
                f"{batch:5}  {mode:9}  {row.launches:8}  {low:>5} to {high:>5}  {row.device_s * 1e3:8.2f}"
                f"  {step:>14}  {rate:>18}"
            )
    kernels = lab.launches(model.kernels, "NONE")
    if lab.device_time(card, model, 1, args.context) < kernels * 1e-6:
        print(
            f"\nthe card would need under 1 us for each of {kernels} kernels, and no kernel is so short: here"
        )
        print("the table says who waits for whom, and a whole graph's step is longer than it says")
    print("\nthe first batch at which graphs gain nothing")
    for launch_us in (3, 4, 5, 6, 10, 20):
        first = [
            lab.first_batch_without_gain(card, model, launch_us * 1e-6, context)
            for context in (0, args.context)
        ]
        shown = [f"{one:4}" if one else "none" for one in first]
        print(f"{launch_us:4} us a launch: {shown[0]} with empty caches, {shown[1]} with these")


if __name__ == "__main__":
    run_script(main)
