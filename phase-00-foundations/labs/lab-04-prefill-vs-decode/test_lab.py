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


def gpu(lab: ModuleType) -> Any:
    """A made-up device with round numbers: its ridge is at 160 FLOP/byte."""
    return lab.Device("320 TFLOP/s, 2 TB/s", flops=320e12, bandwidth=2e12)


def llama(lab: ModuleType, bytes_per_param: float = 2) -> Any:
    """Llama-3-8B with its parameters rounded to 8e9."""
    return lab.Model("8e9", 8e9, bytes_per_param, num_layers=32, num_kv_heads=8, head_dim=128)


STANDS_ON = {
    "step_bytes": ["kv_bytes_per_token"],
    "arithmetic_intensity": ["step_flops", "step_bytes"],
    "is_memory_bound": ["ridge_point"],
    "step_time": ["step_flops", "step_bytes"],
}


def passes(lab: ModuleType, name: str) -> bool:
    """Whether a function gives what its own test asks of it. One that is not written yet is not wrong."""
    device, model, half = gpu(lab), llama(lab), llama(lab, 0.5)
    fp32 = lab.Model("fp32", 1e6, 4, num_layers=1, num_kv_heads=1, head_dim=8)
    tiny = lab.Model("tiny", 1e6, 4, num_layers=3, num_kv_heads=5, head_dim=7, bytes_per_kv=1)
    cases: dict[str, list[tuple[tuple[Any, ...], float]]] = {
        "dense_flops": [((312, False), 312e12), ((1979, True), 989.5e12)],
        "bus_bandwidth": [((384, 21), 1008e9), ((192, 12.5), 300e9)],
        "step_flops": [((model, 1), 16e9), ((model, 3), 48e9)],
        "kv_bytes_per_token": [((model,), 131_072), ((lab.LLAMA_3_70B,), 327_680), ((tiny,), 210)],
        "step_bytes": [((model,), 16e9), ((model, 1000), 16e9 + 131_072_000), ((half,), 4e9)],
        "arithmetic_intensity": [((model, 1), 1), ((lab.LLAMA_3_70B, 64), 64), ((fp32, 8), 4)],
        "ridge_point": [((device,), 160)],
        "is_memory_bound": [((device, 159.9), True), ((device, 160.0), False)],
        "step_time": [
            ((device, model, 1), 8e-3),
            ((device, model, 3200), 0.16),
            ((device, model, 1, 100_000), 8e-3 + 100_000 * 131_072 / 2e12),
        ],
    }
    try:
        pairs = [(getattr(lab, name)(*given), due) for given, due in cases[name]]
    except NotImplementedError:
        return True
    except Exception:  # whatever it is, the function's own test shows it
        return False
    return all(isinstance(got, int | float) and math.isclose(got, due) for got, due in pairs)


def mend_first(lab: ModuleType, *names: str) -> str:
    """What to say before a complaint about a function that may stand on another, broken one."""
    wrong = next((name for name in names if not passes(lab, name)), "")
    while wrong:  # down to the root: what `wrong` stands on may be what breaks it
        below = [name for name in STANDS_ON.get(wrong, []) if not passes(lab, name)]
        if not below:
            return f"First mend {wrong}, on which this stands: its own test fails. "
        wrong = below[0]
    return ""


