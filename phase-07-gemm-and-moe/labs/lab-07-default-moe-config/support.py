"""What the test file of lab 07-07 needs: the recorded names, and tuned files to look up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from course.learner.labs import load_module

files = load_module(Path(__file__).resolve().parent / "files.py", "lab_07_07_files")

KEYS = (
    "BLOCK_SIZE_M",
    "BLOCK_SIZE_N",
    "BLOCK_SIZE_K",
    "GROUP_SIZE_M",
    "SPLIT_K",
    "num_warps",
    "num_stages",
)
LADDER = {  # tokens: BLOCK_SIZE_M, _N, _K, num_warps, num_stages
    1: (16, 64, 128, 4, 4), 32: (16, 64, 128, 4, 4), 33: (32, 64, 128, 4, 3), 64: (32, 64, 128, 4, 3),
    65: (32, 128, 64, 4, 3), 96: (32, 128, 64, 4, 3), 97: (64, 128, 64, 4, 3), 128: (64, 128, 64, 4, 3),
    129: (64, 128, 64, 8, 3), 512: (64, 128, 64, 8, 3), 513: (128, 128, 64, 8, 3),
    8192: (128, 128, 64, 8, 3),
}  # fmt: skip


def tuned(*blocks: tuple[int, int]) -> dict[str, Any]:
    """What a tuned file holds: (tokens, BLOCK_SIZE_M), in that order."""
    return {"triton_version": "3.6.0"} | {
        str(key): {"BLOCK_SIZE_M": block, "BLOCK_SIZE_N": 64} for key, block in blocks
    }


def put(folder: Path, name: str, content: dict[str, Any]) -> Path:
    """Writes a tuned file into a folder, which is made; the folder."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(content), "utf-8")
    return folder
