"""The same spellings in real vLLM's CPU build: what it refuses, and else products equal to a millionth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm.model_loader import load_model
from tests.engine.helpers.quantization.quantized_layouts import SPELLINGS, make_folder, write_base
from tests.engine.helpers.quantization.quantized_vllm_child import inputs
from tests.engine.helpers.real_vllm.vllm_helpers import read_by_vllm

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("spellings")
    base = write_base(root / "base")
    return {name: make_folder(name, base, root / name) for name in SPELLINGS}


@pytest.fixture(scope="module")
def read(folders: dict[str, Path]) -> dict[str, Any]:
    return read_by_vllm(folders["as_it_is"].parent, list(folders.values()), products=True)


@pytest.mark.parametrize("name", SPELLINGS)
def test_what_vllm_makes_of_a_spelling(
    name: str, read: dict[str, Any], folders: dict[str, Path]
) -> None:
    theirs, wanted = read[name], SPELLINGS[name].vllm
    assert isinstance(theirs, str) == (wanted == "refused"), theirs
    if wanted != "the same":
        return
    layer = load_model(folders[name]).layers[0]
    linears = (
        layer.self_attn.qkv_proj,
        layer.self_attn.o_proj,
        layer.mlp.gate_up_proj,
        layer.mlp.down_proj,
    )
    for linear, products in zip(linears, map(np.array, theirs["products"]), strict=True):
        mine = linear(inputs(linear.input_size))
        np.testing.assert_allclose(mine, products, rtol=0, atol=1e-6 * np.abs(products).max())


def test_vllm_keeps_the_scale_that_it_reads_last(read: dict[str, Any]) -> None:
    """Of q, k and v, whose scales differ, v's; and k's, which is twice that, is lost."""
    equal, differ = read["static_scales"]["digests"], read["static_scales_that_differ"]["digests"]
    assert equal == differ
