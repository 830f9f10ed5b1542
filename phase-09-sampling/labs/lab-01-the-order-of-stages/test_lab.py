"""Lab 09-01: the predictions, each stage, two stages at a time, greedy rows, and vLLM's own tokens."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support

support = load_support(__file__)
RECORDED = support.recorded()
ROW = support.ROW


def run_stage(lab: ModuleType, name: str, logits: Any, **fields: Any) -> Any:
    """One stage on one row, which must stay as it is."""
    row = np.array(logits, np.float32)
    before = row.copy()
    got = np.asarray(lab.STAGES[name](row, lab.Request(**fields)))
    assert np.array_equal(row, before), f"{name}: the row that it was given has changed"
    assert got.dtype == np.float32, f"{name}: float32 is asked for, not {got.dtype}"
    return got


def expect(name: str, got: Any, want: Any, what: str) -> None:
    """Fails where a row of logits differs, and names the first token that does."""
    right = np.array(want, np.float32)
    assert got.shape == right.shape, f"{name}: a row of {len(right)} logits, not {got.shape}"
    for token in np.flatnonzero(~np.isclose(got, right, rtol=1e-5, atol=1e-6)):
        pytest.fail(
            f"{name}: {what}: token {token} has {right[token]:.3f}, and yours {got[token]:.3f}. The row: "
            f"{np.round(right, 3).tolist()}, not {np.round(got, 3).tolist()}"
        )


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your answers to six questions about the README's row are vLLM's."""
    asks = {
        "min_p and top_p": "Which tokens does the first of the two leave, and what is each one's share then?",
        "top_k and top_p": "Of what does top_p take a share?",
        "a hot request": "How many times as likely as token 0 is each token at temperature 2?",
        "a barred favourite": "Who is the likeliest token that may still be drawn?",
        "a penalty in the heat": "By how much does the penalty change the logit that is left at the end?",
        "greedy": "Which tokens does this penalty cover, and which way do negative logits go?",
    }
    said = lab.predictions()
    apart = sorted(asks.keys() ^ said.keys())
    assert not apart, (
        f"six questions; these stand in one of the README and your answers only: {apart}"
    )
    for name, ask in asks.items():
        found = RECORDED["questions"][name]
        right = found if name == "greedy" else support.survivors(support.as_row(found))
        assert list(said[name]) == list(right), f"{name}: {said[name]} is wrong. {ask}"


# ---- each stage ----------------------------------------------------------------------------------


def test_only_allowed_tokens_are_left(lab: ModuleType) -> None:
    """Only the allowed tokens are left; with None, every token is allowed."""
    got = run_stage(lab, "allowed ids", ROW, allowed_token_ids=[4, 1])
    assert support.survivors(got) == [1, 4], (
        f"tokens 4 and 1 are allowed: [1, 4] are left, not {support.survivors(got)}"
    )
    expect("allowed ids", run_stage(lab, "allowed ids", ROW), ROW, "None, so all are allowed")


def test_a_bad_words_last_token_is_barred(lab: ModuleType) -> None:
    """The last token of a bad word is masked where the output ends with the tokens before it."""
    cases: list[tuple[list[int], list[list[int]], list[int]]] = [
        ([3, 1], [[1, 2]], [2]),
        ([1, 3], [[1, 2]], []),
        ([5, 3, 1], [[3, 1, 0], [5, 3, 4]], [0]),
        ([1], [[3, 1, 0]], []),
        ([], [[2], [4, 5]], [2]),
        ([3, 1], [[2]], [2]),
        ([1, 1], [[1, 1], [3, 5]], [1]),
    ]
    for output, words, barred in cases:
        got = run_stage(lab, "bad words", ROW, output=output, bad_words=words)
        gone = sorted(set(range(6)) - set(support.survivors(got)))
        assert gone == barred, (
            f"output {output}, bad words {words}: {barred} may not come next, and you bar {gone}"
        )
    got = run_stage(lab, "bad words", ROW, prompt=[3, 1], bad_words=[[1, 2]])
    assert len(support.survivors(got)) == 6, (
        "the prompt ends with 1, and the bad word 1 2 begins with it: only the output counts"
    )
    expect("bad words", got, ROW, "nothing is barred")


def test_a_bias_is_added(lab: ModuleType) -> None:
    """A bias is added to the tokens that it names, and to no others."""
    got = run_stage(lab, "logit bias", [1, 2, -np.inf, 4], logit_bias={1: 2.5, 2: 5.0, 3: -1.0})
    expect("logit bias", got, [1, 4.5, -np.inf, 3], "1 2 -inf 4 with +2.5, +5 and -1 on 1, 2 and 3")


