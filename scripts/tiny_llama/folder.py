"""The files of a Hugging Face checkpoint folder around the weights: configuration and tokenizer.

Vocabulary, 264 entries: ids 0 to 7 are the special tokens, id 8 + b is byte b. `tokenizer.json`
says so as a BPE model without merges over the printable byte alphabet of GPT-2, which is how the
Hugging Face libraries spell a byte-level tokenizer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SPECIALS = (
    "<pad>",
    "<bos>",
    "<eos>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<reserved_0>",
    "<reserved_1>",
)
PAD, BOS, EOS, USER, ASSISTANT, SYSTEM = range(6)
ROLES = {"user": USER, "assistant": ASSISTANT, "system": SYSTEM}
FIRST_BYTE = len(SPECIALS)
CHAT_TEMPLATE = (
    "{{ '<bos>' }}{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role: ' + message['role']) }}{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ '<eos>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": FIRST_BYTE + 256,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
    "use_cache": True,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "torch_dtype": "float32",
}


def byte_alphabet() -> list[str]:
    """The printable character that stands for each of the 256 bytes, as in GPT-2.

    Bytes that print as themselves in Latin-1 stay; the others, in order, take the characters
    from U+0100 on.
    """
    keeps = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(b) if b in keeps else chr(next(spare)) for b in range(256)]


def tokenizer_json() -> dict[str, Any]:
    """The content of `tokenizer.json`."""
    vocab = {text: i for i, text in enumerate(SPECIALS)}
    vocab |= {char: FIRST_BYTE + b for b, char in enumerate(byte_alphabet())}
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    bos = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": i,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for i, text in enumerate(SPECIALS)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [
                bos,
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [BOS], "tokens": ["<bos>"]}},
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [],
        },
    }


def write_files(folder: Path) -> None:
    """Write every file of the checkpoint but the weights and the log into `folder`."""
    tokens = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    files: dict[str, Any] = {
        "config.json": CONFIG,
        "generation_config.json": {
            "bos_token_id": BOS,
            "eos_token_id": EOS,
            "pad_token_id": PAD,
        },
        "tokenizer.json": tokenizer_json(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": CONFIG["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
            **tokens,
            "chat_template": CHAT_TEMPLATE,
        },
        "special_tokens_map.json": tokens,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (folder / name).write_text(text + "\n", encoding="utf-8")
