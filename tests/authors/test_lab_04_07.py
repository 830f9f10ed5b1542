"""Lab 04-07: steps between floats, margins, norms and keys in turn, as the lab gives them."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module

LAB = ROOT / "phase-04-attention-backends/labs/lab-07-greedy-yet-different"


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    return load_module(LAB / "starter.py", "test_lab_04_07_starter")


@pytest.fixture(scope="module")
def launcher() -> ModuleType:
    return load_module(LAB / "launcher.py", "test_lab_04_07_launcher")


def numbers(seed: int, *shape: int) -> Any:
    """float32 in any size from 1e-3 to 1e3."""
    rng = np.random.default_rng(seed)
    size = 10.0 ** rng.uniform(-3, 3, shape)
    return (size * rng.choice([-1.0, 1.0], shape)).astype(np.float32)


def stages(*pairs: tuple[str, list[float]]) -> list[tuple[str, Any]]:
    return [(name, np.array(values, np.float32)) for name, values in pairs]


def test_ulps_count_steps(lab: ModuleType) -> None:
    """Neighbours are 1 apart at any size; the two zeros are one number; the sign is crossed one by one."""
    one = np.float32(1)
    up = np.nextafter(one, np.float32(2))
    tiny, top = np.float32(1e-45), np.finfo(np.float32).max
    a = np.array([1, 1, 1000, -1, 0.0, tiny, -tiny, -0.0, 0.25, top], np.float32)
    below = np.nextafter(np.float32(1000), np.float32(0))
    b = np.array([1, up, below, -up, -0.0, -tiny, tiny, tiny, 0.5, -top], np.float32)
    want = [0, 1, 1, 1, 0, 2, 2, 1, 2**23, 2 * 0x7F7FFFFF]
    got = np.asarray(lab.ulps(a, b))
    assert got.shape == a.shape, f"{len(a)} pairs are {len(a)} distances, not the shape {got.shape}"
    for x, y, steps, said in zip(a, b, want, got.tolist(), strict=True):
        assert said == steps, (
            f"from {x} to {y} it is {steps} steps, not {said}. Floats of one sign are in the order of their "
            f"bit patterns, read as whole numbers, and a distance may need more than 32 bits"
        )


def test_ulps_take_any_shape_and_layout(lab: ModuleType) -> None:
    """[rows, columns], also where columns lie side by side in memory."""
    a = numbers(0, 3, 4)
    b = np.nextafter(a, np.float32(np.inf))
    b[1, 2] = a[1, 2]
    for x, y in ((a, b), (np.asfortranarray(a), b), (b[:, ::2], a[:, ::2])):
        got = np.asarray(lab.ulps(x, y))
        want = (x != y).astype(int)
        assert got.tolist() == want.tolist(), f"{want.tolist()} steps, not {got.tolist()}"


def test_runs_of_different_models_are_refused(lab: ModuleType) -> None:
    """Another name, another order, or one more stage: there is nothing to compare."""
    a = stages(("norm", [0.0]), ("qkv", [2.0]))
    for b, apart in (
        (stages(("norm", [0.0]), ("mlp", [2.0])), ("qkv", "mlp")),
        (a[::-1], ("norm", "qkv")),
        (a[:1], ("qkv",)),
        ([*a, *stages(("mlp", [1.0]))], ("mlp",)),
    ):
        runs = f"the stages {[name for name, _ in a]} and {[name for name, _ in b]}"
        try:
            got = lab.first_difference(a, b)
        except ValueError as error:
            said = str(error)
        else:
            pytest.fail(f"{runs} are of different models: raise ValueError, do not return {got}")
        missing = [name for name in apart if name not in said]
        assert not missing, (
            f"{runs}: the message names where they part, {missing}, not only: {said}"
        )


def test_margin_is_of_the_best_two(lab: ModuleType) -> None:
    """The largest minus the second largest, wherever they stand; 0 where they tie."""
    for logits, want in (
        ([1.0, 4.5, -7.0, 3.0], 1.5),
        ([-3.0, -1.0, -1.5], 0.5),
        ([2.0, 0.0, 2.0], 0.0),
        ([1.0, 2.0**-30], 1 - 2.0**-30),
    ):
        got = lab.margin(np.array(logits, np.float32))
        assert got == want, f"the margin of {logits} is {want} in float64, not {got}"


def test_rms_norm_is_the_norm() -> None:
    """Over the root of the mean square and eps, times the weight. It needs `fixed_sum`, so the solution's."""
    solution = load_module(LAB / "solution.py", "test_lab_04_07_solution")
    x, weight = numbers(7, 5, 96), numbers(8, 96)
    x[3] *= np.float32(1e-5)  # so small that eps counts
    got = solution.rms_norm(x, weight, 1e-5)
    assert (got.shape, got.dtype) == (x.shape, np.float32), f"{got.shape}, {got.dtype}"
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + 1e-5) * weight
    error = float((np.abs(got - want) / np.abs(want)).max())
    assert error < 1e-5, f"off by {error:.1e}: x / sqrt(mean(x * x) + eps) * weight"


