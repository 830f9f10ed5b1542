"""Mistral and Gemma 3: settings, weights, windows; what does not go with windows is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm.attention import OnlineAttention, PagedAttention
from mini_vllm.compress.evaluate import check_documents
from mini_vllm.compress.quantize import quantize_checkpoint
from mini_vllm.config.engine import EngineConfig
from mini_vllm.config.gemma3 import FULL, SLIDING, Gemma3Config
from mini_vllm.config.mistral import MistralConfig
from mini_vllm.config.model import SUPPORTED_ARCHITECTURES, CheckpointError
from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.engine.build import resolve_config
from mini_vllm.engine.core import EngineCore
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.engine.parts import EngineParts
from mini_vllm.layers.activation import gelu_tanh_and_mul
from mini_vllm.layers.layernorm import GemmaRMSNorm
from mini_vllm.model_loader import load_config, load_model
from mini_vllm.model_loader.loader import get_model
from mini_vllm.models.gemma3 import Gemma3ForCausalLM
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.models.mistral import MistralForCausalLM
from mini_vllm.models.registry import CONFIGS, MODELS, read_config
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.trace import TraceRecorder
from tests.engine.helpers.models.model_helpers import CONFIG, random_weights, write_safetensors

WINDOW = 6
MISTRAL = CONFIG | {"architectures": ["MistralForCausalLM"], "sliding_window": WINDOW}
GEMMA = {
    **CONFIG,
    "architectures": ["Gemma3ForCausalLM"],
    "num_hidden_layers": 6,
    "head_dim": 8,
    "query_pre_attn_scalar": 6,
    "sliding_window": WINDOW,
    "layer_types": [SLIDING, FULL, SLIDING] * 2,
    "rope_parameters": {
        FULL: {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
        SLIDING: {"rope_type": "default", "rope_theta": 100.0},
    },
}
RAW: dict[str, dict[str, Any]] = {"mistral": MISTRAL, "gemma3": GEMMA}
SMALL = EngineConfig(block_size=4, num_gpu_blocks=60, max_num_seqs=4, max_num_batched_tokens=9)


def model_of(kind: str, attention: Any = None, **changes: Any) -> LlamaForCausalLM:
    config = read_config(RAW[kind] | changes)
    return MODELS[config.architecture](config, random_weights(config), attention)


def write(folder: Path, raw: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    weights = random_weights(read_config(raw))
    write_safetensors(folder / "model.safetensors", {n: ("F32", w) for n, w in weights.items()})
    return folder


# -- settings ---------------------------------------------------------------------------------------


def test_the_registry_has_every_supported_architecture() -> None:
    assert tuple(MODELS) == tuple(CONFIGS) == SUPPORTED_ARCHITECTURES


def test_defaults_are_those_of_hugging_face() -> None:
    mistral = read_config({"architectures": ["MistralForCausalLM"]})
    assert isinstance(mistral, MistralConfig)
    assert (mistral.sliding_window, mistral.num_key_value_heads, mistral.head_dim) == (4096, 8, 128)
    assert mistral.sliding_windows == (4096,) * 32
    gemma = read_config({"architectures": ["Gemma3ForCausalLM"]})
    assert isinstance(gemma, Gemma3Config)
    assert (gemma.head_dim, gemma.tie_word_embeddings, gemma.max_model_len) == (256, True, 131072)
    assert (gemma.rope_theta, gemma.rope_local_base_freq) == (1e6, 1e4)
    assert [i for i, kind in enumerate(gemma.layer_types) if kind == FULL] == [5, 11, 17, 23]


@pytest.mark.vllm
@pytest.mark.parametrize("name", ["MistralConfig", "Gemma3TextConfig"])
def test_transformers_has_those_defaults(name: str) -> None:
    import transformers

    theirs = getattr(transformers, name)()
    architecture = {"MistralConfig": "MistralForCausalLM", "Gemma3TextConfig": "Gemma3ForCausalLM"}
    ours: Any = read_config({"architectures": [architecture[name]]})
    for field in (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps",
        "tie_word_embeddings", "sliding_window",
    ):  # fmt: skip
        assert getattr(ours, field) == getattr(theirs, field), field
    if name == "Gemma3TextConfig":
        assert list(ours.layer_types) == theirs.layer_types
        assert ours.query_pre_attn_scalar == theirs.query_pre_attn_scalar
        assert ours.rope_theta == theirs.rope_parameters["full_attention"]["rope_theta"]
        assert (
            ours.rope_local_base_freq == theirs.rope_parameters["sliding_attention"]["rope_theta"]
        )


@pytest.mark.parametrize(("written", "window"), [(None, None), (0, None), (1, 1), (64, 64)])
def test_null_and_0_turn_the_window_off(written: int | None, window: int | None) -> None:
    config = read_config(MISTRAL | {"sliding_window": written})
    assert config.sliding_windows == (window,) * 2


def test_a_gemma_of_transformers_4_says_the_same_in_other_words() -> None:
    rope = {"rope_theta": 5000.0, "rope_local_base_freq": 100.0}
    scaling = {"rope_type": "linear", "factor": 2.0}
    old = {**GEMMA, **rope, "rope_parameters": None, "rope_scaling": scaling}
    assert read_config(old) == read_config(GEMMA)
    pattern = {k: v for k, v in GEMMA.items() if k != "layer_types"} | {"sliding_window_pattern": 3}
    kinds: Any = read_config(pattern)
    assert kinds.layer_types == (SLIDING, SLIDING, FULL) * 2


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (MISTRAL | {"sliding_window": -1}, ["sliding_window", "-1"]),
        (MISTRAL | {"sliding_window": "64"}, ["sliding_window", "'64'"]),
        (MISTRAL | {"sliding_window": True}, ["sliding_window", "True"]),
        (MISTRAL | {"layer_types": [FULL, SLIDING]}, ["layer_types", "one type"]),
        (MISTRAL | {"layer_types": [FULL, FULL]}, ["layer_types", "MistralForCausalLM"]),
        (MISTRAL | {"hidden_act": "gelu"}, ["hidden_act", "gelu"]),
        (MISTRAL | {"quantization_config": {"quant_method": "awq"}}, ["quantization_config"]),
        (GEMMA | {"quantization_config": {"quant_method": "awq"}}, ["quantization_config"]),
        (GEMMA | {"final_logit_softcapping": 30.0}, ["final_logit_softcapping", "30.0"]),
        (GEMMA | {"use_bidirectional_attention": True}, ["use_bidirectional_attention"]),
        (GEMMA | {"hidden_activation": "silu"}, ["hidden_activation", "silu"]),
        (GEMMA | {"layer_types": [FULL]}, ["layer_types", "6 layers"]),
        (GEMMA | {"layer_types": ["chunked_attention"] * 6}, ["layer_types"]),
        (GEMMA | {"query_pre_attn_scalar": 0}, ["query_pre_attn_scalar"]),
        (GEMMA | {"num_hidden_layers": "x"}, ["num_hidden_layers", "'x'"]),
        (
            GEMMA
            | {"rope_parameters": {FULL: {}, SLIDING: {"rope_type": "linear", "factor": 2.0}}},
            ["rope type 'linear'", SLIDING],
        ),
        (
            GEMMA | {"rope_parameters": {"rope_type": "default"}},
            ["rope_parameters", "'rope_type'", FULL, SLIDING],
        ),
        (CONFIG | {"layer_types": [FULL, SLIDING]}, ["layer_types", "one type"]),
    ],
)
def test_what_is_not_supported_is_refused_by_name(raw: dict[str, Any], says: list[str]) -> None:
    with pytest.raises(CheckpointError) as error:
        read_config(raw)
    for words in says:
        assert words in str(error.value)


@pytest.mark.parametrize("kind", RAW)
def test_a_checkpoint_makes_the_model_that_its_config_names(kind: str, tmp_path: Path) -> None:
    folder = write(tmp_path / kind, RAW[kind])
    model = load_model(folder)
    assert type(model) is {"mistral": MistralForCausalLM, "gemma3": Gemma3ForCausalLM}[kind]
    assert load_config(folder) == model.config


def test_a_gemma_without_a_norm_is_refused(tmp_path: Path) -> None:
    weights = random_weights(read_config(GEMMA))
    name = "model.layers.4.self_attn.k_norm.weight"
    del weights[name]
    (tmp_path / "config.json").write_text(json.dumps(GEMMA))
    write_safetensors(tmp_path / "model.safetensors", {n: ("F32", w) for n, w in weights.items()})
    with pytest.raises(CheckpointError, match=name):
        load_model(tmp_path)


# -- layers -----------------------------------------------------------------------------------------


def test_gemmas_norm_scales_by_one_and_the_weight() -> None:
    x = np.array([[3.0, -4.0]], np.float32)
    normed = GemmaRMSNorm(np.array([0.0, 1.0], np.float32), 0.0)(x)
    assert np.allclose(normed, np.array([[3.0, -8.0]]) / np.sqrt(12.5))


def test_gelu_by_tanh() -> None:
    x = np.linspace(-6, 6, 49, dtype=np.float32)
    inner = np.sqrt(2 / np.pi) * (x.astype(np.float64) + 0.044715 * x.astype(np.float64) ** 3)
    expected = 0.5 * x * (1 + np.tanh(inner)) * 3
    gate_up = np.concatenate([x, np.full(49, 3, np.float32)])[None]
    assert np.abs(gelu_tanh_and_mul(gate_up)[0] - expected).max() < 1e-5


# -- the engine -------------------------------------------------------------------------------------


def run(
    model: LlamaForCausalLM, config: EngineConfig, count: int = 6
) -> tuple[list[Any], LLMEngine]:
    engine = LLMEngine(model, config)
    rng = np.random.default_rng(0)
    stem = rng.integers(3, 60, 30).tolist()
    for i in range(count):
        prompt = stem[: 10 + 4 * i] + rng.integers(3, 60, 3 + i).tolist()
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        engine.add_request(str(i), {"prompt_token_ids": prompt}, params)
    done = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                done[output.request_id] = output.outputs[0].token_ids
        engine.engine_core.kv_cache_manager.check_invariants()
    return [done[str(i)] for i in range(count)], engine


@pytest.mark.parametrize("kind", RAW)
def test_tokens_are_those_of_plenty_of_everything(kind: str) -> None:
    """A pool so small that requests lose their blocks, chunks of 9 tokens, prefixes reused, plans made ahead;
    against one request at a time, whole prompts, no reuse, and the plain backend."""
    alone = EngineConfig(
        block_size=64, num_gpu_blocks=20, max_num_seqs=1, enable_prefix_caching=False
    )
    expected, _ = run(model_of(kind, PagedAttention()), alone)
    few = {
        "num_gpu_blocks": {"mistral": 9, "gemma3": 33}[kind],
        "scheduler_reserve_full_isl": False,
    }
    for changes in ({}, few, few | {"async_scheduling": True}):
        found, engine = run(model_of(kind), replace(SMALL, max_model_len=64, **changes))  # type: ignore[arg-type]
        assert found == expected
        assert bool(engine.engine_core.scheduler.num_preemptions) == bool(changes)


def test_a_window_changes_the_tokens() -> None:
    """Else the tests above would show nothing."""
    config = replace(SMALL, max_model_len=64)
    found = [run(model_of("mistral", sliding_window=w), config)[0] for w in (WINDOW, None)]
    assert found[0] != found[1]


def test_layers_of_several_groups_share_arrays() -> None:
    _, engine = run(model_of("gemma3"), replace(SMALL, max_model_len=64), 1)
    caches = engine.engine_core.model_runner.kv_caches
    assert [next(i for i, c in enumerate(caches) if c is cache) for cache in caches] == [
        0, 0, 0, 3, 3, 3,
    ]  # fmt: skip


def test_the_pool_is_as_large_as_the_memory_for_the_largest_group() -> None:
    model = model_of("gemma3")
    one_layer = 2 * 4 * 2 * 8 * 4
    settings = EngineConfig(block_size=4, kv_cache_memory_bytes=50 * 2 * one_layer, max_num_seqs=64)
    assert resolve_config(settings, model).num_gpu_blocks == 50
    plenty = replace(settings, kv_cache_memory_bytes=2**30, max_num_seqs=2)
    assert resolve_config(plenty, model).num_gpu_blocks == 2 * 32 * 3 + 1


def test_a_request_that_the_pool_could_never_hold_is_refused() -> None:
    engine = LLMEngine(model_of("gemma3"), replace(SMALL, max_model_len=128, num_gpu_blocks=30))
    prompt = {"prompt_token_ids": list(range(3, 50))}
    # 20 blocks of full attention; a window of 6 and a step of 9 tokens can hold 5, in two groups.
    with pytest.raises(ValueError, match="may need 30 KV blocks"):
        engine.add_request("a", prompt, SamplingParams(temperature=0, max_tokens=34))
    engine.add_request("b", prompt, SamplingParams(temperature=0, max_tokens=30))


@pytest.mark.parametrize("kind", RAW)
def test_a_cache_in_8_bits_does_not_go_with_windows(kind: str) -> None:
    with pytest.raises(ValueError, match="kv_cache_dtype 'fp8' is not supported for this"):
        LLMEngine(model_of(kind), replace(SMALL, max_model_len=64, kv_cache_dtype="fp8"))


def test_graphs_go_with_a_window_where_the_layers_are_a_llama_s() -> None:
    config = replace(SMALL, max_model_len=64)
    under = replace(config, cudagraph_mode="FULL_AND_PIECEWISE")
    assert run(model_of("mistral"), under)[0] == run(model_of("mistral"), config)[0]
    with pytest.raises(
        ValueError, match="a Gemma3ForCausalLM runs with cudagraph_mode 'NONE' only"
    ):
        LLMEngine(model_of("gemma3"), under)


@pytest.mark.parametrize("attention", ["torch", "triton"])
def test_torch_tensors_have_a_llama_alone(attention: str) -> None:
    with pytest.raises(ValueError, match="runs with attention='numpy' only"):
        get_model(model_of("mistral"), attention)


def test_a_checkpoint_with_windows_is_refused_with_torch(tmp_path: Path) -> None:
    class Another(LlamaForCausalLM):
        """As the model of torch tensors is."""

    with pytest.raises(
        CheckpointError, match="MistralForCausalLM runs with attention='numpy' only"
    ):
        load_model(write(tmp_path, MISTRAL), None, Another)


def test_a_backend_without_windows_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="OnlineAttention does not support the sliding window"):
        LLMEngine(model_of("mistral", OnlineAttention()), replace(SMALL, max_model_len=64))


@pytest.mark.parametrize(
    "changes",
    [{"block_pool": lambda *a: BlockPool(*a)}, {"kv_cache_manager": lambda *a: KVCacheManager(*a)}],
)
def test_parts_for_one_group_are_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"parts\.{next(iter(changes))} .* one KV cache group"):
        EngineCore(model_of("mistral"), replace(SMALL, max_model_len=64), EngineParts(**changes))


def test_what_shows_one_table_a_request_refuses(tmp_path: Path) -> None:
    engine = LLMEngine(model_of("mistral"), replace(SMALL, max_model_len=64))
    with pytest.raises(ValueError, match="cannot be traced"):
        TraceRecorder(engine)
    with pytest.raises(ValueError, match="cannot be evaluated"):
        check_documents(engine.model, [[3, 4, 5]])
    folder = write(tmp_path / "in", MISTRAL)
    with pytest.raises(ValueError, match="only a LlamaForCausalLM can be quantised"):
        quantize_checkpoint(folder, tmp_path / "out", "int8")


def test_a_mistral_without_a_window_is_a_llama() -> None:
    """One group of full attention: the usual manager and runner, and all settings."""
    config = replace(SMALL, max_model_len=64)
    ours, engine = run(model_of("mistral", sliding_window=None), config)
    assert type(engine.engine_core.kv_cache_manager) is KVCacheManager
    raw = {k: v for k, v in MISTRAL.items() if k != "sliding_window"}
    llama = read_config(raw | {"architectures": ["LlamaForCausalLM"]})
    assert run(LlamaForCausalLM(llama, random_weights(llama)), config)[0] == ours
