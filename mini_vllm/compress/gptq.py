"""GPTQ: round a weight column by column, and let the columns that are left make up for each error.

Frantar, Ashkboos, Hoefler, Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative
Pre-trained Transformers", 2022, https://arxiv.org/abs/2210.17323, algorithm 1.

Round-to-nearest makes each weight's error small. What counts is the error of the layer's *output*, and there
the errors of two columns may cancel, if the inputs of the two go together: H = 2/n XᵀX says how much they
do. When column j is rounded, its error e moves the output, and a change of the columns that are not rounded
yet can take much of that back. The best such change (optimal brain surgeon) is -e / inv(H)[j, j] times row j
of inv(H), where H holds the columns that are left.

Left out: the paper's blocks of 128 columns, which put off updates of the far columns to keep a GPU's memory
busy and give the same numbers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mini_vllm.layers.quantization.grid import (
    Array,
    QuantArgs,
    QuantizedWeight,
    check_group_size,
    choose_scales,
    dequantize,
    quantize,
)

Floats = NDArray[np.float64]


def inverse_rows(hessian: Floats, damp: float) -> Floats:
    """The first row of inv(H[j:, j:]) for every j, but for a factor each: all that `gptq` needs of H.

    Taking a column out of H and inverting anew would cost in³ operations for each of the columns. What
    one wants of all those inverses stands in one upper triangular factor U with UᵀU = inv(H):
    U[j, j:] / U[j, j] is inv(H[j:, j:])[0] / inv(H[j:, j:])[0, 0] (section 3.3, step 3).

    Args:
        hessian: float64 `[in, in]`, symmetric; not changed.
        damp: is added to the diagonal, as a share of its mean. Inputs that always go together leave H
            without an inverse, and one that is nearly so has huge, useless entries.

    Returns:
        U, float64 `[in, in]`.

    Raises:
        ValueError: H is still not positive definite: `damp` is too small.
    """
    damped = hessian + damp * np.mean(np.diag(hessian)) * np.eye(len(hessian))
    try:
        # numpy has the lower factor L of A = L Lᵀ; of the inverse we want the upper one.
        factor: Floats = np.linalg.cholesky(np.linalg.inv(damped)).T
    except np.linalg.LinAlgError:
        raise ValueError(
            f"the Hessian of {len(hessian)} inputs is not positive definite with damp {damp}: give "
            "a larger damp, or more calibration text"
        ) from None
    return factor


def gptq(
    weight: Array, hessian: Floats, args: QuantArgs, damp: float = 0.01, desc_act: bool = False
) -> QuantizedWeight:
    """Quantise one linear layer so that its output changes little.

    Args:
        weight: `[out, in]`.
        hessian: float64 `[in, in]`, `LayerInput.hessian`. Its size does not matter, only its shape.
        args: the grid: type "int", strategy "channel" or "group".
        damp: see `inverse_rows`.
        desc_act: columns with the largest inputs first, because the first ones have most columns left to
            make up for them. The groups then are those of this order, so `g_idx` comes with the codes.

    Returns:
        Codes for `weight`, in its order of columns.

    Raises:
        ValueError: another grid, shapes that do not go together, a group that does not divide a row, a
            damp below 0, or a Hessian that has no inverse.
    """
    if args.type != "int" or args.strategy not in ("channel", "group"):
        raise ValueError(
            f"GPTQ takes type 'int' and strategy 'channel' or 'group', got {args.type!r}, "
            f"{args.strategy!r}"
        )
    work = np.array(weight, np.float64)
    rows, columns = work.shape
    if hessian.shape != (columns, columns):
        raise ValueError(
            f"the Hessian of a weight [{rows}, {columns}] must be [{columns}, {columns}], got shape "
            f"{hessian.shape}"
        )
    if not damp >= 0:
        raise ValueError(f"damp must be at least 0, got {damp}")
    # An input that is always 0 tells nothing, and its weight does nothing.
    hessian = np.array(hessian, np.float64)
    dead = np.flatnonzero(np.diag(hessian) == 0)
    hessian[dead, dead] = 1
    work[:, dead] = 0

    group_size = args.group_size or columns
    check_group_size(columns, group_size)
    order = np.argsort(-np.diag(hessian), kind="stable") if desc_act else np.arange(columns)
    work = work[:, order]
    factor = inverse_rows(hessian[np.ix_(order, order)], damp)

    per_group = replace(args, strategy="channel", group_size=None)
    codes = np.empty((rows, columns), np.int32)
    scales: list[Array] = []
    zero_points: list[Array] = []
    for j in range(columns):
        if j % group_size == 0:
            # Chosen now, for what the weights of the group have become.
            scale, zero_point = choose_scales(work[:, j : j + group_size], per_group)
            scales.append(scale)
            if zero_point is not None:
                zero_points.append(zero_point)
        column = work[:, j : j + 1]
        codes[:, j : j + 1] = quantize(column, scale, zero_point, per_group)
        error = column - dequantize(codes[:, j : j + 1], scale, zero_point)
        work[:, j:] -= error * (factor[j, j:] / factor[j, j])

    back = np.argsort(order)
    return QuantizedWeight(
        codes[:, back],
        np.concatenate(scales, axis=1),
        np.concatenate(zero_points, axis=1) if zero_points else None,
        args,
        g_idx=(back // group_size).astype(np.int32) if desc_act else None,
    )
