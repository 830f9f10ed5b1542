"""Settings and checkpoint folders that cannot be served: the error names the value and the rule."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from text_helpers import text_engine, write_checkpoint

from mini_vllm import LLM, EngineConfig
from mini_vllm.checkpoint import CheckpointError


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"block_size": 0}, ("block_size", "0", "1")),
        ({"block_size": 1.5}, ("block_size", "1.5")),
        ({"block_size": "16"}, ("block_size", "'16'")),
        ({"block_size": True}, ("block_size", "True")),
        ({"num_gpu_blocks": 1}, ("num_gpu_blocks", "1", "2")),
        ({"num_gpu_blocks": -5}, ("num_gpu_blocks", "-5")),
        ({"kv_cache_memory_bytes": 0}, ("kv_cache_memory_bytes", "0")),
        ({"max_model_len": 0}, ("max_model_len", "0")),
        ({"max_num_seqs": 0}, ("max_num_seqs", "0")),
        ({"max_num_batched_tokens": 0}, ("max_num_batched_tokens", "0")),
        ({"max_num_batched_tokens": 8}, ("max_num_batched_tokens (8)", "max_num_seqs (256)")),
        ({"max_num_batched_tokens": 64, "max_num_seqs": 8, "max_model_len": 128,
          "enable_chunked_prefill": False}, ("64", "128", "chunked prefill")),
        ({"long_prefill_token_threshold": -1}, ("long_prefill_token_threshold", "-1")),
        ({"scheduling_policy": "lifo"}, ("'lifo'", "fcfs", "priority")),
        ({"max_logprobs": -2}, ("max_logprobs", "-2")),
        ({"seed": -1}, ("seed", "-1")),
    ],
)  # fmt: skip
def test_engine_config(settings: dict[str, Any], says: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as caught:
        EngineConfig(**settings)
    for part in says:
        assert part in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    "name", ["enable_chunked_prefill", "enable_prefix_caching", "scheduler_reserve_full_isl"]
)
def test_engine_config_flags_are_true_or_false(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        EngineConfig(**{name: "no"})


def test_settings_that_do_not_suit_the_model() -> None:
    with pytest.raises(ValueError, match=r"max_model_len \(9999\).*256"):
        text_engine(max_model_len=9999)
    with pytest.raises(ValueError, match=r"kv_cache_memory_bytes \(10\).*at least 2"):
        text_engine(kv_cache_memory_bytes=10)
    # The model's own limit counts where max_model_len is left open.
    with pytest.raises(ValueError, match=r"max_num_batched_tokens \(64\).*256"):
        text_engine(max_num_batched_tokens=64, max_num_seqs=8, enable_chunked_prefill=False)


# -- checkpoints ----------------------------------------------------------------------------------


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere.*does not exist"):
        LLM(tmp_path / "nowhere")


def test_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("nothing here")
    with pytest.raises(CheckpointError, match=r"is no checkpoint.*config\.json"):
        LLM(tmp_path)
    file = tmp_path / "README.md"
    with pytest.raises(CheckpointError, match="is no folder"):
        LLM(file)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model")


@pytest.mark.parametrize("keep", [0, 4, 8, 100, 5000, -1])
def test_truncated_safetensors(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors.*truncated"):
        LLM(folder)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, ("MixtralForCausalLM", "LlamaForCausalLM")),
        ({"architectures": None}, ("architectures", "LlamaForCausalLM")),
        ({"quantization_config": {"quant_method": "awq"}}, ("awq",)),
        ({"hidden_act": "gelu"}, ("gelu", "silu")),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, ("yarn", "llama3")),
        ({"num_key_value_heads": 3}, ("num_key_value_heads", "3", "4")),
        ({"num_hidden_layers": 0}, ("num_hidden_layers", "0")),
        ({"num_hidden_layers": 3}, ("model.layers.2",)),
        ({"vocab_size": 300}, ("embed_tokens", "264", "300")),
        ({"sliding_window": 64}, ("sliding_window", "64")),
    ],
)
def test_a_config_that_is_not_supported(
    tmp_path: Path, change: dict[str, Any], says: tuple[str, ...]
) -> None:
    with pytest.raises(CheckpointError) as caught:
        LLM(write_checkpoint(tmp_path / "model", **change))
    for part in says:
        assert part in str(caught.value), str(caught.value)


def test_a_file_that_is_missing_or_no_json(folder: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        text = (folder / name).read_text()
        (folder / name).write_text(text[:40])
        with pytest.raises(CheckpointError, match=name):
            LLM(folder)
        (folder / name).unlink()
        with pytest.raises(CheckpointError, match=name):
            LLM(folder)
        (folder / name).write_text(text)
    shutil.move(folder / "model.safetensors", folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors.*pytorch_model\.bin"):
        LLM(folder)
