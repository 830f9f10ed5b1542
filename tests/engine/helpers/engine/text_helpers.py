"""A byte-level tokenizer and a random model that speaks it, for tests of text.

The random model's greedy output is a stream of arbitrary bytes: multi-byte characters, broken ones,
control characters. What must hold for text, must hold for that.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm.config.engine import EngineConfig
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.model_loader import LlamaConfig, expected_tensors
from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.tokenizer import Tokenizer
from tests.engine.helpers.engine.engine_helpers import SMALL, random_model

SPECIALS = ("<pad>", "<bos>", "<eos>", "<|user|>", "<|assistant|>", "<|system|>", "<r0>", "<r1>")
BOS, EOS, FIRST_BYTE = 1, 2, 8
VOCAB = FIRST_BYTE + 256
BYTES = replace(SMALL, vocab_size=VOCAB)
WIDE = replace(
    BYTES, hidden_size=128, intermediate_size=192, head_dim=32, max_position_embeddings=512
)
"""Of a head size that real vLLM's CPU attention has kernels for."""


def tokenizer_data() -> dict[str, Any]:
    """A `tokenizer.json`: the special tokens, then one token a byte, no merges, `<bos>` in front."""
    vocab = {token: i for i, token in enumerate(SPECIALS)}
    # GPT-2's alphabet: a byte that prints stands for itself, the others for what follows U+0100.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    for byte in range(256):
        vocab[chr(byte if byte in printable else next(others))] = FIRST_BYTE + byte
    flags = {"special": True, "normalized": False, "single_word": False}
    bos = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": None,
        "added_tokens": [
            {"id": i, "content": token, "lstrip": False, "rstrip": False, **flags}
            for i, token in enumerate(SPECIALS)
        ],
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [BOS], "tokens": ["<bos>"]}},
        },
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }


@cache
def byte_tokenizer() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        _write_tokenizer(Path(folder))
        return Tokenizer.from_folder(folder)


def _write_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_data()))
    names = {"bos_token": "<bos>", "eos_token": "<eos>"}
    names["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


@cache
def byte_model(seed: int = 0) -> Any:
    """A random model over the byte vocabulary; shared, since engines do not change it."""
    return random_model(seed, BYTES)


def text_engine(**settings: Any) -> LLMEngine:
    """An engine over `byte_model()` that reads and writes text."""
    return LLMEngine(byte_model(), EngineConfig(**settings), tokenizer=byte_tokenizer())


def ids_of(text: str) -> list[int]:
    """The byte tokens of `text`, without `<bos>`."""
    return [FIRST_BYTE + byte for byte in text.encode()]


def finish(engine: LLMEngine) -> dict[str, RequestOutput]:
    """Step to the end; the last output of each request, by id. Checks the block pool each step."""
    last: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        last.update((output.request_id, output) for output in engine.step())
        engine.engine_core.kv_cache_manager.check_invariants()
    return last


def free_blocks(engine: LLMEngine) -> int:
    return engine.engine_core.kv_cache_manager.block_pool.get_num_free_blocks()


def check_no_leak(engine: LLMEngine) -> None:
    """With no request left, every block but the null block is free and nobody is remembered."""
    assert not engine.has_unfinished_requests()
    core = engine.engine_core
    core.kv_cache_manager.check_invariants()
    assert core.config.num_gpu_blocks is not None
    assert free_blocks(engine) == core.config.num_gpu_blocks - 1, "blocks have leaked"
    assert not core.scheduler.requests, "the scheduler remembers a request that has ended"
    assert not engine.output_processor.request_states, "the front end remembers a request"
    assert not engine.output_processor.parent_requests, "the front end remembers a parent"


def write_checkpoint(
    folder: Path, shape: LlamaConfig = BYTES, scale: float = 0.5, **config: Any
) -> Path:
    """Write a byte-level model of random weights as a Hugging Face folder.

    `scale` is the weights' standard deviation. `config` overrides keys of `config.json`; None
    removes one.
    """
    c = shape
    raw: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_hidden_layers,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "max_position_embeddings": c.max_position_embeddings,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_theta,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": BOS,
        "eos_token_id": EOS,
    }
    raw = {key: value for key, value in (raw | config).items() if value is not None}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS}))
    _write_tokenizer(folder)
    rng = np.random.default_rng(7)
    header: dict[str, Any] = {}
    body = b""
    for name, size in expected_tensors(shape).items():
        norm = name.endswith("norm.weight")
        array = np.ones(size) if norm else rng.normal(0, scale, size)
        data = array.astype("<f4").tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(size),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    text = json.dumps({"__metadata__": {"format": "pt"}} | header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + body)
    return folder


def greedy(max_tokens: int, **params: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, **params)


PROMPT = "THE SCHEDULER OF REQUEST "
"""Without lower case: `spelled` needs tokens that are not in the prompt."""


def outputs_of(engine: LLMEngine, prompt: Any, params: SamplingParams) -> list[RequestOutput]:
    """Every output of one request run alone."""
    outputs = list(engine.stream(prompt, params))
    check_no_leak(engine)
    return outputs


def final(params: SamplingParams, prompt: Any = PROMPT, **settings: Any) -> RequestOutput:
    return outputs_of(text_engine(num_gpu_blocks=64, **settings), prompt, params)[-1]


def spelled(text: str, end: int | None = None, then: int = EOS) -> dict[str, Any]:
    """Parameters that make the model say `text` and then token `then`, whatever its weights.

    A repetition penalty walks it through the tokens of `text` in the order of their bias, so each
    may stand there once, and not in the prompt.
    """
    ids = ids_of(text)
    assert len(set(ids)) == len(ids), "each character once, or the order is not forced"
    bias = {token: 4e5 - 1e4 * i for i, token in enumerate(ids[:end])}
    return {"logit_bias": bias | {then: 1e5}, "repetition_penalty": 1e3}
