"""Scripts that import vLLM, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def output_of(*command: object, **environment: str) -> str:
    """What a Python script prints that is started in the repository's root.

    Variables of vLLM, torch and Triton's interpreter are not handed on: other tests of this process may
    have set some. `environment` is set on top.
    """
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("VLLM_", "TORCH", "TRITON_INTERPRET"))
    }
    env |= {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT, env=env | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout
