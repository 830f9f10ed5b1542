"""Ask vLLM's own functions for placements, and keep the answers: `answers.json`.

    PYTHONPATH=. python phase-07-gemm-and-moe/labs/lab-06-expert-load-balance/ask_vllm.py

Needs vLLM 0.22.1, on any processor: the functions are numpy and plain torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
FILE = Path(__file__).parent / "answers.json"
KEPT = 24


def cases(seed: int) -> Iterator[tuple[Array, int, int]]:
    """Random loads with a number of slots and of GPUs, without end.

    Loads are skewed, as those of experts are. No two experts ever have equally much per copy, because how
    vLLM orders equals depends on how numpy sorts on the machine.
    """
    rng = np.random.default_rng(seed)
    while True:
        experts = int(rng.choice([8, 8, 16, 24, 64]))
        gpus = int(rng.choice([g for g in (1, 2, 3, 4, 8, 16) if g <= experts]))
        slots = [s for s in range(experts, 2 * experts + 1) if s % gpus == 0]
        drawn = np.rint(50_000 * rng.lognormal(0, rng.uniform(0.2, 2.0), experts))
        load = np.minimum(drawn, 2**24 - experts).astype(np.int64)  # float32 holds it exactly
        count = int(rng.choice(slots))
        if _all_differ(load, count):
            yield load, count, gpus


def _all_differ(load: Array, slots: int) -> bool:
    """Whether no two experts have equally much per copy at any time while slots are given away."""
    now = load.astype(float)
    copies, seen = np.ones(len(load)), [*now]
    for _ in range(slots - len(load)):
        most = int(np.argmax(now))
        copies[most] += 1
        now[most] = load[most] / copies[most]
        seen.append(now[most])
    return len(set(seen)) == len(seen)


def placement(load: Array, slots: int, gpus: int) -> dict[str, list[int]]:
    """Copies, packs of the experts where GPUs share them equally, and the placement of one load."""
    import torch
    from vllm.distributed.eplb.policy.default import DefaultEplbPolicy

    weight = load[None].astype(np.float32)
    phy2log, copies = DefaultEplbPolicy.replicate_experts(weight, slots)
    found = {"phy2log": phy2log[0].tolist(), "copies": copies[0].tolist()}
    if len(load) % gpus == 0:
        pack, place = DefaultEplbPolicy.balanced_packing(weight, gpus)
        found |= {"pack": pack[0].tolist(), "place": place[0].tolist()}
    placed = DefaultEplbPolicy.rebalance_experts(torch.from_numpy(load[None]), slots, 1, 1, gpus)
    return found | {"placed": placed[0].tolist()}


def main() -> None:
    drawn = cases(0)
    kept = [next(drawn) for _ in range(KEPT)]
    answers = {
        "vllm": "0.22.1",
        "placements": [
            {"load": load.tolist(), "slots": slots, "gpus": gpus, **placement(load, slots, gpus)}
            for load, slots, gpus in kept
        ],
    }
    FILE.write_text(json.dumps(answers, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{KEPT} placements")


if __name__ == "__main__":
    main()
