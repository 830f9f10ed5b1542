"""`config.json` of published models: every key as its file has it, the sizes tiny, the weights random.

`PUBLISHED` are served, and give vLLM's tokens (`test_published_configs.py`); `REFUSED` are refused by a
sentence that holds the words given here. A key that only says who made the file (`_name_or_path`,
`transformers_version`, `auto_map`) is left out.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.models.registry import read_config
from tests.engine.helpers.models.model_helpers import random_weights, write_safetensors

Config = dict[str, Any]

LLAMA: Config = {
    "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "initializer_range": 0.02, "max_position_embeddings": 4096, "model_type": "llama", "pretraining_tp": 1,
    "num_attention_heads": 32, "num_key_value_heads": 32, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "tie_word_embeddings": False, "torch_dtype": "float16", "use_cache": True,
}  # fmt: skip
LLAMA3: Config = LLAMA | {
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": 128001,
    "max_position_embeddings": 8192, "num_key_value_heads": 8, "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
}  # fmt: skip
LLAMA31: Config = LLAMA3 | {
    "eos_token_id": [128001, 128008, 128009], "max_position_embeddings": 131072, "mlp_bias": False,
    "rope_scaling": {
        "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3",
    },
}  # fmt: skip
QWEN2: Config = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "hidden_act": "silu", "initializer_range": 0.02, "max_position_embeddings": 32768,
    "max_window_layers": 28, "model_type": "qwen2", "num_attention_heads": 28, "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False,
}  # fmt: skip
QWEN3: Config = QWEN2 | {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "head_dim": 128,
    "max_position_embeddings": 40960, "model_type": "qwen3", "num_attention_heads": 16,
    "num_key_value_heads": 8, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
    "tie_word_embeddings": True,
}  # fmt: skip
QWEN_YARN: Config = {"factor": 4.0, "original_max_position_embeddings": 32768}
MISTRAL: Config = {
    "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "initializer_range": 0.02, "max_position_embeddings": 32768, "model_type": "mistral",
    "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
    "sliding_window": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
}  # fmt: skip
GEMMA: Config = {
    "architectures": ["GemmaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 2,
    "eos_token_id": 1, "head_dim": 256, "hidden_act": "gelu", "initializer_range": 0.02,
    "max_position_embeddings": 8192, "model_type": "gemma", "num_attention_heads": 16,
    "num_key_value_heads": 16, "pad_token_id": 0, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 10000.0, "torch_dtype": "bfloat16", "use_cache": True,
}  # fmt: skip
GEMMA2: Config = GEMMA | {
    "architectures": ["Gemma2ForCausalLM"], "attn_logit_softcapping": 50.0, "cache_implementation": "hybrid",
    "final_logit_softcapping": 30.0, "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh", "model_type": "gemma2", "num_attention_heads": 8,
    "num_key_value_heads": 4, "num_hidden_layers": 4, "query_pre_attn_scalar": 256, "sliding_window": 4096,
}  # fmt: skip
GEMMA3: Config = {
    "architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "attn_logit_softcapping": None, "bos_token_id": 2, "cache_implementation": "hybrid",
    "eos_token_id": [1, 106],
    "final_logit_softcapping": None, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
    "initializer_range": 0.02, "max_position_embeddings": 32768, "model_type": "gemma3_text",
    "num_attention_heads": 4, "num_hidden_layers": 6, "num_key_value_heads": 1, "pad_token_id": 0,
    "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": None,
    "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6, "torch_dtype": "bfloat16",
    "use_cache": True,
}  # fmt: skip
PHI3: Config = {
    "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 1,
    "embd_pdrop": 0.0, "eos_token_id": 32000, "hidden_act": "silu", "initializer_range": 0.02,
    "max_position_embeddings": 4096, "model_type": "phi3", "num_attention_heads": 32,
    "num_key_value_heads": 32, "original_max_position_embeddings": 4096, "pad_token_id": 32000,
    "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000.0,
    "sliding_window": 2047, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
}  # fmt: skip


def longrope(pairs: int = 16) -> Config:
    """`rope_scaling` of a Phi 3 for long texts: a factor for each pair, as many as a tiny head has."""
    return {
        "long_factor": [1.0 + 2.5 * i for i in range(pairs)],
        "short_factor": [1.0 + 0.1 * i for i in range(pairs)],
        "type": "longrope",
    }


PUBLISHED: dict[str, Config] = {
    "LLaMA-7B": {
        "architectures": ["LLaMAForCausalLM"], "bos_token_id": 0, "eos_token_id": 1, "hidden_act": "silu",
        "initializer_range": 0.02, "max_sequence_length": 2048, "model_type": "llama",
        "num_attention_heads": 32, "pad_token_id": -1, "rms_norm_eps": 1e-06, "torch_dtype": "float16",
        "use_cache": True,
    },
    "OpenLLaMA-3B": {k: v for k, v in LLAMA.items() if k not in ("num_key_value_heads", "rope_scaling")}
    | {"max_position_embeddings": 2048, "rms_norm_eps": 1e-06},
    "Llama-2-7b": LLAMA,
    "Llama-2-70b": LLAMA | {"num_attention_heads": 64, "num_key_value_heads": 8},
    "CodeLlama-7b": LLAMA | {"max_position_embeddings": 16384, "rope_theta": 1000000},
    "vicuna-7b-v1.5-16k": LLAMA | {"max_sequence_length": 16384, "pad_token_id": 0,
                                   "rope_scaling": {"factor": 4.0, "type": "linear"}},
    "Yarn-Llama-2-7b-64k": LLAMA | {
        "max_position_embeddings": 65536,
        "rope_scaling": {
            "factor": 16.0, "finetuned": True, "original_max_position_embeddings": 4096, "type": "yarn",
        },
    },
    "a Llama 2 with dynamic NTK": LLAMA | {"rope_scaling": {"factor": 2.0, "type": "dynamic"}},
    "Meta-Llama-3-8B": LLAMA3,
    "Llama-3.1-8B": LLAMA31,
    "Llama-3.2-1B": LLAMA31 | {
        "head_dim": 64, "rope_scaling": LLAMA31["rope_scaling"] | {"factor": 32.0},
        "tie_word_embeddings": True,
    },
    "Llama-3.3-70B-Instruct": LLAMA31 | {"head_dim": 128, "num_attention_heads": 64},
    "TinyLlama-1.1B": LLAMA | {"max_position_embeddings": 2048, "num_key_value_heads": 4,
                               "attention_bias": False, "rope_theta": 10000.0},
    "SmolLM-135M": LLAMA | {
        "attention_bias": False, "bos_token_id": 0, "eos_token_id": 0, "max_position_embeddings": 2048,
        "num_attention_heads": 9, "num_key_value_heads": 3, "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    },
    "SmolLM2-135M": LLAMA | {
        "bos_token_id": 1, "is_llama_config": True, "max_position_embeddings": 8192, "mlp_bias": False,
        "num_attention_heads": 9, "num_key_value_heads": 3, "pad_token_id": 2, "rope_interleaved": False,
        "rope_theta": 100000, "tie_word_embeddings": True,
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
    },
    "Yi-6B": LLAMA | {"num_key_value_heads": 4, "pad_token_id": 0, "rope_theta": 5000000.0},
    "SOLAR-10.7B": LLAMA | {"num_key_value_heads": 8, "rope_theta": 10000.0},
    "deepseek-llm-7b": LLAMA | {"bos_token_id": 100000, "eos_token_id": 100001, "rms_norm_eps": 1e-06},
    "deepseek-coder-6.7b": LLAMA | {
        "bos_token_id": 32013, "eos_token_id": 32014, "max_position_embeddings": 16384, "rms_norm_eps": 1e-06,
        "rope_scaling": {"factor": 4.0, "type": "linear"}, "rope_theta": 100000, "torch_dtype": "bfloat16",
    },
    "DeepSeek-R1-Distill-Llama-8B": LLAMA31 | {"eos_token_id": 128001},
    "a Llama with a window": LLAMA | {"sliding_window": 4096},
    "a Llama without architectures": {k: v for k, v in LLAMA3.items() if k != "architectures"},
    "Qwen1.5-0.5B": QWEN2 | {
        "eos_token_id": 151643, "max_window_layers": 21, "num_attention_heads": 16, "num_key_value_heads": 16,
        "sliding_window": 32768, "tie_word_embeddings": True,
    },
    "Qwen2-7B": QWEN2 | {"eos_token_id": 151643, "max_position_embeddings": 131072},
    "Qwen2.5-7B-Instruct": QWEN2,
    "Qwen2.5-7B-Instruct, long": QWEN2 | {"rope_scaling": QWEN_YARN | {"type": "yarn"}},
    "DeepSeek-R1-Distill-Qwen-1.5B": QWEN2 | {
        "eos_token_id": 151643, "max_position_embeddings": 131072, "max_window_layers": 21,
        "rope_theta": 10000, "sliding_window": 4096, "use_mrope": False,
    },
    "Qwen3-0.6B": QWEN3,
    "Qwen3-8B, long": QWEN3 | {"rope_scaling": QWEN_YARN | {"rope_type": "yarn"},
        "tie_word_embeddings": False},
    "Qwen1.5-MoE-A2.7B": QWEN2 | {
        "architectures": ["Qwen2MoeForCausalLM"], "decoder_sparse_step": 1, "eos_token_id": 151643,
        "max_position_embeddings": 8192, "model_type": "qwen2_moe", "moe_intermediate_size": 1408,
        "norm_topk_prob": False, "num_attention_heads": 16, "num_experts": 60, "num_experts_per_tok": 4,
        "num_key_value_heads": 16, "output_router_logits": False, "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 5632, "sliding_window": 32768,
    },
    "Qwen3-30B-A3B": QWEN3 | {
        "architectures": ["Qwen3MoeForCausalLM"], "decoder_sparse_step": 1, "mlp_only_layers": [],
        "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": True,
        "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_key_value_heads": 4,
        "output_router_logits": False, "router_aux_loss_coef": 0.001, "tie_word_embeddings": False,
    },
    "Mistral-7B-v0.1": MISTRAL,
    "Mistral-7B-Instruct-v0.2": MISTRAL | {"rope_theta": 1000000.0, "sliding_window": None},
    "Mistral-7B-Instruct-v0.3": MISTRAL | {"rope_theta": 1000000.0, "sliding_window": None,
        "vocab_size": 32768},
    "Mistral-Nemo-2407": MISTRAL | {
        "head_dim": 128, "max_position_embeddings": 131072, "rope_theta": 1000000.0, "sliding_window": None,
    },
    "Mistral-Small-24B": MISTRAL | {
        "attention_dropout": 0.0, "head_dim": 128, "rope_theta": 100000000.0, "sliding_window": None,
    },
    "zephyr-7b-beta": MISTRAL | {"pad_token_id": 2, "use_cache": True},
    "Mixtral-8x7B": MISTRAL | {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_experts_per_tok": 2,
        "num_local_experts": 8, "output_router_logits": False, "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.02, "sliding_window": None,
    },
    "gemma-2b": GEMMA | {"num_attention_heads": 8, "num_key_value_heads": 1},
    "gemma-7b": GEMMA,
    "gemma-1.1-7b": GEMMA | {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"},
    "gemma-2-2b": GEMMA2,
    "gemma-2-27b": GEMMA2 | {
        "head_dim": 128, "num_attention_heads": 32, "num_key_value_heads": 16, "query_pre_attn_scalar": 144,
        "_attn_implementation": "eager",
    },
    "gemma-3-1b-it": GEMMA3,
    "gemma-3-270m": GEMMA3 | {
        "_sliding_window_pattern": 6, "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "rope_local_base_freq": 10000.0, "rope_theta": 1000000.0, "use_bidirectional_attention": False,
    },
    "Phi-3-mini-4k": PHI3,
    "Phi-3-mini-128k": PHI3 | {
        "max_position_embeddings": 131072, "rope_scaling": longrope(), "sliding_window": 262144,
    },
    "Phi-3.5-mini": PHI3 | {
        "max_position_embeddings": 131072, "rope_scaling": longrope(), "sliding_window": 262144,
    },
    "Phi-4-mini": PHI3 | {
        "bos_token_id": 199999, "eos_token_id": 199999, "full_attn_mod": 1, "interpolate_factor": 1,
        "lm_head_bias": False, "max_position_embeddings": 131072, "mlp_bias": False,
        "num_attention_heads": 24, "num_key_value_heads": 8, "pad_token_id": 199999,
        "partial_rotary_factor": 0.75, "rope_scaling": longrope(12), "sliding_window": 262144,
        "tie_word_embeddings": True,
    },
    "phi-4": PHI3 | {
        "bos_token_id": 100257, "eos_token_id": 100257, "max_position_embeddings": 16384,
        "num_attention_heads": 40, "num_key_value_heads": 10, "original_max_position_embeddings": 16384,
        "pad_token_id": 100257, "rope_theta": 250000, "sliding_window": None,
    },
}  # fmt: skip

REFUSED: dict[str, tuple[Config, tuple[str, ...]]] = {
    "internlm-7b": (
        LLAMA | {"architectures": ["InternLMForCausalLM"], "bias": True, "model_type": "internlm"},
        ("architectures", "InternLMForCausalLM"),
    ),
    "internlm2-7b": (
        LLAMA
        | {"architectures": ["InternLM2ForCausalLM"], "bias": False, "model_type": "internlm2"},
        ("architectures", "InternLM2ForCausalLM"),
    ),
    "DeepSeek-V2-Lite": (
        LLAMA
        | {
            "architectures": ["DeepseekV2ForCausalLM"],
            "kv_lora_rank": 512,
            "model_type": "deepseek_v2",
        },
        ("architectures", "DeepseekV2ForCausalLM"),
    ),
    "phi-2": (
        LLAMA
        | {"architectures": ["PhiForCausalLM"], "model_type": "phi", "partial_rotary_factor": 0.4},
        ("architectures", "PhiForCausalLM"),
    ),
    "gemma-3-4b-it": (
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "text_config": GEMMA3,
        },
        ("architectures", "Gemma3ForConditionalGeneration"),
    ),
    "Qwen2-57B-A14B with windows": (
        QWEN2 | {"use_sliding_window": True},
        ("use_sliding_window", "Qwen2ForCausalLM"),
    ),
    "a Qwen 1": (
        {"architectures": ["QWenLMHeadModel"], "model_type": "qwen", "rotary_pct": 1.0},
        ("architectures", "QWenLMHeadModel"),
    ),
    "a file without architectures, of another kind": (
        {"model_type": "falcon"},
        ("architectures", "model_type", "falcon"),
    ),
}


def make_tiny(config: Config) -> Config:
    """The same file for a model of a few thousand weights: heads keep their grouping, windows are of 24."""
    tiny = dict(config)
    heads = config.get("num_attention_heads", 32)
    kv_heads = config.get("num_key_value_heads", heads)
    tiny |= {
        "vocab_size": 264, "hidden_size": 128, "intermediate_size": 96,
        "num_hidden_layers": min(config.get("num_hidden_layers", 2), 6),
        "num_attention_heads": 6 if heads % 9 == 0 else 4,
    }  # fmt: skip
    if tiny["num_attention_heads"] == 6:
        tiny["hidden_size"] = 192
    if "num_key_value_heads" in config:
        tiny["num_key_value_heads"] = (
            tiny["num_attention_heads"] if kv_heads == heads else 1 if kv_heads == 1 else 2
        )
    if "head_dim" in config:
        tiny["head_dim"] = 32
    if (config.get("sliding_window") or 0) <= 32768 and config.get("sliding_window"):
        tiny["sliding_window"] = 24
    # 64: with AVX-512, vLLM's grouped kernel for CPUs ends the process where twice this is no multiple of 64.
    for name, size in (("moe_intermediate_size", 64), ("shared_expert_intermediate_size", 80)):
        if name in config:
            tiny[name] = size
    if config.get("num_experts", 0) > 16:
        tiny["num_experts"] = 16
    return tiny


def write_tiny(config: Config, folder: Path, seed: int = 0) -> Path:
    """A checkpoint of `make_tiny(config)` in float32, with the shipped model's tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny = make_tiny(config)
    (folder / "config.json").write_text(json.dumps(tiny), encoding="utf-8")
    gemma = "gemma" in tiny["model_type"]
    tensors = {}
    for name, array in random_weights(read_config(tiny), seed).items():
        if gemma and "norm" in name:  # stored as what is more than 1
            array = array - np.float32(1)
        if gemma and "embed" in name:  # times the root of its size, and the layers should be heard
            array = array * np.float32(0.2)
        tensors[name] = ("F32", np.ascontiguousarray(array))
    write_safetensors(folder / "model.safetensors", tensors)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEFAULT_MODEL / name, folder / name)
    return folder
