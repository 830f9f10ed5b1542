"""A Python like Windows': no fork, none of Unix' modules and signals, and text in the code page of the West.

`like_windows/sitecustomize.py` says what is taken away. The locale is one that knows ASCII alone, so a file
that is opened without an encoding cannot even be read wrongly: it fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.engine.helpers.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[3]
LIKE_WINDOWS = {
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).with_name("like_windows")), str(ROOT)]),
    "PYTHONIOENCODING": "cp1252",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
    "LC_ALL": "C",
}


def run_like_windows(
    *argv: str, cwd: Path = ROOT, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """`python ARGV`, whose output has to be of the code page."""
    env = {name: value for name, value in os.environ.items() if name != "LAB_IMPL"}
    return subprocess.run(
        [sys.executable, *argv], cwd=cwd, env=env | LIKE_WINDOWS, input=text, capture_output=True,
        encoding="cp1252", check=False, timeout=PATIENCE,
    )  # fmt: skip
