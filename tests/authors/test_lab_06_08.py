"""Lab 06-08: bytes, the head, attention and a mixed step, as the lab gives them."""

from __future__ import annotations

import dataclasses
import json
import math
from types import ModuleType

import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module
from mini_vllm import EngineConfig, LLMEngine, SamplingParams

LAB = ROOT / "phase-06-quantization/labs/lab-08-when-does-int4-pay"
support = load_module(LAB / "support.py", "test_lab_06_08_support")
same, pair = support.same, support.pair
CHECKPOINT = ROOT / "mini_vllm" / "checkpoints" / "tiny-llama"


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    return load_module(LAB / "starter.py", "test_lab_06_08_starter")


@pytest.mark.parametrize(
    ("bits", "group", "scale", "zero", "want"),
    [
        (4, 128, 16, 0, 4.125),
        (4, 128, 16, 4, 4.15625),
        (4, 32, 16, 0, 4.5),
        (4, 16, 8, 0, 4.5),
        (8, 4096, 16, 0, 8.00390625),
        (4, 32, 8, 0, 4.25),
    ],
)
def test_a_scale_is_shared(
    lab: ModuleType, bits: int, group: int, scale: int, zero: int, want: float
) -> None:
    """128 weights and one scale of 16 bits are 4.125 bits a weight; AWQ adds a zero point of 4."""
    what = f"{bits} bits, groups of {group}, scales of {scale} bits, zero points of {zero}"
    same(lab.bits_per_weight(bits, group, scale, zero), want, what)
    if scale == 16 and not zero:
        same(lab.bits_per_weight(bits, group), want, f"{bits} bits, groups of {group}, as given")


def test_the_linears_one_by_one(lab: ModuleType) -> None:
    """Seven matrices a layer, with few KV heads, and heads that do not add up to hidden."""
    for changed in ({}, {"layers": 5}, {"kv_heads": 2}, {"heads": 3}, {"head_size": 7}, {"mlp": 9}):
        model = support.small_model(lab, **changed)
        want = model.layers * sum(out * into for out, into in support.matrices(model))
        same(lab.linear_weights(model), want, f"the weights of the linears of {model}")
    same(lab.linear_weights(lab.LLAMA_8B), 6_979_321_856, "the weights of Llama-3.1-8B's linears")


