"""GGUF files of small random models, as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm.model_loader import LlamaConfig
from mini_vllm.tokenizer.byte_level_bpe import BYTE_TO_CHAR
from tests.engine.helpers.models.model_helpers import random_weights

RAW: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 264,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}
SPECIAL = ["<unk>", "<bos>", "<eos>", "<|user|>", "<|assistant|>"]
MERGED = ["th", "the", "\u0120the"]
BYTES = list(BYTE_TO_CHAR.values())
TOKENS = [*SPECIAL, *BYTES, *MERGED]
MERGES = ["t h", "th e", "\u0120 the"]
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_THEIRS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def their_name(name: str) -> str:
    """A tensor's name in a GGUF file."""
    if not name.startswith("model.layers."):
        return {
            "model.embed_tokens.weight": "token_embd.weight",
            "model.norm.weight": "output_norm.weight",
            "lm_head.weight": "output.weight",
        }[name]
    _, _, layer, *middle, last = name.split(".")
    return f"blk.{layer}.{_THEIRS['.'.join(middle)]}.{last}"


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k in llama.cpp's order: of each head, first and second halves by turns."""
    halves = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def make_weights(**changes: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """`config.json` of a small model, and its float32 tensors by Hugging Face's names."""
    raw = RAW | changes
    return raw, random_weights(read_config_of(raw))


def write_gguf(
    path: Path,
    raw: dict[str, Any],
    weights: dict[str, np.ndarray],
    kinds: dict[str, str] | str = "F32",
    *,
    arch: str = "llama",
    fields: dict[str, Any] | None = None,
    more: dict[str, np.ndarray] | None = None,
    vocabulary: bool = True,
) -> None:
    """Write it with the package `gguf`.

    Args:
        kinds: a tensor type for all matrices, or for each by Hugging Face's name. Norms stay float32.
        fields: more fields, or others; None leaves one out.
        more: more tensors, by their name in the file.
    """
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    given: dict[str, Any] = {
        f"{arch}.block_count": raw["num_hidden_layers"],
        f"{arch}.context_length": raw["max_position_embeddings"],
        f"{arch}.embedding_length": raw["hidden_size"],
        f"{arch}.feed_forward_length": raw["intermediate_size"],
        f"{arch}.attention.head_count": raw["num_attention_heads"],
        f"{arch}.attention.head_count_kv": raw["num_key_value_heads"],
        f"{arch}.attention.layer_norm_rms_epsilon": float(raw["rms_norm_eps"]),
        f"{arch}.rope.freq_base": float(raw["rope_theta"]),
    }
    given[f"{arch}.attention.key_length"] = read_config_of(raw).head_dim
    if vocabulary:
        given |= {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": TOKENS,
            "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)),
            "tokenizer.ggml.merges": MERGES,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.add_bos_token": False,
            "tokenizer.chat_template": TEMPLATE,
        }
    given |= fields or {}
    writer = GGUFWriter(str(path), arch)
    for name, value in given.items():
        if value is None or name == "general.architecture":
            continue
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    for name, weight in weights.items():
        if arch == "llama" and ".q_proj." in name:
            weight = permute(weight, raw["num_attention_heads"])
        if arch == "llama" and ".k_proj." in name:
            weight = permute(weight, raw["num_key_value_heads"])
        kind = kinds if isinstance(kinds, str) else kinds.get(name, "F32")
        if weight.ndim == 1:
            kind = "F32"
        data = weight
        if kind == "F16":
            data = weight.astype(np.float16)
        elif kind != "F32":
            data = quantize(weight, GGMLQuantizationType[kind])
        raw_dtype = None if kind in ("F32", "F16") else GGMLQuantizationType[kind]
        writer.add_tensor(their_name(name), data, raw_dtype=raw_dtype)
    for name, data in (more or {}).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_config_of(raw: dict[str, Any]) -> LlamaConfig:
    """The settings that `raw` means."""
    from mini_vllm.models.registry import read_config

    return read_config(raw)


def converted(tmp_path: Path, *args: Any, **more: Any) -> Path:
    """`write_gguf` of these, and the folder that it is converted into."""
    from mini_vllm.model_loader.gguf.convert import convert

    write_gguf(tmp_path / "model.gguf", *args, **more)
    convert(tmp_path / "model.gguf", tmp_path / "model")
    return tmp_path / "model"
