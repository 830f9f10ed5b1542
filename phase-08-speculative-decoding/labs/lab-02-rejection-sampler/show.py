"""Given: your acceptance rates for three drafters, and the tokens of your steps.

    python show.py [solution | starter]

The model's logits at 2,000 places are drawn at random, 200 tokens each; at temperature 1 its likeliest token
has 61 % on average. The drafters: one near the model (its logits with a little noise), one far from it (with
much), and one unsure (0.4 times its logits: the same favourite everywhere, with less confidence). The
request's temperature divides the logits of both. Each request of a step has 3 drafts.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from course.learner.labs import load_module
from mini_vllm.sample.ops import softmax

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_08_02_support")
PLACES, VOCAB, DRAFTS = 2000, 200, 3


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_08_02_{which}")
    rng = np.random.RandomState(0)
    logits = 5 * rng.standard_normal((PLACES, VOCAB))
    noise = rng.standard_normal((PLACES, VOCAB))
    drafters = {"near": logits + noise, "far": logits + 4 * noise, "unsure": 0.4 * logits}
    rules = ("certain", "drawn, judged as certain", "probabilistic")
    print("               accepted                        tokens in a step")
    print("drafter     T  certain  drawn  probabilistic   certain  probabilistic  choice")
    for name, guesses in drafters.items():
        for temperature in (0.3, 0.7, 1.0, 1.5):
            p = softmax((logits / temperature).astype(np.float32))
            q = softmax((guesses / temperature).astype(np.float32))
            each = [lab.acceptance_rates(*pair) for pair in zip(p, q, strict=True)]
            mean = [float(np.mean([rates[rule] for rates in each])) for rule in rules]
            # Request i has drafts at places i, i + 1 and i + 2, and its bonus token at i + 3.
            at = (np.arange(PLACES)[:, None] + np.arange(DRAFTS + 1)) % PLACES
            drafted = q[at[:, :DRAFTS]]
            likely, drawn = drafted.argmax(axis=-1), support.draw(rng, drafted)
            lengths = [
                float((support.sample(lab, drafts, probs, p[at], seed=1) >= 0).sum(axis=1).mean())
                for drafts, probs in ((likely, None), (drawn, drafted))
            ]
            print(
                f"{name:9}{temperature:4}{mean[0]:9.2f}{mean[1]:7.2f}{mean[2]:15.2f}{lengths[0]:10.2f}"
                f"{lengths[1]:15.2f}  {lab.choose_draft_sample_method(p, q)}"
            )


if __name__ == "__main__":
    main(*sys.argv[1:2])
