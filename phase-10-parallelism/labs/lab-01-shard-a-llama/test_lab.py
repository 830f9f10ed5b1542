"""Lab 10-01: the predictions, what each rank holds, what the ranks say, and real vLLM's tokens and calls."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in
from mini_vllm.model_loader import expected_tensors

support = load_support(__file__)
RECORDED = support.recorded()
SIZES = sorted(RECORDED)
TINY, BIASED = support.tiny(), support.biased()


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your answers to the six questions hold, before anything is run."""
    facts: dict[str, tuple[Any, str]] = {
        "all-reduces": (
            16_100, "Which functions of the starter need a sum, how often is each called, in how many steps?",
        ),
        "bytes": (180_224, "How many rows has the step, and what does a row hold?"),
        "gathered": (352_704, "How many rows has the step, and which columns does one rank have?"),
        "whole": ("input_layernorm, norm", "Which of them is no matrix?"),
        "kv heads": ([2, 1, 1], "There are 8. Can a rank have less than one?"),
        "same bits": ([True, False], "In which order does each of them add?"),
    }  # fmt: skip
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"six questions; these stand in one of the README and your answers only: {apart}"
    )
    # As a text: a list's length would say how many they are.
    said = said | {"whole": ", ".join(sorted(map(str, said["whole"])))}
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- what a rank holds -----------------------------------------------------------------------------


def check_cut(lab: ModuleType, name: str, config: Any, boxes: list[tuple[slice, ...]]) -> None:
    """`cut` leaves these rows (and columns) of a tensor, one box for each rank."""
    shape = expected_tensors(dataclasses.replace(config, tie_word_embeddings=False))[name]
    whole = support.coordinates(shape)
    for rank, box in enumerate(boxes):
        kept = lab.cut(name, whole.copy(), config, rank, len(boxes))
        want = whole[box]
        assert isinstance(kept, np.ndarray), f"{name}: an array, not {type(kept).__name__}"
        assert kept.dtype == want.dtype, f"{name}: {want.dtype} as it came, not {kept.dtype}"
        assert np.array_equal(kept, want), (
            f"{name}, {list(shape)}, rank {rank} of {len(boxes)}: it should keep "
            f"{support.where_from(want, shape)}; yours keeps {support.where_from(kept, shape)}"
        )