# ---- predictions ---------------------------------------------------------------------------------


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your predictions name the limit that each of three workloads hits, and its time within a
    factor of 3."""
    said = lab.predictions()
    names = ["one reader", "a long prompt", "a full house"]
    assert sorted(said) == sorted(names), f"predict these three: {names}; yours: {sorted(said)}"
    for name, bound, at_least, at_most in (
        ("one reader", "memory", 1.6, 14.4),
        ("a long prompt", "compute", 11.0, 100.0),
        ("a full house", "memory", 8.4, 76.0),
    ):
        guess = said[name]
        assert guess.bound == bound, (
            f"{name!r} does not wait for {guess.bound!r}. How many bytes must the step read, how much "
            "arithmetic must it do, and which of the two keeps the H100 busy for longer?"
        )
        off = (
            "more than three times as long as"
            if guess.milliseconds < at_least
            else "under a third of"
        )
        does = "read" if bound == "memory" else "compute"
        unit = " (in milliseconds, not seconds)" if guess.milliseconds < 0.1 else ""
        assert at_least <= guess.milliseconds <= at_most, (
            f"{name!r} takes {off} the {guess.milliseconds:g} ms that you said{unit}. It waits for {bound}: "
            f"divide what it has to {does} by what the H100 {does}s in a second"
        )


# ---- datasheets ----------------------------------------------------------------------------------


def test_dense_flops_halves_what_is_printed_with_sparsity(lab: ModuleType) -> None:
    """dense_flops halves a rate "with sparsity" and turns TFLOP/s into FLOP/s."""
    same(
        lab.dense_flops(312, False),
        312e12,
        "The A100's 312 is printed dense: halve only what is printed with sparsity. 1 TFLOP/s is 1e12 "
        "FLOP/s.",
    )
    same(
        lab.dense_flops(1979, True),
        989.5e12,
        "The H100's 1,979 is the rate with 2:4 sparsity, where half of the weights are zero and "
        "are skipped. Dense it is half of that.",
    )


def test_bus_bandwidth_counts_bytes(lab: ModuleType) -> None:
    """bus_bandwidth is the bits per second over all pins, divided by 8."""
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
    "B200 (HGX)": 292.2,
    "L4": 403.3,
    "RTX 4090": 163.9,
}


@pytest.mark.parametrize("sheet", SHEETS, ids=lambda sheet: sheet["name"])
def test_ridges_of_todays_gpus(lab: ModuleType, sheet: dict[str, Any]) -> None:
    """Each GPU in gpus.json gets the ridge point that follows from its datasheet."""
    first = mend_first(lab, "dense_flops", "bus_bandwidth", "ridge_point")
    device = lab.device_from_datasheet(sheet)
    ridge, want = lab.ridge_point(device), RIDGES[sheet["name"]]
    assert abs(ridge - want) < 0.06, (
        f"{first}The ridge of the {sheet['name']} is {want} FLOP/byte, got {ridge:.4g}: dense FLOP/s "
        "against bytes/s. Twice as much means a figure with sparsity, half as much means that a dense "
        "figure was halved, an eighth or eight times means bits for bytes, and a number below 1 that the "
        "fraction stands on its head."
    )


# ---- one step ------------------------------------------------------------------------------------


def test_a_step_multiplies_and_adds(lab: ModuleType) -> None:
    """A step does two FLOP per parameter and token."""
    same(
        lab.step_flops(llama(lab), 1),
        16e9,
        "8e9 parameters, each in one multiplication and one addition: 16e9 FLOP a token.",
    )
    same(lab.step_flops(llama(lab), 3), 48e9, "and so many for each token of the step.")


def test_kv_bytes_of_a_token(lab: ModuleType) -> None:
    """A token keeps K and V in each layer, for the KV heads only."""
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
    """A step reads all weights once, whatever its number of tokens, and the KV cache on top."""
    same(lab.step_bytes(llama(lab)), 16e9, "8e9 parameters of 2 bytes, read once.")
    same(
        lab.step_bytes(llama(lab), 1000),
        16e9 + 131_072_000,
        mend_first(lab, "kv_bytes_per_token") + "1,000 tokens of KV cache add 1,000 * 128 KiB.",
    )
    same(lab.step_bytes(llama(lab, 0.5)), 4e9, "4-bit weights are half a byte each.")


def test_the_size_of_the_model_cancels(lab: ModuleType) -> None:
    """Without KV reads an 8B and a 70B model have the same intensity."""
    first = mend_first(lab, "step_flops", "step_bytes")
    for tokens in (1, 64, 2048):
        for model in (lab.LLAMA_3_8B, lab.LLAMA_3_70B):
            same(
                lab.arithmetic_intensity(model, tokens),
                tokens,
                f"{first}With 16-bit weights each token does 2 FLOP for 2 bytes, so the intensity is the "
                "number of tokens. A larger model computes more and reads more by the same factor.",
            )
    fp32 = lab.Model("fp32", 1e6, 4, num_layers=1, num_kv_heads=1, head_dim=8)
    same(
        lab.arithmetic_intensity(fp32, 8), 4,
        f"{first}32-bit weights are twice the bytes for the same work.",
    )  # fmt: skip


def test_kv_reads_lower_the_intensity(lab: ModuleType) -> None:
    """Reading the KV cache adds bytes but, by the rules of this lab, no work."""
    kv_tokens = 16e9 / 131_072  # as many bytes as the weights
    same(
        lab.arithmetic_intensity(llama(lab), 64, kv_tokens),
        32,
        mend_first(lab, "step_flops", "step_bytes")
        + "With as much KV cache as weights to read, the same work comes on twice the bytes.",
    )


# ---- the roofline --------------------------------------------------------------------------------


def test_ridge_point(lab: ModuleType) -> None:
    """The ridge point is the intensity at which reading and computing take equally long."""
    same(
        lab.ridge_point(gpu(lab)),
        160,
        "320e12 FLOP/s and 2e12 bytes/s: the device can do 160 FLOP in the time it reads a byte.",
    )


def test_one_sequence_waits_for_memory_and_a_prompt_does_not(lab: ModuleType) -> None:
    """Decode of one request is memory-bound on every GPU, prefill of 2,048 tokens on none."""
    first = mend_first(
        lab,
        "dense_flops",
        "bus_bandwidth",
        "ridge_point",
        "arithmetic_intensity",
        "is_memory_bound",
    )
    for sheet in SHEETS:
        device = lab.device_from_datasheet(sheet)
        assert lab.is_memory_bound(device, lab.arithmetic_intensity(lab.LLAMA_3_8B, 1)), (
            f"{first}{device.name}: one token does 1 FLOP a byte, far left of the ridge: memory-bound"
        )
        assert not lab.is_memory_bound(device, lab.arithmetic_intensity(lab.LLAMA_3_8B, 2048)), (
            f"{first}{device.name}: 2,048 tokens do 2,048 FLOP a byte, right of the ridge: compute-bound"
        )


def test_the_ridge_itself_is_compute_bound(lab: ModuleType) -> None:
    """A step at exactly the ridge is not memory-bound: only a step strictly below it waits for memory."""
    first = mend_first(lab, "ridge_point")
    device = gpu(lab)
    assert not lab.is_memory_bound(device, 160.0), (
        f"{first}At exactly 160 FLOP/byte reading and computing take equally long, so nothing waits for "
        "memory: compare with <, not <="
    )
    assert lab.is_memory_bound(device, 159.9), f"{first}just left of the ridge, at 160, it waits"


def test_the_roof(lab: ModuleType) -> None:
    """The roof slopes up to the ridge and is flat from there on."""
    first = mend_first(lab, "ridge_point")
    for intensity, want in ((1, 2e12), (80, 160e12), (160, 320e12), (2048, 320e12)):
        same(
            lab.attainable_flops(gpu(lab), intensity),
            want,
            f"{first}At {intensity} FLOP/byte memory can feed {intensity} * 2e12 FLOP/s, and the units can "
            "do 320e12: the lower of the two is the roof.",
        )


def test_step_time_is_the_slower_of_the_two(lab: ModuleType) -> None:
    """Reading and computing overlap, so a step's time is the longer of the two, not their sum."""
    device, model = gpu(lab), llama(lab)
    first = mend_first(lab, "step_flops", "step_bytes")
    got = lab.step_time(device, model, 160)
    assert not math.isclose(got, 16e-3, rel_tol=1e-3) or first, (
        "160 tokens take 8 ms to compute, and 8 ms to read the weights for; step_time gave 16 ms. The two "
        "run at the same time: the step is over when the slower one is, not after both in turn"
    )
    same(lab.step_time(device, model, 1), 8e-3, f"{first}16e9 bytes at 2e12 bytes/s are 8 ms.")
    same(
        lab.step_time(device, model, 3200),
        0.16,
        f"{first}Prefill of 3,200 tokens: 2 * 8e9 * 3,200 FLOP at 320e12 FLOP/s are 160 ms. Reading takes "
        "8 ms of the same time.",
    )
    same(
        lab.step_time(device, model, 1, 100_000),
        8e-3 + 100_000 * 131_072 / 2e12,
        f"{first}100,000 tokens of KV cache take another 6.6 ms to read.",
    )