def test_the_shipped_checkpoint(lab: ModuleType) -> None:
    """The sizes in model.safetensors, tensor by tensor."""
    with (CHECKPOINT / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    sizes = {
        name: math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__"
    }
    raw = json.loads((CHECKPOINT / "config.json").read_text("utf-8"))
    heads = raw["num_attention_heads"]
    model = lab.Model(
        "tiny-llama", raw["num_hidden_layers"], raw["hidden_size"], raw["intermediate_size"], heads,
        raw["num_key_value_heads"], raw["hidden_size"] // heads, raw["vocab_size"], tied=True,
    )  # fmt: skip
    linears = sum(size for name, size in sizes.items() if "_proj" in name)
    same(lab.linear_weights(model), linears, "the shipped model's projections")
    want = 2 * sum(sizes.values())
    same(lab.resident_bytes(model, lab.FP16), want, "the shipped model in 16 bits, a tied head")


def test_what_stays_in_16_bits(lab: ModuleType) -> None:
    """Embedding, head and norms; 16.06 GB become 5.7, so three times fewer and not four."""
    model = lab.LLAMA_8B
    same(lab.resident_bytes(model, lab.FP16), 2 * 8_030_261_248, "Llama-3.1-8B in 16 bits")
    rest = 2 * (8_030_261_248 - 6_979_321_856)
    want = 6_979_321_856 * 4.125 / 8 + rest
    same(lab.resident_bytes(model, lab.W4A16), want, "Llama-3.1-8B with linears of 4.125 bits")
    small = support.small_model(lab)
    eight = lab.Scheme("8 bits", 8)
    same(lab.resident_bytes(small, eight), 240 + 2 * (80 + 20), "240 weights in 8 bits, two tables")
    tied = dataclasses.replace(small, tied=True)
    same(lab.resident_bytes(tied, eight), 240 + 2 * (40 + 20), "240 weights in 8 bits, tied")


def test_room_for_people(lab: ModuleType) -> None:
    """What the model leaves of 0.92 of the memory, in whole caches."""
    same(lab.kv_bytes_per_token(lab.LLAMA_8B), 131_072, "K and V of a token of Llama-3.1-8B")
    same(lab.kv_bytes_per_token(lab.LLAMA_8B, 1), 65_536, "the same in 8 bits")
    small = support.small_model(lab)
    same(lab.kv_bytes_per_token(small), 16, "2 layers, 1 KV head of 2, K and V, 2 bytes each")
    card = support.plain_card(lab, memory=4000.0)
    # 3,680 bytes; the model takes 480 + 200, so 3,000 are left, and a cache of 5 tokens takes 80.
    got = lab.people_at_once(card, small, lab.FP16, 5)
    assert got == 37, f"3,000 bytes for caches of 80: 37 people, not {got}"
    got = lab.people_at_once(card, small, lab.FP16, 5, 1)
    assert got == 75, f"3,000 bytes for caches of 40: 75 people, not {got}"
    got = lab.people_at_once(card, small, lab.Scheme("8 bits", 8), 5)
    assert got == 40, f"8 bits leave 240 bytes more, 3,240 for caches of 80: 40 people, not {got}"
    for memory in (100.0, 700.0):
        got = lab.people_at_once(support.plain_card(lab, memory=memory), small, lab.FP16, 5)
        assert got == 0, f"a model of 680 bytes in {0.92 * memory:g}: nobody has room, not {got}"
    found = [lab.people_at_once(lab.L4, lab.LLAMA_8B, one, 1000) for one in (lab.FP16, lab.W4A16)]
    assert found == [45, 124], f"Noor's card, 1,000 tokens each: 45 and 124 people, not {found}"


def test_at_which_rate(lab: ModuleType) -> None:
    """Each product at its own rate; fp8 without tensor cores is a way to store weights."""
    card = support.plain_card(lab, int8=400e12, fp8=300e12)
    w8a16 = lab.Scheme("w8a16", 8)
    rates = (
        (lab.FP16, 100e12), (lab.W4A16, 100e12), (w8a16, 100e12), (lab.W8A8, 400e12), (lab.FP8, 300e12),
    )  # fmt: skip
    for scheme, rate in rates:
        same(
            lab.product_rate(card, scheme),
            rate,
            f"{scheme.name} on a card with 100, 400 and 300 TFLOP/s in 16 bits, int8 and fp8",
        )
    same(
        lab.product_rate(support.plain_card(lab), lab.FP8),
        100e12,
        "fp8 on a card without tensor cores for it is multiplied in 16 bits",
    )


def test_no_int8_is_said(lab: ModuleType) -> None:
    """The error names the scheme and the card."""
    card = support.plain_card(lab, int8=None, fp8=200e12)
    try:
        said = f"no error, but {lab.product_rate(card, lab.W8A8):g}"
    except ValueError as error:
        said = repr(error)
    names = [name for name in ("w8a8", "plain card") if name in said]
    assert names == ["w8a8", "plain card"], (
        f"w8a8 on 'plain card', which has no int8: a ValueError with both names; yours: {said}"
    )


def test_the_head_is_16_bits(lab: ModuleType) -> None:
    """Read once for any number of rows, and not at all for none."""
    card = support.plain_card(lab)
    model = support.small_model(lab)
    for rows in (1, 7):
        pair(lab.head_seconds(card, model, rows), (80 / 1e12, 80 * rows / 100e12), f"{rows} rows")
    pair(lab.head_seconds(card, model, 0), (0.0, 0.0), "no rows, so no head")


def test_attention_pair_by_pair(lab: ModuleType) -> None:
    """Every new token and every token that it sees, counted one by one."""
    card = support.plain_card(lab)
    model = support.small_model(lab, layers=3, heads=6, kv_heads=2, head_size=5)
    for shapes in ([(1, 0)], [(1, 9)], [(7, 0)], [(4, 5)], [(1, 9), (1, 3), (6, 2)], []):
        step = [lab.Request(new, cached) for new, cached in shapes]
        tokens = operations = 0
        for new, cached in shapes:
            tokens += cached + new
            for position in range(cached, cached + new):
                operations += sum(4 * 5 for _head in range(6) for _seen in range(position + 1)) * 3
        for kv_bytes in (2, 1):
            read = tokens * (2 * 3 * 2 * 5 * kv_bytes) / 1e12
            got = lab.attention_seconds(card, model, step, kv_bytes)
            what = f"attention, (new, cached) {shapes}, {kv_bytes} bytes a number"
            pair(got, (read, operations / 100e12), what)
        pair(
            lab.attention_seconds(card, model, step),
            (tokens * 120 / 1e12, operations / 100e12),
            f"attention, (new, cached) {shapes}, 2 bytes where nothing is said",
        )


@pytest.mark.parametrize(("people", "prompt"), [(3, 40), (3, 13), (3, 5), (0, 40), (5, 11)])
def test_the_engine_shares_its_step_so(lab: ModuleType, people: int, prompt: int) -> None:
    """`mini_vllm`'s own scheduler with a budget of 16, asked for the step in which the prompt comes."""
    config = EngineConfig(
        num_gpu_blocks=64, max_num_batched_tokens=16, max_num_seqs=8, enable_prefix_caching=False
    )
    engine = LLMEngine(config=config)
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    for i in range(people):
        engine.add_request(f"p{i}", {"prompt_token_ids": [40 + i, 41]}, params)
    if people:
        engine.step()
    engine.add_request("new", {"prompt_token_ids": [50] * prompt}, params)
    scheduled = engine.engine_core.scheduler.schedule().num_scheduled_tokens
    step = lab.mixed_step(people, 2, prompt, 16)
    got = [request.new for request in step]
    want = [scheduled[name] for name in sorted(scheduled, key="new".__eq__)]
    assert got == want, f"{people} decode, a prompt of {prompt}, budget 16: {want}, not {got}"
    asked = [request.sampled for request in step]
    ends = [True] * people + [scheduled["new"] == prompt]
    assert asked == ends, f"a chunk that is not the last asks for no token: {ends}, not {asked}"
    cached = [request.cached for request in step]
    assert cached == [2] * people + [0], f"who decodes has 2 tokens cached, the new one 0: {cached}"


def test_a_full_step_has_no_room(lab: ModuleType) -> None:
    """As many who decode as the budget, or more."""
    for people in (16, 20):
        got = lab.mixed_step(people, 7, 40, 16)
        want = [lab.Request(1, 7)] * 16
        assert got == want, (
            f"{people} who decode in a budget of 16: 16 requests of one token, not {len(got)}: {got}"
        )
