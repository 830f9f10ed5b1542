"""What five threads report, and what your functions derive for the same runs.

    python reports.py [--impl solution|starter|FILE]

The left side of each line was measured by somebody else (`reports.json` has the links). The right side is
derived: both runs in the least time that the card can take by its data sheet. Where the thread does not say
on which card, or `gpus.json` has no data sheet of it, another one stands in, and the line says which.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from calculator import HERE, bench_seconds, cards, load_lab, model_of

from course.learner.stubs import run_script


def marlin_lines(lab: Any, table: dict[str, Any]) -> list[str]:
    """One line a number of rows: the gain that was measured, and the gain derived from four rates.

    The four are read off the ends of the table: with one row only reading counts, with 4,000 only computing.
    """
    few, many = table["times_faster"][0], table["times_faster"][-1]
    bandwidth, flops = table["gb_s"][0] * 1e9, table["tflops"][-1] * 1e12
    marlin = lab.Card("marlin's", flops, bandwidth, None, None, 0.0)
    torch_bandwidth = bandwidth * lab.FP16.bits / lab.W4A16.bits / few
    torch = lab.Card("torch's", flops / many, torch_bandwidth, None, None, 0.0)
    lines = [
        f"4 bits {bandwidth / 1e9:,.0f} GB/s, {flops / 1e12:.0f} TFLOP/s; "
        f"16 bits {torch_bandwidth / 1e9:,.0f} GB/s, {flops / many / 1e12:.0f} TFLOP/s"
    ]
    for rows, seen in zip(table["rows"], table["times_faster"], strict=True):
        ours = max(lab.linears_seconds(torch, lab.FP16, 1, rows))
        got = ours / max(lab.linears_seconds(marlin, lab.W4A16, 1, rows))
        lines.append(f"  {rows:5,} rows      {seen:5.2f} times faster         {got:5.2f}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Five reports beside what is derived.")
    parser.add_argument("--impl", help="solution (default), starter or a file")
    lab = load_lab(parser.parse_args().impl)
    known = cards(lab)
    file = json.loads((HERE / "reports.json").read_text("utf-8"))
    seen = {report["name"]: report for report in file["reports"]}

    def gain(card: str, model: str, *bench: int, dequant: float = 0.0) -> float:
        shape, scheme = model_of(lab, model), dataclasses.replace(lab.W4A16, dequant=dequant)
        return bench_seconds(lab, known[card], shape, lab.FP16, *bench) / bench_seconds(
            lab, known[card], shape, scheme, *bench
        )

    got = gain("H100 SXM", "llama-3.1-8b", 1000, 32, 1, 16384)
    print("                  measured by others         derived: 4 bits, times faster")
    print(f"A  1,000 prompts  slower                     {got:5.2f}")
    quick, slow = 123, 23
    print(
        f"B  the flag awq   {slow / quick:5.2f} times as fast         no bytes or operations differ"
    )
    for i, batch in enumerate(seen["C"]["batch"]):
        times = seen["C"]["w4a16_tokens_s"][i] / seen["C"]["bf16_tokens_s"][i]
        got = gain("H100 SXM", "mistral-small-24b", batch, 512, 128, 8192)
        print(f"C  batch {batch}        {times:5.2f} times faster         {got:5.2f}  on an H100")
    model, int4 = (
        model_of(lab, "llama-2-13b"),
        [dataclasses.replace(lab.W4A16, dequant=d) for d in (0.0, 1.0)],
    )
    for batch, words in ((32, "slightly faster"), (256, " 0.50 times as fast")):
        step = [lab.Request(1)] * batch
        a100 = known["A100 80GB SXM"]
        sixteen = lab.step_seconds(a100, model, lab.FP16, step)
        free, dear = (sixteen / lab.step_seconds(a100, model, one, step) for one in int4)
        print(
            f"D  batch {batch:<8} {words:<26} {free:5.2f}  on an A100, empty caches; {dear:.2f} if "
            "dequantising takes as long as the product"
        )
    times = seen["E"]["w4a16_tokens_s"] / seen["E"]["bf16_tokens_s"]
    free, dear = (
        gain("A100 80GB SXM", "qwen3-8b", 100, 512, 128, 8192, dequant=d) for d in (0.0, 1.0)
    )
    print(
        f"E  100 prompts    {times:5.2f} times as fast         {free:5.2f}; {dear:.2f} if dequantising takes "
        "as long as the product"
    )
    print("\nMarlin beside torch, one product, card not named")
    print("\n".join(marlin_lines(lab, file["marlin"])))


if __name__ == "__main__":
    run_script(main)
