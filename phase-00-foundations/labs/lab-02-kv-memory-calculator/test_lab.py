"""Lab 00-02: the calculator against known models, the running miniature, and what vLLM said."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL

GIB = 1024**3
TINY = Path(DEFAULT_MODEL) / "config.json"
STARTS = json.loads((Path(__file__).parent / "vllm_startup.json").read_text("utf-8"))["starts"]


def llama_8b(lab: ModuleType, **changes: Any) -> dict[str, Any]:
    return lab.read_config("llama-3-8b") | changes


def test_llama3_8b_per_token(lab: ModuleType) -> None:
    """A token of Llama-3-8B takes 2 x 32 layers x 8 KV heads x 128 numbers x 2 bytes = 131,072 bytes."""
    got = lab.kv_bytes_per_token(llama_8b(lab))
    hint = {
        65_536: "half of it: a layer stores K *and* V, which is the factor 2",
        4_096: "one layer's share: every layer has K and V of its own",
        524_288: "four times too much: num_attention_heads where num_key_value_heads belongs",
        262_144: "twice too much: the checkpoint is bfloat16, 2 bytes a number",
    }.get(got, "the factors are in the docstring of this test")
    assert got == 131_072, f"Llama-3-8B keeps 131,072 bytes a token, got {got:,}: {hint}"


@pytest.mark.parametrize(
    ("name", "factors", "want"),
    [
        ("llama-3-70b", "2 x 80 layers x 8 KV heads x 128 x 2 bytes", 327_680),
        ("qwen2.5-7b", "2 x 28 layers x 4 KV heads x 128 x 2 bytes", 57_344),
        ("qwen3-4b", "2 x 36 layers x 8 KV heads x 128 x 2 bytes", 147_456),
        (str(TINY), "2 x 4 layers x 2 KV heads x 32 x 4 bytes", 2_048),
    ],
    ids=["llama-3-70b", "qwen2.5-7b", "qwen3-4b", "tiny-llama"],
)
def test_every_config_with_k_and_v(lab: ModuleType, name: str, factors: str, want: int) -> None:
    """kv_bytes_per_token is right for the other models with K and V: 70B, two Qwens, the shipped
    one in float32."""
    got = lab.kv_bytes_per_token(lab.read_config(name))
    assert got == want, f"{name}: {factors} = {want:,}, got {got:,}"


def test_head_dim_of_the_file_wins(lab: ModuleType) -> None:
    """The file's head_dim counts (Qwen3-4B: 128); where it is missing or null, hidden_size / heads does."""
    qwen = lab.read_config("qwen3-4b")
    wider = qwen | {"hidden_size": 4096}
    assert lab.kv_bytes_per_token(qwen) == lab.kv_bytes_per_token(wider), (
        "Qwen3-4B says head_dim 128, while hidden_size / num_attention_heads is 2560 / 32 = 80: its "
        "heads together are wider than its hidden state. Where head_dim stands in the file, "
        "hidden_size does not matter"
    )
    want = lab.kv_bytes_per_token(llama_8b(lab, head_dim=128))
    for config in (llama_8b(lab), llama_8b(lab, head_dim=None)):
        assert lab.kv_bytes_per_token(config) == want, (
            f"head_dim {config.get('head_dim', 'missing')} in Llama-3-8B's config means 4096 / 32 = 128"
        )


def test_mla_stores_one_vector(lab: ModuleType) -> None:
    """With MLA a layer stores kv_lora_rank + qk_rope_head_dim numbers per token, without a
    factor 2 or heads."""
    for name, layers, want in (("deepseek-v3", 61, 70_272), ("deepseek-v2-lite", 27, 31_104)):
        got = lab.kv_bytes_per_token(lab.read_config(name))
        assert got != 2 * want, (
            f"{name}: {got:,} is twice too much. With MLA there is one vector a layer, from which both "
            "K and V are made: no factor 2"
        )
        assert got == want, (
            f"{name} stores {layers} layers x (512 + 64) numbers x 2 bytes = {want:,} a token, got "
            f"{got:,}. Heads do not enter: all share the one vector"
        )
    null, missing = llama_8b(lab, kv_lora_rank=None), llama_8b(lab)
    try:
        lab.kv_bytes_per_token(null)
    except (KeyError, TypeError) as error:
        pytest.fail(
            f"a config with kv_lora_rank: null raised {error!r}. null means no MLA: ask whether "
            'config.get("kv_lora_rank") is None, not whether the key is there'
        )
    assert lab.kv_bytes_per_token(null) == lab.kv_bytes_per_token(missing), (
        "kv_lora_rank null means no MLA, as if the key were missing"
    )


