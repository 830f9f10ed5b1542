"""How hard the random tests look: briefly on a laptop, long with `MINI_VLLM_THOROUGH=1`, as CI runs them."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")
THOROUGH = os.environ.get("MINI_VLLM_THOROUGH") == "1"


def either(brief: T, long: T) -> T:
    """`long` when asked to be thorough, otherwise `brief`."""
    return long if THOROUGH else brief
