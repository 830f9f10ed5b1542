"""What a KV cache in 8 bits costs the shipped model, and what it saves.

    python phase-06-quantization/labs/lab-06-fp8-and-fp4-by-bits/caches.py

Perplexity of texts that the model was never trained on, through mini_vllm's engine: each text is a prompt,
and each of its tokens but the first is scored. The rows in brackets have the same format and round
otherwise: `cut` goes toward zero, as vLLM's CPU build on x86 writes FP8; `rounded` goes to the nearest
integer, where vLLM's GPU kernel goes toward zero.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import numpy as np

from mini_vllm import LLM, SamplingParams
from mini_vllm.compress.evaluate import HELD_OUT, load_documents
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.layers.quantization.kv_cache import FORMATS, PerTensor, PerTokenHead, page_size_bytes

KINDS = ("auto", "fp8", "fp8_e5m2", "int8_per_token_head", "fp8_per_token_head")


class Cut(PerTensor):
    """The next number toward zero."""

    def encode(self, x: np.ndarray, scale: float) -> np.ndarray:
        x = x / np.float32(scale)
        codes = self.fmt.encode(x)
        return codes - (np.abs(self.fmt.decode(codes)) > np.abs(x)).astype(np.uint8)


class Rounded(PerTokenHead):
    """Integers, half to even."""

    def encode(self, x: np.ndarray, scale: float) -> np.ndarray:
        own = np.maximum(np.abs(x).max(axis=-1, keepdims=True) / self.largest, np.float32(1e-6))
        codes = np.rint(x / own).astype(np.int8).view(np.uint8)
        return np.concatenate([codes, own.view(np.uint8)], axis=-1)


def measure(kind: str, documents: Sequence[list[int]]) -> tuple[LLM, np.ndarray, np.ndarray]:
    """The engine; of each scored token its log probability, and whether it is the likeliest."""
    llm = LLM(kv_cache_dtype=kind, enable_prefix_caching=False)
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=1)
    prompts = [{"prompt_token_ids": ids} for ids in documents]
    found, first = [], []
    for output, ids in zip(llm.generate(prompts, params, use_tqdm=False), documents, strict=True):
        assert output.prompt_logprobs is not None
        for token, scores in zip(ids[1:], output.prompt_logprobs[1:], strict=True):
            assert scores is not None
            found.append(scores[token].logprob)
            first.append(max(scores, key=lambda t: scores[t].logprob))
    return llm, np.array(found), np.array(first)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--documents", type=int, metavar="N", help="only the first N texts")
    limit = parser.parse_args().documents
    documents = load_documents(HELD_OUT, DEFAULT_MODEL, limit)
    print(f"{len(documents)} texts, {sum(map(len, documents)):,} tokens")
    heads = ("bytes a token", "perplexity", "against auto", "same first")
    print("kv_cache_dtype        {:>14}{:>12}{:>14}{:>12}".format(*heads))
    rows = [(kind, kind, None) for kind in KINDS]
    others = [
        ("(fp8, cut)", "fp8", Cut(FORMATS["fp8"].fmt)),  # type: ignore[arg-type]
        ("(fp8_e5m2, cut)", "fp8_e5m2", Cut(FORMATS["fp8_e5m2"].fmt)),  # type: ignore[arg-type]
        ("(int8, rounded)", "int8_per_token_head", Rounded(None)),
    ]
    plain, best = math.nan, np.empty(0)
    for name, kind, codec in [*rows, *others]:
        usual = FORMATS.get(kind)
        if codec is not None:
            FORMATS[kind] = codec
        llm, logprobs, first = measure(kind, documents)
        if codec is not None and usual is not None:
            FORMATS[kind] = usual
        perplexity = math.exp(-logprobs.mean())
        if kind == "auto":
            plain, best = perplexity, first
        model = llm.llm_engine.model.config
        per_token = page_size_bytes(model, 1, kind)
        print(
            f"{name:<22}{per_token:>14,}{perplexity:>12.4f}{perplexity / plain - 1:>+14.3%}"
            f"{(first == best).mean():>12.2%}"
        )


if __name__ == "__main__":
    main()
