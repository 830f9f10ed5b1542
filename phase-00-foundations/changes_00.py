"""What the exercises that change the engine measure: run it before the change, and after it.

python phase-00-foundations/changes_00.py {keys,passes,answers}
"""

from __future__ import annotations

import sys

import numpy as np
from napkin import greedy, key, run, tokens_per_pass
from numpy.typing import NDArray

from mini_vllm import LLMEngine
from mini_vllm.attention import tiled
from mini_vllm.attention.backend import Array

PROMPTS = (
    "The KV cache",
    "A block table",
    "Why does it wait",
    "One step",
    "A scheduler",
    "The queue",
    "A prompt",
    "Attention",
)


def keys() -> None:
    """The key of the `e` of `cache`, without and with three bytes more behind it."""
    engine = LLMEngine()
    assert engine.tokenizer is not None
    ids = engine.tokenizer.encode("The KV cache")
    _, short = run(ids, engine)
    _, longer = run([*ids, 40, 112, 119], engine)
    for layer in range(len(short)):
        print(f"layer {layer}:", key(short, 12, layer)[:2], key(longer, 12, layer)[:2])


def passes() -> None:
    """The tokens of each pass, for an answer of 64 tokens."""
    each = tokens_per_pass("The KV cache", 64)
    print(f"{len(each)} passes, {sum(each):,} tokens through the model; the last pass {each[-1]}")


def store(key: Array, value: Array, kv_cache: Array, slot_mapping: NDArray[np.int64]) -> None:
    """`reshape_and_cache` as it is without a change."""
    block_id, offset = np.divmod(slot_mapping, kv_cache.shape[1])
    kv_cache[block_id, offset, 0] = key
    kv_cache[block_id, offset, 1] = value


def answers() -> None:
    """Eight answers of 64 tokens: how many tokens of each come before the first that differs."""
    texts = []
    for stored in (tiled.reshape_and_cache, store):
        tiled.reshape_and_cache = stored
        last = [list(LLMEngine().stream(prompt, greedy(64)))[-1] for prompt in PROMPTS]
        texts.append([output.outputs[0].token_ids for output in last])
    same = [next((i for i in range(64) if a[i] != b[i]), 64) for a, b in zip(*texts, strict=True)]
    print("the same tokens:", *same)


if __name__ == "__main__":
    {"keys": keys, "passes": passes, "answers": answers}[sys.argv[1]]()
