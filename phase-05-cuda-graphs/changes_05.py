"""What the exercises that change the engine measure: run it before the change, and after it.

python phase-05-cuda-graphs/changes_05.py {rows,pieces,sizes}
"""

from __future__ import annotations

import sys

from morning import kim_reads, launched, morning
from night import graphs, simulate


def rows() -> None:
    """The launches of the morning's steps, and the rows of padding."""
    ran = [stat for _, stat in morning()]
    print([stat.launches for stat in ran], sum(stat.num_paddings for stat in ran), "padding rows")


def pieces() -> None:
    """Launches of a prompt and a decode under PIECEWISE, and what Kim reads."""
    print(launched("PIECEWISE"), repr(kim_reads()))


def sizes() -> None:
    """How many captures a start makes, and tokens per second for 100 and 200 people, on paper."""
    print(graphs(max_num_seqs=256))
    for us in (5, 20):
        runs = [simulate(people, "FULL_AND_PIECEWISE", us) for people in (100, 200)]
        print(f"{us:2} µs:", *(f"{run['output_throughput']:,.0f}" for run in runs))


if __name__ == "__main__":
    {"rows": rows, "pieces": pieces, "sizes": sizes}[sys.argv[1]]()
