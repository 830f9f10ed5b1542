"""The folder where this user's converted models are kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """`MINI_VLLM_CACHE` where it is set, else `mini-vllm` in the system's folder for caches.

    It need not exist.
    """
    if given := os.environ.get("MINI_VLLM_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "mini-vllm"
