"""Given: the tickets, your suspects and your proofs.

    python show.py [solution | starter]

Of each ticket the first token that differs, the layer and the suspects; then, of each setting that differs,
whether it is enough and needed, or neither. The runs are in recorded.json, their settings in record.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_09_06_support")


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_09_06_{which}")
    for name, runs in support.tickets(lab).items():
        a, b = runs[:2]
        at = lab.parts_at(a, b)
        suspected = ", ".join(sorted(lab.suspects(a, b)))
        print(f"{name}, token {at}: {lab.layer(a, b, at)}: {suspected}")
        for setting, proof in lab.prove(support.replayed(runs), a, b).items():
            said = [word for word in ("enough", "needed") if getattr(proof, word)]
            print(f"   {setting}: {' and '.join(said) or '-'}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
