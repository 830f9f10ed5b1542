"""Given: what real vLLM returned for Bo's tickets, read with your functions.

python show.py [solution | starter]
"""

from __future__ import annotations

import sys
from pathlib import Path

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_12_03_support")


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_12_03_{which}")
    print("tokens of the shortest and the longest document, blanks disabled; max_tokens to be safe")
    for name in ("ticket", "bounded", "mail", "initials"):
        sizes = []
        for style in (lab.XGRAMMAR, lab.GUIDANCE):
            low, high = lab.lengths(support.SCHEMAS[name], style)
            safe = lab.safe_max_tokens(support.SCHEMAS[name], style)
            sizes.append(f"{low:3} to {high or 'any':>3}, safe {safe or 'none':>4}")
        print(f"  {name:10} xgrammar {sizes[0]}    guidance {sizes[1]}")

    asked, output = next(
        pair for pair in support.outputs() if support.complete_in_xgrammars_style(*pair)
    )
    text = output["text"]
    forced = lab.forced(support.SCHEMAS[asked.schema], text)
    print(f"\n{asked.words()}: {sum(forced)} of {len(forced)} steps forced (^)")
    print(f"  {text}<end>")
    print("  " + "".join("^" if one else " " for one in forced))

    print("\nwhat came back")
    shown = set()
    for asked, output in support.outputs():
        kind = asked.setting, asked.schema, asked.max_tokens, asked.bias
        if asked.schema in ("ticket", "bounded") and kind not in shown:
            shown.add(kind)
            verdict = lab.verdict(output["text"], output["finish_reason"])
            text = repr(output["text"])
            start = text if len(text) < 56 else text[:49] + "..."
            print(f"  {verdict:9}{asked.setting:9}{asked.schema:8}{asked.max_tokens:4} {start}")

    print("\ncompiled, ms                                 xgrammar   guidance")
    both = zip(*(support.recorded()["compiled"][b] for b in ("xgrammar", "guidance")), strict=True)
    colds = lab.cold(support.KEYS, "xgrammar")
    for (kind, text), cold, (first, second) in zip(support.KEYS[:6], colds[:6], both, strict=False):
        short = text[:26] + "..."
        word = "cold" if cold else "warm"
        print(f"  {kind:5}{short:32}{first['ms']:8.2f} {word}{second['ms']:8.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
