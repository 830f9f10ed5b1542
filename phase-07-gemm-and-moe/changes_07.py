"""What the exercises that change the engine measure: run it before the change, and after it.

python phase-07-gemm-and-moe/changes_07.py {quality,steps}
"""

from __future__ import annotations

import math
import sys

import numpy as np
from touched import TINY_MIXTRAL

from mini_vllm.compress.evaluate import HELD_OUT, hidden_states, load_documents
from mini_vllm.model_loader import load_model
from mini_vllm.sample.ops import compute_logprobs
from mini_vllm.utils.threads import shared_products


def quality() -> None:
    """The perplexity of the tiny Mixtral on documents that it was not trained on."""
    model, surprise, tokens = load_model(str(TINY_MIXTRAL)), 0.0, 0
    with shared_products():
        for ids, hidden in hidden_states(model, load_documents(HELD_OUT, TINY_MIXTRAL)):
            said = compute_logprobs(model.compute_logits(hidden[:-1]))
            right = said[np.arange(len(said)), np.asarray(ids[1:])]
            surprise -= float(right.sum(dtype=np.float64))
            tokens += len(said)
    print(f"perplexity {math.exp(surprise / tokens):.2f}")


def steps() -> None:
    """Run a step of 16 tokens and one of 256, and print nothing by itself."""
    model, texts = load_model(str(TINY_MIXTRAL)), load_documents(HELD_OUT, TINY_MIXTRAL)
    for tokens in (16, 256):
        list(hidden_states(model, [texts[5][:tokens]]))


if __name__ == "__main__":
    {"quality": quality, "steps": steps}[sys.argv[1]]()
