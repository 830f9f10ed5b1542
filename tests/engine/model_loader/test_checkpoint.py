"""Checkpoint folders: what is read, and what is refused, in which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm.model_loader import LlamaConfig, load_config, load_model, load_weights
from mini_vllm.model_loader.safetensors_file import read_safetensors
from tests.engine.helpers.models.model_helpers import (
    CONFIG,
    to_bfloat16,
    write_checkpoint,
    write_safetensors,
)


def rewrite_config(folder: Path, **changes: Any) -> None:
    raw = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in raw.items() if v != "absent"}))


def shard(folder: Path, weights: dict[str, np.ndarray], parts: int) -> dict[str, str]:
    """Replace model.safetensors by `parts` shards and an index."""
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for part in range(parts):
        name = f"model-{part + 1:05}-of-{parts:05}.safetensors"
        chosen = dict(list(weights.items())[part::parts])
        write_safetensors(folder / name, {n: ("F32", w) for n, w in chosen.items()})
        weight_map |= dict.fromkeys(chosen, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return weight_map


def test_float32_round_trip(tmp_path: Path) -> None:
    weights = write_checkpoint(tmp_path)
    read = load_weights(tmp_path)
    assert read.keys() == weights.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(read[name], array)
        assert read[name].dtype == np.float32


@pytest.mark.parametrize("code", ["F16", "BF16"])
def test_half_precision_is_widened(code: str, tmp_path: Path) -> None:
    array = np.random.default_rng(0).standard_normal((7, 5)).astype(np.float32)
    array.flat[:6] = [0.0, -0.0, np.inf, -np.inf, 1e-7, 65504.0]
    stored = array.astype(np.float16) if code == "F16" else to_bfloat16(array)
    write_safetensors(
        tmp_path / "a.safetensors", {"odd": ("F32", array[:1, :3]), "x": (code, stored)}
    )
    read = read_safetensors(tmp_path / "a.safetensors")["x"]
    assert read.dtype == np.float32
    if code == "F16":
        np.testing.assert_array_equal(read, stored.astype(np.float32))
    else:  # bfloat16 keeps sign, exponent and 7 bits
        np.testing.assert_array_equal(read.view(np.uint32), stored.astype(np.uint32) << 16)
        np.testing.assert_allclose(read, array, rtol=2**-7)


def test_reads_what_the_safetensors_package_writes(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    tensors = {
        "a": np.arange(12, dtype=np.float32).reshape(3, 4),
        "b": np.arange(5, dtype=np.float16),
        "scalar": np.array(3, np.float32),
        "empty": np.zeros((0, 4), np.float32),
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "np"})
    read = read_safetensors(tmp_path / "x.safetensors")
    assert read.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(read[name], array.astype(np.float32))


def test_data_that_is_not_aligned_is_read(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32)
    header = json.dumps({"x": {"dtype": "F32", "shape": [6], "data_offsets": [0, 24]}}).encode()
    header += b" " * (1 - len(header) % 4)
    for extra in (b"", b" ", b"  ", b"   "):
        text = header + extra
        (tmp_path / "x").write_bytes(len(text).to_bytes(8, "little") + text + array.tobytes())
        np.testing.assert_array_equal(read_safetensors(tmp_path / "x")["x"], array)


def test_sharded_checkpoint(tmp_path: Path) -> None:
    weights = write_checkpoint(tmp_path)
    single = load_model(tmp_path)
    shard(tmp_path, weights, 3)
    read = load_weights(tmp_path)
    assert read.keys() == weights.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(read[name], array)
    sharded = load_model(tmp_path).layers[1].self_attn.qkv_proj
    np.testing.assert_array_equal(sharded.weight, single.layers[1].self_attn.qkv_proj.weight)


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("max_shard_size", ["50GB", "20KB"])
def test_loads_what_transformers_saves(dtype: str, max_shard_size: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    raw = {k: v for k, v in CONFIG.items() if k not in ("architectures", "dtype")}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**raw))
    model = model.to(getattr(torch, dtype))
    model.save_pretrained(tmp_path, max_shard_size=max_shard_size)
    assert (tmp_path / "model.safetensors.index.json").exists() == (max_shard_size == "20KB")
    ours = load_model(tmp_path)
    assert ours.config.dtype == dtype
    read = load_weights(tmp_path)
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight":  # tied: it is not in the file
            np.testing.assert_array_equal(read[name], tensor.float().numpy())


def test_config_of_either_spelling() -> None:
    old = {k: v for k, v in CONFIG.items() if k not in ("rope_parameters", "dtype")}
    old |= {"rope_theta": 5e5, "torch_dtype": "bfloat16"}
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    new = CONFIG | {
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **scaling},
        "dtype": "bfloat16",
    }
    expected = LlamaConfig.from_dict(new)
    assert expected.rope_type == "llama3"
    assert dict(expected.rope_scaling) == scaling
    assert (expected.rope_theta, expected.dtype) == (5e5, "bfloat16")
    for key in ("rope_type", "type"):
        config = LlamaConfig.from_dict(old | {"rope_scaling": {key: "llama3", **scaling}})
        assert config == expected
    plain = LlamaConfig.from_dict(old | {"rope_scaling": None})
    assert (plain.rope_type, plain.rope_theta, dict(plain.rope_scaling)) == ("default", 5e5, {})


def test_what_a_config_leaves_out() -> None:
    short = {k: v for k, v in CONFIG.items() if k not in ("num_key_value_heads", "rope_parameters")}
    config = LlamaConfig.from_dict(short)
    assert config.num_key_value_heads == config.num_attention_heads == 4
    assert config.head_dim == 8
    assert config.rope_theta == 10000.0
    assert LlamaConfig.from_dict(CONFIG | {"head_dim": 24}).head_dim == 24


@pytest.mark.parametrize(
    ("in_config", "in_generation", "expected"),
    [
        (2, None, (2,)),
        ([2, 5], None, (2, 5)),
        (2, [7, 8], (7, 8)),
        (2, 9, (9,)),
        (2, "absent", ()),
        (None, None, ()),
    ],
)
def test_ids_that_end_a_text(
    in_config: Any, in_generation: Any, expected: tuple[int, ...], tmp_path: Path
) -> None:
    write_checkpoint(tmp_path)
    rewrite_config(tmp_path, eos_token_id=in_config)
    if in_generation is not None:
        content = {} if in_generation == "absent" else {"eos_token_id": in_generation}
        (tmp_path / "generation_config.json").write_text(json.dumps(content))
    assert load_config(tmp_path).eos_token_ids == expected


def expect_refusal(folder: Path, *words: str) -> None:
    with pytest.raises(ValueError) as caught:
        load_model(folder)
    for word in words:
        assert word in str(caught.value)


def test_folders_that_are_no_checkpoint(tmp_path: Path) -> None:
    expect_refusal(tmp_path / "nowhere", "nowhere", "does not exist")
    expect_refusal(tmp_path, "no checkpoint", "config.json")
    (tmp_path / "config.json").write_text("{ not json")
    expect_refusal(tmp_path, "config.json", "JSON")
    (tmp_path / "config.json").write_text("[]")
    expect_refusal(tmp_path, "config.json", "object")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    expect_refusal(tmp_path, "neither model.safetensors nor")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    expect_refusal(tmp_path, "pytorch_model.bin", "not supported")


def test_tensors_that_do_not_fit_the_config(tmp_path: Path) -> None:
    weights = write_checkpoint(tmp_path)
    path = tmp_path / "model.safetensors"
    name = "model.layers.1.mlp.up_proj.weight"

    def write(changed: dict[str, np.ndarray]) -> None:
        write_safetensors(path, {n: ("F32", w) for n, w in changed.items()})

    write({n: w for n, w in weights.items() if n != name})
    expect_refusal(tmp_path, str(tmp_path), "lacks", name, "(48, 32)")
    write(weights | {name: weights[name].T.copy()})
    expect_refusal(tmp_path, name, "(32, 48)", "(48, 32)")
    write(weights | {"model.layers.0.self_attn.q_proj.bias": np.zeros(32, np.float32)})
    expect_refusal(tmp_path, "q_proj.bias", "no place")
    # What vLLM skips is skipped here.
    head = {"lm_head.weight": weights["model.embed_tokens.weight"]}
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(4, np.float32)}
    write(weights | head | old)
    load_model(tmp_path)
