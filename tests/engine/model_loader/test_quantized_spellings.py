"""Quantised checkpoints as other libraries spell them: what loads, and what is refused, in which words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mini_vllm.layers.quantization.float_formats import E4M3
from mini_vllm.layers.quantization.scaled import Fp8LinearMethod, W8A8Int8LinearMethod
from mini_vllm.model_loader import CheckpointError, load_model
from tests.engine.helpers.quantization.quantized_layouts import (
    SPELLINGS,
    be_static,
    make_folder,
    write_base,
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("spellings") / "w8a8")


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_spelling_loads_or_is_refused_in_these_words(
    name: str, base: Path, tmp_path: Path
) -> None:
    words = SPELLINGS[name].words
    folder = make_folder(name, base, tmp_path / "model")
    if not words:
        load_model(folder)
        return
    with pytest.raises(CheckpointError) as caught:
        load_model(folder)
    for word in (str(folder), *words):
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("zero_point", "scale"), [(None, 0.05), (-20, 0.05), (None, 0.002), (127, 0.3)]
)
def test_a_static_scale_is_that_of_every_row(
    zero_point: int | None, scale: float, base: Path, tmp_path: Path
) -> None:
    """Against float64: codes of one step each, cut off at the ends."""
    folder = tmp_path / "model"
    make_folder("as_it_is", base, folder)
    be_static(folder, scale, zero_point)
    layer = load_model(folder).layers[0].mlp.down_proj
    assert isinstance(layer.quant_method, W8A8Int8LinearMethod)
    x = np.random.default_rng(0).standard_normal((5, layer.input_size)).astype(np.float32) * 9
    x[0] = 0
    zero = zero_point or 0
    codes = np.clip(np.rint(x * (1 / np.float32(scale)) + zero), -128, 127).astype(np.float64)
    weight = layer.weight.astype(np.float64) * layer.weight_scale[:, None]
    wanted = (codes - zero) * np.float64(np.float32(scale)) @ weight.T
    np.testing.assert_allclose(layer(x), wanted, rtol=2e-6, atol=1e-5)
    assert not layer(x)[0].any()


def test_of_static_scales_in_fp8_the_largest_is_taken(base: Path, tmp_path: Path) -> None:
    """q, k and v are one product of the same rows. So does vLLM in `CompressedTensorsW8A8Fp8`'s
    `process_weights_after_loading`, which its CPU build does not get to."""
    folder = make_folder("static_scales_in_fp8", base, tmp_path / "model")
    layer = load_model(folder).layers[0].self_attn.qkv_proj
    assert isinstance(layer.quant_method, Fp8LinearMethod)
    layer.input_scale = np.array([[0.05], [0.4], [0.1]], np.float32)
    layer.weight_scale = layer.weight_scale[:, None]
    layer.quant_method.process_weights_after_loading(layer)
    assert layer.input_scale == np.float32(0.4)
    x = np.random.default_rng(0).standard_normal((5, layer.input_size)).astype(np.float32) * 99
    rounded = E4M3.decode(E4M3.encode((x / np.float32(0.4)).clip(-448, 448))).astype(np.float64)
    weight = E4M3.decode(layer.weight).astype(np.float64) * layer.weight_scale[:, None]
    np.testing.assert_allclose(layer(x), rounded @ weight.T * 0.4, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_a_scale_that_is_none(bad: float, base: Path, tmp_path: Path) -> None:
    folder = make_folder("as_it_is", base, tmp_path / "model")
    be_static(folder, bad)
    with pytest.raises(CheckpointError, match=r"q_proj\.input_scale must be above 0"):
        load_model(folder)
