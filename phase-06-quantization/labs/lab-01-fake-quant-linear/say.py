"""Given: the shipped model with your linears in it, beside itself in float32.

    python say.py [solution | starter] [PROMPT]

Prints what either says, what their linears take in memory, and how far their weights have moved.
"""

from __future__ import annotations

import sys
from pathlib import Path

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_06_01_support")


def main(which: str = "starter", prompt: str = "The scheduler decides") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_06_01_{which}")
    plain, quantized = support.model(None), support.model(lab.Int8LinearMethod())
    pairs = list(zip(support.linears(plain), support.linears(quantized), strict=True))
    before = sum(linear.weight.nbytes for linear, _ in pairs)
    after = sum(lab.storage_bytes(linear) for _, linear in pairs)
    print(f"float32  {before:9,} bytes  {support.say(plain, prompt, 40)!r}")
    print(f"int8     {after:9,} bytes  {support.say(quantized, prompt, 40)!r}")
    for strategy in ("channel", "tensor"):
        errors = [
            support.relative_error(lab.fake_quantize(linear.weight, strategy), linear.weight)
            for linear, _ in pairs
        ]
        print(
            f"error of a layer's weights, strategy {strategy:8}{min(errors):.2%} to {max(errors):.2%}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:3])
