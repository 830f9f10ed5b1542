"""Where speculation pays, by batch and text; then how your controller does.

    python show.py [--impl solution|starter|FILE] [--practice]
    python show.py --record        writes oracle.json, with the solution

"gain" is the speedup with three draft tokens, "k" the best number of draft tokens, 0 to 6. Below: tokens per
second, with your controller and with the best fixed k, over those of the oracle.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from types import ModuleType

import support

from course.learner.labs import load_module

HERE = Path(__file__).parent
BATCHES = (1, 16, 64, 128)
TEXTS = ("chat", "poems")
CONTEXT = 500
EAGLE = ("Llama, EAGLE", "Mixtral, EAGLE")


def implementation(choice: str | None = None) -> ModuleType:
    """`starter.py` or `solution.py` beside this file, or any other path; else what LAB_IMPL says."""
    choice = choice or os.environ.get("LAB_IMPL", "").strip() or "solution"
    path = HERE / f"{choice}.py" if choice in ("starter", "solution") else Path(choice)
    return load_module(path, "lab_08_04")


def show_gains(lab: ModuleType) -> None:
    print((f"{'batch':22}" + "".join(f"{batch:8}   " for batch in BATCHES)).rstrip())
    print(f"{'server':16}{'text':6}" + "    gain  k" * len(BATCHES))
    for name, settings in support.servers().items():
        for text in TEXTS:
            rates = lab.unconditional_rates(list(support.TEXTS[text]))
            server = lab.Server(**settings)
            cells = [
                f"{lab.speedup(server, rates[:3], batch, CONTEXT):8.2f}"
                f"{lab.best_k(server, rates, batch, CONTEXT):3}"
                for batch in BATCHES
            ]
            print(f"{name:16}{text:6}" + "".join(cells))


def show_scores(lab: ModuleType, workloads: dict[str, list[support.Part]]) -> list[str]:
    """Prints the shares; returns the k behind them, a line for each run."""
    print(f"\n{'of the oracle':26}" + "".join(f"{name:>17}  fixed" for name in EAGLE))
    by_part = []
    for workload, parts in workloads.items():
        cells = ""
        for name in EAGLE:
            server = support.servers()[name]
            found = support.score(lab, server, parts, support.ask_oracle(lab, server, parts))
            cells += f"{found.controller:17.2f}{found.best_fixed:7.2f}"
            by_part.append(f"{workload}, {name}: {found.compare_k()}")
        print(f"{workload:26}{cells}")
    return by_part


def record() -> None:
    lab, servers = implementation("solution"), support.servers()
    found = {
        f"{name}: {workload}": support.ask_oracle(lab, servers[name], parts)
        for name in EAGLE
        for workload, parts in support.HELD_OUT.items()
    }
    (HERE / "oracle.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--impl", help="starter, solution or a file (solution)")
    parser.add_argument(
        "--practice", action="store_true", help="serve the other four, and show your k"
    )
    parser.add_argument("--record", action="store_true", help="write oracle.json")
    args = parser.parse_args()
    if args.record:
        record()
        return
    lab = implementation(args.impl)
    show_gains(lab)
    by_part = show_scores(lab, support.PRACTICE if args.practice else support.HELD_OUT)
    if args.practice:
        print("\n" + "\n".join(by_part))


if __name__ == "__main__":
    main()