def test_repetition_covers_prompt_and_output(lab: ModuleType) -> None:
    """The repetition penalty divides positive logits and multiplies others, once per token."""
    row = [2.0, 2.0, 2.0, -2.0, -2.0, 0.0]
    got = run_stage(
        lab, "penalties", row, prompt=[1, 3, 3], output=[2, 2, 2], repetition_penalty=2.0
    )
    expect(
        "penalties", got, [2, 1, 1, -4, -2, 0],
        f"prompt 1 3 3, output 2 2 2, a repetition penalty of 2 on {row}",
    )  # fmt: skip


def test_frequency_counts_and_presence_does_not(lab: ModuleType) -> None:
    """Frequency and presence penalties look only at the output."""
    row = [3.0, 3.0, 3.0, -1.0]
    got = run_stage(lab, "penalties", row, prompt=[0], output=[1, 3, 1, 1], frequency_penalty=0.5)
    expect(
        "penalties", got, [3, 1.5, 3, -1.5],
        f"prompt 0, output 1 3 1 1, a frequency penalty of 0.5 on {row}",
    )  # fmt: skip
    got = run_stage(lab, "penalties", row, prompt=[0], output=[1, 3, 1, 1], presence_penalty=0.5)
    expect(
        "penalties", got, [3, 2.5, 3, -1.5],
        f"prompt 0, output 1 3 1 1, a presence penalty of 0.5 on {row}",
    )  # fmt: skip


def test_repetition_comes_before_the_other_two(lab: ModuleType) -> None:
    """Penalties halve a logit of 1 first, and then subtract 0.75 and 1."""
    got = run_stage(
        lab, "penalties", [1.0, 1.0], output=[0],
        repetition_penalty=2.0, frequency_penalty=0.75, presence_penalty=1.0,
    )  # fmt: skip
    expect(
        "penalties", got, [-1.25, 1], "output 0, repetition 2, frequency 0.75, presence 1 on 1, 1"
    )
    got = run_stage(lab, "penalties", [1.0, 1.0])
    expect("penalties", got, [1, 1], "neither prompt, output nor penalty on 1, 1")


def test_min_p_is_relative_to_the_likeliest(lab: ModuleType) -> None:
    """A token exactly at min_p's floor stays."""
    for floor, left in ((0.2, [0, 1, 2, 3]), (0.5, [0, 1]), (1.0, [0]), (0.0, [0, 1, 2, 3, 4, 5])):
        got = support.survivors(run_stage(lab, "min_p", ROW, min_p=floor))
        assert got == left, f"min_p {floor} on the README's row: {left} are left, not {got}"
    got = support.survivors(run_stage(lab, "min_p", [2.0, 2.0, 1.0], min_p=1.0))
    assert got == [0, 1], f"logits 2 2 1, min_p 1: both at the floor stay, and you leave {got}"


def test_top_k_keeps_ties(lab: ModuleType) -> None:
    """top_k keeps all tokens that tie with the k-th, and is off for 0 and from V on."""
    row = [1.0, 3.0, 2.0, 3.0, 2.0, 0.0]
    all_six = [0, 1, 2, 3, 4, 5]
    cases = [(1, [1, 3]), (2, [1, 3]), (3, [1, 2, 3, 4]), (0, all_six), (6, all_six), (9, all_six)]
    for k, left in cases:
        got = support.survivors(run_stage(lab, "top_k", row, top_k=k))
        assert got == left, f"top_k {k} on {row}: {left} are left, not {got}"
    got = support.survivors(run_stage(lab, "top_k", [1, -np.inf, 2, -np.inf], top_k=3))
    assert got == [0, 2], f"two tokens and two barred ones, top_k 3: {got} are left, not [0, 2]"


def test_top_p_keeps_the_token_that_crosses(lab: ModuleType) -> None:
    """top_p masks from the least likely up, while the sum is at most 1 - p, and never the likeliest."""
    for p, most in ((0.5, 2), (0.7, 3), (0.001, 1), (1e-9, 1), (0.93, 5), (1.0, 6)):
        left = list(range(most))
        got = support.survivors(run_stage(lab, "top_p", ROW, top_p=p))
        assert got == left, f"top_p {p} on the README's row: {left} are left, not {got}"
    for p, number in ((0.5, 2), (0.75, 3), (0.25, 1), (0.6, 3)):
        got = support.survivors(run_stage(lab, "top_p", [1.0, 1.0, 1.0, 1.0], top_p=p))
        assert len(got) == number, (
            f"four tokens of 0.25 and top_p {p}: {number} are left, and you leave {len(got)}"
        )
    row = [0.5, 3.0, -np.inf, 2.0, 1.0]
    got = run_stage(lab, "top_p", row, top_p=0.8)
    expect("top_p", got, [-np.inf, 3, -np.inf, 2, -np.inf], f"top_p 0.8 on {row}")


@pytest.mark.parametrize("name", support.STAGE_NAMES)
def test_each_stage_is_vllms(lab: ModuleType, name: str) -> None:
    """Each stage gives what vLLM's own function gave on 12 random rows (answers.json)."""
    for seed, row in enumerate(RECORDED["stages"][name]):
        logits, fields = support.random_stage(name, seed)
        asked = {key: value for key, value in fields.items() if value}
        what = f"{asked} on {np.round(logits, 3).tolist()}; vLLM leaves"
        expect(name, run_stage(lab, name, logits, **fields), support.as_row(row), what)


