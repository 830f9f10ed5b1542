"""Lab 04-07: attention that knows no neighbour, and the whole model with your parts in it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support

support = load_support(__file__)
bits = support.bits
SCALE = 8**-0.5


def request(lab: ModuleType, seed: int, seq_len: int, m: int = 1) -> Any:
    """The newest `m` rows of a request of `seq_len` tokens: 4 query heads on 2 KV heads of size 8."""
    rng = np.random.default_rng(seed)
    query, key, value = (
        rng.standard_normal((seq_len, heads, 8), np.float32) * size
        for heads, size in ((4, np.float32(2)), (2, np.float32(1)), (2, np.float32(10)))
    )
    return lab.Rows(query[seq_len - m :], key, value)


def exact(one: Any) -> Any:
    """Causal attention in float64."""
    query, key, value = (x.astype(np.float64) for x in one)
    m, heads, _ = query.shape
    out = np.empty_like(query)
    for row, head in np.ndindex(m, heads):
        sees = len(key) - m + row + 1
        scores = key[:sees, head // 2] @ query[row, head] * SCALE
        weights = np.exp(scores - scores.max())
        out[row, head] = weights @ value[:sees, head // 2] / weights.sum()
    return out


def attend(lab: ModuleType, requests: list[Any]) -> list[Any]:
    got = list(lab.attend(requests, SCALE))
    assert len(got) == len(requests), f"{len(requests)} requests, and {len(got)} results"
    for one, out in zip(requests, got, strict=True):
        support.expect_array(out, one.query.shape, "attend, a request's result")
    return got


def test_attend_is_attention(lab: ModuleType) -> None:
    """`attend` is causal, scaled attention with grouped heads, each request with its own keys."""
    requests = [
        request(lab, 1, 40),
        request(lab, 2, 7, 7),
        request(lab, 3, 70, 3),
        request(lab, 4, 1),
    ]
    for i, (one, got) in enumerate(zip(requests, attend(lab, requests), strict=True)):
        want = exact(one)
        error = float(np.abs(got - want).max() / np.abs(want).max())
        assert error < 1e-5, (
            f"request {i}, {len(one.query)} rows over {len(one.key)} tokens: off by {error:.1e} of the "
            f"largest number"
        )


def test_the_scale_is_given(lab: ModuleType) -> None:
    """Some models do not divide by the root of D, so the caller says what a score is multiplied by."""
    one = request(lab, 5, 30, 2)
    [plain] = attend(lab, [one])
    [got] = lab.attend([lab.Rows(one.query * np.float32(4), *one[1:])], SCALE / 4)
    error = float(np.abs(got - plain).max() / np.abs(plain).max())
    assert error < 1e-5, (
        f"four times the query and a quarter of the scale are the same scores, and the result is off by "
        f"{error:.1e}: multiply by `scale`, not by a number of your own"
    )


def test_large_scores_do_not_overflow(lab: ModuleType) -> None:
    """Scores of some hundreds do not overflow, because the largest is taken off before exp."""
    one = request(lab, 5, 30, 2)
    one = lab.Rows(one.query * np.float32(200), one.key, one.value)
    [got] = attend(lab, [one])
    assert np.isfinite(got).all(), (
        "exp of a large score is infinity; take the row's largest off first"
    )


def test_attention_knows_no_neighbour(lab: ModuleType) -> None:
    """A decode is the same to the bit beside no other request, one, 80, and one that is far longer."""
    ida = request(lab, 6, 100)
    [want] = attend(lab, [ida])
    crowds = {
        "one shorter request": [request(lab, 7, 20)],
        "one far longer request": [request(lab, 8, 700)],
        "80 short requests": [request(lab, 9 + i, 3 + i % 5) for i in range(80)],
        "a prompt of 20 rows": [request(lab, 90, 20, 20)],
    }
    for who, crowd in crowds.items():
        for at in (0, len(crowd)):
            got = attend(lab, [*crowd[:at], ida, *crowd[at:]])[at]
            assert bits(got) == bits(want), (
                f"a decode over 100 tokens beside {who}, at place {at}: {np.count_nonzero(got != want)} "
                f"of {got.size} "
                "numbers have other bits than alone"
            )


@pytest.mark.parametrize("seq_len", [17, 33, 64, 100])
def test_a_row_is_the_same_in_any_chunk(lab: ModuleType, seq_len: int) -> None:
    """Row by row the bits are the same with the whole prompt in one step, in chunks, or token by token."""
    [whole] = attend(lab, [request(lab, seq_len, seq_len, seq_len)])
    full = request(lab, seq_len, seq_len, seq_len)
    for chunk in (1, 5, 16):
        for end in range(chunk, seq_len + 1, chunk):
            piece = lab.Rows(full.query[end - chunk : end], full.key[:end], full.value[:end])
            [got] = attend(lab, [piece])
            differ = [i for i in range(chunk) if bits(got[i]) != bits(whole[end - chunk + i])]
            assert not differ, (
                f"row {end - chunk + differ[0]} of a prompt of {seq_len} tokens, in a chunk of {chunk}: "
                f"other bits than in "
                "one piece. A row sees the keys up to its own; where they are cut must not depend on what "
                "comes after it, "
                "nor on how many rows are computed"
            )


# -- The whole model.


IDA = "The scheduler decides who ru"
JON = ("Who waits", "A block is 16 tokens", "KV")


def first_logits(desk: Any, others: tuple[str, ...] = (), at: int = 0) -> Any:
    """Ida's prompt in one step, with whole prompts of others."""
    encode = support.tokenizer().encode
    texts = [*others[:at], IDA, *others[at:]]
    return desk.logits([desk.seat(encode(text, True)) for text in texts])[at]


