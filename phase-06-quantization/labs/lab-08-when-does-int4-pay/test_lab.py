"""Lab 06-08: the predictions, bytes, and the seconds of one part."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from types import ModuleType

import pytest

from course.learner.labs import load_support

support = load_support(__file__)
same, pair = support.same, support.pair
CHECKPOINT = Path(__file__).resolve().parents[3] / "mini_vllm" / "checkpoints" / "tiny-llama"

# ---- predictions ---------------------------------------------------------------------------------

ANSWERS: dict[str, tuple[float, float, str]] = {
    "times faster, alone": (
        3.23, 0.12,
        "which bytes does a step read in 16 bits, which in 4.125, and which of them are the same? The "
        "embedding is a table of which one row is read",
    ),
    "times faster, sixty-four decode": (
        1.79, 0.12, "64 caches of 1,000 tokens are 8.4 GB, in both; add them below and above",
    ),
    "times faster, the same with a chunk": (
        1.0, 0.05, "what do 2,048 tokens in a step wait for, and in how many bits is multiplied?",
    ),
    "tokens from which the linears gain nothing": (
        404, 0.03,
        "from there the product in 16 bits computes as long as it reads; do the 4 bits come into it?",
    ),
    "times faster with fp8, the same with a chunk": (
        1.78, 0.12, "the linears compute at twice the rate, but are caches and head any smaller?",
    ),
}  # fmt: skip


@pytest.mark.parametrize("question", ANSWERS)
def test_the_predictions_hold(lab: ModuleType, question: str) -> None:
    """Five numbers about Noor's card, by hand."""
    said = lab.predictions()
    assert sorted(said) == sorted(ANSWERS), f"answer {sorted(ANSWERS)}; yours: {sorted(said)}"
    want, room, hint = ANSWERS[question]
    assert abs(said[question] - want) <= room * want, (
        f"{question}: not {said[question]:g}. Ask yourself: {hint}"
    )


# ---- bytes ---------------------------------------------------------------------------------------


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


# ---- one part ------------------------------------------------------------------------------------


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


def test_linears_matrix_by_matrix(lab: ModuleType) -> None:
    """Each matrix of Llama-3.1-8B read once and multiplied with every token."""
    shapes = support.matrices(lab.LLAMA_8B) * 32
    total = sum(out * into for out, into in shapes)
    rates = ((lab.FP16, 121e12), (lab.W4A16, 121e12), (lab.W8A8, 242e12), (lab.FP8, 242e12))
    for scheme, rate in rates:
        for tokens in (1, 64, 2048):
            read = sum(out * into * scheme.bits / 8 / 300e9 for out, into in shapes)
            compute = sum(2 * out * into * tokens / rate for out, into in shapes)
            what = f"Llama-3.1-8B's linears on an L4, {scheme.name}, {tokens} tokens"
            pair(lab.linears_seconds(lab.L4, scheme, total, tokens), (read, compute), what)


def test_dequantising_takes_time(lab: ModuleType) -> None:
    """A share of the product's time, and no byte more."""
    scheme = lab.Scheme("4 bits", 4, dequant=0.5)
    got = lab.linears_seconds(support.plain_card(lab), scheme, 1000, 10)
    pair(got, (500 / 1e12, 1.5 * 20_000 / 100e12), "1,000 weights of 4 bits, 10 tokens, 0.5 more")
    scheme = lab.Scheme("fp8 stored", 8, "fp8", dequant=0.25)
    got = lab.linears_seconds(support.plain_card(lab), scheme, 1000, 10)
    pair(
        got, (1000 / 1e12, 1.25 * 20_000 / 100e12), "1,000 weights of 8 bits, 10 tokens, 0.25 more"
    )


def test_unpacking_first(lab: ModuleType) -> None:
    """Read what is stored, write 16 bits, and only then read 16 and compute."""
    for bits, tokens in ((4, 1), (4, 1000), (8, 1)):
        scheme = lab.Scheme("unpacked", bits, unpacks_first=True)
        got = lab.linears_seconds(support.plain_card(lab), scheme, 1000, tokens)
        before, compute = (125 * bits + 2000) / 1e12, 2000 * tokens / 100e12
        want = (before + 2000 / 1e12, before + compute)
        pair(got, want, f"1,000 weights of {bits} bits unpacked to memory, {tokens} tokens")


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