def one_reader(got: float, want: float, batch: int) -> str:
    """What to say where the speed of one of the requests came back."""
    if batch == 1 or not math.isclose(got * batch, want, rel_tol=1e-9):
        return ""
    return "That is the speed of one reader; the total over all requests is asked for. "


def test_decode_speed_limit(lab: ModuleType) -> None:
    """One reader gets 125 tokens/s at 2 TB/s, and 127 on an A100 with Llama-3-8B, whatever the kernels."""
    first = mend_first(lab, "step_flops", "step_bytes", "step_time")
    same(
        lab.decode_tokens_per_second(gpu(lab), llama(lab), 1),
        125,
        f"{first}One token a step, and a step cannot be shorter than 16e9 bytes / 2e12 bytes/s = 8 ms.",
    )
    a100 = lab.Device("A100", flops=312e12, bandwidth=2039e9)
    got = lab.decode_tokens_per_second(a100, lab.LLAMA_3_8B, 1)
    assert round(got) == 127, (
        f"{first}8.03e9 parameters of 2 bytes at 2,039 GB/s: 127 tokens/s, got {got:.4g}"
    )


def test_batching_is_free_up_to_the_ridge(lab: ModuleType) -> None:
    """64 requests get 64 times the tokens of one; past the ridge the total stays the same."""
    first = mend_first(lab, "step_flops", "step_bytes", "step_time")
    got = lab.decode_tokens_per_second(gpu(lab), llama(lab), 64)
    same(
        got,
        8000,
        f"{first}{one_reader(got, 8000, 64)}The weights are read once for all 64: the same 8 ms, 64 tokens.",
    )
    for batch in (160, 320, 1000):
        same(
            lab.decode_tokens_per_second(gpu(lab), llama(lab), batch),
            20_000,
            f"{first}At {batch} requests the arithmetic is the limit: 320e12 / (2 * 8e9) tokens a second.",
        )


