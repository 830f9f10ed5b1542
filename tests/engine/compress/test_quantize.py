"""`mini-vllm quantize` and its writers: what is in the files, and that nothing is written half."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors

from mini_vllm import LLM, SamplingParams
from mini_vllm.compress import quantize, save
from mini_vllm.compress.quantize import (
    METHODS,
    Summary,
    find_method,
    linear_names,
    quantize_checkpoint,
    quantize_weights,
)
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.entrypoints.cli import main
from mini_vllm.layers.quantization.float_formats import E4M3
from mini_vllm.layers.quantization.grid import (
    QuantArgs,
    QuantizedWeight,
    bfloat16_bits,
    round_to_nearest,
)
from mini_vllm.layers.quantization.pack import unpack_awq, unpack_int32
from mini_vllm.model_loader import load_config, load_weights
from tests.engine.helpers.engine.text_helpers import write_checkpoint
from tests.engine.helpers.models.model_helpers import write_checkpoint as write_random
from tests.engine.helpers.thorough import either

NUMPY = {
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I8": "i1",
    "F8_E4M3": "u1",
}
TEXTS = ["The queue is empty.", "A block holds tokens. A request waits.", "Nothing is free."]


def stored(folder: Path) -> dict[str, np.ndarray]:
    """The tensors of a folder as they lie in the file, read by the package safetensors."""
    data = (folder / "model.safetensors").read_bytes()
    return {
        name: np.frombuffer(entry["data"], NUMPY[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in safetensors.deserialize(data)
    }


def settings(folder: Path) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads((folder / "config.json").read_text())["quantization_config"]
    return raw


def read_layer(
    tensors: dict[str, np.ndarray], name: str, fmt: str, weight: QuantizedWeight
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Codes, scale and zero point of one layer, [out, ...], from the parts of its layout."""
    rows, columns = weight.shape
    bits = weight.args.num_bits
    part = {n.removeprefix(f"{name}."): t for n, t in tensors.items() if n.startswith(f"{name}.")}
    if fmt == "awq":
        return unpack_awq(part["qweight"]).T, part["scales"].T, unpack_awq(part["qzeros"]).T
    if fmt == "gptq":
        codes = unpack_int32(part["qweight"], bits, 0, columns).T - 2 ** (bits - 1)
        zeros = unpack_int32(part["qzeros"], bits, 1, rows)
        assert (zeros == 2 ** (bits - 1) - 1).all(), "GPTQ writes one less than the zero point"
        groups = weight.scale.shape[1]
        assert (part["g_idx"] == np.arange(columns) // (columns // groups)).all()
        return codes, part["scales"].T, None
    if fmt == "pack-quantized":
        assert part["weight_shape"].tolist() == [rows, columns]
        half = 2 ** (bits - 1)
        return (
            unpack_int32(part["weight_packed"], bits, 1, columns) - half,
            part["weight_scale"],
            None,
        )
    return part["weight"].astype(np.int32), part["weight_scale"], None


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random checkpoint that can read and write bytes."""
    return write_checkpoint(tmp_path_factory.mktemp("small") / "model")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.json"
    path.write_text(json.dumps(TEXTS))
    return path


@dataclass
class Made:
    """One method's checkpoint, and what its writer was given."""

    out: Path
    summary: Summary
    layers: dict[str, QuantizedWeight]
    rest: dict[str, np.ndarray]


@pytest.fixture(scope="module")
def written(small: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    """What each method writes, in groups of 8 where it has groups."""
    folder = tmp_path_factory.mktemp("written")
    found = {}
    for name, method in METHODS.items():
        group = 8 if method.args.strategy == "group" else None
        given: list[Any] = []

        def listen(*args: Any, given: list[Any] = given) -> int:
            given.extend(args)
            return save.save_quantized(*args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(quantize, "save_quantized", listen)
            summary = quantize.quantize_checkpoint(
                small, folder / name, name, group, texts if method.calibrated else None
            )
        found[name] = Made(folder / name, summary, given[2], given[3])
    return found


@pytest.mark.parametrize("name", METHODS)
def test_the_file_holds_exactly_the_codes_scales_and_zero_points(
    name: str, small: Path, written: dict[str, Made]
) -> None:
    made = written[name]
    tensors = stored(made.out)
    assert sorted(made.layers) == sorted(linear_names(load_config(small)))
    for layer, weight in made.layers.items():
        fmt = made.summary.method.fmt
        codes, scale, zero_point = read_layer(tensors, layer, fmt, weight)
        assert (codes == weight.codes).all(), layer
        assert (scale.astype(np.float32) == weight.scale).all(), layer
        assert (zero_point is None) == (weight.zero_point is None)
        if zero_point is not None:
            assert (zero_point == weight.zero_point).all(), layer
    for other, values in made.rest.items():
        assert (tensors[other] == values).all(), other
    total = sum(tensor.nbytes for tensor in tensors.values())
    assert made.summary.bytes_after + made.summary.rest_bytes == total
    assert made.summary.weights == sum(weight.codes.size for weight in made.layers.values())


@pytest.mark.parametrize("name", ["int8", "int4", "gptq", "w8a8", "fp8"])
def test_the_codes_stand_for_weights_near_to_those_that_were(
    name: str, small: Path, written: dict[str, Made]
) -> None:
    weights = load_weights(small)
    for layer, weight in written[name].layers.items():
        before = weights[f"{layer}.weight"]
        error = np.abs(weight.dequantize() - before).mean() / np.abs(before).mean()
        assert error < (0.01 if "8" in name and name != "fp8" else 0.2), (layer, error)


@pytest.mark.parametrize("name", either(["int4"], list(METHODS)))
def test_the_engine_runs_what_was_written(name: str, texts: Path, tmp_path: Path) -> None:
    """On the shipped model, of whose words a few are the same whatever the format."""
    calibration = texts if METHODS[name].calibrated else None
    quantize_checkpoint(DEFAULT_MODEL, tmp_path / "out", name, calibration=calibration)
    params = SamplingParams(max_tokens=4, temperature=0)
    outputs = LLM(tmp_path / "out", num_gpu_blocks=40).generate(["The scheduler"], params)
    assert outputs[0].outputs[0].text == " and"


def test_config_says_what_vllm_chooses_by(written: dict[str, Made]) -> None:
    assert settings(written["gptq"].out) == {
        "quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": False, "sym": True,
        "lm_head": False, "checkpoint_format": "gptq", "pack_dtype": "int32",
    }  # fmt: skip
    assert settings(written["awq"].out) == {
        "quant_method": "awq", "bits": 4, "group_size": 8, "zero_point": True, "version": "gemm",
        "modules_to_not_convert": None,
    }  # fmt: skip
    told = {}
    for name in ("int4", "int8", "w8a8", "fp8"):
        raw = settings(written[name].out)
        group = raw["config_groups"]["group_0"]
        assert (raw["quant_method"], raw["ignore"]) == ("compressed-tensors", ["lm_head"])
        assert group["targets"] == ["Linear"]
        weights, inputs = group["weights"], group["input_activations"]
        kind = (weights["num_bits"], weights["type"], weights["strategy"], weights["group_size"])
        told[name] = (raw["format"], kind, inputs and (inputs["strategy"], inputs["dynamic"]))
    token = ("token", True)
    assert told == {
        "int4": ("pack-quantized", (4, "int", "group", 8), None),
        "int8": ("pack-quantized", (8, "int", "channel", None), None),
        "w8a8": ("int-quantized", (8, "int", "channel", None), token),
        "fp8": ("float-quantized", (8, "float", "channel", None), token),
    }


def test_everything_else_of_the_checkpoint_goes_along(
    small: Path, written: dict[str, Made]
) -> None:
    out = written["int8"].out
    there = {path.name for path in small.iterdir()}
    assert {path.name for path in out.iterdir()} == there
    for name in there - {"config.json", "model.safetensors"}:
        assert (out / name).read_bytes() == (small / name).read_bytes(), name
    ours, theirs = (json.loads((f / "config.json").read_text()) for f in (out, small))
    del ours["quantization_config"]
    assert ours == theirs
    assert out.stat().st_mode & 0o777 == small.stat().st_mode & 0o777


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_checkpoint_in_16_bits_keeps_them(dtype: str, tmp_path: Path) -> None:
    """What is not quantised stays bit for bit; scales of int4 take the model's dtype."""
    plain = tmp_path / "plain"
    weights = write_random(plain, dtype=dtype)
    width = {"float16": ("F16", lambda w: w.astype("<f2")), "bfloat16": ("BF16", bfloat16_bits)}
    code, narrow = width[dtype]
    save.write_safetensors(
        plain / "model.safetensors", {n: (code, narrow(w)) for n, w in weights.items()}
    )
    quantize_checkpoint(plain, tmp_path / "out", "int4-g16")
    before, after = stored(plain), stored(tmp_path / "out")
    for name in before.keys() & after.keys():
        assert (before[name] == after[name]).all(), name
        assert before[name].dtype == after[name].dtype
    layer = "model.layers.0.mlp.up_proj"
    assert after[f"{layer}.weight_scale"].dtype == np.dtype(NUMPY[code])
    half = load_weights(plain)[f"{layer}.weight"]
    args = QuantArgs(4, strategy="group", group_size=16, scale_dtype=dtype)  # type: ignore[arg-type]
    expected = round_to_nearest(half, args)
    codes = unpack_int32(after[f"{layer}.weight_packed"], 4, 1, 32) - 8
    assert (codes == expected.codes).all()


def test_a_tied_head_and_one_of_its_own(tmp_path: Path) -> None:
    for tied in (True, False):
        plain, out = tmp_path / f"plain-{tied}", tmp_path / f"out-{tied}"
        write_random(plain, tie_word_embeddings=tied)
        quantize_checkpoint(plain, out, "w8a8")
        assert ("lm_head.weight" in stored(out)) is not tied


def test_a_checkpoint_that_is_quantised_already_is_refused(
    written: dict[str, Made], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="int8' is quantised already"):
        quantize_checkpoint(written["int8"].out, tmp_path / "twice", "w8a8")
    assert not (tmp_path / "twice").exists()


def parts(small: Path) -> tuple[dict[str, QuantizedWeight], dict[str, np.ndarray]]:
    return quantize_weights(load_config(small), load_weights(small), find_method("int4-g8"))


def test_layers_that_a_layout_cannot_hold_are_refused(small: Path, tmp_path: Path) -> None:
    weights = load_weights(small)
    _, rest = parts(small)
    names = linear_names(load_config(small))

    def attempt(fmt: Any, args: QuantArgs, only: int | None = None) -> str:
        layers = {name: round_to_nearest(weights[f"{name}.weight"], args) for name in names[:only]}
        with pytest.raises(ValueError) as caught:
            save.save_quantized(small, tmp_path / "out", layers, rest, fmt)
        assert not any(tmp_path.iterdir()), "something was written"
        return str(caught.value)

    int4 = QuantArgs(4, strategy="group", group_size=8)
    int8 = QuantArgs(8, strategy="channel")
    for fmt, args, words in (
        ("pack-quantized", QuantArgs(3, strategy="channel"), "4-bit or 8-bit int"),
        ("pack-quantized", QuantArgs(4), "strategy 'channel' or 'group'; got 4-bit int"),
        ("int-quantized", int4, "holds 8-bit int"),
        ("float-quantized", int8, "holds 8-bit float"),
        ("gptq", QuantArgs(4, symmetric=False, strategy="channel"), "symmetric True"),
        ("gptq", int4, "scales in float16, got scale_dtype None"),
        ("awq", int4, "symmetric False"),
        ("nf4", int4, "format must be one of pack-quantized"),
    ):
        assert words in attempt(fmt, args)
    assert "tensor 'model.layers" in attempt("pack-quantized", int4, only=3)
    assert "no layer to quantise" in attempt("pack-quantized", int4, only=0)


def test_scales_that_the_file_would_change_and_layers_that_differ_are_refused(
    small: Path, tmp_path: Path
) -> None:
    layers, rest = parts(small)
    name, first = next(iter(layers.items()))
    longer = first.scale * np.float32(1.0001)
    for changed, words in (
        (
            QuantizedWeight(first.codes, longer, None, first.args),
            "its scales are no float16 numbers",
        ),
        (round_to_nearest(first.dequantize(), QuantArgs(8, strategy="channel")), "stored alike"),
    ):
        with pytest.raises(ValueError, match=words):
            save.save_quantized(
                small, tmp_path / "out", layers | {name: changed}, rest, "pack-quantized"
            )
    assert not any(tmp_path.iterdir())


def test_sizes_that_fill_no_word_are_refused(tmp_path: Path) -> None:
    """4-bit words hold eight: 60 inner features are seven words and a half."""
    write_random(tmp_path / "plain", intermediate_size=60)
    with pytest.raises(ValueError, match=r"down_proj: its 60 inputs must be a multiple of 8"):
        quantize_checkpoint(tmp_path / "plain", tmp_path / "out", "int4", -1)


def test_a_disk_that_fails_leaves_nothing(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, tensors: object) -> None:
        path.write_bytes(b"a part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(save, "write_safetensors", full)
    with pytest.raises(OSError, match="No space left"):
        quantize_checkpoint(small, tmp_path / "out", "int8")
    assert not any(tmp_path.iterdir())


def test_help_names_every_method(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["quantize", "--help"])
    shown = capsys.readouterr().out
    listed = shown.split("in y:\n")[1].split("\n\n")[0].split("\n")
    assert [line.split()[0] for line in listed] == list(METHODS)
    assert f"({quantize.DEFAULT_GROUP_SIZE})" in shown


def test_the_command_says_what_it_made(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["quantize", "--method", "int4", "--group-size", "-1", str(small), out]) == 0
    shown = capsys.readouterr().out
    tensors = stored(tmp_path / "out")
    codes = sum(t.nbytes for n, t in tensors.items() if n.endswith("weight_packed"))
    total = sum(t.nbytes for n, t in tensors.items() if "_proj." in n)
    assert f"format pack-quantized, {len(linear_names(load_config(small)))} linear layers" in shown
    assert f"{codes * 2:,} weights" in shown
    assert f"bytes became {total:,}: {8 * total / (codes * 2):.2f} bits a weight" in shown


def test_fp8_bytes_are_e4m3(small: Path, written: dict[str, Made]) -> None:
    layer = "model.layers.0.mlp.up_proj"
    tensors, weight = stored(written["fp8"].out), load_weights(small)[f"{layer}.weight"]
    decoded = E4M3.decode(tensors[f"{layer}.weight"]) * tensors[f"{layer}.weight_scale"]
    # Three bits behind the leading one: half a step is a sixteenth; near 0 steps are 2^-9 of the scale.
    floor = tensors[f"{layer}.weight_scale"] * 2.0**-10
    assert (np.abs(decoded - weight) <= np.maximum(np.abs(weight) / 16, floor) * 1.0001).all()
