"""The KV cache in 8 bits: what a slot holds, how many blocks there are, and which tokens come out.

What is right is attention without cache and blocks over K and V that were encoded and decoded once.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.attention import AttentionMetadata, OnlineAttention, PagedAttention, TiledAttention
from mini_vllm.config.cache import KV_CACHE_DTYPES
from mini_vllm.engine.parts import DEFAULT_PARTS, EngineParts
from mini_vllm.entrypoints.cli.flags import add_engine_flags, make_config
from mini_vllm.layers.quantization.float_formats import E4M3, E5M2
from mini_vllm.layers.quantization.kv_cache import (
    FORMATS,
    QuantizedAttention,
    QuantizedKVCache,
    make_step,
    page_size_bytes,
)
from tests.engine.helpers.engine.engine_helpers import (
    SMALL,
    engine_over_random_model,
    random_model,
    run,
)
from tests.engine.helpers.engine.workloads import DenseAttention, prompts
from tests.engine.helpers.models.model_helpers import make_step as attention_step
from tests.engine.helpers.quantization.kv_cache_vllm import SCALES, write_scaled
from tests.engine.helpers.thorough import either

KINDS = KV_CACHE_DTYPES[1:]
LEAD = 0.05  # logits: what a K that falls on the other side of a tie may move


class RoundedAttention(DenseAttention):
    """Dense attention over K and V as a cache of this kind gives them back."""

    def __init__(self, kind: str) -> None:
        self.format = FORMATS[kind]

    def forward(self, query: Any, key: Any, value: Any, kv_cache: Any, md: Any) -> np.ndarray:
        key, value = (self.format.decode(self.format.encode(x, 1.0), 1.0) for x in (key, value))
        return super().forward(query, key, value, kv_cache, md)


@functools.cache
def dense_tokens(kind: str, prompt: tuple[int, ...], max_tokens: int) -> list[int]:
    """Greedy tokens, up to the first one that is not well ahead of the next."""
    model = random_model()
    model.attention = RoundedAttention(kind)
    tokens = list(prompt)
    md = AttentionMetadata(np.zeros(1, np.int32), np.zeros(0, np.int32), None, None, 1)  # type: ignore[arg-type]
    while len(tokens) < len(prompt) + max_tokens:
        caches = [np.empty(0, np.float32)] * SMALL.num_hidden_layers
        hidden = model.forward(np.array(tokens), np.arange(len(tokens)), caches, md)
        logits = model.compute_logits(hidden[-1:])[0]
        second, first = np.sort(logits)[-2:]
        if first - second < LEAD:
            break
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


def caches(engine: LLMEngine) -> list[Any]:
    return engine.engine_core.model_runner.kv_caches


@pytest.mark.parametrize("kind", KV_CACHE_DTYPES)
def test_as_many_blocks_as_the_bytes_hold(kind: str) -> None:
    """The arrays are exactly what the blocks were counted as, and one more would not fit."""
    settings = {"kv_cache_memory_bytes": 100_000, "block_size": 4, "max_num_seqs": 256}
    engine = engine_over_random_model(EngineConfig(kv_cache_dtype=kind, **settings), DEFAULT_PARTS)
    blocks = engine.config.num_gpu_blocks
    assert blocks is not None
    page = page_size_bytes(SMALL, 4, kind)
    of_head = {"auto": 4 * 8, "int8_per_token_head": 8 + 4, "fp8_per_token_head": 8 + 4}.get(
        kind, 8
    )
    assert page == 2 * SMALL.num_hidden_layers * 4 * SMALL.num_key_value_heads * of_head
    assert sum(np.asarray(cache).nbytes for cache in caches(engine)) == blocks * page
    assert blocks * page <= 100_000 < (blocks + 1) * page


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inner", [PagedAttention, TiledAttention, OnlineAttention])
def test_any_backend_attends_over_codes(kind: str, inner: Any) -> None:
    """To the bit what it does over a float32 cache of the same rounded numbers; nothing else reaches it."""
    step = attention_step(np.random.default_rng(5), [13, 8, 1, 22], [1, 8, 1, 5])
    old = np.flatnonzero(np.isfinite(step.kv_cache[:, :, 0, 0, 0]))
    past = step.kv_cache.reshape(-1, 2, 2, 8)[old]
    md = step.metadata
    cache = QuantizedKVCache(step.kv_cache.shape, kind, 0.5, 2.0)
    cache.data[:] = 0x7F  # NaN in both FP8 formats
    cache.write(past[:, 0], past[:, 1], old)
    with np.errstate(over="ignore"):  # a float32 scale of such bytes is huge
        attention = QuantizedAttention(inner())
        got = attention.forward(step.query, step.key, step.value, cache, md)

    def rounded(x: np.ndarray, scale: float) -> np.ndarray:
        return FORMATS[kind].decode(FORMATS[kind].encode(x, scale), scale)

    plain = np.full_like(step.kv_cache, np.nan)
    plain.reshape(-1, 2, 2, 8)[old] = np.stack(
        [rounded(past[:, 0], 0.5), rounded(past[:, 1], 2.0)], 1
    )
    step.key, step.value, step.kv_cache = rounded(step.key, 0.5), rounded(step.value, 2.0), plain
    # Bit for bit: the same backend, on a cache of the same shape that holds what the other decodes.
    assert np.array_equal(got, step.run(inner()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_slot_gives_back_what_was_rounded(kind: str) -> None:
    """Each format's error, and 0 for 0; per-token-head scales let numbers of any size through."""
    rng = np.random.default_rng(0)
    key, value = rng.normal(size=(2, 6, 2, 32)).astype(np.float32)
    value[3] *= 10_000
    value[4] = 0
    cache = QuantizedKVCache((3, 4, 2, 2, 32), kind, 0.25, 4.0)
    slots = np.array([0, 5, 6, 7, 11, 2])
    cache.write(key, value, slots)
    back = cache.read(np.arange(3)).reshape(12, 2, 2, 32)[slots]
    assert np.array_equal(back[4, 1], np.zeros((2, 32)))
    if kind.endswith("per_token_head"):
        largest = np.abs(np.stack([key, value], 1)).max(-1, keepdims=True)
        # A number is up to a whole step below its integer, because it is cut; E4M3 has 4 bits of fraction.
        allowed = largest / 127 if kind.startswith("int8") else largest / 16
        assert (np.abs(back - np.stack([key, value], 1)) <= allowed + 1e-6).all()
        return
    fmt = E5M2 if kind == "fp8_e5m2" else E4M3
    assert np.array_equal(back[:, 0], fmt.decode(fmt.encode(key / 0.25)) * np.float32(0.25))
    cut = np.clip(value, -4 * fmt.max, 4 * fmt.max)
    assert np.array_equal(back[:, 1], fmt.decode(fmt.encode(cut / 4)) * np.float32(4))
    assert np.abs(back[3, 1]).max() == (4 * 448 if fmt is E4M3 else np.abs(back[3, 1]).max())