def test_every_request_reads_its_own_cache(lab: ModuleType) -> None:
    """The bytes of KV that a step reads grow with batch times context: requests do not share their caches."""
    first = mend_first(lab, "kv_bytes_per_token", "step_bytes", "step_time")
    kv = 8192 * 131_072
    for batch in (1, 2, 64):
        got = lab.decode_tokens_per_second(gpu(lab), llama(lab), batch, 8192)
        want = batch * 2e12 / (16e9 + batch * kv)
        read = "1 request of 8,192 tokens reads 1 cache"
        if batch > 1:
            read = f"{batch} requests of 8,192 tokens read {batch} caches"
        same(
            got,
            want,
            f"{first}{one_reader(got, want, batch)}{read} of 1 GiB: the step reads batch * context "
            "tokens of KV.",
        )


def test_critical_batch_size(lab: ModuleType) -> None:
    """critical_batch_size is the smallest batch that is no longer memory-bound: the ridge, in tokens."""
    first = mend_first(lab, "arithmetic_intensity", "ridge_point", "is_memory_bound")
    got = lab.critical_batch_size(gpu(lab), llama(lab))
    assert got == 160, f"{first}16 bits: intensity = tokens, and the ridge is at 160; got {got}"
    assert isinstance(got, int), f"a number of requests is a whole number, got {got!r}"
    for bytes_per_param, want in ((4, 320), (1, 80), (0.5, 40)):
        got = lab.critical_batch_size(gpu(lab), llama(lab, bytes_per_param))
        lunch = " Quantised weights make the free lunch shorter." if bytes_per_param < 2 else ""
        assert got == want, (
            f"{first}Weights of {bytes_per_param} bytes: a token does 2 / {bytes_per_param} FLOP a byte, so "
            f"{want} of them reach the ridge; got {got}.{lunch}"
        )
    for flops, bandwidth, want in (
        (312e12, 2039e9, 154),
        (989.5e12, 3350e9, 296),
        (121e12, 300e9, 404),
    ):
        got = lab.critical_batch_size(lab.Device("", flops, bandwidth), lab.LLAMA_3_8B)
        assert got == want, (
            f"{first}{flops / 1e12:g} TFLOP/s over {bandwidth / 1e9:g} GB/s: the ridge lies between "
            f"{want - 1} and {want}, and {want - 1} tokens are still left of it: {want}, got {got}"
        )


def test_long_context_wall(lab: ModuleType) -> None:
    """long_context_wall is the first context at which the whole batch reads as much KV as weights."""
    first = mend_first(lab, "kv_bytes_per_token", "step_bytes")
    for batch, want in ((1, 122_071), (64, 1908), (256, 477)):
        got = lab.long_context_wall(llama(lab), batch)
        assert got == want, (
            f"{first}Batch {batch}: 16e9 bytes of weights over {batch} * 128 KiB a token is {want} tokens of "
            f"context, rounded up; got {got}"
        )
        assert isinstance(got, int), f"a context is a whole number of tokens, got {got!r}"
    exact = lab.Model("", 1024, 2, num_layers=1, num_kv_heads=1, head_dim=4, bytes_per_kv=2)
    assert lab.long_context_wall(exact, 2) == 64, (
        f"{first}2,048 bytes of weights, 16 bytes of KV a token, two requests: at exactly 64 tokens they are "
        "level, and that counts"
    )
