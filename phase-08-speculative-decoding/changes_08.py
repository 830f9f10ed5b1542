"""What the exercises that change the engine measure: run it before the change, and after it.

python phase-08-speculative-decoding/changes_08.py {length,match,rule}
"""

from __future__ import annotations

import sys

import numpy as np
from drafts import Shares, serial
from runs import head, ngram

from mini_vllm.sample.generator import TorchGenerator
from mini_vllm.sample.rejection_sampler import (
    PLACEHOLDER_TOKEN_ID,
    generate_inv_q,
    generate_uniform_probs,
    rejection_sample,
)


def length() -> None:
    """Steps of the guide's text with the head, and how many times as fast some people are, on paper."""
    made = head()
    drafting = serial([accepted / made.drafts for accepted in made.per_position])
    gains = ", ".join(f"{people}: {drafting.gain(people):.2f}" for people in (1, 64, 128))
    print(f"{len(made.steps)} steps; people: gain {gains}")


def match() -> None:
    """The guide's text with n-gram lookup."""
    made = ngram()
    print(f"{len(made.steps)} steps, {made.accepted_tokens} of {made.draft_tokens} drafts accepted")


def judged(p: Shares, q: Shares | None, draft: int = 0) -> str:
    """What the engine makes of 100,000 drafts: how many it accepts, and which tokens come out.

    Args:
        p: the model's probabilities.
        q: what each draft is drawn from; None: it is always `draft`, and counts as certain.
    """
    rows, stream = 100_000, TorchGenerator(0)
    ones, logits = [1] * rows, np.log(np.tile(p, (rows, 1))).astype(np.float32)
    drafts, shares = np.full(rows, draft), None
    if q is not None:
        drafts = np.random.default_rng(0).choice(len(q), rows, p=q)
        shares = np.tile(q, (rows, 1)).astype(np.float32)
    uniform = generate_uniform_probs(ones, {}, stream)
    noise = generate_inv_q(ones, len(p), {}, stream)
    bonus, warm = np.zeros(rows, np.int64), np.ones(rows, np.float32)
    out = rejection_sample(drafts, ones, shares, logits, bonus, warm, uniform, noise)
    got = np.bincount(out[:, 0], minlength=len(p)) / rows
    accepted = (out[:, 1] != PLACEHOLDER_TOKEN_ID).mean()
    return f"{accepted:.2f} accepted, tokens {got.round(2)}"


def rule() -> None:
    """The guide's mat, sofa and roof, by both rules."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.7, 0.1])
    print("certain:", judged(p, None, draft=1))
    print("drawn:  ", judged(p, q))


if __name__ == "__main__":
    {"length": length, "match": match, "rule": rule}[sys.argv[1]]()
