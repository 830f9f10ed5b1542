"""Lab 07-08: when a router turns, how far that throws a model, and what it explains. Your turn."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Ids = NDArray[np.int64]

AS_BEFORE, RARER, GONE = "as before", "rarer", "gone"


class Run(NamedTuple):
    """Given: one token in one step, L layers, E experts, of which it goes to k.

    Attributes:
        router: float32 `[L, E]`, what each layer's router said.
        experts: int `[L, k]`, the experts that it went to, in any order.
        logits: float32 `[V]`, of the next token.
    """

    router: Array
    experts: Ids
    logits: Array


def predictions() -> dict[str, str | float | bool]:
    """Your answers to the eight questions of the README, under its names."""
    raise NotImplementedError


# ---- a tie ---------------------------------------------------------------------------------------
# A router chooses the k largest logits; of equal ones those with the lower index. 0 < k < E.


def gap(logits: Array, k: int) -> float:
    """How far the smallest logit that is chosen lies above the largest that is not, in float64.

    Args:
        logits: float32 `[E]`.
    """
    raise NotImplementedError


def can_turn(logits: Array, k: int, noise: float) -> bool:
    """Whether other experts could be chosen if each logit moved by `noise` or less, up or down.

    Which of the chosen is first does not matter. Compute in float64: in float32 noise of 1e-7 disappears
    beside a logit of 4.
    """
    raise NotImplementedError


def mix(logits: Array, outputs: Array, k: int) -> Array:
    """What the layer gives for one token: the chosen experts' outputs, weighted, float32 `[H]`.

    The weights are those of Mixtral: softmax over the chosen logits alone.

    Args:
        logits: float32 `[E]`.
        outputs: float32 `[E, H]`, what each expert would say of this token.
    """
    raise NotImplementedError


def jump(logits: Array, outputs: Array, k: int) -> float:
    """How far `mix` moves where the last expert that is chosen and the first that is not change places.

    Their logits are as good as equal: take the weights from the logits as they stand. Of the H numbers the
    one that moves most.
    """
    raise NotImplementedError


# ---- company -------------------------------------------------------------------------------------


def rows_together(experts: Ids, row: int) -> list[int]:
    """For each of a row's experts, how many rows of the step it has, this one included.

    That is the height of the matrix that is multiplied with this expert's weights.

    Args:
        experts: int `[rows, k]`, of all tokens of a step; no row has an expert twice.
    """
    raise NotImplementedError


# ---- a ticket ------------------------------------------------------------------------------------


def first_turn(alone: Run, beside: Run) -> int | None:
    """The first layer in which the token went to other experts; None where there is none.

    Their order does not matter.
    """
    raise NotImplementedError


def verdict(alone: Run, beside: Run, noise: float) -> str:
    """What lies behind two runs of the same token in different company.

    - "router tie": experts differ, and where they first do, `noise` is enough to turn `alone`'s router.
    - "token tie": the experts are the same, the logits moved by `noise` at most, and another token is the
      largest (the lower id where equal).
    - "noise": as before, but the token is the same. So are runs that are equal to the bit.
    - "fault": anything else. Sums in another order do not explain it.

    Args:
        noise: how far a number moves at most, if the same sums are added up in another order.
    """
    raise NotImplementedError
