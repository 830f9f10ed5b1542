"""Given: how much each change of your order matters, on 4,000 random requests.

    python show.py [solution | starter]

Each request asks for about half of the stages. A line moves one stage to another place in your order and
counts the requests that are left with other tokens to draw from, and those whose probabilities differ.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from course.learner.labs import load_module
from mini_vllm.sample.ops import softmax

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_09_01_support")
BATCHES = 2200


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_09_01_{which}")
    usual = list(lab.order())
    requests = []
    for seed in range(BATCHES):
        logits, fields = support.random_batch(seed)
        requests += [
            (row, lab.Request(**one))
            for row, one in zip(logits, fields, strict=True)
            if one.get("temperature", 1.0) > 0.01
        ]
    requests = requests[:4000]
    at_home = [lab.process(row, request) for row, request in requests]
    moves = [
        ("bad words", "allowed ids"), ("penalties", "logit bias"), ("logit bias", "allowed ids"),
        ("temperature", "logit bias"), ("min_p", "temperature"), ("top_k", "min_p"),
        ("top_p", "top_k"), ("top_p", "min_p"), ("top_k", "bad words"), ("min_p", "bad words"),
    ]  # fmt: skip
    print(f"{len(requests)} requests                 other tokens   other probabilities")
    for stage, before in moves:
        changed = [name for name in usual if name != stage]
        changed.insert(changed.index(before), stage)
        lab.order = lambda changed=changed: changed
        tokens = probs = 0
        for (row, request), home in zip(requests, at_home, strict=True):
            moved = lab.process(row, request)
            others = support.survivors(moved) != support.survivors(home)
            tokens += others
            probs += others or not np.allclose(softmax(moved), softmax(home), atol=1e-6)
        share = [number / len(requests) for number in (tokens, probs)]
        print(f"{stage + ' before ' + before:32}{share[0]:8.1%}{share[1]:20.1%}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
