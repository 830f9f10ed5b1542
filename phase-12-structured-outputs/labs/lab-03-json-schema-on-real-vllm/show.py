"""Given: what real vLLM returned for Bo's tickets, read with your functions.

python show.py [solution | starter]
"""

from __future__ import annotations

import sys
from pathlib import Path

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_12_03_support")
SHOWN = (
    support.Asked("auto", "ticket", 160, 1),
    support.Asked("auto", "bounded", 400, 2),
    support.Asked("xgrammar", "ticket", 160, 1),
    support.Asked("xgrammar", "bounded", 52, 1),
    support.Asked("xgrammar", "bounded", 90, 1, "\t"),
    support.Asked("guidance", "bounded", 120, 1, "\t"),
)


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_12_03_{which}")
    for name in ("ticket", "bounded"):
        for backend, style in (("xgrammar", lab.XGRAMMAR), ("guidance", lab.GUIDANCE)):
            schema = support.SCHEMAS[name]
            low, high = lab.lengths(schema, style)
            safe = lab.safe_max_tokens(schema, style)
            print(f"{name:8} {backend:9} {low:3} to {high or 'any':>3} tokens, safe: {safe or '-'}")

    outputs = dict(support.outputs())
    asked = support.Asked("xgrammar", "bounded", 90, 1)
    text = outputs[asked]["text"]
    forced = lab.forced(support.SCHEMAS[asked.schema], text)
    print(
        f"\n{text}<end>\n{''.join(' ^'[one] for one in forced)} {sum(forced)} of {len(forced)} forced\n"
    )

    for asked in SHOWN:
        text, reason = outputs[asked]["text"], outputs[asked]["finish_reason"]
        start = repr(text if len(text) < 54 else text[:30] + "...")
        print(
            f"{lab.verdict(text, reason):9}{asked.setting:9}{asked.schema:8}{asked.max_tokens:4} {start}"
        )

    print("\nxgrammar's cache grew by, in bytes")
    colds = lab.cold(support.KEYS, "xgrammar")
    words = ("first", "again", "other blanks", "other order")
    for word, number in zip(words, (0, 1, 3, 4), strict=True):
        grew = support.recorded()["compiled"]["xgrammar"][number]["grew"]
        print(f"{word:12}{grew:8,} {'cold' if colds[number] else 'warm'}")
    for backend, (first, second) in support.recorded()["ms"].items():
        print(f"{backend} compiles in {first} ms, then in {second}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
