"""Lab 08-06: what vLLM's validators say, what faults do to pairs of tokens, and a test that finds them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
FAULTS = ("resampled", "shared u")


# ---- what passes ---------------------------------------------------------------------------------


def test_the_parameters(lab: ModuleType) -> None:
    """Each parameter passes or fails as in vLLM's own validators (answers.json, written by ask_vllm.py)."""
    said, facts = lab.parameters(), support.answers()["parameters"]
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, f"one answer for each of support.SETTINGS; in one of the two only: {apart}"
    ask = {
        "refused": "Which parameters does `_validate_spec_decode` name?",
        "no start": "What does `build_logitsprocs` do with classes of one's own?",
        "passes": "Which line of the two functions would stop it? And what counts as asking for something?",
    }
    for name, fact in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask[fact]}"


def test_the_methods(lab: ModuleType) -> None:
    """Each method is treated as vLLM's configuration decides, before the platform changes anything."""
    said, facts = lab.methods(), support.answers()["methods"]
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, f"one answer for each of support.METHODS; in one of the two only: {apart}"
    ask = (
        "Which types does the branch for `async_scheduling is None` let through?",
        "Which methods does the branch for explicit `async_scheduling` add to those?",
        "Which methods does `_get_v2_model_runner_unsupported_features` not append?",
    )
    for name, fact in facts.items():
        assert isinstance(said[name], list | tuple), f"{name}: a list of three"
        assert len(said[name]) == 3, f"{name}: a list of three, not of {len(said[name])}"
        for place, (mine, right) in enumerate(zip(said[name], fact, strict=True)):
            wrong = wrong_in(mine, right)
            assert not wrong, f"{name}, answer {place} counted from 0: {wrong}. {ask[place]}"


# ---- what the pairs would be ---------------------------------------------------------------------


def pairs_by(lab: ModuleType, fault: str | None, model: tuple[Any, ...]) -> np.ndarray:
    if fault is None:
        return np.asarray(lab.pairs_if_right(*model[:2]))
    name = {"resampled": "pairs_if_resampled", "shared u": "pairs_if_u_is_shared"}[fault]
    return np.asarray(getattr(lab, name)(*model))


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_pairs_are_what_a_server_with_the_fault_writes(lab: ModuleType, fault: str | None) -> None:
    """The pairs are those that a faulty server writes, on six models with 60,000 requests each."""
    for seed in range(6):
        model = support.make_model(seed, 2 + seed % 3)
        before = [np.array(part) for part in model]
        got = pairs_by(lab, fault, model)
        for part, old in zip(model, before, strict=True):
            assert np.array_equal(part, old), (
                f"fault {fault}: you have changed an array that you were given"
            )
        vocab = len(model[0])
        assert got.shape == (vocab, vocab), (
            f"fault {fault}: {vocab} rows of {vocab} for {vocab} tokens, not {got.shape}"
        )
        assert got.sum() == pytest.approx(1, abs=1e-9), (
            f"fault {fault}: probabilities of all pairs add up to 1, yours to {got.sum():.4f}"
        )
        if fault == "shared u":
            firsts = got.sum(axis=1)
            assert np.allclose(firsts, model[0], atol=1e-9), (
                f"fault {fault}: first tokens are right, {model[0].round(3).tolist()}, and yours come with "
                f"{firsts.round(3).tolist()}"
            )
        tokens = support.Box(*model, seed=100 + seed, fault=fault, share=1.0).draw(60_000)
        counted = np.zeros((vocab, vocab))
        np.add.at(counted, (tokens[:, 0], tokens[:, 1]), 1 / 60_000)
        off = np.abs(counted - got)
        one, two = np.unravel_index(int(off.argmax()), off.shape)
        first, second, draft_first, draft_second = model
        assert off.max() < 0.007, (
            f"fault {fault}: token {one} and then {two} is counted with {counted[one, two]:.3f}, and you say "
            f"{got[one, two]:.3f}; first {first.round(3).tolist()}, then {second[one].round(3).tolist()}, "
            f"drafts {draft_first} and {draft_second[one]}"
        )


# ---- the test ------------------------------------------------------------------------------------


def test_chi_square_by_hand(lab: ModuleType) -> None:
    """Chi-square is right for 60 throws of a die, and is 0 for counts that are as expected."""
    cases = [
        ([5, 8, 9, 8, 10, 20], [1 / 6] * 6, 13.4),
        ([50, 30, 20], [0.5, 0.3, 0.2], 0.0),
        ([40, 40, 20], [0.5, 0.3, 0.2], 100 / 50 + 100 / 30),
    ]
    for counts, probs, want in cases:
        got = lab.chi_square(np.array(counts), np.array(probs))
        assert got == pytest.approx(want, abs=1e-9), (
            f"counts {counts}, expected {[round(p * sum(counts), 1) for p in probs]}: {want:.3f}, not {got}"
        )


