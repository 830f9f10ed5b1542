"""Lab 06-05: the reference solution."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]
Ints = NDArray[np.integer[Any]]


def choose_scale(columns: Floats) -> Floats:
    scale = np.abs(columns).max(axis=1, keepdims=True) / 7.5
    return np.where(scale == 0, 1.0, scale)


def to_codes(columns: Floats, scale: Floats) -> Ints:
    codes: Ints = np.clip(np.rint(columns / scale), -8, 7).astype(np.int32)
    return codes


class Quantized(NamedTuple):
    codes: Ints
    scale: Floats
    g_idx: Ints

    def weight(self) -> Floats:
        out: Floats = self.codes * self.scale[:, self.g_idx]
        return out


def predictions() -> dict[str, list[float]]:
    return {
        "two equal inputs": [0.8, 0.2],
        "codes that differ": [0],
        "columns that make up": [127, 0],
    }


def hessian(x: Floats) -> Floats:
    """H, `[in, in]`, of the inputs `x` `[n, in]`. Given.

    H holds the second derivatives of an output's squared error, mean over the tokens, by the weights of
    the output's row. All rows have the same one. float64, whatever `x` is.
    """
    wide = np.asarray(x, np.float64)
    return 2 / len(wide) * (wide.T @ wide)


def output_error(change: Floats, h: Floats) -> float:
    return float(((change @ h) * change).sum() / 2)


def damped(h: Floats, damp: float) -> Floats:
    """A new H that has an inverse. Given.

    The mean of H's diagonal, times `damp`, is added to each entry of the diagonal. The entry of an input that
    was always 0 becomes 1.
    """
    out = h + damp * np.diag(h).mean() * np.eye(len(h))
    dead = np.diag(h) == 0
    out[dead, dead] = 1
    return out


def compensation(error: Floats, inverse: Floats) -> Floats:
    return -np.outer(error / inverse[0, 0], inverse[0, 1:])


def factor(h: Floats) -> Floats:
    """U, upper triangular, with U.T @ U the inverse of `h`. The diagonal is above 0. Given.

    Row j of U, from the diagonal on, is the first row of the inverse of `h[j:, j:]`, but for a factor. So
    U has what `compensation` needs of all those inverses.
    """
    out: Floats = np.linalg.cholesky(np.linalg.inv(h)).T
    return out


def round_columns(rest: Floats, u: Floats, group_size: int) -> tuple[Ints, Floats]:
    codes = np.empty(rest.shape, np.int32)
    scales = []
    for j in range(len(u)):
        if j % group_size == 0:
            scales.append(choose_scale(rest[:, j : j + group_size]))
        codes[:, j] = to_codes(rest[:, j : j + 1], scales[-1])[:, 0]
        error = rest[:, j] - codes[:, j] * scales[-1][:, 0]
        rest[:, j + 1 :] += compensation(error, u[j:, j:])
    return codes, np.hstack(scales)


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
