"""Checkpoints, folders and texts that `quantize_checkpoint` refuses: by value and rule, before it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mini_vllm.compress.quantize import find_method, quantize_checkpoint, quantize_weights
from mini_vllm.compress.save import write_safetensors
from mini_vllm.model_loader import load_config
from tests.engine.helpers.engine.text_helpers import write_checkpoint
from tests.engine.helpers.models.model_helpers import write_checkpoint as write_random


def test_an_out_that_cannot_be_made_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after an hour of calibration: where OUT can be made, the next error is that weights are missing."""
    write_random(tmp_path / "plain")
    (tmp_path / "plain" / "model.safetensors").unlink()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path / "empty")
    for out, words in (
        (".", "'.' is the current folder or a mount point"),
        (tmp_path / "file" / "out", "file/out' cannot be made: .*file' must be a folder"),
        (tmp_path / "plain", "plain' exists and is not an empty folder"),
        (tmp_path / "new" / "out", "neither model.safetensors nor"),
    ):
        with pytest.raises(ValueError, match=words):
            quantize_checkpoint(tmp_path / "plain", out, "int8")
    assert not (tmp_path / "new").exists()


def test_a_weight_whose_scale_float16_does_not_hold_is_refused(tmp_path: Path) -> None:
    """Such a scale would be cut off, and the weight with it: 65504 times half of the 15 steps is the end."""
    name = "model.layers.0.mlp.up_proj"
    weights = write_random(tmp_path)
    config, method = load_config(tmp_path), find_method("int4-g16")
    weights[f"{name}.weight"][3, 4] = -491_280
    layers, _ = quantize_weights(config, weights, method)
    assert layers[name].scale.max() == 65504
    weights[f"{name}.weight"][3, 4] = -491_290
    says = f"{name}.weight holds a number of magnitude 491290; .* float16 it must be at most 491280"
    with pytest.raises(ValueError, match=says):
        quantize_weights(config, weights, method)


def test_a_norm_past_the_end_of_bfloat16_is_refused(tmp_path: Path) -> None:
    """It would be infinite in the file, which nobody can serve then."""
    weights = write_random(tmp_path / "plain", dtype="bfloat16")
    weights["model.norm.weight"][0] = 3.4e38
    write_safetensors(
        tmp_path / "plain" / "model.safetensors", {n: ("F32", w) for n, w in weights.items()}
    )
    with pytest.raises(ValueError, match=r"'model.norm.weight' holds 3.39.*, and bfloat16 ends at"):
        quantize_checkpoint(tmp_path / "plain", tmp_path / "out", "w8a8")
    assert not (tmp_path / "out").exists()


def test_a_config_of_any_number_of_layers_is_refused_at_once(tmp_path: Path) -> None:
    """The group size is held against one layer, not against two thousand million."""
    write_random(tmp_path / "plain")
    raw = json.loads((tmp_path / "plain" / "config.json").read_text())
    (tmp_path / "plain" / "config.json").write_text(
        json.dumps(raw | {"num_hidden_layers": 2**31 - 1})
    )
    with pytest.raises(
        ValueError, match="num_hidden_layers 2147483647, the tensors are of 2 layers"
    ):
        quantize_checkpoint(tmp_path / "plain", tmp_path / "out", "int4-g8")


def test_a_calibration_file_is_named_with_what_is_wrong_in_it(tmp_path: Path) -> None:
    small = write_checkpoint(tmp_path / "small")
    texts = tmp_path / "texts.json"
    texts.write_text(json.dumps(["short", "x" * 300]))
    with pytest.raises(ValueError, match=r"texts.json: document 1 has 301 tokens"):
        quantize_checkpoint(small, tmp_path / "out", "awq-g8", calibration=texts)
    with pytest.raises(ValueError, match="cannot be read as a JSON list of texts"):
        quantize_checkpoint(small, tmp_path / "out", "awq-g8", calibration="")
