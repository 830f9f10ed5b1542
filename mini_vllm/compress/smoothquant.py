"""SmoothQuant: move what is hard to round from the activations into the weights.

Xiao, Lin, Seznec, Wu, Demouth, Han, "SmoothQuant: Accurate and Efficient Post-Training Quantization for
Large Language Models", 2022, https://arxiv.org/abs/2211.10438, section 4, equation 4.

Where activations are rounded too (W8A8), a token's numbers share one scale, because a product of integers
can only be rescaled by row and by column. A channel that is a hundred times as loud as the others then leaves
them a hundredth of the steps. Weights have a scale for each row, and their columns are about equally
loud. So a part of the loudness goes there, channel by channel, and x @ Wᵀ stays what it is.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mini_vllm.compress.calibrate import LayerInput
from mini_vllm.compress.fold import Array, Floats, norm_folds
from mini_vllm.config.model import LlamaConfig


def smoothing_scales(absmax_x: Floats, absmax_w: Floats, alpha: float) -> Floats:
    """What each input channel is divided by, and its column multiplied with.

    `s = absmax_x ** alpha / absmax_w ** (1 - alpha)`. With alpha 0.5 both sides then have the largest
    magnitude `sqrt(absmax_x * absmax_w)`; with 1 the activations are all as loud as each other.

    Args:
        absmax_x: `[in]`, the largest magnitude of each input channel.
        absmax_w: `[in]`, of each column, over all layers that get this input.
        alpha: 0 to 1.

    Returns:
        float64 `[in]`; 1 where an input or a column is all 0.

    Raises:
        ValueError: alpha is outside of 0 to 1.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be 0 to 1, got {alpha}")
    x, w = np.asarray(absmax_x, np.float64), np.asarray(absmax_w, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        s = x**alpha / w ** (1 - alpha)
    return np.where((x > 0) & (w > 0), s, 1.0)


def smooth(
    config: LlamaConfig,
    weights: Mapping[str, Array],
    inputs: Mapping[str, LayerInput],
    alpha: float = 0.5,
) -> dict[str, Array]:
    """The same model with quieter activations, ready to be rounded to W8A8.

    As in the paper, the inputs of q, k, v and of gate, up are smoothed, whose norm takes 1/s. `o_proj` and
    `down_proj` stay as they are.

    Args:
        weights: tensors by Hugging Face name, float32; not changed.
        inputs: from `calibrate`.
        alpha: see `smoothing_scales`; the paper's default for most models is 0.5.

    Returns:
        All tensors of `weights`.
    """
    changed = dict(weights)
    for fold in norm_folds(config):
        absmax_w = np.max(
            [np.abs(weights[f"{n}.weight"]).max(axis=0) for n in fold.linears], axis=0
        )
        s = smoothing_scales(inputs[fold.linears[0]].absmax, absmax_w, alpha)
        changed = fold.apply(changed, s)
    return changed
