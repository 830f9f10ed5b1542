"""What the lab's tests and show.py share: the recorded routing, and the recorded answers of vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
HERE = Path(__file__).parent
KINDS = ("chat", "sums", "noise")


def routing() -> dict[str, Array]:
    """Tokens of each expert by kind of text, int64 [layers, steps, experts]; see record_routing.py."""
    text = (HERE.parents[1] / "routing.json").read_text(encoding="utf-8")
    return {kind: np.array(counts) for kind, counts in json.loads(text)["counts"].items()}


def answers() -> dict[str, Any]:
    """What vLLM's own functions say; see ask_vllm.py."""
    found: dict[str, Any] = json.loads((HERE / "answers.json").read_text(encoding="utf-8"))
    return found