def test_integers_are_cut_as_in_vllms_kernel() -> None:
    """127 steps up to the largest; 1.9 steps are 1, and -1.9 are -1."""
    key = np.array([[[127.0, 1.9, -1.9, 0.4]]], np.float32)
    cache = QuantizedKVCache((1, 1, 2, 1, 4), "int8_per_token_head")
    cache.write(key, key, np.array([0]))
    assert cache.data[0, 0, 0, 0, :4].view(np.int8).tolist() == [127, 1, -1, 0]
    assert cache.data[0, 0, 0, 0, 4:].view(np.float32).tolist() == [1.0]


SITUATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunks": {"max_num_batched_tokens": 8, "max_num_seqs": 8},
    "a small pool": {"num_gpu_blocks": 11},
    "no caching": {"num_gpu_blocks": 11, "enable_prefix_caching": False},
    "full graphs": {"num_gpu_blocks": 11, "cudagraph_mode": "FULL"},
    "pieces": {"cudagraph_mode": "PIECEWISE"},
    "ahead": {"num_gpu_blocks": 11, "async_scheduling": True},
}


CASES = either(
    [("fp8", "a small pool"), ("int8_per_token_head", "full graphs"), ("fp8_e5m2", "ahead")],
    [(kind, name) for kind in KINDS for name in SITUATIONS],
)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_tokens_are_those_of_rounded_keys_and_values(kind: str, name: str) -> None:
    """Shared prefixes, preemption, graphs: over a cache of codes they change no token either."""
    settings = {"block_size": 4, "num_gpu_blocks": 60, "max_num_seqs": 8} | SITUATIONS[name]
    engine = engine_over_random_model(EngineConfig(kv_cache_dtype=kind, **settings), EngineParts())
    first, second = prompts(3, 9, 8)
    asked = [[*first, *more] for more in prompts(4, 5, 7)] + [second, first]
    want = [dense_tokens(kind, tuple(prompt), 10) for prompt in asked]
    other = "fp8" if kind == "fp8_e5m2" else "fp8_e5m2"
    assert sum(map(len, want)) > 15, f"too many near ties to tell anything: {want}"
    assert want != [dense_tokens(other, tuple(p), 10) for p in asked], (
        "no token tells the formats apart"
    )
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    for again in (False, True):  # the second time prefixes are found
        got = run(engine, asked, params, check=True)
        for prompt, mine, right in zip(asked, got, want, strict=True):
            assert mine[: len(right)] == right, f"{name}, again={again}, prompt {prompt}"


