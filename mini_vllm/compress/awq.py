"""AWQ: weights that loud inputs meet get a finer step, because all that differs is a scale.

Lin, Tang, Tang, Yang, Chen, Wang, Xiao, Dang, Gan, Han, "AWQ: Activation-aware Weight Quantization for LLM
Compression and Acceleration", 2023, https://arxiv.org/abs/2306.00978, section 3.2.

A weight's rounding error is up to half a step, whatever the weight, and the layer's output gets it times
the input. So errors hurt where inputs are loud. Multiply such a column by s and divide its input by s: the
step of its group hardly changes, because it hangs on the group's largest weight, so the error that
reaches the output is s times smaller. Too large an s does change the step, for all others. So one number
is searched: `s = absmean_x ** ratio`, the ratio from a grid between 0 (nothing happens) and 1.

Left out: the search for a smaller range of each group, "clipping", which the authors' program adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mini_vllm.compress.calibrate import LayerInput
from mini_vllm.compress.fold import Array, Floats, all_folds
from mini_vllm.config.model import LlamaConfig
from mini_vllm.layers.quantization.grid import QuantArgs, round_to_nearest

GRID = 20
"""Ratios that are tried: 0, 1/20, ... 19/20, as in the authors' program."""


@dataclass(frozen=True)
class AwqResult:
    """What `awq` gives.

    Attributes:
        weights: all tensors of the checkpoint, scales folded in, not rounded yet: round-to-nearest is next.
        ratios: the ratio chosen for each source that took 1/s.
    """

    weights: dict[str, Array]
    ratios: dict[str, float]


def awq_scales(absmean_x: Floats, ratio: float) -> Floats:
    """`absmean_x ** ratio`, float64 `[in]`, so normed that the largest times the smallest is 1.

    Inputs that are always 0 are taken as 1e-4, as in the authors' program, so that nothing is divided by 0.
    """
    s = np.maximum(np.asarray(absmean_x, np.float64) ** ratio, 1e-4)
    normed: Floats = s / np.sqrt(s.max() * s.min())
    return normed


def search(
    matrices: list[Array], seen: LayerInput, candidates: Mapping[float, Floats], args: QuantArgs
) -> float:
    """The ratio whose scales leave the outputs of these layers nearest to what they were.

    The paper compares outputs over the calibration text. Their mean squared difference follows from the
    Hessian (`LayerInput.error`), so no text is needed here.

    Args:
        matrices: `[out, in]` each, of the layers that share the input.
        seen: that input.
        candidates: s `[in]` by ratio; the first of equals wins.
        args: the grid that the weights will be rounded to.
    """
    errors = {}
    for ratio, s in candidates.items():
        scale = s.astype(np.float32)
        errors[ratio] = sum(
            seen.error(round_to_nearest(w * scale, args).dequantize() / scale - w) for w in matrices
        )
    return min(errors, key=errors.__getitem__)


def awq(
    config: LlamaConfig,
    weights: Mapping[str, Array],
    inputs: Mapping[str, LayerInput],
    args: QuantArgs,
    grid: int = GRID,
) -> AwqResult:
    """The same model with scales folded in, so that rounding its linear layers costs less.

    Args:
        weights: tensors by Hugging Face name, float32; not changed.
        inputs: from `calibrate`.
        args: the grid that the weights will be rounded to.
        grid: how many ratios are tried.
    """
    changed = dict(weights)
    ratios = {}
    for fold in all_folds(config):
        seen = inputs[fold.linears[0]]
        loudness = fold.share(seen.absmean)
        candidates = {i / grid: awq_scales(loudness, i / grid) for i in range(grid)}
        matrices = [weights[f"{name}.weight"] for name in fold.linears]
        ratios[fold.source] = ratio = search(matrices, seen, candidates, args)
        changed = fold.apply(changed, candidates[ratio])
    return AwqResult(changed, ratios)
