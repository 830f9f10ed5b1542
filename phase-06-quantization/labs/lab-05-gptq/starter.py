"""Lab 06-05: rounding that makes up for its errors. Your work: every NotImplementedError.

A weight is `[out, in]`, an input X is `[n, in]`, a row for each token, and the layer gives X @ weight.T.
Everything is float64. `h` is what `hessian` gives.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]
Ints = NDArray[np.integer[Any]]


# ---- the grid of lab 06-02, given ----------------------------------------------------------------


def choose_scale(columns: Floats) -> Floats:
    """The step of each row, `[out, 1]`, for int4: codes -8 to 7. 1 for a row of zeros."""
    scale = np.abs(columns).max(axis=1, keepdims=True) / 7.5
    return np.where(scale == 0, 1.0, scale)


def to_codes(columns: Floats, scale: Floats) -> Ints:
    """The nearest codes of some columns, `[out, k]`, for steps `[out, 1]`."""
    codes: Ints = np.clip(np.rint(columns / scale), -8, 7).astype(np.int32)
    return codes


class Quantized(NamedTuple):
    """A weight in 4 bits.

    Attributes:
        codes: integers, `[out, in]`.
        scale: `[out, groups]`.
        g_idx: int `[in]`, the group that each column belongs to.
    """

    codes: Ints
    scale: Floats
    g_idx: Ints

    def weight(self) -> Floats:
        """What the codes stand for, `[out, in]`."""
        out: Floats = self.codes * self.scale[:, self.g_idx]
        return out


# ---- before you write anything -------------------------------------------------------------------


def predictions() -> dict[str, list[float]]:
    """Your answers to the three questions of the README, under the names that stand there."""
    raise NotImplementedError


# ---- what an error costs -------------------------------------------------------------------------


def hessian(x: Floats) -> Floats:
    """H, `[in, in]`, of the inputs `x` `[n, in]`. Given.

    H holds the second derivatives of an output's squared error, mean over the tokens, by the weights of
    the output's row. All rows have the same one. float64, whatever `x` is.
    """
    wide = np.asarray(x, np.float64)
    return 2 / len(wide) * (wide.T @ wide)


def output_error(change: Floats, h: Floats) -> float:
    """The squared error of the outputs, mean over the tokens and summed over the outputs.

    Args:
        change: `[out, in]`, what is added to the weight.
        h: of the inputs. The inputs themselves are not needed.
    """
    raise NotImplementedError


def damped(h: Floats, damp: float) -> Floats:
    """A new H that has an inverse. Given.

    The mean of H's diagonal, times `damp`, is added to each entry of the diagonal. The entry of an input that
    was always 0 becomes 1.
    """
    out = h + damp * np.diag(h).mean() * np.eye(len(h))
    dead = np.diag(h) == 0
    out[dead, dead] = 1
    return out


# ---- what makes up for it ------------------------------------------------------------------------


def compensation(error: Floats, inverse: Floats) -> Floats:
    """What must be added to the columns that are left, so that the outputs change least.

    The first of k columns was rounded, and it will not move again. The others are free.

    Args:
        error: `[out]`, the first column before rounding minus after.
        inverse: `[k, k]`, the inverse of H for these k inputs. Only its first row matters, and a multiple of
            it will do.

    Returns:
        `[out, k - 1]`, for the second column and those behind it.
    """
    raise NotImplementedError


def factor(h: Floats) -> Floats:
    """U, upper triangular, with U.T @ U the inverse of `h`. The diagonal is above 0. Given.

    Row j of U, from the diagonal on, is the first row of the inverse of `h[j:, j:]`, but for a factor. So
    U has what `compensation` needs of all those inverses.
    """
    out: Floats = np.linalg.cholesky(np.linalg.inv(h)).T
    return out


def round_columns(rest: Floats, u: Floats, group_size: int) -> tuple[Ints, Floats]:
    """Round column by column; after each, let the columns that are left make up for its error.

    A group's scale is chosen when its first column is reached, from its columns as they are by then.

    Args:
        rest: `[out, in]`, the weight, columns in the order in which they are rounded. You may change it.
        u: from `factor`, of the same columns.
        group_size: columns to a scale; divides `in`.

    Returns:
        codes, integers, `[out, in]`, and scale, `[out, groups]`.
    """
    raise NotImplementedError


def gptq(
    weight: Floats, h: Floats, group_size: int, damp: float = 0.01, act_order: bool = False
) -> Quantized:
    """A whole layer, by your `round_columns`. Given.

    The column of an input that was always 0 is set to 0 first.

    Args:
        weight: `[out, in]`; it stays as it is, and so does `h`.
        h: from `hessian`, not damped yet.
        group_size: columns to a scale; divides `in`.
        act_order: take the columns by falling diagonal of `h`. Then a group is a stretch of that order.

    Returns:
        In the order of the weight's columns.
    """
    rest = np.array(weight, np.float64)
    rest[:, np.diag(h) == 0] = 0
    order = np.arange(len(h))
    if act_order:
        order = np.argsort(-np.diag(h), kind="stable")
    u = factor(damped(h, damp)[np.ix_(order, order)])
    codes, scale = round_columns(rest[:, order], u, group_size)
    place = np.argsort(order)
    return Quantized(codes[:, place], scale, place // group_size)