def test_draws_needed(lab: ModuleType) -> None:
    """The number of draws follows the formula, and is enough when tried."""
    fair, loaded = np.full(2, 0.5), np.array([0.6, 0.4])
    want = int(np.ceil(support.needed(1) / 0.04))
    got = lab.draws_needed(fair, loaded)
    assert got == want, (
        f"a coin with 0.6 heads instead of 0.5: w2 is 0.04, one degree of freedom, {want} draws; not {got}"
    )
    some = lab.draws_needed(fair, 0.75 * fair + 0.25 * loaded)
    assert abs(some / got - 16) < 0.1, (
        f"a quarter of the difference takes 16 times the draws: {got} become {some}"
    )
    rng = np.random.RandomState(3)
    for case in range(3):
        right = rng.dirichlet([4] * 4)
        wrong = 0.8 * right + 0.2 * rng.dirichlet([4] * 4)
        square = lab.draws_needed(right.reshape(2, 2), wrong.reshape(2, 2))
        n = lab.draws_needed(right, wrong)
        assert square == n, f"the same four cells as a table and as a list: {square} and {n} draws"
        for draws, least, most in ((n, 0.975, 1.0), (n // 2, 0.0, 0.9)):
            counts = rng.multinomial(draws, wrong, size=4000)
            far = ((counts - draws * right) ** 2 / (draws * right)).sum(axis=1)
            found = float((far > support.critical(3)).mean())
            assert least <= found <= most, (
                f"case {case}: you say {n} draws show 99 times in 100 that {wrong.round(3).tolist()} is not "
                f"{right.round(3).tolist()}; of 4,000 tests with {draws} draws, {found:.1%} show it"
            )


class Scripted:
    """A server whose counts come out at a given chi-square."""

    def __init__(self, right: np.ndarray, far: float) -> None:
        self.right, self.far, self.drawn = right, far, 0

    def draw(self, n: int) -> np.ndarray:
        n = int(n)
        self.drawn += n
        counts = np.floor(n * self.right.ravel()).astype(int)
        counts[0] += n - counts.sum()
        a, b = 1, 2
        each = 1 / (n * self.right.ravel()[a]) + 1 / (n * self.right.ravel()[b])
        shift = round((self.far / each) ** 0.5)
        counts[a] += shift
        counts[b] -= shift
        assert counts.min() >= 0, f"for {n} draws no server can be so far off: you ask for too few"
        cells = np.repeat(np.arange(len(counts)), counts)
        return np.stack(np.divmod(cells, len(self.right)), axis=1)


def test_where_the_line_is(lab: ModuleType) -> None:
    """A server is accused just above the chi-square that one right server in 1,000 exceeds, not below."""
    model = support.make_model(1)
    right = model[0][:, None] * model[1]
    limit = support.critical(8)
    for far, want in ((0.97 * limit, None), (1.03 * limit, "b")):
        boxes = {"a": Scripted(right, 1), "b": Scripted(right, far), "c": Scripted(right, 5)}
        got = lab.find_biased(boxes, *model)
        assert got == want, (
            f"three servers with chi-square near 1, {far:.1f} and 5, nine kinds of pairs: the line is "
            f"{limit:.1f}, so {want}, not {got}"
        )


def trial(lab: ModuleType, seed: int, fault: str | None) -> tuple[str | None, str | None, int, Any]:
    """Who is biased, whom the lab accuses, its draws per server, and the model."""
    model = support.make_model(1000 + seed)
    names = ["a", "b", "c"]
    biased = names[seed % 3] if fault else None
    boxes = {
        name: support.Box(*model, seed=10 * seed + i, fault=fault if name == biased else None)
        for i, name in enumerate(names)
    }
    accused = lab.find_biased(boxes, *model)
    return biased, accused, max(box.drawn for box in boxes.values()), model


@pytest.mark.parametrize("fault", FAULTS)
def test_the_biased_server_is_found(lab: ModuleType, fault: str) -> None:
    """With one biased server in each of 60 trials, 59.4 are found on average, and 57 must be."""
    missed, wrongly, examples = 0, 0, []
    for seed in range(60):
        biased, accused, draws, _ = trial(lab, seed, fault)
        missed += accused is None
        wrongly += accused not in (None, biased)
        if accused != biased:
            examples.append(
                f"trial {seed}: {biased} is biased, you say {accused} after {draws} draws"
            )
    assert not wrongly, f"{fault}: {wrongly} of 60 accuse a server that is right; {examples[0]}"
    assert missed <= 3, (
        f"{fault}: {missed} of 60 biased servers are not found, 1 in 100 is the aim; {examples[0]}"
    )


def test_servers_that_are_right_are_left_alone(lab: ModuleType) -> None:
    """In 150 trials with three right servers, 0.45 are accused on average, and at most 2 may be."""
    accused = [seed for seed in range(150) if trial(lab, seed, None)[1] is not None]
    assert len(accused) <= 2, (
        f"of 450 servers that are right you accuse {len(accused)}; one in 1,000 is allowed for"
    )


def test_no_more_draws_than_it_takes(lab: ModuleType) -> None:
    """Each server is asked as often as the fault that is harder to see takes."""
    for seed in range(12):
        *_, draws, model = trial(lab, seed, FAULTS[seed % 2])
        right = model[0][:, None] * model[1]
        takes = [
            int(np.ceil(support.needed(8) / ((mixed - right) ** 2 / right).sum()))
            for mixed in (
                support.SHARE * pairs_by(lab, fault, model) + (1 - support.SHARE) * right
                for fault in FAULTS
            )
        ]
        assert max(takes) * 0.99 - 2 <= draws <= max(takes) * 1.01 + 2, (
            f"trial {seed}: it takes {takes[0]} draws to see the one fault and {takes[1]} to see the other; "
            f"you ask {draws} times"
        )
