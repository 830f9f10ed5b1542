"""Quantised checkpoint folders: which settings give which method, and what is refused, in which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.compress.save import write_safetensors
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.layers.quantization import METHODS, get_quantization_config
from mini_vllm.layers.quantization.base import UnquantizedLinearMethod
from mini_vllm.layers.quantization.linear import (
    AWQLinearMethod,
    GPTQLinearMethod,
    WNA16LinearMethod,
)
from mini_vllm.layers.quantization.scaled import Fp8LinearMethod, W8A8Int8LinearMethod
from mini_vllm.model_loader import CheckpointError, load_model
from mini_vllm.model_loader.safetensors_file import read_safetensors
from tests.engine.helpers.models.model_helpers import write_checkpoint
from tests.engine.helpers.quantization.quantized_helpers import cases, write_quantized
from tests.engine.helpers.thorough import either

CASES = cases(group=16)
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False, "sym": True}
WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 16}
TOKEN = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
Q_PROJ = "model.layers.0.self_attn.q_proj"


def tensors_of(weights: Any = WEIGHTS, form: Any = "pack-quantized", **more: Any) -> dict[str, Any]:
    """The settings of compressed-tensors with one group; of `more`, what is the group's goes into it."""
    group = {"targets": more.pop("targets", ["Linear"]), "weights": weights}
    group |= {
        key: more.pop(key) for key in ("input_activations", "output_activations") if key in more
    }
    ignore = more.pop("ignore", ["lm_head"])
    return {
        "quant_method": "compressed-tensors", "format": form, "ignore": ignore,
        "config_groups": {"group_0": group}, **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "method"),
    [
        (AWQ, AWQLinearMethod(4, 16, symmetric=False)),
        (AWQ | {"q_group_size": 32, "w_bit": 4}, AWQLinearMethod(4, 32, symmetric=False)),
        (GPTQ, GPTQLinearMethod(4, 16)),
        (GPTQ | {"desc_act": True, "bits": 8}, GPTQLinearMethod(8, 16, has_g_idx=True)),
        (GPTQ | {"desc_act": True, "group_size": -1}, GPTQLinearMethod(4, -1)),
        (tensors_of(), WNA16LinearMethod(4, 16)),
        (tensors_of(WEIGHTS | {"symmetric": False}), WNA16LinearMethod(4, 16, symmetric=False)),
        (tensors_of(WEIGHTS | {"actorder": "group"}), WNA16LinearMethod(4, 16, has_g_idx=True)),
        (tensors_of(WEIGHTS | {"actorder": "weight"}), WNA16LinearMethod(4, 16)),
        (tensors_of({"num_bits": 8, "group_size": -1}), WNA16LinearMethod(8, -1)),
        (
            tensors_of(
                {"num_bits": 8, "strategy": "channel"}, "int-quantized", input_activations=TOKEN
            ),
            W8A8Int8LinearMethod("channel"),
        ),
        (
            tensors_of({}, "naive-quantized", input_activations={}),
            W8A8Int8LinearMethod("tensor", is_static_input_scheme=True),
        ),
        (
            tensors_of({"strategy": "channel"}, "int-quantized", input_activations={"symmetric": False}),
            W8A8Int8LinearMethod("channel", is_static_input_scheme=True, input_symmetric=False),
        ),
        (
            tensors_of(
                {"strategy": "channel"}, "int-quantized", input_activations=TOKEN | {"symmetric": False}
            ),
            W8A8Int8LinearMethod("channel", input_symmetric=False),
        ),
        (
            tensors_of(
                {"type": "float", "strategy": "channel"}, "float-quantized",
                input_activations={"type": "float", "strategy": "tensor"},
            ),
            Fp8LinearMethod("channel", is_static_input_scheme=True),
        ),
        (
            tensors_of(
                {"type": "float", "strategy": "channel"}, "float-quantized",
                input_activations={"type": "float", "strategy": "tensor", "dynamic": True},
            ),
            Fp8LinearMethod("channel"),
        ),
        (tensors_of() | {"quant_method": "Compressed_Tensors"}, WNA16LinearMethod(4, 16)),
        (AWQ | {"quant_method": "AWQ"}, AWQLinearMethod(4, 16, symmetric=False)),
        (tensors_of(sparsity_config={"format": "dense", "targets": []}), WNA16LinearMethod(4, 16)),
        ({"quant_method": "compressed-tensors", "format": "dense"}, UnquantizedLinearMethod()),
        (
            tensors_of({"num_bits": 8, "type": "float", "strategy": "tensor"}, "float-quantized"),
            Fp8LinearMethod("tensor", quantize_activations=False),
        ),
        (
            tensors_of(
                {"num_bits": 8, "type": "float", "strategy": "channel"},
                "float-quantized",
                input_activations=TOKEN | {"type": "float"},
            ),
            Fp8LinearMethod("channel"),
        ),
    ],
)  # fmt: skip
def test_settings_give_a_method(settings: dict[str, Any], method: object) -> None:
    assert get_quantization_config(settings).get_quant_method(Q_PROJ) == method


