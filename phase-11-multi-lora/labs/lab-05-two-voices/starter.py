"""Lab 11-05: two voices. Your work: every NotImplementedError."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


def predictions() -> dict[str, Any]:
    """Your answers to the README's six questions, under the names given there."""
    raise NotImplementedError


# ---- found in a trace ----------------------------------------------------------------------------


def audit(rows: list[Any], block_size: int) -> dict[str, tuple[int, int]]:
    """Which requests read K and V that are not their own adapter's.

    A position of a block holds what was computed there last. It is *sound* for a request if it was computed
    with the weights that the request has in this step, by a request that itself read only sound positions.
    A request in a step reads all positions that were there before the step. Everything that it computes in
    a step in which it reads something unsound is unsound, for every request, also for one with the same
    weights.

    Args:
        rows: in the order in which they were scheduled. A row is one request in one step. Its
            attributes: `step` counts from 0; `request` is its id; `weights` names the weights that it has
            in this step; `computed` positions were there before the step; the next `scheduled` are computed
            in it; `blocks` are its blocks' numbers: position p is at place `p % block_size` of block
            `blocks[p // block_size]`. A row may read what one before it in the same step computes, because
            each layer writes all of a step's K and V before any of them is read.
        block_size: positions per block.

    Returns:
        For each request that ever reads an unsound position: the first step in which it does, and how many
        it reads in that step. Those that never do are left out.
    """
    raise NotImplementedError


# ---- the first mend: a key with a version --------------------------------------------------------


def version(config: dict[str, Any], tensors: dict[str, np.ndarray]) -> bytes:
    """32 bytes that stand for an adapter's weights.

    They differ where a tensor differs, in its name, its shape or a number, and where the scale differs. They
    are the same where only the order of the tensors or another entry of `config` differs, and in every
    process and on every machine. Use `hashlib.sha256`.

    Args:
        config: what `adapter_config.json` holds. The scale of the delta is alpha / r, or alpha / sqrt(r) with
            `use_rslora`. `r` and `lora_alpha` are there; no `use_rslora` means False.
        tensors: A and B of each module by name, in the order of the file, which means nothing. Their bytes
            are `tensor.tobytes()`.
    """
    raise NotImplementedError


def hash_key(name: str, version: bytes) -> bytes:
    """What the hash of each of an adapter's blocks holds, by the rules in the README.

    Args:
        name: the adapter's, any text.
        version: any 32 bytes.
    """
    raise NotImplementedError


# ---- the second mend: a reset --------------------------------------------------------------------


def reload_with_reset(server: Any, name: str, folder: str) -> None:
    """Load other weights under a name whose blocks are found by the name alone, as in vLLM.

    When this returns, requests that come later get the answers of the new weights. All that were under way
    get, then or later, the answers that they would have got without a reload. Only requests for `name` may
    be waited for.

    Args:
        server: has `unfinished(name)`, the list of the ids of requests for it that have not finished;
            `step()`, one step of the engine for all requests; `load(name, folder)`, from which on new
            requests under this name have this folder's weights, while those under way keep theirs;
            `reset(reset_running_requests)`, which empties the prefix cache. Nothing else is needed.
            While requests are under way, `reset(False)` returns False and does nothing. `reset(True)` makes
            them give up their blocks; each is then computed again from its first token, with its own
            weights, and what it has said stays.
        name: of the adapter.
        folder: where its new weights are.
    """
    raise NotImplementedError


# ---- what each costs -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Tenant:
    """Given: what a tenant has on the server when an adapter is reloaded. No two share a block.

    Attributes:
        name: of its adapter; None for the base model.
        cached: full blocks in the cache that requests which have finished left there.
        computed: tokens in the blocks of its one request under way; 0: none is under way.
        left: answer tokens that this request still lacks. Its prompt is done: a step gives one.
    """

    name: str | None
    cached: int
    computed: int = 0
    left: int = 0


@dataclass(frozen=True)
class Bill:
    """Given: what a mend costs.

    Attributes:
        blocks: by tenant, how many of its `cached` blocks its next requests do not find.
        tokens: by tenant, how many tokens its request under way must compute again.
        steps: that `reload_with_reset` waits; 0 with a key.
    """

    blocks: dict[str | None, int]
    tokens: dict[str | None, int]
    steps: int


def bill(tenants: list[Tenant], name: str, mend: str) -> Bill:
    """What it costs to load other weights under `name`, one of the tenants'.

    Each of the two dicts has every tenant, also one that loses nothing. Blocks that are only published while
    the reload waits, or afterwards, are not counted.

    Args:
        tenants: as they are before the reload.
        name: of the adapter that is loaded again.
        mend: "key" (your `hash_key`) or "reset" (your `reload_with_reset`).
    """
    raise NotImplementedError