def chunked_logits(desk: Any, size: int) -> Any:
    """Ida's prompt in chunks, and beside each of them Jon decodes."""
    encode = support.tokenizer().encode
    jon = desk.seat(encode(JON[0], True), room=40)
    desk.logits([jon])
    ida = desk.seat(encode(IDA, True))
    whole, got = ida.tokens, None
    for end in range(size, len(whole) + size, size):
        ida.tokens = whole[:end]
        jon.tokens.append(65)
        got = desk.logits([jon, ida])[1]
    return got


@pytest.fixture(scope="module")
def mine(lab: ModuleType) -> Any:
    """The shipped model with the lab's products, norms and attention."""
    return support.rebuilt(support.model(), lab)


def test_the_model_says_what_it_said(lab: ModuleType, mine: Any) -> None:
    """Your parts give the shipped model's logits, within rounding."""
    got, want = (
        first_logits(support.Desk(mine, 16)),
        first_logits(support.Desk(support.model(), 16)),
    )
    assert np.abs(got - want).max() < 1e-3, f"the logits are off by {np.abs(got - want).max():.1e}"


def test_the_model_knows_no_neighbour(lab: ModuleType, mine: Any) -> None:
    """All 264 logits have the same bits alone and with three others, first and last among them."""
    want = first_logits(support.Desk(mine, 16))
    for at in (0, 3):
        got = first_logits(support.Desk(mine, 16), JON, at)
        assert bits(got) == bits(want), (
            f"Ida's prompt at place {at} beside three others: {np.count_nonzero(got != want)} of "
            f"{want.size} logits have "
            "other bits than alone. layers.py --on mine says where it begins"
        )


def test_the_model_knows_no_chunks(lab: ModuleType, mine: Any) -> None:
    """The logits have the same bits in chunks of 7 beside a decoding request, and token by token."""
    want = first_logits(support.Desk(mine, 16))
    for size in (7, 1):
        got = chunked_logits(support.Desk(mine, 16), size)
        assert bits(got) == bits(want), (
            f"Ida's prompt in chunks of {size}: {np.count_nonzero(got != want)} of {want.size} logits "
            f"have other bits "
            "than in one piece"
        )
