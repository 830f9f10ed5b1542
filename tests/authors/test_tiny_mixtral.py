"""The shipped tiny Mixtral: its files, its size, its weights, and what was recorded of its routing."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from safetensors import deserialize

from course.docs.pages import ROOT
from mini_vllm.model_loader.safetensors_file import read_safetensors
from scripts.tiny_mixtral.folder import CONFIG

FOLDER = ROOT / "mini_vllm" / "checkpoints" / "tiny-mixtral"
LLAMA = FOLDER.parent / "tiny-llama"
ROUTING = ROOT / "phase-07-gemm-and-moe" / "routing.json"
TOKENIZER = (
    "generation_config.json", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json",
)  # fmt: skip


def test_its_files_are_small_and_those_of_the_tiny_llama() -> None:
    """Under 4 MB in all, the same tokenizer, and the configuration that the script writes."""
    files = {path.name: path for path in FOLDER.iterdir()}
    assert files.keys() == {*TOKENIZER, "config.json", "model.safetensors", "training_log.json"}
    assert sum(path.stat().st_size for path in files.values()) < 4_000_000
    for name in TOKENIZER:
        assert files[name].read_bytes() == (LLAMA / name).read_bytes(), name
    assert json.loads(files["config.json"].read_text(encoding="utf-8")) == CONFIG


def test_its_weights_are_those_of_a_mixtral() -> None:
    """Names and shapes as in Hugging Face's format, all bfloat16 and finite."""
    raw = dict(deserialize((FOLDER / "model.safetensors").read_bytes()))
    assert {entry["dtype"] for entry in raw.values()} == {"BF16"}
    hidden, width, experts = 128, 128, 8
    want = {"model.embed_tokens.weight": (264, hidden), "model.norm.weight": (hidden,)}
    for i in range(4):
        layer = f"model.layers.{i}."
        for name, rows in (("q", 128), ("k", 64), ("v", 64), ("o", 128)):
            want[f"{layer}self_attn.{name}_proj.weight"] = (rows, hidden)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            want[f"{layer}{norm}.weight"] = (hidden,)
        want[f"{layer}block_sparse_moe.gate.weight"] = (experts, hidden)
        for e in range(experts):
            for name, shape in (
                ("w1", (width, hidden)), ("w3", (width, hidden)), ("w2", (hidden, width)),
            ):  # fmt: skip
                want[f"{layer}block_sparse_moe.experts.{e}.{name}.weight"] = shape
    weights = read_safetensors(FOLDER / "model.safetensors")
    assert {name: weight.shape for name, weight in weights.items()} == want
    assert all(np.isfinite(weight).all() for weight in weights.values())
    log = json.loads((FOLDER / "training_log.json").read_text(encoding="utf-8"))
    assert sum(weight.size for weight in weights.values()) == log["parameters"]


def test_the_recorded_routing_is_this_models() -> None:
    """Two choices for each of 64 tokens in every step and layer, of the weights that are shipped."""
    recorded = json.loads(ROUTING.read_text(encoding="utf-8"))
    weights = (FOLDER / "model.safetensors").read_bytes()
    assert recorded["made"]["weights"] == hashlib.sha256(weights).hexdigest(), (
        f"record it again: {recorded['made']['command']}"
    )
    for kind, counts in recorded["counts"].items():
        assert np.shape(counts) == (4, 32, 8), kind
        assert (np.sum(counts, axis=-1) == 2 * recorded["tokens_in_a_step"]).all(), kind


def test_each_expert_works_and_texts_differ() -> None:
    """No expert is idle on chats, and in every layer each pair of texts is routed differently."""
    counts = json.loads(ROUTING.read_text(encoding="utf-8"))["counts"]
    shares = {kind: np.sum(steps, axis=1) / 4096 for kind, steps in counts.items()}
    assert shares["chat"].min() > 0.01
    for one, other in (("chat", "sums"), ("chat", "noise"), ("sums", "noise")):
        moved = np.abs(shares[one] - shares[other]).sum(axis=1) / 2
        assert moved.min() > 0.15, f"{one} and {other}: shares moved by layer {moved.round(2)}"


@pytest.mark.vllm
def test_vllm_and_transformers_continue_alike() -> None:
    """Greedy, float32: 24 prompts, token for token."""
    pytest.importorskip("transformers")
    from scripts.tiny_mixtral import compare

    tokenizer = compare.AutoTokenizer.from_pretrained(FOLDER)
    ids = [tokenizer(prompt).input_ids for prompt in compare.prompts()[::6]]
    ours, _ = compare.in_transformers(FOLDER, ids)
    assert compare.in_vllm(FOLDER, ids) == ours
