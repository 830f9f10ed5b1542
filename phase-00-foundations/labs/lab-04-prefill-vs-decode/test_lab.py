"""Lab 00-04: the roofline arithmetic, and what it says about GPUs of today."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SHEETS = json.loads((Path(__file__).parent / "gpus.json").read_text(encoding="utf-8"))


def same(got: float, want: float, rule: str) -> None:
    """`got` is `want` up to rounding; else say by which factor it is off, and the rule."""
    assert isinstance(got, int | float), f"return a number, got {got!r}. {rule}"
    off = f"{got / want:.4g} times" if want and got else ""
    assert math.isclose(got, want, rel_tol=1e-9), (
        f"got {got:.6g}, should be {want:.6g} ({off}). {rule}"
    )


def a100(lab: ModuleType) -> Any:
    """An A100 with its bandwidth rounded to 2 TB/s, for round results."""
    return lab.Device("A100, rounded", flops=312e12, bandwidth=2e12)


# ---- datasheets ----------------------------------------------------------------------------------


def test_dense_flops_halves_what_is_printed_with_sparsity(lab: ModuleType) -> None:
    """A rate "with sparsity" is twice the dense one; TFLOP/s become FLOP/s."""
    same(lab.dense_flops(312, False), 312e12, "1 TFLOP/s is 1e12 FLOP/s.")
    same(
        lab.dense_flops(1979, True),
        989.5e12,
        "The H100's 1,979 is the rate with 2:4 sparsity, where half of the weights are zero and "
        "are skipped. Dense it is half of that.",
    )


def test_bus_bandwidth_counts_bytes(lab: ModuleType) -> None:
    """Bits over all pins, divided by 8."""
    same(
        lab.bus_bandwidth(384, 21),
        1008e9,
        "The RTX 4090 has 384 pins of 21 gigabits a second: 8,064 gigabits are 1,008 gigabytes. "
        "8 bits are a byte.",
    )
    same(lab.bus_bandwidth(192, 12.5), 300e9, "width times speed of a pin, over 8.")


RIDGES = {
    "A100 80GB SXM": 153.0,
    "H100 SXM": 295.4,
    "H200 SXM": 206.1,
    "B200 (HGX)": 281.2,
    "L4": 403.3,
    "RTX 4090": 163.9,
}


@pytest.mark.parametrize("sheet", SHEETS, ids=lambda sheet: sheet["name"])
def test_ridges_of_todays_gpus(lab: ModuleType, sheet: dict[str, Any]) -> None:
    """From the datasheet of each GPU in gpus.json to its ridge point."""
    device = lab.device_from_datasheet(sheet)
    ridge, want = lab.ridge_point(device), RIDGES[sheet["name"]]
    assert abs(ridge - want) < 0.06, (
        f"the ridge of the {sheet['name']} is {want} FLOP/byte, got {ridge:.4g}: dense FLOP/s over "
        "bytes/s. Twice as much means a figure with sparsity, an eighth or eight times bits for bytes, "
        "and a number below 1 that the fraction stands on its head."
    )


# ---- one step ------------------------------------------------------------------------------------


def test_a_step_multiplies_and_adds(lab: ModuleType) -> None:
    """Two FLOP for each parameter and token."""
    same(
        lab.step_flops(lab.LLAMA_3_8B, 1),
        16e9,
        "8e9 parameters, each in one multiplication and one addition: 16e9 FLOP a token.",
    )
    same(lab.step_flops(lab.LLAMA_3_70B, 3), 420e9, "and so many for each token of the step.")


def test_kv_bytes_of_a_token(lab: ModuleType) -> None:
    """K and V, in each layer, for the KV heads only."""
    same(
        lab.kv_bytes_per_token(lab.LLAMA_3_8B),
        131_072,
        "2 (K and V) * 32 layers * 8 KV heads * 128 numbers * 2 bytes: 128 KiB. Lab 00-02 is about it.",
    )
    same(
        lab.kv_bytes_per_token(lab.LLAMA_3_70B),
        327_680,
        "2 * 80 layers * 8 KV heads * 128 * 2 bytes: 320 KiB, for a model nine times as large.",
    )
    tiny = lab.Model("tiny", 1e6, 4, num_layers=3, num_kv_heads=5, head_dim=7, bytes_per_kv=1)
    same(
        lab.kv_bytes_per_token(tiny), 210, "the cache has a number format of its own, bytes_per_kv."
    )


def test_a_step_reads_the_weights_once(lab: ModuleType) -> None:
    """All weights, whatever the number of tokens, and the KV cache on top."""
    same(lab.step_bytes(lab.LLAMA_3_8B), 16e9, "8e9 parameters of 2 bytes, read once.")
    same(
        lab.step_bytes(lab.LLAMA_3_8B, 1000),
        16e9 + 131_072_000,
        "1,000 tokens of KV cache add 1,000 * 128 KiB.",
    )
    int4 = lab.Model("int4", 8e9, 0.5, num_layers=32, num_kv_heads=8, head_dim=128)
    same(lab.step_bytes(int4), 4e9, "4-bit weights are half a byte each.")


def test_the_size_of_the_model_cancels(lab: ModuleType) -> None:
    """Without KV reads the intensity is 2 * tokens / bytes_per_param: 8B and 70B alike."""
    for tokens in (1, 64, 2048):
        for model in (lab.LLAMA_3_8B, lab.LLAMA_3_70B):
            same(
                lab.arithmetic_intensity(model, tokens),
                tokens,
                "16-bit weights: 2 FLOP for 2 bytes and token, so the intensity is the number of "
                "tokens. A larger model computes more and reads more by the same factor.",
            )
    fp32 = lab.Model("fp32", 1e6, 4, num_layers=1, num_kv_heads=1, head_dim=8)
    same(lab.arithmetic_intensity(fp32, 8), 4, "32-bit weights are twice the bytes for the work.")


def test_kv_reads_lower_the_intensity(lab: ModuleType) -> None:
    """Reading the cache adds bytes and, in this model, no work."""
    model = lab.LLAMA_3_8B
    kv_tokens = 16e9 / 131_072  # as many bytes as the weights
    same(
        lab.arithmetic_intensity(model, 64, kv_tokens),
        32,
        "with as much KV cache as weights to read, the same work comes on twice the bytes.",
    )


# ---- the roofline --------------------------------------------------------------------------------


def test_ridge_point(lab: ModuleType) -> None:
    """FLOP/s over bytes/s."""
    same(
        lab.ridge_point(a100(lab)),
        156,
        "312e12 FLOP/s over 2e12 bytes/s: the A100 can do 156 FLOP in the time it reads a byte.",
    )


def test_one_sequence_waits_for_memory_and_a_prompt_does_not(lab: ModuleType) -> None:
    """Decode of one request is memory-bound on every GPU, prefill of 2,048 tokens on none."""
    for sheet in SHEETS:
        device = lab.device_from_datasheet(sheet)
        assert lab.is_memory_bound(device, lab.arithmetic_intensity(lab.LLAMA_3_8B, 1)), (
            f"{device.name}: one token does 1 FLOP a byte, far left of the ridge: memory-bound"
        )
        assert not lab.is_memory_bound(device, lab.arithmetic_intensity(lab.LLAMA_3_8B, 2048)), (
            f"{device.name}: 2,048 tokens do 2,048 FLOP a byte, right of the ridge: compute-bound"
        )


def test_the_ridge_itself_is_compute_bound(lab: ModuleType) -> None:
    """At the ridge memory keeps up: memory-bound is what lies strictly left of it."""
    device = a100(lab)
    assert not lab.is_memory_bound(device, 156.0), (
        "at exactly 156 FLOP/byte reading and computing take equally long, so nothing waits for "
        "memory: compare with <, not <="
    )
    assert lab.is_memory_bound(device, 155.9), "just left of the ridge it waits"


def test_the_roof(lab: ModuleType) -> None:
    """bandwidth * intensity up to the ridge, the peak from there on."""
    device = a100(lab)
    for intensity, want in ((1, 2e12), (78, 156e12), (156, 312e12), (2048, 312e12)):
        same(
            lab.attainable_flops(device, intensity),
            want,
            f"at {intensity} FLOP/byte the roof is the lower of the peak and bandwidth * intensity.",
        )


def test_step_time_is_the_slower_of_the_two(lab: ModuleType) -> None:
    """Reading and computing overlap, so the longer one counts, not the sum."""
    device, model = a100(lab), lab.LLAMA_3_8B
    got = lab.step_time(device, model, 156)
    assert not math.isclose(got, 16e-3, rel_tol=1e-3), (
        "156 tokens take 8 ms to compute, and 8 ms to read the weights for; step_time gave 16 ms. The two "
        "run at the same time: take max(compute, read), not their sum"
    )
    same(lab.step_time(device, model, 1), 8e-3, "decode: 16e9 bytes at 2e12 bytes/s are 8 ms.")
    same(
        lab.step_time(device, model, 3120),
        0.16,
        "prefill of 3,120 tokens: 2 * 8e9 * 3,120 FLOP at 312e12 FLOP/s are 160 ms. Reading takes "
        "8 ms of the same time.",
    )
    same(
        lab.step_time(device, model, 1, 100_000),
        8e-3 + 100_000 * 131_072 / 2e12,
        "100,000 tokens of KV cache take another 6.6 ms to read.",
    )


def test_decode_speed_limit(lab: ModuleType) -> None:
    """8B in 16 bits on 2 TB/s: 125 tokens a second for one request, whatever the kernels."""
    same(
        lab.decode_tokens_per_second(a100(lab), lab.LLAMA_3_8B, 1),
        125,
        "one token a step, and a step cannot be shorter than 16e9 bytes / 2e12 bytes/s = 8 ms.",
    )


def test_batching_is_free_up_to_the_ridge(lab: ModuleType) -> None:
    """64 requests get 64 times as much; past 156 the total stands still."""
    device, model = a100(lab), lab.LLAMA_3_8B
    same(
        lab.decode_tokens_per_second(device, model, 64),
        8000,
        "the weights are read once for all 64: the same 8 ms, 64 tokens.",
    )
    for batch in (156, 312, 1000):
        same(
            lab.decode_tokens_per_second(device, model, batch),
            19_500,
            f"at {batch} requests the arithmetic is the limit: 312e12 / (2 * 8e9) tokens a second.",
        )


def test_every_request_reads_its_own_cache(lab: ModuleType) -> None:
    """The KV term grows with batch times context; batching does not share it."""
    device, model = a100(lab), lab.LLAMA_3_8B
    kv = 8192 * 131_072
    for batch in (1, 2, 64):
        same(
            lab.decode_tokens_per_second(device, model, batch, 8192),
            batch * 2e12 / (16e9 + batch * kv),
            f"{batch} requests of 8,192 tokens read {batch} caches of 1 GiB: the step reads "
            "batch * context tokens of KV.",
        )


def test_critical_batch_size(lab: ModuleType) -> None:
    """The smallest batch that is no longer memory-bound: the ridge, in tokens."""
    device, model = a100(lab), lab.LLAMA_3_8B
    got = lab.critical_batch_size(device, model)
    assert got == 156, f"16 bits: intensity = tokens, and the ridge is at 156; got {got}"
    assert isinstance(got, int), f"a number of requests is a whole number, got {got!r}"
    for bytes_per_param, want in ((4, 312), (1, 78), (0.5, 39)):
        other = lab.Model("", 8e9, bytes_per_param, num_layers=32, num_kv_heads=8, head_dim=128)
        got = lab.critical_batch_size(device, other)
        assert got == want, (
            f"weights of {bytes_per_param} bytes: a token does 2 / {bytes_per_param} FLOP a byte, so "
            f"{want} of them reach the ridge; got {got}. Quantised weights make the free lunch shorter."
        )
    for sheet in SHEETS:
        gpu = lab.device_from_datasheet(sheet)
        batch = lab.critical_batch_size(gpu, model)
        bound = [
            lab.is_memory_bound(gpu, lab.arithmetic_intensity(model, b)) for b in (batch - 1, batch)
        ]
        assert bound == [True, False], (
            f"{gpu.name}: got {batch}, which is not the first batch that is not memory-bound: where "
            "the ridge falls between two whole numbers, round up"
        )


def test_long_context_wall(lab: ModuleType) -> None:
    """The first context whose KV reads weigh as much as the weights, for the whole batch."""
    model = lab.LLAMA_3_8B
    for batch, want in ((1, 122_071), (64, 1908), (256, 477)):
        got = lab.long_context_wall(model, batch)
        assert got == want, (
            f"batch {batch}: 16e9 bytes of weights over {batch} * 128 KiB a token is {want} tokens of "
            f"context, rounded up; got {got}"
        )
        assert isinstance(got, int), f"a context is a whole number of tokens, got {got!r}"
    exact = lab.Model("", 1024, 2, num_layers=1, num_kv_heads=1, head_dim=4, bytes_per_kv=2)
    assert lab.long_context_wall(exact, 2) == 64, (
        "2,048 bytes of weights, 16 bytes of KV a token, two requests: at exactly 64 tokens they are "
        "level, and that counts"
    )
