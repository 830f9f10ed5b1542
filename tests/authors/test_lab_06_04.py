"""Lab 06-04: agreement, and bytes counted and on paper, as the lab gives them."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module
from mini_vllm.config.engine import DEFAULT_MODEL

LAB = ROOT / "phase-06-quantization/labs/lab-04-quantize-and-eval"
support = load_module(LAB / "support.py", "test_lab_06_04_support")


measure = load_module(LAB / "measure.py", "test_lab_06_04_measure")


def test_another_model_gets_the_methods_whose_groups_divide_its_rows(tmp_path: Path) -> None:
    """SmolLM2 is 576 wide: groups of 128, the default of GPTQ and AWQ, do not fit."""
    assert measure.methods_for(DEFAULT_MODEL) == list(measure.METHODS)
    config = json.loads((DEFAULT_MODEL / "config.json").read_text("utf-8"))
    wide = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
    (tmp_path / "config.json").write_text(json.dumps(config | wide), "utf-8")
    without = set(measure.METHODS) - set(measure.methods_for(tmp_path))
    assert without == {"int4-g128", "gptq", "awq"}


def test_another_model_reads_the_guides() -> None:
    texts = measure.guides(DEFAULT_MODEL)
    assert len(texts) == 6
    assert {len(ids) for ids in texts} == {512}


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    return load_module(LAB / "starter.py", "test_lab_06_04_starter")


def test_agreement_is_a_share_of_rows(lab: ModuleType) -> None:
    """The likeliest token of each row, whatever its probability."""
    p = np.log(np.array([[0.6, 0.4], [0.6, 0.4], [0.3, 0.7], [0.1, 0.9]], np.float32))
    q = np.log(np.array([[0.9, 0.1], [0.4, 0.6], [0.4, 0.6], [0.2, 0.8]], np.float32))
    got = lab.greedy_agreement(p, q)
    assert got == 0.75, f"three of four rows agree: 0.75, not {got}"


def test_a_layer_is_all_its_tensors(lab: ModuleType) -> None:
    """Codes, scales and whatever else has the layer's name before the last point."""
    got = lab.bytes_by_layer(
        {
            "model.layers.0.mlp.up_proj.weight_packed": ("I32", [384, 16]),
            "model.layers.0.mlp.up_proj.weight_scale": ("BF16", [384, 1]),
            "model.layers.0.mlp.up_proj.weight_shape": ("I64", [2]),
            "model.norm.weight": ("F32", [128]),
        }
    )
    want = {"model.layers.0.mlp.up_proj": 384 * 16 * 4 + 384 * 2 + 16, "model.norm": 512}
    assert got == want, f"{got} where {want} lie in the file"


def test_a_number_alone_is_counted(lab: ModuleType) -> None:
    """A scale for the whole tensor has no dimension at all, and still takes its bytes."""
    got = lab.bytes_by_layer({"a.weight_scale": ("F32", [])})
    assert got == {"a": 4}, f"one float32 of shape []: 4 bytes, not {got}"


def test_every_type_has_its_bytes(lab: ModuleType) -> None:
    """The types that the formats of this phase store."""
    sizes = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "I8": 1, "U8": 1, "F8_E4M3": 1}
    for dtype, size in sizes.items():
        got = lab.bytes_by_layer({"a.b": (dtype, [3, 5])})
        assert got == {"a": 15 * size}, f"3 x 5 of {dtype}, {size} bytes each: not {got}"
    try:
        got = lab.bytes_by_layer({"a.b": ("Q4", [1])})
    except KeyError:
        return
    pytest.fail(f"Q4 is not in BYTES, so nobody knows its size: KeyError, not {got}")


@pytest.mark.parametrize(
    ("bits", "group", "scale", "zeros", "want"),
    [
        (8, None, 4, False, 384 * 128 + 384 * 4),
        (4, 128, 2, False, 384 * 64 + 384 * 2),
        (4, 32, 2, False, 384 * 64 + 4 * 384 * 2),
        (4, 32, 2, True, 384 * 64 + 4 * 384 * 2 + 4 * 384 // 2),
        (3, 128, 2, False, 384 * 48 + 384 * 2),
        (16, None, 0, False, 384 * 256),
    ],
    ids=["8-row", "4-g128", "4-g32", "4-g32-zero", "3-g128", "16"],
)
def test_bytes_on_paper(
    lab: ModuleType, bits: int, group: int | None, scale: int, zeros: bool, want: int
) -> None:
    """384 outputs of 128 inputs: codes, then a scale for each group of each row, then zero points."""
    got = lab.linear_bytes(384, 128, lab.Format(bits, group, scale, zeros))
    assert got == want, (
        f"384 x 128 in {bits} bits, groups of {group}, scales of {scale} bytes, "
        f"zero points {zeros}: {want:,} bytes, not {got:,}"
    )


@pytest.mark.parametrize(
    ("method", "group", "zeros", "besides"),
    [("int4-row", None, False, 16), ("int4-g128", 128, False, 16), ("int4-g32", 32, False, 16),
     ("awq", 128, True, 0), ("awq-g32", 32, True, 0)],
)  # fmt: skip
def test_paper_and_file_agree(
    lab: ModuleType, method: str, group: int | None, zeros: bool, besides: int
) -> None:
    """The shipped model's linears, counted in the file of each format. `weight_shape` is two I64 a layer."""
    shapes = [(128, 128), (64, 128), (64, 128), (128, 128), (384, 128), (384, 128), (128, 384)]
    fmt = lab.Format(4, group, 2, zeros)
    want = 4 * sum(lab.linear_bytes(*shape, fmt) + besides for shape in shapes)
    counted = support.results()["mini_vllm"]["methods"][method]["linear bytes"]
    assert want == counted, f"{method}: {want:,} by arithmetic, {counted:,} in the file"


def test_noors_blocks(lab: ModuleType) -> None:
    """92 % of the card, less the weights, in whole blocks of 2 MiB."""
    got = lab.kv_blocks(24e9, 16_060_522_496, 2**21)
    assert got == 2870, f"22.08 GB less 16.06 GB, in blocks of 2 MiB: 2,870, not {got}"
    linears = 6_979_321_856  # of rows of 4,096 inputs, say: in groups of 128 it makes no difference
    small = (
        lab.linear_bytes(linears // 4096, 4096, lab.Format(4, 128)) + 16_060_522_496 - 2 * linears
    )
    got = lab.kv_blocks(24e9, small, 2**21)
    assert got == 7810, f"in int4-g128 her weights take 5.70 GB: 7,810 blocks, not {got}"
    got = lab.kv_blocks(24e9, 16_060_522_496, 2**21, 0.5)
    assert got == 0, f"weights of 16 GB in half of the card leave 0 blocks, not {got}"


def test_a_block_is_whole(lab: ModuleType) -> None:
    """What is left over of the memory holds no block."""
    got = lab.kv_blocks(1000, 100, 100, 1.0), lab.kv_blocks(1000, 101, 100, 1.0)
    assert got == (9, 8), f"900 and 899 bytes in blocks of 100: 9 and 8, not {got}"
