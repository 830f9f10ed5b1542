"""The command line of the scripts here that ask vLLM: topics by name, or all of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping

Say = Callable[[str], None]

ON_PAPER = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "CUDA_VISIBLE_DEVICES": "",
    "TRITON_INTERPRET": "1",  # keeps Triton importable where there is no GPU
}
"""Environment of a script that asks vLLM about a GPU that is not there."""


def wanted(topics: Mapping[str, Callable[[Say], None]]) -> list[str]:
    """The topics that the command line names. Ends the script at a name that there is not."""
    names = sys.argv[1:] or list(topics)
    if unknown := set(names) - set(topics):
        sys.exit(f"no topic {', '.join(sorted(unknown))}; there are {', '.join(topics)}")
    return names


def tell(name: str, topic: Callable[[Say], None]) -> None:
    """Print a topic's name and, indented, what it says."""
    print(f"{name}, vLLM", flush=True)
    topic(lambda line: print(f"  {line}", flush=True))


def each_apart(script: str, names: list[str]) -> None:
    """Run the script once for each topic, in a process of its own."""
    for name in names:
        subprocess.run([sys.executable, script, name], check=True)
