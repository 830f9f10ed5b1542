"""Lab 11-05: two voices. One way to do it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np


def predictions() -> dict[str, Any]:
    """The answers to the README's six questions."""
    return {
        "cached": 96,
        "sound": 0,
        "layers": (3, 0),
        "salt": 16,
        "at once": 48,
        "lost": (6, 18),
    }


# ---- found in a trace ----------------------------------------------------------------------------


def audit(rows: list[Any], block_size: int) -> dict[str, tuple[int, int]]:
    """By request, the first step in which it reads something unsound, and how much."""
    held: dict[tuple[int, int], str | None] = {}
    found: dict[str, tuple[int, int]] = {}
    for row in rows:
        places = [
            (row.blocks[p // block_size], p % block_size)
            for p in range(row.computed + row.scheduled)
        ]
        unsound = sum(held.get(place) != row.weights for place in places[: row.computed])
        if unsound:
            found.setdefault(row.request, (row.step, unsound))
        for place in places[row.computed :]:
            held[place] = None if unsound else row.weights
    return found


# ---- the first mend: a key with a version --------------------------------------------------------


def version(config: dict[str, Any], tensors: dict[str, np.ndarray]) -> bytes:
    """A digest of what makes the scale, and of each tensor with its name and shape."""
    scale = config["r"], config["lora_alpha"], bool(config.get("use_rslora"))
    digest = hashlib.sha256(repr(scale).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\n{name} {tensor.dtype} {tensor.shape}\n".encode())
        digest.update(tensor.tobytes())
    return digest.digest()


def hash_key(name: str, version: bytes) -> bytes:
    """Name and version; 0xFF stands in no UTF-8 text, so it marks both ends of the name."""
    return b"\xff" + name.encode() + b"\xff" + version


# ---- the second mend: a reset --------------------------------------------------------------------


def reload_with_reset(server: Any, name: str, folder: str) -> None:
    """Wait for the name's own requests, then load, then reset by force."""
    while server.unfinished(name):
        server.step()
    server.load(name, folder)
    server.reset(True)


# ---- what each costs -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Tenant:
    """What a tenant has on the server when an adapter is reloaded."""

    name: str | None
    cached: int
    computed: int = 0
    left: int = 0


@dataclass(frozen=True)
class Bill:
    """What a mend costs."""

    blocks: dict[str | None, int]
    tokens: dict[str | None, int]
    steps: int


def bill(tenants: list[Tenant], name: str, mend: str) -> Bill:
    """A key loses one tenant's blocks. A reset loses all, and what others have under way."""
    reset = mend == "reset"
    steps = next(one.left for one in tenants if one.name == name) if reset else 0
    blocks, tokens = {}, {}
    for one in tenants:
        blocks[one.name] = one.cached if reset or one.name == name else 0
        goes_on = reset and one.name != name and one.left > steps
        tokens[one.name] = one.computed + steps if goes_on else 0
    return Bill(blocks, tokens, steps)
