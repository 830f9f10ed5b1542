"""The scripts of a deep dive that print by topic, and what the page shows of each topic."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from course.docs.pages import read_page
from course.learner.labs import load_module


def topics_on(page: Path, only: Collection[str] = ()) -> dict[str, dict[str, list[str]]]:
    """Script -> topic -> the lines that the page shows of it.

    Where the page shows other output, too, `only` names the scripts that print by topic.
    """
    shown: dict[str, dict[str, list[str]]] = {}
    for block in read_page(page).outputs:
        script, *rest = block.head.split(" | ")[0].split("/")[-1].split()
        if only and script not in only:
            continue
        [topic] = rest
        shown.setdefault(script, {})[topic] = [line for line in block.body if line[:3] != "```"]
    return shown


def load_scripts(phase: Path, *names: str) -> list[Any]:
    """Scripts of a phase as modules. They import their neighbours by name."""
    sys.path.insert(0, str(phase))
    try:
        return [load_module(phase / f"{name}.py", f"{phase.name[:8]}_{name}") for name in names]
    finally:
        sys.path.remove(str(phase))
