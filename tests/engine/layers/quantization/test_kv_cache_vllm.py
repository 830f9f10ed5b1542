"""The KV cache in 8 bits, beside real vLLM: blocks, bytes of a page, tokens, and a kernel's bytes.

vLLM's CPU build cuts what it writes in FP8 toward zero; a GPU rounds, and so does `mini_vllm`. So
tokens are held equal over a cache that cuts, and are seen to differ over one that rounds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.config.cache import KV_CACHE_DTYPES
from mini_vllm.config.model import LlamaConfig
from mini_vllm.layers.quantization import kv_cache
from mini_vllm.layers.quantization.kv_cache import FORMATS, PerTensor, page_size_bytes
from tests.engine.helpers.quantization.kv_cache_vllm import BYTES, NUM_TOKENS, PROMPTS, SHAPES
from tests.engine.helpers.real_vllm.vllm_helpers import NO_FP8_CACHE, output_of

HELPERS = Path(__file__).parents[2] / "helpers" / "quantization"


class Cut(PerTensor):
    """As vLLM's CPU kernel writes FP8: the next number toward zero."""

    def encode(self, x: np.ndarray, scale: float) -> np.ndarray:
        x = x / np.float32(scale)
        codes = self.fmt.encode(x)
        too_large = np.abs(self.fmt.decode(codes)) > np.abs(x)
        return codes - too_large.astype(np.uint8)  # the code before has the same sign


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One process of vLLM's for all tests of this file."""
    folder = tmp_path_factory.mktemp("kv") / "scaled"
    text = output_of(
        HELPERS / "kv_cache_vllm.py", folder,
        VLLM_ENABLE_V1_MULTIPROCESSING="0", TORCH_COMPILE_DISABLE="1",
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return answer | {"folder": folder}


def ours(**settings: Any) -> tuple[int, list[list[int]], list[float]]:
    """Blocks, greedy tokens, sums of logprobs."""
    llm = LLM(
        block_size=32, kv_cache_memory_bytes=BYTES, max_num_seqs=16, enable_prefix_caching=False, **settings
    )  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=1)
    outputs = [output.outputs[0] for output in llm.generate(PROMPTS, params, use_tqdm=False)]
    blocks = llm.llm_engine.config.num_gpu_blocks
    assert blocks is not None
    sums = [output.cumulative_logprob or 0.0 for output in outputs]
    return blocks, [list(output.token_ids) for output in outputs], sums


@pytest.mark.vllm
@pytest.mark.parametrize("kind", KV_CACHE_DTYPES)
def test_a_page_has_vllms_bytes(theirs: dict[str, Any], kind: str) -> None:
    """Of the class that its engine asks, `FullAttentionSpec`, the per-token-head kinds included."""
    for (block, heads, size, layers), want in zip(SHAPES, theirs["pages"][kind], strict=True):
        model = LlamaConfig(
            vocab_size=8, hidden_size=heads * size, intermediate_size=8, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=heads, head_dim=size,
            max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=True, eos_token_ids=(2,),
        )  # fmt: skip
        assert page_size_bytes(model, block, kind) == want, (
            f"{kind}, {block} tokens, {heads} x {size}"
        )


@pytest.mark.vllm
@pytest.mark.parametrize("kind", ["auto", "fp8", "fp8_e5m2", "scaled"])
def test_blocks_and_tokens(
    theirs: dict[str, Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut toward zero, every token and logprob is vLLM's; rounded, they are others. `scaled`: a checkpoint
    that turns the cache on and brings its scales."""
    if kind not in theirs:
        pytest.skip(NO_FP8_CACHE)
    settings = {"model": theirs["folder"]} if kind == "scaled" else {"kv_cache_dtype": kind}
    want = theirs[kind]
    blocks, rounded, sums = ours(**settings)
    assert blocks == want["num_gpu_blocks"]
    if kind == "auto":
        assert rounded == want["tokens"]
        assert np.allclose(sums, want["logprobs"], atol=2e-3)
        return
    name = "fp8" if kind == "scaled" else kind
    monkeypatch.setitem(FORMATS, name, Cut(FORMATS[name].fmt))  # type: ignore[arg-type]
    blocks, cut, sums = ours(**settings)
    assert blocks == want["num_gpu_blocks"]
    assert cut == want["tokens"]
    assert np.allclose(sums, want["logprobs"], atol=2e-2)
    assert rounded != want["tokens"], "the CPU build rounds now: UPSTREAM_PIN.md says that it cuts"


@pytest.mark.vllm
@pytest.mark.triton
def test_integers_and_scales_are_the_kernels() -> None:
    """`int8_per_token_head`, bit for bit: the kernel stores a float into an int8 tensor, which cuts."""
    answer = json.loads(output_of(HELPERS / "per_token_head.py").strip().splitlines()[-1])
    for i, name in enumerate(("key", "value")):
        x = np.array(answer[name], np.float32)
        data = FORMATS["int8_per_token_head"].encode(x, 1.0)
        assert np.array_equal(data[..., :-4].view(np.int8), answer["stored"][i]), name
        scales = np.ascontiguousarray(data[..., -4:]).view(np.float32)
        assert np.array_equal(scales, np.array(answer["stored"][2 + i], np.float32)), name
        assert (scales >= kv_cache.SMALLEST_SCALE).all()
