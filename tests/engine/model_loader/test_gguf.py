"""GGUF files: what becomes of fields and tensors, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm.config.model import CheckpointError
from mini_vllm.model_loader import load_config, load_model, load_weights
from tests.engine.helpers.models.model_helpers import texts, whole

pytest.importorskip("gguf")
pytest.importorskip("filelock")

from mini_vllm.model_loader.gguf.convert import convert
from tests.engine.helpers.models.checkpoint_files import POINTER
from tests.engine.helpers.models.gguf_helpers import (
    converted,
    make_weights,
    permute,
    read_config_of,
    write_gguf,
)

NARROW = {"hidden_size": 64, "intermediate_size": 128}
"""Where width proves nothing: gguf quantises and writes slowly."""

# -- tensors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_floats_come_back_bit_for_bit(tied: bool, tmp_path: Path) -> None:
    """The rows that llama.cpp reorders too; and the model answers as the one that was written."""
    raw, weights = make_weights(tie_word_embeddings=tied)
    folder = converted(tmp_path, raw, weights)
    read = load_weights(folder)
    assert read.keys() == weights.keys()
    for name, weight in weights.items():
        assert read[name].tobytes() == weight.tobytes(), name
    config = load_config(folder)
    assert config.tie_word_embeddings is tied
    model = load_model(folder)
    plain = type(model)(read_config_of(raw), weights)
    ids = texts(plain)["r0"]
    np.testing.assert_array_equal(whole(model, ids), whole(plain, ids))


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_sixteen_bits_stay_sixteen_bits(kind: str, tmp_path: Path) -> None:
    raw, weights = make_weights()
    folder = converted(tmp_path, raw, weights, kind)
    size = (folder / "model.safetensors").stat().st_size
    numbers = sum(weight.size for weight in weights.values())
    assert size < 2.1 * numbers, "matrices are written with the bits that they have"
    name = "model.layers.0.mlp.up_proj.weight"
    read = load_weights(folder)[name]
    np.testing.assert_allclose(read, weights[name], rtol=2**-8, atol=1e-7)
    if kind == "F16":
        np.testing.assert_array_equal(read, weights[name].astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_codes_are_dequantised_as_gguf_does(kind: str, tmp_path: Path) -> None:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize, quantize

    raw, weights = make_weights(**NARROW)
    read = load_weights(converted(tmp_path, raw, weights, kind))
    of_type = GGMLQuantizationType[kind]
    for name, weight in weights.items():
        if weight.ndim == 2:
            wanted = dequantize(quantize(weight, of_type), of_type)  # blocks lie along a row
            assert read[name].tobytes() == wanted.astype(np.float32).tobytes(), name


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K"])
def test_codes_that_gguf_cannot_make_are_dequantised_as_gguf_does(
    kind: str, tmp_path: Path
) -> None:
    """Blocks of random bytes with scales that are finite: gguf's Python reads them and writes none."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
    from gguf.quants import dequantize

    raw, weights = make_weights()
    of_type = GGMLQuantizationType[kind]
    block, size = GGML_QUANT_SIZES[of_type]
    name = "model.layers.1.mlp.down_proj.weight"
    rows, columns = weights[name].shape
    codes = np.random.default_rng(4).integers(0, 256, (rows, columns // block, size), np.uint8)
    halves = np.random.default_rng(5).uniform(0.001, 0.01, (rows, columns // block, 2))
    as_bytes = halves.astype("<f2").view(np.uint8)
    if kind == "Q6_K":
        codes[..., -2:] = as_bytes[..., :2]
    else:
        codes[..., :4] = as_bytes
    codes = codes.reshape(rows, -1)
    without = {n: w for n, w in weights.items() if n != name}
    added: dict[str, np.ndarray] = {}
    write = GGUFWriter.add_tensor

    def add(self: Any, their: str, data: np.ndarray, **more: Any) -> None:
        write(self, their, data, **(more | {"raw_dtype": of_type} if their in added else more))

    added["blk.1.ffn_down.weight"] = codes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GGUFWriter, "add_tensor", add)
        folder = converted(tmp_path, raw, without, more=added)
    assert load_weights(folder)[name].tobytes() == dequantize(codes, of_type).tobytes()


@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
def test_other_architectures_keep_their_rows(arch: str, tmp_path: Path) -> None:
    """Biases and norms of heads come along, and llama.cpp reorders a Llama's rows alone."""
    named = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}[arch]
    raw, weights = make_weights(architectures=[named], model_type=arch)
    folder = converted(tmp_path, raw, weights, arch=arch)
    assert load_config(folder).architecture == named
    read = load_weights(folder)
    assert read.keys() == weights.keys()
    for name, weight in weights.items():
        assert read[name].tobytes() == weight.tobytes(), name
    ids = [5, 80, 7, 100]
    assert np.isfinite(whole(load_model(folder), ids)).all()


def test_rows_come_back_from_where_llama_cpp_puts_them() -> None:
    """Of a head with 6 rows it makes 0 3 1 4 2 5."""
    weight = np.arange(12, dtype=np.float32)[:, None]
    assert permute(weight, 2)[:, 0].tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]


# -- fields ---------------------------------------------------------------------------------------


def test_what_the_config_says(tmp_path: Path) -> None:
    raw, weights = make_weights(head_dim=64)
    config = load_config(converted(tmp_path, raw, weights))
    assert (config.head_dim, config.rms_norm_eps, config.rope_theta) == (64, 1e-5, 500000.0)
    assert (config.num_key_value_heads, config.max_position_embeddings) == (4, 128)
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))


