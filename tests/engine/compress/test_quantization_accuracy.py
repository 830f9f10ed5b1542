"""Phase 06: what quantising costs the shipped checkpoint, in perplexity over text that it never saw.

The long form (`MINI_VLLM_THOROUGH=1`, as in CI) takes all 96 held-out texts, 128 calibration texts and all
layers. The brief one takes 6 and 8 texts, GPTQ quantises one attention, and AWQ is left out. So few texts
tell little about a perplexity that moves by a percent, and KL is compared there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mini_vllm.compress.awq import awq
from mini_vllm.compress.calibrate import calibrate
from mini_vllm.compress.evaluate import CALIBRATION, evaluate, load_documents, perplexity
from mini_vllm.compress.fold import norm_folds
from mini_vllm.compress.gptq import gptq
from mini_vllm.compress.quantize import quantize_checkpoint
from mini_vllm.compress.smoothquant import smooth
from mini_vllm.layers.quantization.grid import QuantArgs
from mini_vllm.model_loader import load_model
from mini_vllm.utils.blas import blas_threads
from tests.engine.helpers.quantization.quantization_methods import (
    CONFIG,
    INT8,
    TINY,
    held_out,
    inputs,
    linears,
    model,
    rounded,
    w8a8,
    weights,
    with_weights,
)
from tests.engine.helpers.thorough import THOROUGH, either

NAMES = either(linears((1,))[:4], linears())
SIZES = either((32,), (128, 64, 32))


def int4(group_size: int, symmetric: bool = True) -> QuantArgs:
    return QuantArgs(4, symmetric=symmetric, strategy="group", group_size=group_size)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Products are small here, and on a busy machine a second thread costs more than it gives."""
    with blas_threads(1):
        yield


@pytest.fixture(scope="module")
def base() -> float:
    """Perplexity of the shipped checkpoint in float32."""
    return perplexity(model(), held_out())


def test_the_checkpoint_itself(base: float) -> None:
    """What all others are measured against, so that nobody mistakes a broken measure for a good method."""
    assert base == pytest.approx(either(1.5906, 1.3888), abs=1e-3)


def test_int8_costs_less_than_a_percent(base: float) -> None:
    """Weights alone, and weights with activations."""
    assert perplexity(with_weights(rounded(weights(), INT8)), held_out()) < 1.01 * base
    assert perplexity(w8a8(weights()), held_out()) < 1.01 * base


@pytest.mark.parametrize("group_size", SIZES)
def test_gptq_costs_less_than_five_percent(base: float, group_size: int) -> None:
    """In 4 bits, and less than round-to-nearest loses, by perplexity and by KL."""
    args = int4(group_size)
    plain = evaluate(with_weights(rounded(weights(), args, NAMES)), held_out(), model())
    for desc_act in either((False,), (False, True)):
        tensors = {
            f"{name}.weight": gptq(
                weights()[f"{name}.weight"], inputs()[name].hessian, args, desc_act=desc_act
            ).dequantize()
            for name in NAMES
        }
        made = evaluate(with_weights(weights() | tensors), held_out(), model())
        assert made.perplexity < 1.05 * base
        assert made.kl < 0.8 * plain.kl
        assert made.perplexity < plain.perplexity


@pytest.mark.skipif(not THOROUGH, reason="all texts and layers: MINI_VLLM_THOROUGH=1")
@pytest.mark.parametrize("group_size", [128, 64, 32])
def test_awq_costs_less_than_five_percent(base: float, group_size: int) -> None:
    """In 4 bits with zero points, and less than round-to-nearest loses, by perplexity and by KL."""
    args = int4(group_size, symmetric=False)
    plain = evaluate(with_weights(rounded(weights(), args)), held_out(), model())
    scaled = awq(CONFIG, weights(), inputs(), args).weights
    made = evaluate(with_weights(rounded(scaled, args)), held_out(), model())
    assert made.perplexity < 1.05 * base
    assert made.kl < plain.kl
    assert made.perplexity < plain.perplexity


def planted(exponent: int) -> dict[str, np.ndarray]:
    """The shipped weights with two loud channels after each norm: norm up, columns down, by 2^exponent.

    A power of two changes no digit of a float32, so the model is the same.
    """
    tensors = weights()
    quieter = np.ones(CONFIG.hidden_size)
    quieter[[5, 77]] = 2.0**-exponent
    for fold in norm_folds(CONFIG):
        tensors = fold.apply(tensors, quieter)
    return tensors


def test_planted_outliers_change_nothing_in_float32() -> None:
    """The same logits up to the order of a sum, with inputs 64 times as loud."""
    loud = with_weights(planted(6))
    assert evaluate(loud, held_out()[:3], model()).kl < 1e-6
    ratio = np.float32(
        loud.layers[2].input_layernorm.weight / model().layers[2].input_layernorm.weight
    )
    assert {*ratio.tolist()} == {1, 64}


def test_smoothquant_saves_w8a8_from_planted_outliers(base: float) -> None:
    """Naive W8A8 leaves the quiet channels two steps; smoothed it is what it was without outliers."""
    loud = planted(6)
    documents = load_documents(CALIBRATION, TINY, either(2, 128))
    seen = calibrate(with_weights(loud), documents)
    naive = perplexity(w8a8(loud), held_out())
    smoothed = smooth(CONFIG, loud, seen)
    assert naive > 1.05 * base
    assert perplexity(w8a8(smoothed), held_out()) < 1.01 * base
    # s takes the whole of a planted factor f out again: (f x)^a / (w / f)^(1 - a) = f x^a / w^(1 - a).
    quiet = smooth(CONFIG, weights(), calibrate(model(), documents))
    for name in linears():
        assert np.allclose(smoothed[f"{name}.weight"], quiet[f"{name}.weight"], rtol=1e-4), name


BARS = {"int8": 1.01, "w8a8": 1.01, "smoothquant-w8a8": 1.01}
BARS |= {f"{method}-g{size}": 1.05 for method in ("gptq", "awq") for size in (128, 64, 32)}


@pytest.mark.skipif(not THOROUGH, reason="all texts and layers: MINI_VLLM_THOROUGH=1")
@pytest.mark.parametrize("method", BARS)
def test_the_files_keep_the_bars(base: float, method: str, tmp_path: Path) -> None:
    """The same through files: quantised as the command does it, read again, run by the engine's layers."""
    quantize_checkpoint(TINY, tmp_path / "out", method)
    made = evaluate(load_model(tmp_path / "out"), held_out(), model())
    assert made.perplexity < BARS[method] * base
    assert made.greedy_agreement > 0.95


@pytest.mark.skipif(not THOROUGH, reason="all texts and layers: MINI_VLLM_THOROUGH=1")
def test_smaller_groups_lose_less() -> None:
    """Round-to-nearest from one scale a row to one for 32 weights: KL falls step by step."""
    channel = QuantArgs(4, strategy="channel")
    grids = [channel, int4(128), int4(64), int4(32)]
    lost = [
        evaluate(with_weights(rounded(weights(), args)), held_out(), model()).kl for args in grids
    ]
    assert lost == sorted(lost, reverse=True)