def shares(length: int, size: int) -> list[slice]:
    """Equal shares, one behind the other."""
    return [slice(length // size * rank, length // size * (rank + 1)) for rank in range(size)]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_column_parallel(lab: ModuleType, size: int) -> None:
    """Of q, gate and up a rank has its share of the outputs, weight and bias."""
    for config in (TINY[0], BIASED[0]):
        heads = config.num_attention_heads * config.head_dim
        outputs = {"self_attn.q_proj": heads} | dict.fromkeys(
            ("mlp.gate_proj", "mlp.up_proj"), config.intermediate_size
        )
        for name, length in outputs.items():
            boxes: list[tuple[slice, ...]] = [(box,) for box in shares(length, size)]
            for kind in ("weight", "bias") if config.attention_bias else ("weight",):
                check_cut(lab, f"model.layers.0.{name}.{kind}", config, boxes)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_row_parallel(lab: ModuleType, size: int) -> None:
    """Of o and down a rank has its share of the inputs, and the bias whole."""
    for config in (TINY[0], BIASED[0]):
        heads = config.num_attention_heads * config.head_dim
        for name, length in (
            ("self_attn.o_proj", heads),
            ("mlp.down_proj", config.intermediate_size),
        ):
            boxes: list[tuple[slice, ...]] = [(slice(None), box) for box in shares(length, size)]
            check_cut(lab, f"model.layers.0.{name}.weight", config, boxes)
            if config.attention_bias:
                check_cut(lab, f"model.layers.0.{name}.bias", config, [(slice(None),)] * size)


def test_norms_are_whole(lab: ModuleType) -> None:
    """A norm needs the whole row, and every rank has all of its weight."""
    for size in (1, 2, 4):
        for name in ("norm", "layers.3.input_layernorm", "layers.0.post_attention_layernorm"):
            check_cut(lab, f"model.{name}.weight", TINY[0], [(slice(None),)] * size)


HEADS = [(2, 1, [0]), (2, 2, [0, 1]), (2, 4, [0, 0, 1, 1]), (4, 2, [0, 2]), (1, 4, [0, 0, 0, 0]),
         (2, 8, [0, 0, 0, 0, 1, 1, 1, 1]), (8, 4, [0, 2, 4, 6])]  # fmt: skip
"""KV heads, ranks, and the first head of each rank."""


@pytest.mark.parametrize(("heads", "size", "first"), HEADS)
def test_kv_heads(lab: ModuleType, heads: int, size: int, first: list[int]) -> None:
    """Of k and v a rank has whole heads, at least one: then neighbours have the same."""
    config = dataclasses.replace(
        TINY[0], num_attention_heads=8, num_key_value_heads=heads, attention_bias=True
    )
    rows = max(1, heads // size) * config.head_dim
    starts = [one * config.head_dim for one in first]
    boxes: list[tuple[slice, ...]] = [(slice(start, start + rows),) for start in starts]
    for name in ("k_proj.weight", "v_proj.weight", "k_proj.bias"):
        check_cut(lab, f"model.layers.2.self_attn.{name}", config, boxes)


@pytest.mark.parametrize(
    ("vocab", "size"), [(264, 1), (264, 2), (264, 4), (320, 5), (130, 4), (64, 2)]
)
def test_the_vocabulary(lab: ModuleType, vocab: int, size: int) -> None:
    """The vocabulary is filled up with zeros to a multiple of 64, then cut: embedding and head alike."""
    config = dataclasses.replace(TINY[0], vocab_size=vocab)
    rows = -(-vocab // 64) * 64 // size
    shape = (vocab, config.hidden_size)
    whole = support.coordinates(shape)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        for rank in range(size):
            kept = lab.cut(name, whole.copy(), config, rank, size)
            want = np.zeros((rows, config.hidden_size), np.float32)
            mine = whole[rank * rows : (rank + 1) * rows]
            want[: len(mine)] = mine
            assert (kept.dtype, kept.tolist()) == (want.dtype, want.tolist()), (
                f"{name}, {list(shape)}, rank {rank} of {size}: it should keep {rows} rows, "
                f"{support.where_from(want, shape)}; yours keeps {support.where_from(kept, shape)}"
            )


# ---- what the ranks say ----------------------------------------------------------------------------


def check_same(found: list[Any], want: Any, what: str) -> None:
    """Every rank has the same bits, near what one rank computes."""
    for rank, of_rank in enumerate(found):
        shape = np.shape(of_rank.result)
        assert shape == want.shape, f"{what}, rank {rank}: {shape}, where one rank has {want.shape}"
        off = np.flatnonzero(
            ~np.isclose(of_rank.result, want, rtol=1e-3, atol=1e-4).all(-1)
        ).tolist()
        assert not off, (
            f"{what}, rank {rank} of {len(found)}: not what one rank computes, in the rows {off}"
        )
    for rank, of_rank in enumerate(found):
        assert np.array_equal(of_rank.result, found[0].result), (
            f"{what}: ranks 0 and {rank} differ in some bits"
        )


def check_calls(found: list[Any], want: list[tuple[str, tuple[int, ...]]], what: str) -> None:
    """Every rank has made these calls, and no other."""
    for rank, of_rank in enumerate(found):
        calls = [(kind, shape) for kind, shape, _ in of_rank.calls]
        assert calls == want, f"{what}, rank {rank}: {want} is enough; yours calls {calls}"


IDS = np.array([0, 63, 64, 127, 128, 159, 160, 263, 5, 5])


@pytest.mark.parametrize("size", [1, 2, 4])
def test_embed(lab: ModuleType, size: int) -> None:
    """`embed` takes a token's row from the rank that has it; the other ranks add zeros."""
    want = TINY[1]["model.embed_tokens.weight"][IDS]
    found = support.on_ranks(
        lab, TINY, size, lambda rank: lab.embed(rank, IDS.copy()), support.right_cut
    )
    rows = 320 // size
    for rank, of_rank in enumerate(found):
        for brought in of_rank.brought:
            foreign = np.flatnonzero((IDS // rows != rank) & brought.any(-1))
            assert not foreign.size, (
                f"rank {rank} of {size} has the tokens {rank * rows} to {(rank + 1) * rows - 1}; into the "
                f"sum it puts numbers for token {IDS[foreign[0]]}, too"
            )
    check_same(found, want, "embed")
    check_calls(found, [("all_reduce", (len(IDS), 128))] * (size > 1), "embed")


def random_rows(width: int) -> Any:
    return np.random.default_rng(1).standard_normal((5, width)).astype(np.float32)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_row_linear(lab: ModuleType, size: int) -> None:
    """The ranks' parts are added up, and the bias is in the sum once."""
    config, weights = BIASED
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        name = f"model.layers.0.{name}"
        weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        x = random_rows(weight.shape[1])
        parts = np.split(x, size, 1)

        def call(rank: Any, name: str = name, parts: Any = parts) -> Any:
            return lab.row_linear(rank, name, parts[rank.communicator.rank])

        found = support.on_ranks(lab, BIASED, size, call, support.right_cut)
        off = found[0].result - x @ weight.T
        times = (off / bias).mean()
        assert abs(times - 1) < 0.1, (
            f"{name} on {size} ranks: the bias is in the sum {times:.1f} times"
        )
        check_same(found, x @ weight.T + bias, name)
        check_calls(found, [("all_reduce", (5, config.hidden_size))] * (size > 1), name)


@cache
def half_of_one_rank(name: str) -> Any:
    """What one rank computes for a half of the layer with biases, written out."""
    config, weights = BIASED
    x = random_rows(config.hidden_size)

    def linear(name: str, x: Any) -> Any:
        prefix = f"model.layers.0.{name}"
        return x @ weights[f"{prefix}.weight"].T + weights[f"{prefix}.bias"]

    if name == "mlp":
        gate = linear("mlp.gate_proj", x)
        return linear("mlp.down_proj", gate / (1 + np.exp(-gate)) * linear("mlp.up_proj", x))
    attend = support.Attend(config, 2)
    attend.begin([3, 2])
    q, k, v = (linear(f"self_attn.{one}_proj", x) for one in "qkv")
    return linear("self_attn.o_proj", attend(0, q, k, v))


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("half", ["attention", "mlp"])
def test_a_half_layer(lab: ModuleType, half: str, size: int) -> None:
    """Each half of a layer is one rank's, on every rank, and says one thing."""
    config = BIASED[0]

    def call(rank: Any) -> Any:
        x = random_rows(config.hidden_size)
        if half == "mlp":
            return lab.mlp(rank, 0, x)
        attend = support.Attend(config, 2)
        attend.begin([3, 2])
        return lab.attention(rank, 0, x, attend)

    found = support.on_ranks(lab, BIASED, size, call, support.right_cut)
    check_calls(found, [("all_reduce", (5, config.hidden_size))] * (size > 1), half)
    check_same(found, half_of_one_rank(half), half)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_logits(lab: ModuleType, size: int) -> None:
    """`compute_logits` puts the ranks' logits side by side, without the padding's; tied head or not."""
    for model, head in ((TINY, "model.embed_tokens.weight"), (BIASED, "lm_head.weight")):
        x = random_rows(model[0].hidden_size)
        found = support.on_ranks(
            lab, model, size, lambda rank, x=x: lab.compute_logits(rank, x), support.right_cut
        )
        check_same(found, x @ model[1][head].T, "compute_logits")
        check_calls(found, [("all_gather", (5, 320 // size))] * (size > 1), "compute_logits")


# ---- the whole model, and vLLM's -------------------------------------------------------------------


@pytest.fixture(scope="module")
def played() -> dict[tuple[str, int], Any]:
    return {}


def play(lab: ModuleType, size: int, played: dict[tuple[str, int], Any]) -> Any:
    key = (lab.__name__, size)
    if key not in played:
        played[key] = support.play(lab, size)
    return played[key]


@pytest.mark.parametrize("size", SIZES)
def test_tokens_are_vllms(lab: ModuleType, size: int, played: dict[Any, Any]) -> None:
    """24 greedy tokens of two prompts are what real vLLM gave on as many ranks."""
    for request, (mine, vllms) in enumerate(
        zip(play(lab, size, played).tokens, RECORDED[size]["tokens"], strict=True)
    ):
        step = next((i for i, (a, b) in enumerate(zip(mine, vllms, strict=True)) if a != b), 0)
        assert mine == vllms, (
            f"{size} ranks, request {request}: token {step} is {mine[step]}; vLLM's is {vllms[step]}"
        )


@pytest.mark.parametrize("size", SIZES[1:])
def test_calls_are_vllms(lab: ModuleType, size: int, played: dict[Any, Any]) -> None:
    """The first step's calls come in vLLM's order, and in 24 steps each is made as often as vLLM makes it."""
    mine = play(lab, size, played)
    first = [(kind, tuple(shape), nbytes) for kind, shape, nbytes in RECORDED[size]["first_step"]]
    ledger = Counter({(k, tuple(shape), b): n for k, shape, b, n in RECORDED[size]["ledger"]})
    for rank, calls in enumerate(mine.calls):
        step = calls[: len(first)]
        at = next((i for i, (a, b) in enumerate(zip(step, first, strict=False)) if a != b), None)
        assert at is None, (
            f"{size} ranks, rank {rank}, call {at} of the first step: kind, shape and bytes are {step[at]}; "
            f"vLLM's {first[at]}"
        )
        more, less = Counter(calls) - ledger, ledger - Counter(calls)
        assert not more + less, (
            f"{size} ranks, rank {rank}: calls too many {dict(more)}, too few {dict(less)}"
        )


@pytest.mark.parametrize("size", SIZES[1:])
def test_ranks_agree_to_the_bit(lab: ModuleType, size: int, played: dict[Any, Any]) -> None:
    """All ranks have the same logits to the bit, and one rank's to a tolerance."""
    one, several = play(lab, 1, played), play(lab, size, played)
    for rank, logits in enumerate(several.logits):
        assert np.array_equal(logits, several.logits[0]), f"ranks 0 and {rank} of {size} differ"
    mine, want = several.logits[0], one.logits[0]
    assert mine.shape == want.shape, f"{mine.shape} logits, where one rank has {want.shape}"
    off = np.flatnonzero(~np.isclose(mine, want, rtol=1e-3, atol=1e-3).all(-1)).tolist()
    assert not off, f"{size} ranks: not near what one rank computes, in the rows {off[:9]}"