def test_names_go_before_kinds_and_ignore_before_both() -> None:
    int8 = {"weights": {"num_bits": 8, "strategy": "channel"}, "targets": ["re:.*q_proj"]}
    settings = tensors_of(ignore=["lm_head", "re:model\\.layers\\.1\\.", f"{Q_PROJ}x"])
    settings["config_groups"]["group_1"] = int8
    config = get_quantization_config(settings)
    assert config.get_quant_method(Q_PROJ) == WNA16LinearMethod(8, -1)
    assert config.get_quant_method(Q_PROJ.replace("q_", "k_")) == WNA16LinearMethod(4, 16)
    assert config.get_quant_method(Q_PROJ.replace("0", "1")) == UnquantizedLinearMethod()
    assert config.get_quant_method("lm_head") == UnquantizedLinearMethod()
    awq = get_quantization_config(AWQ | {"modules_to_not_convert": ["q_proj"]})
    assert awq.get_quant_method(Q_PROJ) == UnquantizedLinearMethod()
    assert awq.get_quant_method(Q_PROJ.replace("q_", "k_")) == AWQLinearMethod(4, 16, False)
    assert get_quantization_config({}).get_quant_method(Q_PROJ) == UnquantizedLinearMethod()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quant_method": "bitsandbytes"}, ["bitsandbytes", *METHODS]),
        ({"bits": 4}, ["'unknown'"]),
        ({"quant_method": ["awq"]}, ["['awq']"]),
        (AWQ | {"bits": 3}, ["bits 3", "supported: 4"]),
        (AWQ | {"bits": True}, ["bits must be int", "True"]),
        (AWQ | {"zero_point": False}, ["zero_point False", "True"]),
        (AWQ | {"version": "gemv"}, ["version 'gemv'", "gemm"]),
        (AWQ | {"lm_head": True}, ["lm_head True"]),
        (AWQ | {"group_size": 0}, ["group_size", "at least 1, or -1", "got 0"]),
        (AWQ | {"modules_to_not_convert": "lm_head"}, ["modules_to_not_convert", "list of names"]),
        ({"quant_method": "awq"}, ["'awq'", "w_bit or bits is missing"]),
        (GPTQ | {"sym": False}, ["sym False"]),
        (GPTQ | {"bits": 3}, ["bits 3", "4, 8"]),
        (GPTQ | {"dynamic": {"-:.*": {}}}, ["dynamic", "not supported"]),
        (GPTQ | {"checkpoint_format": "marlin"}, ["'marlin'", "gptq_v2"]),
        (tensors_of({"num_bits": 3, "strategy": "channel"}), ["num_bits 3", "4, 8"]),
        (tensors_of({"num_bits": 4, "strategy": "tensor"}), ["strategy 'tensor'", "channel, group"]),
        (tensors_of(WEIGHTS | {"group_size": None}), ["group_size must be int", "None"]),
        (tensors_of(WEIGHTS | {"type": "posit"}), ["type 'posit'", "int, float"]),
        (tensors_of(WEIGHTS | {"strategy": ""}), ["strategy ''", "channel, group"]),
        (tensors_of(WEIGHTS | {"actorder": "sideways"}), ["actorder 'sideways'"]),
        (tensors_of(WEIGHTS, "marlin-24"), ["format 'marlin-24'", "pack-quantized"]),
        (tensors_of(None), ["weights must be dict", "None"]),
        (tensors_of(WEIGHTS, targets="Linear"), ["targets must be a list of names"]),
        (tensors_of(targets=["re:("]), ["'re:('", "no pattern"]),
        (tensors_of(targets=["Linear", "lm_head"], ignore=[]), ["lm_head", "ignore"]),
        (tensors_of(kv_cache_scheme={"num_bits": 8}), ["kv_cache_scheme"]),
        (tensors_of(transform_config={"a": 1}), ["transform_config"]),
        (tensors_of(output_activations=TOKEN), ["output_activations"]),
        (
            tensors_of(
                {"num_bits": 8, "type": "float", "strategy": "channel"}, "float-quantized",
                input_activations=TOKEN | {"type": "float", "symmetric": False},
            ),
            ["input_activations: symmetric False"],
        ),
        (
            tensors_of(
                {"num_bits": 8, "strategy": "channel"}, "int-quantized",
                input_activations=TOKEN | {"strategy": "tensor"},
            ),
            ["strategy with dynamic True 'tensor'", "supported: token"],
        ),
        (
            tensors_of(sparsity_config={"format": "dense", "targets": ["Linear"]}),
            ["sparsity_config: targets ['Linear']", "given them up"],
        ),
        (tensors_of(sparsity_config=[1]), ["sparsity_config: must be an object"]),
        (
            tensors_of(
                {"num_bits": 8, "strategy": "channel"}, "int-quantized",
                input_activations=TOKEN | {"dynamic": False},
            ),
            ["strategy with dynamic False 'token'", "supported: tensor"],
        ),
        (
            tensors_of({"num_bits": 8, "type": "float", "strategy": "block"}, "float-quantized"),
            ["strategy 'block'", "channel, tensor"],
        ),
        (
            tensors_of({"num_bits": 4, "type": "float", "strategy": "channel"}, "float-quantized"),
            ["num_bits 4", "supported: 8"],
        ),
        ({"quant_method": "compressed-tensors", "config_groups": []}, ["config_groups must be dict"]),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": 4}}, ["'g'", "object"]),
    ],
)  # fmt: skip
def test_settings_that_nothing_here_computes(settings: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(CheckpointError) as caught:
        get_quantization_config(settings)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint in four layouts, to be spoilt in copies."""
    root = tmp_path_factory.mktemp("quantised")
    write_checkpoint(root / "float")
    for name in ("w4a16", "w4a16-asym", "gptq-desc", "w8a8", "fp8", "awq"):
        write_quantized(root / "float", root / name, CASES[name])
    return root


CODES = {"float32": "F32", "int32": "I32", "int64": "I64", "int8": "I8", "uint8": "F8_E4M3"}


def spoilt(source: Path, out: Path, tensor: str, change: Any) -> Path:
    """A copy of a checkpoint in which one tensor is what `change` makes of it, or gone."""
    out.mkdir()
    (out / "config.json").write_bytes((source / "config.json").read_bytes())
    tensors = read_safetensors(source / "model.safetensors", quantized=True)
    changed = change(tensors.pop(tensor).copy())
    if changed is not None:
        tensors[tensor] = changed
    stored = {name: (CODES[str(array.dtype)], array) for name, array in tensors.items()}
    write_safetensors(out / "model.safetensors", stored)
    return out


def put(place: Any, value: Any) -> Any:
    def change(array: np.ndarray) -> np.ndarray:
        array[place] = value
        return array

    return change


@pytest.mark.parametrize(
    ("name", "tensor", "change", "words"),
    [
        ("w4a16", "weight_packed", lambda a: None, ["lacks", "q_proj.weight_packed", "(32, 4)"]),
        ("w4a16", "weight_packed", lambda a: a[:, :2], ["(32, 2)", "(32, 4)"]),
        ("w4a16", "weight_packed", lambda a: a.astype(np.int64), ["int64", "asks for int32"]),
        ("w4a16", "weight_scale", put((0, 1), np.inf), ["q_proj.weight_scale", "inf", "finite"]),
        ("w4a16", "weight_shape", put(1, 64), ["q_proj.weight_shape is [32, 64]", "[32, 32]"]),
        ("w4a16-asym", "weight_zero_point", lambda a: None, ["lacks", "weight_zero_point", "(4, 2)"]),
        ("gptq-desc", "o_proj.g_idx", put(0, 2), ["o_proj.g_idx", "from 0 to 1", "to 2"]),
        ("gptq-desc", "o_proj.g_idx", put(slice(None), 0), ["o_proj.g_idx", "[32, 0]"]),
        ("gptq-desc", "q_proj.g_idx", lambda a: a[::-1], ["q_proj.g_idx and", "k_proj.g_idx", "equal"]),
        ("gptq-desc", "qzeros", put((0, 0), 0), ["q_proj.qzeros", "0 to 7", "7 everywhere"]),
        ("w8a8", "weight", lambda a: a.astype(np.float32), ["float32", "asks for int8"]),
        ("fp8", "weight", put((1, 3), 0x7F), ["q_proj", "NaN", "[1, 3]"]),
        ("awq", "scales", lambda a: a[:1], ["(1, 32)", "(2, 32)"]),
    ],
)  # fmt: skip
def test_tensors_that_no_writer_makes(
    name: str, tensor: str, change: Any, words: list[str], folders: Path, tmp_path: Path
) -> None:
    tensor = tensor if "." in tensor else f"q_proj.{tensor}"
    full = Q_PROJ.replace("q_proj", tensor)
    folder = spoilt(folders / name, tmp_path / "x", full, change)
    with pytest.raises(CheckpointError) as caught:
        load_model(folder)
    for word in (str(folder), *words):
        assert word in str(caught.value)


def with_settings(source: Path, out: Path, **changes: Any) -> Path:
    out.mkdir()
    raw = json.loads((source / "config.json").read_text())
    raw["quantization_config"] |= changes
    (out / "config.json").write_text(json.dumps(raw))
    (out / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    return out


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("awq", {"group_size": 24}, ["q_proj cannot be", "group_size 24 does not divide the 32"]),
        ("gptq-desc", {"desc_act": False}, ["q_proj.g_idx is not in order", "desc_act false"]),
        ("w4a16", {"ignore": ["re:.*v_proj"]}, ["v_proj", "lacks tensor"]),
        ("w8a8", {"ignore": []}, []),
    ],
)
def test_settings_that_the_tensors_do_not_follow(
    name: str, changes: dict[str, Any], words: list[str], folders: Path, tmp_path: Path
) -> None:
    folder = with_settings(folders / name, tmp_path / "x", **changes)
    if not words:
        load_model(folder)  # lm_head is no Linear, so nobody need ignore it
        return
    with pytest.raises(CheckpointError) as caught:
        load_model(folder)
    for word in words:
        assert word in str(caught.value)


def test_projections_of_one_product_are_quantised_alike(folders: Path, tmp_path: Path) -> None:
    """v in floats beside q and k in 4 bits: each tensor is there, and still it is refused."""
    folder = with_settings(folders / "w4a16", tmp_path / "x", ignore=["re:.*v_proj"])
    tensors = read_safetensors(folder / "model.safetensors", quantized=True)
    floats = read_safetensors(folders / "float" / "model.safetensors")
    tensors = {n: a for n, a in tensors.items() if "v_proj" not in n}
    tensors |= {n: a for n, a in floats.items() if "v_proj" in n}
    stored = {name: (CODES[str(array.dtype)], array) for name, array in tensors.items()}
    write_safetensors(folder / "model.safetensors", stored)
    with pytest.raises(
        CheckpointError, match=r"q_proj and \S+v_proj are one product.*WNA16.*Unquantized"
    ):
        load_model(folder)


def test_a_quantised_checkpoint_says_so_before_its_tensors_are_read(
    folders: Path, tmp_path: Path
) -> None:
    """Integers in a checkpoint that is not quantised stay an error, and so is a setting, by its file."""
    folder = with_settings(folders / "w4a16", tmp_path / "x", quant_method="unheard-of")
    with pytest.raises(CheckpointError, match=r"config\.json: .*unheard-of.*supported: awq"):
        load_model(folder)
    raw = json.loads((folder / "config.json").read_text())
    del raw["quantization_config"]
    (folder / "config.json").write_text(json.dumps(raw))
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors: .* dtype I.*; supported: F32, F16, BF16"
    ):
        load_model(folder)


def test_some_layers_may_stay_as_they_are(folders: Path, tmp_path: Path) -> None:
    folder = tmp_path / "x"
    source = read_safetensors(folders / "w4a16" / "model.safetensors", quantized=True)
    floats = read_safetensors(folders / "float" / "model.safetensors")
    with_settings(folders / "w4a16", folder, ignore=["lm_head", "re:.*layers.1.mlp"])
    tensors = {n: a for n, a in source.items() if ".layers.1.mlp" not in n}
    tensors |= {n: a for n, a in floats.items() if ".layers.1.mlp" in n}
    stored = {name: (CODES[str(array.dtype)], array) for name, array in tensors.items()}
    write_safetensors(folder / "model.safetensors", stored)
    first, second = load_model(folder).layers
    assert first.mlp.down_proj.quant_method == WNA16LinearMethod(4, 16)
    assert second.mlp.down_proj.quant_method == UnquantizedLinearMethod()


@pytest.mark.parametrize("name", either(["w4a16"], ["w4a16", "w8a8", "fp8", "gptq-desc", "awq"]))
def test_the_engine_serves_it(name: str, tmp_path: Path) -> None:
    """The shipped model: prefix caching, chunks, requests side by side and graphs change no token."""
    write_quantized(DEFAULT_MODEL, tmp_path / "x", cases(group=128)[name])
    said = []
    for settings in ({}, {"max_num_batched_tokens": 8, "cudagraph_mode": "FULL_AND_PIECEWISE"}):
        engine = LLMEngine(tmp_path / "x", EngineConfig(max_num_seqs=4, **settings))
        for number, prompt in enumerate(
            ("The KV cache stores", "The KV cache stores the", "A block")
        ):
            engine.add_request(str(number), prompt, SamplingParams(temperature=0, max_tokens=7))
        texts = {}
        while engine.has_unfinished_requests():
            texts |= {output.request_id: output.outputs[0].text for output in engine.step()}
        said.append(texts)
    assert said[0] == said[1]
    assert said[0]["0"].startswith(" the k"), f"a quantised model still speaks, not {said[0]}"