def test_the_end_of_a_turn_ends_a_text_too(tmp_path: Path) -> None:
    raw, weights = make_weights(**NARROW)
    fields = {"tokenizer.ggml.eot_token_id": 4}
    assert load_config(converted(tmp_path, raw, weights, fields=fields)).eos_token_ids == (2, 4)


def test_llama_3s_scaling_is_read_from_its_factors(tmp_path: Path) -> None:
    """The file holds what each frequency is divided by; the settings that give them are put back."""
    from mini_vllm.layers.rotary_embedding import rope_inv_freq

    scaling = {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    raw, weights = make_weights()
    scaled, plain = read_config_of(raw | {"rope_scaling": scaling}), read_config_of(raw)
    factors = (rope_inv_freq(plain) / rope_inv_freq(scaled)).astype(np.float32)
    more = {"rope_freqs.weight": factors}
    config = load_config(converted(tmp_path, raw, weights, more=more))
    assert (config.rope_type, dict(config.rope_scaling)) == (
        "llama3",
        {k: v for k, v in scaling.items() if k != "rope_type"},
    )
    np.testing.assert_allclose(rope_inv_freq(config), rope_inv_freq(scaled), rtol=1e-6)
    other = {"rope_freqs.weight": factors[::-1].copy()}
    (tmp_path / "other").mkdir()
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight"):
        converted(tmp_path / "other", raw, weights, more=other)


REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    ({"arch": "gemma2"}, ["general.architecture 'gemma2'", "llama, qwen2, qwen3"]),
    ({"fields": {"llama.expert_count": 8}}, ["llama.expert_count 8"]),
    ({"fields": {"llama.block_count": None}}, ["lacks llama.block_count"]),
    ({"fields": {"llama.rope.dimension_count": 16}}, ["llama.rope.dimension_count 16"]),
    ({"fields": {"llama.rope.scaling.type": "yarn"}}, ["llama.rope.scaling.type 'yarn'"]),
    ({"fields": {"tokenizer.ggml.model": "bert"}}, ["tokenizer.ggml.model 'bert'"]),
    ({"fields": {"tokenizer.ggml.pre": "tekken"}}, ["tokenizer.ggml.pre 'tekken'"]),
    ({"fields": {"tokenizer.ggml.tokens": None}}, ["lacks tokenizer.ggml.tokens"]),
    ({"more": {"blk.0.ffn_gate_inp.weight": np.ones((2, 32), np.float32)}}, ["ffn_gate_inp"]),
]


@pytest.mark.parametrize(("how", "words"), REFUSED, ids=[words[0] for _, words in REFUSED])
def test_what_is_refused_by_name(how: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    raw, weights = make_weights(**NARROW)
    with pytest.raises(CheckpointError) as caught:
        converted(tmp_path, raw, weights, **how)
    for word in (*words, "model.gguf"):
        assert word in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["model.gguf"], "nothing is left behind"


@pytest.mark.parametrize("keep", [0, 3, 10, 1000, 30_000])
def test_a_file_that_is_cut_off(keep: int, tmp_path: Path) -> None:
    raw, weights = make_weights(**NARROW)
    write_gguf(tmp_path / "whole.gguf", raw, weights)
    (tmp_path / "model.gguf").write_bytes((tmp_path / "whole.gguf").read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.gguf"):
        convert(tmp_path / "model.gguf", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_pointer_in_the_files_place(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(POINTER)
    with pytest.raises(CheckpointError, match=r"model\.gguf is a git-lfs pointer.*3,289,528 bytes"):
        convert(tmp_path / "model.gguf", tmp_path / "model")


def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, weights = make_weights(**NARROW)
    write_gguf(tmp_path / "model.gguf", raw, weights)
    real = os.statvfs

    def full(path: Any) -> Any:
        found = list(real(path))
        found[4] = 10  # free blocks
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", full)
    with pytest.raises(CheckpointError, match="MiB free"):
        convert(tmp_path / "model.gguf", tmp_path / "model")
