"""Lab 02-05, the pool: its size, vLLM's two lines, and how many requests really run."""

from __future__ import annotations

from types import ModuleType

import pytest

from course.learner.labs import load_support

support = load_support(__file__)


def test_a_capital_letter_is_a_power_of_1024(lab: ModuleType) -> None:
    """`1G` is 1,073,741,824 bytes and `1g` is 1,000,000,000; without a letter it is bytes."""
    for text, want in {
        "67108864": 67_108_864, "1G": 2**30, "64M": 2**26, "2K": 2048, "1T": 2**40,
        "1g": 10**9, "64m": 64_000_000, "2k": 2000, "1t": 10**12, "1.5g": 1_500_000_000,
        "0.0015k": 1, "7": 7,
    }.items():  # fmt: skip
        try:
            got = lab.memory_bytes(text)
        except ValueError as error:
            pytest.fail(f"{text!r} is {want:,} bytes, and memory_bytes refuses it: {error}")
        assert (type(got), got) == (int, want), (
            f"{text!r} is {want:,} bytes, got {got!r}. Small letters count by the thousand (k, m, g, t), "
            "capitals by 1,024; a fraction of a byte is cut off"
        )
    for text in ("1.5G", "0.5T", "2.0K", "1.5"):
        try:
            got = lab.memory_bytes(text)
        except ValueError:
            continue
        pytest.fail(
            f"{text!r} was read as {got:,}: vLLM takes a fraction before a small letter, and nowhere else"
        )


def test_a_page_is_the_k_and_v_of_one_block_in_one_layer(lab: ModuleType) -> None:
    """A page of 16 tokens, 2 KV heads and 32 numbers per head in float32 is 8,192 bytes."""
    got = lab.page_bytes(16, 2, 32, "float32")
    hint = {
        4_096: "half of it: each token leaves a K and a V",
        512: "that is one token, and a page holds block_size of them",
        32_768: "that is all four layers, and a page is in one",
        2_048: "those are numbers, and a float32 has 4 bytes",
    }.get(got, "two vectors for each token and KV head, in bytes")
    assert got == 8_192, f"a page of the shipped checkpoint has 8,192 bytes, got {got:,}: {hint}"
    for dtype, size in {"float16": 2, "bfloat16": 2, "fp8": 1}.items():
        got = lab.page_bytes(128, 8, 128, dtype)
        want = 262_144 * size
        assert got == want, (
            f"Llama-3-8B, 128 tokens in {dtype}, one layer: {want:,} bytes, got {got:,}"
        )


def test_only_whole_blocks_are_in_the_pool(lab: ModuleType) -> None:
    """A block has a page in each layer, and half a block is not a block."""
    block = 4 * 8_192
    for memory, want in [(block, 1), (block - 1, 0), (7 * block - 1, 6), (7 * block, 7), (0, 0)]:
        got = lab.num_gpu_blocks(memory, 4, 8_192)
        assert (type(got), got) == (int, want), (
            f"four layers, pages of 8,192 bytes: {memory:,} bytes hold {want} block(s), got {got!r}. "
            "A block has a page in every layer, and one that is cut off is no block"
        )


def test_an_order_counts_more_than_memory(lab: ModuleType) -> None:
    """num_gpu_blocks_override replaces the division, upwards too, and 0 is a value like any other."""
    for order in (3, 5_000, 0):
        got = lab.num_gpu_blocks(2**26, 4, 8_192, order)
        assert got == order, (
            f"num_gpu_blocks_override={order} makes {order} blocks, whatever the memory holds (2,048 "
            f"here), got {got}"
        )


def test_a_block_begun_is_a_block_taken(lab: ModuleType) -> None:
    """0, 1, 16 and 17 tokens lie in 0, 1, 1 and 2 blocks of 16."""
    for num_tokens, size, want in [
        (0, 16, 0), (1, 16, 1), (15, 16, 1), (16, 16, 1), (17, 16, 2), (1000, 128, 8), (9, 4, 3),
        (10**18 + 1, 2, 5 * 10**17 + 1),
    ]:  # fmt: skip
        got = lab.blocks_of(num_tokens, size)
        assert (type(got), got) == (int, want), (
            f"{num_tokens:,} tokens lie in {want:,} block(s) of {size}, got {got!r}. Round up, in whole "
            "numbers: a float has 53 bits"
        )


