"""What the exercises that change the engine measure: run it before the change, and after it.

python phase-09-sampling/changes_09.py {order,seeds,penalty}
"""

from __future__ import annotations

import sys

import numpy as np
from draws import PROMPT, gil, row

from mini_vllm import LLM, SamplingParams


def order() -> None:
    """How many letters Gil's first is drawn from with `top_p` 0.8, by temperature."""
    llm, kept = LLM(logprobs_mode="processed_logprobs", max_logprobs=len(row())), {}
    for value in (0.5, 1.0, 2.0):
        asked = SamplingParams(temperature=value, top_p=0.8, logprobs=len(row()), max_tokens=1)
        reported = llm.generate([PROMPT], asked)[0].outputs[0].logprobs
        assert reported
        kept[value] = sum(bool(np.isfinite(entry.logprob)) for entry in reported[0].values())
    print(kept)


def seeds() -> None:
    """Gil's text with seed 7, beside three neighbours."""
    for other in ({"temperature": 1.0, "seed": 8}, {"temperature": 1.0}, {"temperature": 0.0}):
        print(gil(beside=[other]).strip())


def penalty() -> None:
    """A greedy text under a repetition penalty."""
    params = SamplingParams(temperature=0, max_tokens=60, repetition_penalty=1.5)
    print(LLM().generate(["The KV cache stores"], params)[0].outputs[0].text.strip())


if __name__ == "__main__":
    {"order": order, "seeds": seeds, "penalty": penalty}[sys.argv[1]]()