def test_keys_in_turn(launcher: ModuleType) -> None:
    """Whole tiles, dealt out to the segments: what one program reads one after the other."""
    for seq_len, segments, tile, want in (
        (4000, 16, 16, 256), (4000, 1, 32, 4000), (4001, 1, 32, 4032), (256, 16, 16, 16), (257, 16, 16, 32),
        (1, 16, 16, 16), (32, 1, 32, 32), (33, 1, 32, 64), (4096, 16, 16, 256), (4097, 16, 16, 272),
    ):  # fmt: skip
        got = launcher.keys_in_turn(seq_len, launcher.Launch(segments, tile))
        assert got == want, (
            f"{seq_len} keys in {segments} segments of whole tiles of {tile}: the longest reads {want}, "
            f"not {got}"
        )


def test_each_query_head_has_its_k_and_v(lab: ModuleType) -> None:
    """K and V of each query head: four on two KV heads of size 3, five tokens."""
    key, value = numbers(1, 5, 2, 3), numbers(2, 5, 2, 3)
    k, v = lab.for_heads(key, value, 4)
    assert (k.shape, v.shape) == ((4, 5, 3), (4, 3, 5)), f"{k.shape}, {v.shape}"
    for head in range(4):
        assert np.array_equal(k[head], key[:, head // 2]), f"K of query head {head}"
        assert np.array_equal(v[head], value[:, head // 2].T), f"V of query head {head}"


def test_segments_for_few_who_decode(launcher: ModuleType) -> None:
    """16 segments up to the threshold, and none beyond it, in a prefill, or where invariance is asked for."""
    for line in json.loads((LAB / "pin.json").read_text(encoding="utf-8"))["launches"]:
        case = (
            line["num_seqs"],
            line["max_query_len"],
            line["num_kv_heads"],
            line["batch_invariant"],
        )
        got, want = tuple(launcher.launch(*case)), (line["segments"], line["tile"])
        assert got == want, (
            f"{case[0]} requests, at most {case[1]} rows each, {case[2]} KV heads, batch invariant "
            f"{case[3]}: vLLM's "
            f"launcher takes {want[0]} segments and tiles of {want[1]}, you say {got[0]} and {got[1]}"
        )


def test_the_threshold_is_rounded_down(launcher: ModuleType) -> None:
    """128 // 10 KV heads is 12, as `seq_threshold_3D` is calculated in `triton_attn.py`."""
    for num_seqs, want in ((12, (16, 16)), (13, (1, 32))):
        got = tuple(launcher.launch(num_seqs, 1, 10, False))
        assert got == want, (
            f"{num_seqs} requests decode, 10 KV heads: the threshold is 128 // 10 = 12, so (segments, "
            f"tile) is {want}, not {got}"
        )
