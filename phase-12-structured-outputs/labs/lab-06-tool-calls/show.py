"""Given: a text whose second call lacks its last brace, read by you and by vLLM; and what a tag allows.

python show.py [solution | starter]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_12_06_support")


def print_calls(calls: list[list[str]]) -> None:
    """A line per call."""
    for name, arguments in calls:
        print(f"    {name} {arguments}")


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_12_06_{which}")
    found = support.recorded()
    text = support.SHORT
    reply = lab.parse_calls(text)
    print(
        f"finished, yours: {len(reply.calls)} calls, content of {len(reply.content or '')} characters"
    )
    outcomes: dict[str, int] = {}
    for at in range(1, len(text)):
        seen = support.stream(lab, [text[:at], text[at:]])
        key = json.dumps(seen.calls)
        outcomes[key] = outcomes.get(key, 0) + 1
    for key, count in outcomes.items():
        print(f"streamed, yours: {count} cuts in two")
        print_calls(json.loads(key))
    for count, (_, calls) in found["cuts"]:
        print(f"streamed, vLLM's: {count} cuts in two")
        print_calls(calls)

    print("\nwith the tag, of 257 tokens")
    rows: list[tuple[Any, ...]] = [("allowed", "may end", "after"), *(
        (count, "yes" if end else "no", repr(place if len(place) < 60 else f"…{place[-40:]}"))
        for place, count, end in found["allowed"]
    )]  # fmt: skip
    for count, end, place in rows:
        print(f"{count:>7}  {end:7}  {place}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