def test_the_small_pool_preempts() -> None:
    """Or the test above would say nothing about preemption."""
    config = EngineConfig(
        kv_cache_dtype="fp8",
        block_size=4,
        num_gpu_blocks=11,
        max_num_seqs=8,
        enable_prefix_caching=False,
    )
    engine = engine_over_random_model(config, DEFAULT_PARTS)
    seen = []
    engine.engine_core.step_observers.append(
        lambda record: seen.extend(record.scheduler_output.preempted_req_ids)
    )
    run(
        engine,
        prompts(3, 9, 8, 12),
        SamplingParams(temperature=0, max_tokens=10, ignore_eos=True),
    )
    assert seen


def test_a_block_is_decoded_once() -> None:
    """Two requests that share a block, and whatever stands behind a request's last one in the table."""
    md = AttentionMetadata(
        np.array([0, 1, 2], np.int32), np.array([9, 5], np.int32),
        np.array([[7, 3, 5], [7, 2, 9]], np.int32), np.zeros(2, np.int64), 4,
    )  # fmt: skip
    step = make_step(md)
    assert step.block_ids.tolist() == [2, 3, 5, 7], "9 is behind the end of a request of 5 tokens"
    assert step.attn_metadata.block_table[0].tolist() == [3, 1, 2]
    assert step.attn_metadata.block_table[1, :2].tolist() == [3, 0]
    assert len(step.attn_metadata.slot_mapping) == 0, "inner attention writes nothing"


def test_one_model_over_two_caches() -> None:
    """An engine with a small cache leaves the model that it was given as it was."""
    model = random_model()
    attention = model.attention
    small = LLMEngine(model, EngineConfig(kv_cache_dtype="fp8", num_gpu_blocks=20, block_size=4))
    plain = LLMEngine(model, EngineConfig(num_gpu_blocks=20, block_size=4))
    assert model.attention is attention
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)
    said = []
    for engine in (small, plain):
        engine.add_request("a", prompts(5, 12)[0], params)
        while engine.has_unfinished_requests():
            outputs = engine.step()
        said.append(outputs[0].outputs[0].cumulative_logprob or 0.0)
    assert 1e-3 < abs(said[0] - said[1]) < 5


def test_a_checkpoint_turns_it_on(tmp_path: Any) -> None:
    """`kv_cache_scheme` and scales among the tensors; another dtype may still be asked for."""
    write_scaled(tmp_path / "scaled")
    engine = LLMEngine(tmp_path / "scaled", EngineConfig(num_gpu_blocks=4))
    assert engine.config.kv_cache_dtype == "fp8"
    for cache in caches(engine):
        assert np.allclose(cache.scales, list(SCALES.values()))
    asked = EngineConfig(num_gpu_blocks=4, kv_cache_dtype="int8_per_token_head")
    assert LLMEngine(tmp_path / "scaled", asked).config.kv_cache_dtype == "int8_per_token_head"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kv_cache_dtype": "fp4"}, ["kv_cache_dtype", "'fp4'", "fp8_e5m2"]),
        ({"kv_cache_dtype": None}, ["kv_cache_dtype", "None"]),
        ({"kv_cache_dtype": "fp8", "attention": "torch"}, ["'fp8'", "attention='torch'", "numpy"]),
        ({"kv_cache_dtype": "fp8", "attention": "triton"}, ["'fp8'", "attention='triton'"]),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        EngineConfig(**settings)
    for word in words:
        assert word in str(caught.value)


def test_a_checkpoints_scale_is_above_0(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said with the tensor's name, before any cache is made."""
    monkeypatch.setitem(SCALES, "v_scale", 0.0)
    write_scaled(tmp_path / "scaled")
    with pytest.raises(ValueError, match=r"layers.0.self_attn.k_scale and v_scale must be above 0"):
        LLMEngine(tmp_path / "scaled", EngineConfig(num_gpu_blocks=4))


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_is_a_positive_number(scale: float) -> None:
    with pytest.raises(ValueError, match="v_scale must be above 0"):
        QuantizedKVCache((1, 1, 2, 1, 4), "fp8", 1.0, scale)


def test_a_backend_with_another_layout_is_refused() -> None:
    with pytest.raises(ValueError, match="DenseAttention wants"):
        QuantizedAttention(DenseAttention()).get_kv_cache_shape(2, 4, 2, 8)


def test_the_flag() -> None:
    import argparse

    parser = argparse.ArgumentParser()
    add_engine_flags(parser)
    assert make_config(parser.parse_args([])).kv_cache_dtype == "auto"
    args = parser.parse_args(["--kv-cache-dtype", "fp8_e5m2"])
    assert make_config(args).kv_cache_dtype == "fp8_e5m2"