# ---- the order -----------------------------------------------------------------------------------


def test_the_order_names_every_stage(lab: ModuleType) -> None:
    """The order has nine names, each once."""
    got, want = sorted(lab.order()), sorted([*support.STAGE_NAMES, "argmax"])
    assert got == want, f"the order has the eight stages and argmax, each once; yours has {got}"


@pytest.mark.parametrize("pair", support.PAIRS)
def test_two_stages_leave_what_vllm_leaves(lab: ModuleType, pair: str) -> None:
    """A request with two knobs leaves on the README's row what vLLM leaves (answers.json)."""
    fields, want = support.PAIRS[pair], support.as_row(RECORDED["pairs"][pair])
    got = np.asarray(lab.process(ROW.copy(), lab.Request(**fields)))
    mine, theirs = support.survivors(got), support.survivors(want)
    assert mine == theirs, (
        f"{fields} on the README's row: vLLM leaves tokens {theirs}, and you {mine}"
    )
    expect("process", got, want, f"{fields} on the README's row; vLLM leaves the logits")


def test_greedy_is_what_can_change_the_largest(lab: ModuleType) -> None:
    """A greedy row gets masks, bias and penalties, but not temperature, min_p, top_k or top_p."""
    cases: list[tuple[dict[str, Any], list[float], str]] = [
        ({"bad_words": [[0]]}, [-np.inf, 1.0, 0.5], "a bad word"),
        ({"allowed_token_ids": [1, 2]}, [-np.inf, 1.0, 0.5], "allowed tokens 1 and 2"),
        ({"logit_bias": {2: 4.0}}, [2.0, 1.0, 4.5], "a bias of 4 on token 2"),
        ({"output": [0], "presence_penalty": 1.5}, [0.5, 1.0, 0.5], "a presence penalty"),
        ({"top_k": 1, "top_p": 0.1, "min_p": 0.9}, [2.0, 1.0, 0.5], "top_k, top_p and min_p"),
    ]
    for cold in (0.0, 0.000009):
        for fields, want, what in cases:
            request = lab.Request(temperature=cold, **fields)
            with np.errstate(all="ignore"):
                got = np.asarray(lab.process(np.array([2, 1, 0.5], np.float32), request))
            expect("process", got, want, f"temperature {cold} and {what} on 2, 1, 0.5")


def test_where_greedy_ends(lab: ModuleType) -> None:
    """A temperature of exactly 0.00001 is not greedy."""
    request = lab.Request(temperature=1e-5)
    got = np.asarray(lab.process(np.array([2, 2], np.float32), request))
    expect("process", got, [200000, 200000], "temperature 0.00001 on 2, 2")
    row, noise = np.ones((1, 2), np.float32), np.array([[4, 1]], np.float32)
    got = lab.sample(row, [request], noise).tolist()
    assert got == [1], f"temperature 0.00001, logits 1 1 and noise 4 1: token 1 is drawn, not {got}"


def test_a_batch_of_both_kinds(lab: ModuleType) -> None:
    """In a batch with a greedy row and a drawn one, each follows its own rule."""
    logits = np.array([[2, 1.9, 0], [2, 1.9, 0], [0, 0, 0]], np.float32)
    noise = np.array([[4, 0.1, 4], [4, 0.1, 4], [1, 1, 1]], np.float32)
    requests = [lab.Request(temperature=0.0), lab.Request(), lab.Request()]
    with np.errstate(all="ignore"):
        got = lab.sample(logits, requests, noise)
    assert isinstance(got, np.ndarray), f"an array, not {type(got).__name__}"
    assert got.dtype == np.int64, f"int64, not {got.dtype}"
    assert got.tolist() == [0, 1, 0], (
        f"logits 2 1.9 0 and noise 4 0.1 4: token 0 greedily, token 1 drawn; three equal tokens: the first. "
        f"[0, 1, 0], not {got.tolist()}"
    )


def test_the_tokens_are_vllms(lab: ModuleType) -> None:
    """60 batches with all knobs get the tokens of vLLM's `Sampler.forward`, with noise from their seeds."""
    assert len(RECORDED["batches"]) >= 60, "answers.json has 60 batches"
    for seed, tokens in enumerate(RECORDED["batches"]):
        logits, fields = support.random_batch(seed)
        noise = support.noise_of(seed, len(fields))
        got = np.asarray(lab.sample(logits, support.make_requests(lab, fields), noise)).tolist()
        for i, (mine, theirs) in enumerate(zip(got, tokens, strict=True)):
            assert mine == theirs, (
                f"batch {seed}, row {i}, which asks for {fields[i]}: vLLM's token is {theirs}, yours {mine}"
            )