def test_fp8_kv_doubles_concurrency(lab: ModuleType) -> None:
    """An FP8 cache has one byte per number instead of two: half the bytes per token, twice the blocks."""
    config = llama_8b(lab)
    half, auto = lab.kv_bytes_per_token(config, "fp8"), lab.kv_bytes_per_token(config)
    assert half * 2 == auto, f"fp8 takes 1 byte, bfloat16 2: {half:,} and {auto:,} bytes a token"
    for dtype, size in {"float32": 4, "float16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}.items():
        assert lab.kv_bytes_per_token(config, dtype) * 2 == auto * size, (
            f"kv_cache_dtype {dtype} takes {size} bytes a number, whatever the checkpoint was saved in"
        )
    blocks = [lab.num_kv_blocks(8 * GIB, config, 16, dtype) for dtype in ("auto", "fp8")]
    assert blocks[1] == 2 * blocks[0], (
        f"8 GiB hold twice as many blocks of fp8 as of bfloat16, got {blocks[0]:,} and {blocks[1]:,}: "
        "num_kv_blocks passes kv_cache_dtype on"
    )


def test_gqa_saves_vs_mha(lab: ModuleType) -> None:
    """8 KV heads for 32 heads keep a quarter; without num_key_value_heads, each head has its own K and V."""
    gqa = lab.kv_bytes_per_token(llama_8b(lab))
    mha = lab.kv_bytes_per_token(llama_8b(lab, num_key_value_heads=32))
    mqa = lab.kv_bytes_per_token(llama_8b(lab, num_key_value_heads=1))
    assert (mha, mqa) == (4 * gqa, gqa // 8), (
        f"bytes a token grow with num_key_value_heads: 1, 8 and 32 gave {mqa:,}, {gqa:,} and {mha:,}"
    )
    without = llama_8b(lab)
    del without["num_key_value_heads"]
    assert lab.kv_bytes_per_token(without) == mha, (
        "where a file has no num_key_value_heads, every attention head has its own K and V"
    )


def test_the_budget_is_a_share_of_the_gpu(lab: ModuleType) -> None:
    """The budget is ceil(total x 0.92), less the weights and the rest, in bytes of GiB."""
    want = 7_647_696_978
    got = lab.kv_cache_budget(24, lab.weight_bytes(llama_8b(lab)) / GIB)
    assert got != 24 * GIB - 16_060_522_496, (
        "vLLM does not take the whole GPU: gpu_memory_utilization is 0.92 unless you say otherwise"
    )
    assert got != want - 1, (
        f"{want - 1:,} is one byte short: 24 GiB x 0.92 is no whole number, and vLLM rounds it up "
        "(math.ceil), where int() rounds down"
    )
    assert (type(got), got) == (int, want), (
        f"24 GiB x 0.92 - 16,060,522,496 bytes of weights leave {want:,} bytes, got {got!r}. The "
        "weights come out of the share. 1 GiB is 1024**3 bytes, 7.4% more than 10**9"
    )
    assert lab.kv_cache_budget(24, 14, 1.5, 1.0) == int(8.5 * GIB), (
        "24 GiB, all of it, less 14 for weights and 1.5 for the rest: 8.5 GiB"
    )
    assert lab.kv_cache_budget(1, 0) == 987_842_479, (
        "1 GiB x 0.92 is 987,842,478.08 bytes: request_memory rounds that up to a whole byte"
    )
    assert lab.kv_cache_budget(1, 0.1, 0.0, 1.0) == GIB - 107_374_183, (
        "0.1 GiB of weights is 107,374,182.4 bytes, and they take 107,374,183"
    )


def test_a_block_begun_is_a_block_taken(lab: ModuleType) -> None:
    """blocks_for rounds up: 1, 16 and 17 tokens take 1, 1 and 2 blocks of 16."""
    for tokens, size, want in [
        (1, 16, 1), (15, 16, 1), (16, 16, 1), (17, 16, 2), (1000, 16, 63), (1024, 16, 64),
        (1025, 128, 9), (7, 1, 7), (10**18 + 1, 2, 5 * 10**17 + 1),
    ]:  # fmt: skip
        got = lab.blocks_for(tokens, size)
        assert (type(got), got) == (int, want), (
            f"{tokens:,} tokens take {want:,} blocks of {size}, got {got!r}: round up, in whole numbers"
        )
    assert (lab.blocks_for(32), lab.blocks_for(33)) == (2, 3), "the default block_size is 16"


def test_only_whole_blocks_count(lab: ModuleType) -> None:
    """num_kv_blocks rounds down: one byte short of a block is no block."""
    config = llama_8b(lab)
    block = 16 * lab.kv_bytes_per_token(config)
    for budget, want in [(block, 1), (block - 1, 0), (5 * block - 1, 4), (5 * block, 5), (0, 0)]:
        got = lab.num_kv_blocks(budget, config)
        assert (type(got), got) == (int, want), (
            f"a block of 16 tokens takes {block:,} bytes; {budget:,} bytes hold {want} of them, got "
            f"{got!r}"
        )
    got = lab.num_kv_blocks(4 * block, config, block_size=64)
    assert got == 1, f"blocks of 64 tokens take four times the bytes of 16: 1 fits, got {got}"


def test_no_room_returns_zero(lab: ModuleType) -> None:
    """Weights that do not fit leave 0 bytes, 0 blocks and 0 requests, never a negative number."""
    big = lab.read_config("llama-3-70b")
    budget = lab.kv_cache_budget(80, lab.weight_bytes(big) / GIB)
    assert budget == 0, f"131 GiB of weights on an 80 GiB GPU leave 0 bytes for KV, got {budget:,}"
    assert lab.num_kv_blocks(-1, big) == 0, "a negative budget holds 0 blocks"
    for blocks in (0, 1):
        got = lab.requests_at_once(blocks, 16)
        assert got == 0, f"a pool of {blocks} blocks serves 0 requests, got {got}"


def test_llama3_8b_concurrency(lab: ModuleType) -> None:
    """For 8 GiB of KV and requests of 2,048 tokens, vLLM reports 32.00x, and 31 requests really fit."""
    blocks = lab.num_kv_blocks(8 * GIB, llama_8b(lab))
    assert blocks == 4096, f"8 GiB / (16 x 128 KiB) = 4,096 blocks, got {blocks:,}"
    reported = lab.reported_concurrency(blocks, 2048)
    assert reported == 32, f"4,096 blocks / (2,048 / 16) is 32, got {reported}"
    real = lab.requests_at_once(blocks, 2048)
    assert real == 31, (
        f"32 requests of 128 blocks want all 4,096, and one of those is the null block: 31, got {real}"
    )


def test_the_report_is_not_rounded(lab: ModuleType) -> None:
    """reported_concurrency is a fraction, and reported_tokens is that many full requests, in tokens."""
    assert lab.reported_concurrency(96, 1024) == 1.5, (
        f"96 blocks / 64 a request is 1.5, got {lab.reported_concurrency(96, 1024)}: vLLM prints "
        "fractions"
    )
    assert lab.reported_concurrency(63, 1000) == 1, (
        "1,000 tokens take 63 blocks of 16 (62.5 rounded up), so 63 blocks hold 1 request, got "
        f"{lab.reported_concurrency(63, 1000)}"
    )
    assert lab.reported_tokens(96, 1024) == 1536, "1.5 requests of 1,024 tokens are 1,536 tokens"
    assert lab.reported_tokens(63, 1000) == 1000, (
        f"one request of 1,000 tokens fills 63 blocks: 1,000 tokens, got {lab.reported_tokens(63, 1000)} "
        "(63 x 16 = 1,008 would count the 8 empty places of its last block)"
    )
    assert lab.reported_concurrency(18, 36, 4) == 2, (
        "block_size 4: 36 tokens take 9 blocks, 18 hold 2"
    )
    assert lab.reported_tokens(20, 36, 4) == 80, "20 blocks of 4 / 9 a request x 36 tokens = 80"


@pytest.mark.parametrize("start", STARTS, ids=["1 GiB", "10**8 bytes", "bfloat16", "fp8"])
def test_vllm_said_the_same(lab: ModuleType, start: dict[str, Any]) -> None:
    """Your numbers are those that vLLM 0.22.1 reported when it started on the shipped checkpoint."""
    run, length = start["run"], start["run"]["max_model_len"]
    dtype = run.get("kv_cache_dtype", run["dtype"])
    config = lab.read_config(str(TINY))
    blocks = lab.num_kv_blocks(start["kv_cache_memory_bytes"], config, 16, dtype)
    assert blocks == start["num_gpu_blocks"], (
        f"with {start['kv_cache_memory_bytes']:,} bytes for KV of type {dtype} vLLM made "
        f"num_gpu_blocks = {start['num_gpu_blocks']:,}, you say {blocks:,}"
    )
    lines = [
        f"GPU KV cache size: {lab.reported_tokens(blocks, length, 16):,} tokens",
        f"Maximum concurrency for {length:,} tokens per request: "
        f"{lab.reported_concurrency(blocks, length, 16):.2f}x",
    ]
    for said, yours in zip(start["log"], lines, strict=True):
        assert said == yours, f"vLLM logged {said!r}, your numbers give {yours!r}"
    assert lab.requests_at_once(blocks, 16) == start["free_blocks"], (
        f"after its start vLLM had {start['free_blocks']:,} of {blocks:,} blocks free, so as many "
        f"requests of one block fit; you say {lab.requests_at_once(blocks, 16):,}"
    )


@pytest.mark.parametrize(
    ("num_blocks", "tokens"), [(12, 60), (13, 60), (14, 60), (13, 41), (17, 64)]
)
def test_the_engine_runs_as_many_at_once(lab: ModuleType, num_blocks: int, tokens: int) -> None:
    """requests_at_once is the number of requests that mini_vllm's scheduler runs at once in a small pool."""
    config = EngineConfig(num_gpu_blocks=num_blocks, enable_prefix_caching=False)
    engine = LLMEngine(config=config)
    for i in range(6):
        prompt = {"prompt_token_ids": [1] + [8 + i] * (tokens - 1)}
        engine.add_request(str(i), prompt, SamplingParams(temperature=0, max_tokens=1))
    engine.step()
    waiting = engine.get_num_unfinished_requests()
    ran = 6 - waiting
    got = lab.requests_at_once(num_blocks, tokens)
    assert got == ran, (
        f"the engine with a pool of {num_blocks} blocks ran {ran} prompts of {tokens} tokens in its "
        f"first step, you say {got}. One block is the null block, and a request takes "
        f"{-(-tokens // 16)} whole blocks"
    )
