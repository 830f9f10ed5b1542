"""No field of a `config.json` is dropped without a word: the keys that vLLM's models read, and their fate.

The keys are those of the classes whose models run here, of what vLLM makes of any configuration, and of its
`ModelConfig`. `READ` change the numbers here as there. `REFUSED` are refused by name, with a value that vLLM
would obey. `WITHOUT_EFFECT` change nothing there for these models, or what they change is not ours.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from mini_vllm.config.model import CheckpointError
from mini_vllm.models.registry import read_config
from tests.engine.helpers.models.published_configs import (
    GEMMA2,
    GEMMA3,
    LLAMA,
    MISTRAL,
    PHI3,
    QWEN2,
    QWEN3,
)

READ = {
    "architectures", "attention_bias", "attn_logit_softcapping", "bias", "compression_config",
    "decoder_sparse_step", "dtype", "final_logit_softcapping", "head_dim", "hidden_act", "hidden_activation",
    "hidden_size", "intermediate_size", "layer_types", "max_position_embeddings", "mlp_bias",
    "mlp_only_layers", "model_max_length", "model_type", "moe_intermediate_size", "norm_topk_prob",
    "num_attention_heads", "num_experts", "num_experts_per_tok", "num_hidden_layers",
    "num_key_value_heads", "num_local_experts",
    "original_max_position_embeddings", "quantization_config", "query_pre_attn_scalar", "rms_norm_eps",
    "rope_local_base_freq", "rope_parameters", "rope_scaling", "shared_expert_intermediate_size",
    "sliding_window", "tie_word_embeddings", "vocab_size",
}  # fmt: skip
REFUSED: dict[str, list[tuple[dict[str, Any], Any]]] = {
    "ada_rms_norm_t_cond": [(MISTRAL, True)],
    "attention_bias": [(QWEN2, True), (QWEN3, True), (PHI3, True)],
    "attention_chunk_size": [(LLAMA, 8192), (MISTRAL, 8192), (QWEN2, 8192), (GEMMA2, 8192)],
    "bias": [(QWEN2, True), (GEMMA2, True)],
    "dual_chunk_attention_config": [(QWEN2, {"chunk_size": 8}), (QWEN3, {"chunk_size": 8})],
    "is_causal": [(LLAMA, False), (MISTRAL, False), (QWEN2, False), (GEMMA3, False), (PHI3, False)],
    "layer_types": [
        (LLAMA, ["full_attention", "sliding_attention"]),
        (QWEN2, ["sliding_attention"]),
    ],
    "llama_4_scaling": [(MISTRAL, {"beta": 0.1})],
    "logit_scale": [(LLAMA, 0.5), (PHI3, 0.5)],
    "mlp_bias": [(QWEN2, True), (GEMMA2, True)],
    "qk_norm": [(QWEN2, True)],
    "qkv_bias": [(LLAMA, True)],
    "tie_word_embeddings": [(GEMMA2, False), (GEMMA3, False)],
    "use_bidirectional_attention": [(GEMMA2, True), (GEMMA3, True)],
}
WITHOUT_EFFECT = {
    "ada_rms_norm_t_cond_dim": "the size of ada_rms_norm_t_cond, which is refused",
    "target_layer_count": "of a drafter's file; EAGLE heads have settings of their own",
    "max_window_layers": "asked only with use_sliding_window, which is refused",
    "is_mm_prefix_lm": "images",
    "attn_type_list": "models with linear attention",
    "layers_block_type": "models with state spaces",
    "chunk_size": "models with state spaces",
    "mamba_chunk_size": "models with state spaces",
    "is_encoder_decoder": "encoders",
    "position_embedding_type": "encoders",
    "head_dtype": "models that pool",
    "embedding_size": "models that pool",
    "is_matryoshka": "models that pool",
    "matryoshka_dimensions": "models that pool",
    "use_pad_token": "models that pool",
    "use_sep_token": "models that pool",
    "xdrope_section": "images: a file of rope type xdrope is refused",
    "kv_lora_rank": "other architectures", "qk_nope_head_dim": "other architectures",
    "qk_rope_head_dim": "other architectures", "compress_ratios": "other architectures",
    "attention_head_dim": "other architectures", "attn_config": "other architectures",
    "backbone_hidden_size": "other architectures", "block_configs": "other architectures",
    "encoder": "other architectures", "encoder_config": "other architectures",
    "global_head_dim": "other architectures", "hidden_size_per_head": "other architectures",
    "model": "other architectures", "mtp_num_hidden_layers": "other architectures",
    "multi_query": "other architectures", "n_predict": "other architectures",
    "new_decoder_architecture": "other architectures", "num_nextn_predict_layers": "other architectures",
    "text_config": "other architectures", "thinker_config": "other architectures",
    "transf_decoder": "other architectures", "vision_config": "other architectures",
}  # fmt: skip
METHODS = {
    "get", "get_text_config", "standardize_rope_params", "sub_configs", "to_diff_dict", "update",
    "validate_rope",
}  # fmt: skip
"""Of transformers' class, not of the file."""

MODELS = (
    "llama", "mistral", "mixtral", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2",
    "gemma3",
)  # fmt: skip
FILES = [f"model_executor/models/{name}.py" for name in MODELS] + [
    "transformers_utils/model_arch_config_convertor.py", "transformers_utils/config.py", "config/model.py",
]  # fmt: skip
CONFIGS = {
    "config", "hf_config", "hf_text_config", "text_config", "self.config", "self.hf_config",
    "self.hf_text_config", "model_config.hf_config",
}  # fmt: skip


def keys_read(source: str) -> set[str]:
    """Names that a file asks a configuration for: `config.x`, `getattr(config, "x")`, `hasattr`."""
    keys = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            if ast.unparse(node.value) in CONFIGS:
                keys.add(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            asked, name = node.args[:2]
            if ast.unparse(asked) in CONFIGS and isinstance(name, ast.Constant):
                keys.add(name.value)
    return keys


@pytest.mark.vllm
def test_every_key_that_vllm_reads_has_its_place() -> None:
    import vllm

    folder = Path(vllm.__file__).parent
    read = set().union(*(keys_read((folder / file).read_text(encoding="utf-8")) for file in FILES))
    known = READ | REFUSED.keys() | WITHOUT_EFFECT.keys()
    assert read - METHODS - known == set(), "vLLM reads these too"
    assert known - read == set(), "vLLM does not read these"


@pytest.mark.parametrize("key", REFUSED)
def test_what_would_be_dropped_is_refused_by_name(key: str) -> None:
    for config, value in REFUSED[key]:
        with pytest.raises(CheckpointError, match=key):
            read_config(config | {key: value})
