"""Qwen 2, Qwen 3, and models with experts: settings, weights, tokens; what cannot be is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm.config.engine import EngineConfig
from mini_vllm.config.model import CheckpointError
from mini_vllm.config.moe import MoeConfig
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.layers.fused_moe.layer import FusedMoE
from mini_vllm.model_loader import load_model
from mini_vllm.model_loader.loader import get_model
from mini_vllm.models.llama import LlamaForCausalLM, LlamaMLP
from mini_vllm.models.registry import MODELS, read_config
from tests.engine.helpers.models.model_helpers import (
    CONFIG,
    in_portions,
    random_weights,
    relative_error,
    texts,
    whole,
    write_safetensors,
)
from tests.engine.models.test_window_models import SMALL, run

EXPERTS = {"num_experts": 6, "moe_intermediate_size": 24}
QWEN2 = CONFIG | {"architectures": ["Qwen2ForCausalLM"]}
QWEN3 = CONFIG | {"architectures": ["Qwen3ForCausalLM"], "head_dim": 16}
MIXTRAL = CONFIG | {"architectures": ["MixtralForCausalLM"], "num_local_experts": 6}
QWEN2MOE = {
    **CONFIG, **EXPERTS, "architectures": ["Qwen2MoeForCausalLM"], "num_hidden_layers": 3,
    "num_experts_per_tok": 3, "shared_expert_intermediate_size": 40, "mlp_only_layers": [1],
}  # fmt: skip
QWEN3MOE = {
    **CONFIG, **EXPERTS, "architectures": ["Qwen3MoeForCausalLM"], "num_experts_per_tok": 2,
    "norm_topk_prob": True, "decoder_sparse_step": 2, "head_dim": 16,
}  # fmt: skip
RAW: dict[str, dict[str, Any]] = {
    "qwen2": QWEN2, "qwen3": QWEN3, "mixtral": MIXTRAL, "qwen2moe": QWEN2MOE, "qwen3moe": QWEN3MOE,
}  # fmt: skip
MIXTURES = ["mixtral", "qwen2moe", "qwen3moe"]


def model_of(kind: str, **changes: Any) -> LlamaForCausalLM:
    config = read_config(RAW[kind] | changes)
    return MODELS[config.architecture](config, random_weights(config))


def write(folder: Path, raw: dict[str, Any], without: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    weights = random_weights(read_config(raw))
    if without:
        del weights[without]
    write_safetensors(folder / "model.safetensors", {n: ("F32", w) for n, w in weights.items()})
    return folder


# -- settings ---------------------------------------------------------------------------------------


@pytest.mark.vllm
@pytest.mark.parametrize("name", ["Qwen2", "Qwen3", "Mixtral", "Qwen2Moe", "Qwen3Moe"])
def test_transformers_has_these_defaults(name: str) -> None:
    import transformers

    theirs = getattr(transformers, f"{name}Config")()
    ours: Any = read_config({"architectures": [f"{name}ForCausalLM"]})
    for field in (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings",
    ):  # fmt: skip
        assert getattr(ours, field) == getattr(theirs, field), field
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    if name == "Qwen3":
        assert ours.head_dim == theirs.head_dim
    if isinstance(ours, MoeConfig):
        assert ours.num_experts_per_tok == theirs.num_experts_per_tok
        key = "num_local_experts" if name == "Mixtral" else "num_experts"
        assert ours.num_experts == getattr(theirs, key)
    if "Moe" in name:
        for field in ("moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step"):
            assert getattr(ours, field) == getattr(theirs, field), field
    if name == "Qwen2Moe":
        assert ours.shared_expert_intermediate_size == theirs.shared_expert_intermediate_size


def test_which_layers_have_experts() -> None:
    def of(**changes: Any) -> list[bool]:
        config = read_config(QWEN2MOE | {"num_hidden_layers": 6, "mlp_only_layers": None} | changes)
        assert isinstance(config, MoeConfig)
        return [config.has_experts(i) for i in range(6)]

    assert of() == [True] * 6
    assert of(mlp_only_layers=[0, 4]) == [False, True, True, True, False, True]
    assert of(decoder_sparse_step=3) == [False, False, True, False, False, True]
    assert of(decoder_sparse_step=2, mlp_only_layers=[3]) == [
        False,
        True,
        False,
        False,
        False,
        True,
    ]
    model = model_of("qwen2moe")
    assert [type(layer.mlp) for layer in model.layers] == [FusedMoE, LlamaMLP, FusedMoE]


def test_a_mixtral_always_renormalises() -> None:
    config = read_config(MIXTRAL | {"norm_topk_prob": False})
    assert isinstance(config, MoeConfig)
    assert config.norm_topk_prob


def test_the_number_of_experts_has_two_names() -> None:
    """transformers 5 writes a Qwen 3 MoE's under the name that a Mixtral's has."""
    renamed = {k: v for k, v in QWEN3MOE.items() if k != "num_experts"} | {"num_local_experts": 6}
    assert read_config(renamed) == read_config(QWEN3MOE)
    with pytest.raises(CheckpointError, match="must be equal"):
        read_config(QWEN3MOE | {"num_local_experts": 5})


QUANTIZED = {"quantization_config": {"quant_method": "gptq", "bits": 4}}


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (MIXTRAL | {"num_experts_per_tok": 7}, ["num_experts_per_tok (7)", "at most", "6"]),
        (MIXTRAL | {"num_experts_per_tok": 0}, ["num_experts_per_tok", "at least 1", "0"]),
        (MIXTRAL | {"num_local_experts": "8"}, ["num_local_experts", "integer", "'8'"]),
        (MIXTRAL | {"num_local_experts": 0}, ["num_local_experts", "at least 1", "0"]),
        (MIXTRAL | {"hidden_act": "gelu"}, ["hidden_act", "'gelu'", "silu"]),
        (MIXTRAL | {"attention_bias": True}, ["attention_bias", "MixtralForCausalLM"]),
        (MIXTRAL | {"sliding_window": -3}, ["sliding_window", "-3"]),
        (MIXTRAL | QUANTIZED, ["quantization_config", "gptq", "MixtralForCausalLM"]),
        (QWEN2MOE | QUANTIZED, ["quantization_config", "gptq", "Qwen2MoeForCausalLM"]),
        (QWEN3MOE | QUANTIZED, ["quantization_config", "gptq", "Qwen3MoeForCausalLM"]),
        (QWEN2 | QUANTIZED, ["quantization_config", "gptq", "Qwen2ForCausalLM"]),
        (QWEN2MOE | {"mlp_only_layers": "1"}, ["mlp_only_layers", "'1'"]),
        (QWEN2MOE | {"mlp_only_layers": [0, True]}, ["mlp_only_layers", "[0, True]"]),
        (QWEN2MOE | {"decoder_sparse_step": 0}, ["decoder_sparse_step", "at least 1", "0"]),
        (QWEN2MOE | {"norm_topk_prob": 1}, ["norm_topk_prob", "true or false", "1"]),
        (QWEN2MOE | {"moe_intermediate_size": 2.5}, ["moe_intermediate_size", "2.5"]),
        (QWEN2MOE | {"shared_expert_intermediate_size": 0}, ["shared_expert_intermediate_size"]),
        (QWEN2MOE | {"qkv_bias": False}, ["qkv_bias", "False", "Qwen2MoeForCausalLM"]),
        (QWEN3MOE | {"shared_expert_intermediate_size": 8}, ["shared_expert_intermediate_size"]),
        (QWEN2 | {"use_sliding_window": True}, ["use_sliding_window", "True", "Qwen2"]),
        (QWEN2 | {"layer_types": ["sliding_attention"] * 2}, ["layer_types", "Qwen2"]),
        (QWEN2 | {"hidden_act": "relu"}, ["hidden_act", "relu"]),
        (QWEN2 | {"is_causal": False}, ["is_causal", "False"]),
        (QWEN2 | {"head_dim": 16}, ["head_dim 16", "hidden_size (32)", "num_attention_heads (4)"]),
        (QWEN2 | {"head_dim": "x"}, ["head_dim", "'x'"]),
        (QWEN2 | {"num_attention_heads": "x"}, ["num_attention_heads", "'x'"]),
        (QWEN3 | {"attention_bias": True}, ["attention_bias", "True", "Qwen3ForCausalLM"]),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(raw: dict[str, Any], says: list[str]) -> None:
    with pytest.raises(CheckpointError) as error:
        read_config(raw)
    for words in says:
        assert words in str(error.value)


def test_a_window_that_nobody_uses_may_stand_in_the_file() -> None:
    config = read_config(QWEN2 | {"use_sliding_window": False, "sliding_window": 64})
    assert config.sliding_windows == (None, None)


# -- weights ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RAW)
def test_a_checkpoint_makes_the_model_that_its_config_names(kind: str, tmp_path: Path) -> None:
    model = load_model(write(tmp_path / kind, RAW[kind]))
    assert type(model).__name__ == RAW[kind]["architectures"][0]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("mixtral", "model.layers.1.block_sparse_moe.experts.5.w3.weight"),
        ("mixtral", "model.layers.0.block_sparse_moe.gate.weight"),
        ("qwen2moe", "model.layers.2.mlp.shared_expert_gate.weight"),
        ("qwen2moe", "model.layers.1.mlp.up_proj.weight"),
        ("qwen3moe", "model.layers.1.mlp.experts.0.down_proj.weight"),
        ("qwen3", "model.layers.1.self_attn.q_norm.weight"),
        ("qwen2", "model.layers.0.self_attn.k_proj.bias"),
    ],
)
def test_a_tensor_that_is_missing_is_named(kind: str, name: str, tmp_path: Path) -> None:
    folder = write(tmp_path, RAW[kind], without=name)
    with pytest.raises(CheckpointError, match=f"lacks tensor '{name}'"):
        load_model(folder)


def test_more_experts_than_the_file_says_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, MIXTRAL)
    (folder / "config.json").write_text(json.dumps(MIXTRAL | {"num_local_experts": 4}))
    with pytest.raises(CheckpointError, match=r"gate.weight.* has shape \(6, 32\)"):
        load_model(folder)


def test_as_many_experts_as_no_memory_holds_are_refused_at_once(tmp_path: Path) -> None:
    folder = write(tmp_path, MIXTRAL)
    (folder / "config.json").write_text(json.dumps(MIXTRAL | {"num_local_experts": 2**31 - 1}))
    with pytest.raises(
        CheckpointError, match=r"gate.weight.* config.json asks for \(2147483647, 32\)"
    ):
        load_model(folder)


# -- what they compute ------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize("kind", RAW)
def test_logits_equal_transformers(kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.engine.helpers.models.moe_models import make

    theirs = make(kind, tmp_path).eval()
    tokens = np.random.default_rng(0).integers(3, 260, 40).tolist()
    with torch.no_grad():
        expected = theirs(torch.tensor([tokens])).logits[0].numpy()
    assert relative_error(whole(load_model(tmp_path), tokens), expected) < 2e-5


@pytest.mark.parametrize("kind", RAW)
def test_a_text_may_be_cut_up_anyhow(kind: str) -> None:
    model = model_of(kind)
    all_tokens = texts(model)
    for name, logits in in_portions(model, all_tokens).items():
        assert relative_error(logits, whole(model, all_tokens[name])) < 1e-4


@pytest.mark.parametrize("kind", RAW)
def test_tokens_are_those_of_plenty_of_everything(kind: str) -> None:
    """A pool so small that requests lose their blocks, chunks, prefixes reused; against one at a time."""
    alone = EngineConfig(
        block_size=64, num_gpu_blocks=20, max_num_seqs=1, enable_prefix_caching=False
    )
    expected, _ = run(model_of(kind), alone)
    few = {"num_gpu_blocks": 18, "scheduler_reserve_full_isl": False}
    found, engine = run(model_of(kind), replace(SMALL, max_model_len=64, **few))  # type: ignore[arg-type]
    assert found == expected
    assert engine.engine_core.scheduler.num_preemptions


@pytest.mark.parametrize("kind", ["qwen2moe", "qwen3moe"])
def test_renormalising_changes_the_logits(kind: str) -> None:
    """Else the tests above would show nothing of it."""
    tokens = list(range(3, 20))
    one, other = (whole(model_of(kind, norm_topk_prob=on), tokens) for on in (True, False))
    assert np.abs(one - other).max() > 0.05


def test_a_mixtral_with_a_window_has_one() -> None:
    config = replace(SMALL, max_model_len=64)
    found = [run(model_of("mixtral", sliding_window=w), config)[0] for w in (6, None)]
    assert found[0] != found[1]


# -- what does not go together ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["qwen3", *MIXTURES])
def test_graphs_are_a_llamas(kind: str) -> None:
    settings = replace(SMALL, max_model_len=64, cudagraph_mode="FULL")
    with pytest.raises(
        ValueError, match=r"ForCausalLM runs with cudagraph_mode 'NONE' only.* has a "
    ):
        LLMEngine(model_of(kind), settings)


def test_a_qwen_2_runs_under_graphs() -> None:
    settings = replace(SMALL, max_model_len=64)
    graphs = replace(settings, cudagraph_mode="FULL_AND_PIECEWISE")
    assert run(model_of("qwen2"), graphs)[0] == run(model_of("qwen2"), settings)[0]


@pytest.mark.parametrize("kind", RAW)
@pytest.mark.parametrize("attention", ["torch", "triton"])
def test_torch_tensors_have_a_llama_alone(kind: str, attention: str) -> None:
    with pytest.raises(ValueError, match="runs with attention='numpy' only"):
        get_model(model_of(kind), attention)
