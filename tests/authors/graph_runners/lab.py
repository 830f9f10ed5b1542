"""Where the lab is whose runner these files write otherwise."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

LAB = Path(__file__).resolve().parents[3] / "phase-05-cuda-graphs/labs/lab-06-capture-the-engine"
SOLUTION = LAB / "solution.py"


def engine_graphs() -> Any:
    """The module that the lab builds: a runner of the lab that imports it is refused, and rightly so."""
    return importlib.import_module("mini_vllm.gpu.cudagraph")