def test_the_lines_count_requests_of_full_length(lab: ModuleType) -> None:
    """The X is a fraction of all blocks, and the N is computed from it, not as blocks times size."""
    for blocks, length, size, want in [
        (8, 64, 16, 2.0), (9, 100, 16, 9 / 7), (381, 130, 128, 190.5), (3, 64, 16, 0.75),
    ]:  # fmt: skip
        got = lab.max_concurrency(blocks, length, size)
        assert got == want, (
            f"{blocks} blocks of {size}, requests of {length} tokens: {want:.2f}x, got {got:.4f}x. A "
            "request is charged the blocks that it begins, and the pool is counted whole: vLLM forgets "
            "the null block in this line"
        )
    for blocks, length, size, want in [
        (381, 130, 128, 24_765), (762, 1000, 64, 47_625), (9, 100, 16, 128),
    ]:  # fmt: skip
        got = lab.kv_cache_tokens(blocks, length, size)
        assert (type(got), got) == (int, want), (
            f"{blocks} blocks of {size}, max_model_len {length}: vLLM says {want:,} tokens, got {got!r}. It "
            f"is no count of places ({blocks * size:,}); look what the line above it has to do with it"
        )


def test_vllm_said_the_same_when_it_started(lab: ModuleType) -> None:
    """Your numbers are those that vLLM logged in ten starts, of which one was refused."""
    assert len(support.of_kind("start")) == 10, "the capture has ten starts: do not change it"
    support.same_as_vllm(lab, "start", "The settings stand in runs.py.")


def test_two_times_is_not_two_requests(lab: ModuleType) -> None:
    """A pool of 2.00x runs 7 short requests, 2 of three blocks, or 1 of full length."""
    for num_tokens, want in [(1, 7), (16, 7), (17, 3), (33, 2), (49, 1), (64, 1)]:
        got = lab.run_at_once(8, num_tokens, 16, 256)
        assert got == want, (
            f"8 blocks of 16, one of them the null block, prompts of {num_tokens} tokens: {want} run at "
            f"once, got {got}. A request takes whole blocks, and the null block is nobody's"
        )
    got = lab.run_at_once(8, 16, 16, 3)
    assert got == 3, f"room for seven, but max_num_seqs=3 leaves three seats, got {got}"
    got = lab.run_at_once(4, 60, 16, 256)
    assert got == 0, (
        f"4 blocks are 1.00x for 64 tokens, and 3 of them are usable: nobody runs, got {got}"
    )


def test_vllm_ran_as_many(lab: ModuleType) -> None:
    """As many requests run at once as in vLLM, for eleven lengths in three pools."""
    rule = "The block that nobody gets, the block that is only begun, the seats: which did you leave out?"
    support.same_as_vllm(lab, "at_once", rule)


def test_a_block_is_granted_when_its_first_token_is_computed(lab: ModuleType) -> None:
    """A block is granted in the step that computes its first token, not with the request."""
    for prompt, more, want, why in [
        (15, 3, [1, 0, 1], "token 16 still fits, token 17 is computed in step 3"),
        (16, 1, [1], "the only token sampled is the last, and nobody computes it: no second block"),
        (
            16,
            2,
            [1, 1],
            "token 17 is sampled in step 1 and computed in step 2, and needs a place there",
        ),
        (17, 2, [2, 0], "17 tokens of prompt are two blocks at once"),
        (1, 1, [1], "one token"),
    ]:
        got = lab.blocks_granted(prompt, more, 16, 64)
        assert got == want, (
            f"a prompt of {prompt} tokens and max_tokens={more}, blocks of 16: {want}, got {got}. {why}"
        )
    for prompt, more, budget, want in [
        (40, 2, 24, [2, 1, 0]), (48, 3, 24, [2, 1, 1, 0]), (64, 1, 16, [1, 1, 1, 1]), (20, 1, 10, [1, 1]),
    ]:  # fmt: skip
        got = lab.blocks_granted(prompt, more, 16, budget)
        assert got == want, (
            f"a prompt of {prompt} tokens in steps of {budget}: {want}, got {got}. A step is granted what "
            "its own tokens need; a chunk may end in the middle of a block, and the next one goes on there"
        )


def test_vllm_granted_the_same(lab: ModuleType) -> None:
    """vLLM granted the same blocks in the same steps, for ten requests, each alone."""
    support.same_as_vllm(lab, "grants", "One number a step.")
