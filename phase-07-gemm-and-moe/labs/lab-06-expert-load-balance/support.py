"""What the lab's tests and show.py share: the recorded routing, vLLM's recorded answers, and an H200."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
HERE = Path(__file__).parent
MIXTRAL_EXPERT = 3 * 4096 * 14336  # weights of one expert of Mixtral-8x7B in one layer
SLOT_US = 2e6 * MIXTRAL_EXPERT / 4800e9
"""Microseconds in which an H200 reads one slot, an expert in bfloat16, by its data sheet."""
TOKEN_US = 2e6 * MIXTRAL_EXPERT / 989.5e12
"""Microseconds in which it computes one token of one expert, likewise."""


def routing() -> dict[str, Array]:
    """Tokens of each expert by kind of text, int64 [layers, steps, experts]; see record_routing.py."""
    text = (HERE.parents[1] / "routing.json").read_text(encoding="utf-8")
    return {kind: np.array(counts) for kind, counts in json.loads(text)["counts"].items()}


def answers() -> dict[str, Any]:
    """What vLLM's own functions say; see ask_vllm.py."""
    found: dict[str, Any] = json.loads((HERE / "answers.json").read_text(encoding="utf-8"))
    return found
