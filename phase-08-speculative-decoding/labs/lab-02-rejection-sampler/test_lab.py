"""Lab 08-02: one place, one request, a step, vLLM's own tokens, the distribution, and the choice."""

from __future__ import annotations

import warnings
from types import ModuleType

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
ANSWERS = support.answers()

P = np.array([0.4, 0.35, 0.15, 0.1], np.float32)
Q = np.array([0.2, 0.2, 0.6, 0.0], np.float32)


def show(p: np.ndarray) -> list[float]:
    """Probabilities for a message; float32's own digits would say 0.4000000059604645."""
    return [round(float(one), 3) for one in p]


def test_the_predictions_hold(lab: ModuleType) -> None:
    """The predictions hold: three rates, two distributions, and the tokens per step."""
    facts = {
        "certain": (0.15, "Which token is drafted every time, and how likely is it to be kept?"),
        "drawn, judged as certain": (
            0.24, "For each token: how often is it drafted, and how often kept then?",
        ),
        "probabilistic": (
            0.55, "For each token: how often is it drafted, times how often it is kept then?",
        ),
        "instead": (
            [[0.4 / 0.85, 0.35 / 0.85, 0, 0.1 / 0.85], [0.2 / 0.45, 0.15 / 0.45, 0, 0.1 / 0.45]],
            "How much of each token do the kept drafts bring already, and how much of p is still missing?",
        ),
        "tokens per step": (
            1.8525, "Every step gives one token. How likely is a second one, and how likely a third?",
        ),
    }  # fmt: skip
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"the names are {sorted(facts)}; missing from your answers, or not asked for: {apart}"
    )
    for name, (fact, ask) in facts.items():
        lists = zip(said[name], fact, strict=False) if name == "instead" else [(said[name], fact)]
        for mine, right in lists:
            wrong = wrong_in(mine, right, 0.0021)
            assert not wrong, f"{name}: {wrong}. {ask}"
        assert name != "instead" or len(said[name]) == 2, f"{name}: two lists are asked for. {ask}"


# ---- one place -----------------------------------------------------------------------------------


def test_a_certain_draft_is_kept_with_the_models_probability(lab: ModuleType) -> None:
    """A certain draft is kept if p(x) is u or more; a u equal to it is enough."""
    for draft, u, want in ((0, 0.39, True), (0, 0.41, False), (2, 0.2, False), (2, 0.1, True)):
        got = lab.accepts(draft, P, None, u)
        assert got == want, (
            f"p is {show(P)}: certain draft {draft} with u = {u} is {'kept' if want else 'rejected'}, "
            f"and you say {got}"
        )
    even = np.array([0.5, 0.25, 0.25], np.float32)
    assert lab.accepts(0, even, None, 0.5), "p(x) = 0.5 and u = 0.5: the ratio is u, so x is kept"
    assert lab.accepts(0, np.array([1.0, 0.0], np.float32), None, 0.999999), (
        "a draft with p(x) = 1 is always kept"
    )


def test_a_drawn_draft_is_kept_with_the_ratio(lab: ModuleType) -> None:
    """A drawn draft is kept if p(x) / q(x) is u or more, so always if p(x) is larger than q(x)."""
    cases = ((2, 0.24, True), (2, 0.26, False), (0, 0.99, True), (1, 0.999, True))
    for draft, u, want in cases:
        got = lab.accepts(draft, P, Q, u)
        assert got == want, (
            f"p(x) = {P[draft]:.2f}, q(x) = {Q[draft]:.2f}, u = {u}: x is {'kept' if want else 'rejected'}, "
            f"and you say {got}"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = lab.accepts(3, P, Q, 0.0)
    assert not got, "q(x) = 0: x is rejected, however likely to the model, and you keep it"


def test_what_replaces_a_certain_draft(lab: ModuleType) -> None:
    """Kept certain drafts and their replacements together follow p."""
    p = P.copy()
    for draft in range(4):
        got = np.asarray(lab.replacement(draft, p, None))
        kept = float(P[draft])
        together = (1 - kept) * got
        together[draft] += kept
        assert got.sum() == pytest.approx(1, abs=1e-5), (
            f"a distribution adds up to 1, and what replaces certain draft {draft} to {got.sum():.3f}"
        )
        assert np.allclose(together, P, atol=1e-5), (
            f"certain draft {draft} is kept {kept:.2f} of the time and replaced the rest, so that tokens 0 "
            f"to 3 come with {show(P)}; with yours they come with {show(together)}"
        )
    assert np.array_equal(p, P), "p stays as it is: the next place may share its memory"


def test_what_replaces_a_drawn_draft(lab: ModuleType) -> None:
    """Kept drawn drafts and their replacements together follow p, whatever q is."""
    rng = np.random.RandomState(1)
    cases = [(P, Q), *((rng.dirichlet([1] * 4), rng.dirichlet([0.5] * 4)) for _ in range(6))]
    for p, q in cases:
        p, q = p.astype(np.float32), q.astype(np.float32)
        draft = int((q - p).argmax())  # one that may be rejected
        before = p.copy(), q.copy()
        got = np.asarray(lab.replacement(draft, p, q))
        kept = np.minimum(p, q)
        together = kept + (1 - kept.sum()) * got
        shown = f"p {show(p)}, q {show(q)}"
        assert got.min() >= 0, f"{shown}: your replacement has a probability of {got.min():.3f}"
        assert got.sum() == pytest.approx(1, abs=1e-5), (
            f"{shown}: a distribution adds up to 1, and your replacement to {got.sum():.3f}"
        )
        assert np.allclose(together, p, atol=1e-5), (
            f"{shown}: with your replacement tokens 0 to 3 come with {show(together)}, not with p"
        )
        assert np.array_equal(p, before[0]), "p stays as it is"
        assert np.array_equal(q, before[1]), "q stays as it is"


def test_nothing_to_make_up_for(lab: ModuleType) -> None:
    """If q is p, or the model is certain of the draft too, the replacement is p."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = lab.replacement(1, P, P)
        assert np.array_equal(got, P), f"q is p, so no draft is rejected: return p, not {got}"
        sure = np.array([0, 1, 0], np.float32)
        got = lab.replacement(1, sure, None)
        assert np.array_equal(got, sure), (
            f"p(x) is 1, so x is never rejected: return p, not {np.asarray(got).tolist()}"
        )


# ---- one request ---------------------------------------------------------------------------------

EVEN = np.ones(4, np.float32)
RISING = np.array([1, 2, 4, 8], np.float32)


def test_drafts_are_kept_up_to_the_first_that_is_rejected(lab: ModuleType) -> None:
    """Each draft has its own u, and nothing after a rejected draft is judged."""
    p = np.tile(P, (3, 1))
    cases = [
        ([0, 0, 0], [0.1, 0.2, 0.3], [0, 0, 0, 9]),
        ([0, 0, 0], [0.1, 0.5, 0.3], [0, 1]),
        ([0, 0, 0], [0.5, 0.1, 0.1], [1]),
        ([0, 1, 2], [0.1, 0.1, 0.5], [0, 1, 0]),
        ([], [], [9]),
    ]
    for drafts, u, want in cases:
        got = lab.judge(drafts, p[: len(drafts)], None, np.array(u), EVEN, 9)
        assert list(got) == want, (
            f"p is {show(P)} at every place, certain drafts {drafts}, u {u}, inv_q all 1, bonus token 9: "
            f"{want}, not {list(got)}"
        )


def test_a_replacement_is_drawn_with_the_requests_noise(lab: ModuleType) -> None:
    """A replacement is the largest product of distribution and inv_q; each draft has its own p and q."""
    p = np.stack([P, P[::-1]])
    q = np.stack([Q, Q])
    got = lab.judge([2, 0], p, None, np.array([0.1, 0.9]), RISING, 9)
    assert list(got) == [2, 3], (
        f"place 1 has p {show(P[::-1])}, draft 0 is rejected, inv_q {RISING.tolist()}: the largest "
        f"product is token 3's, so [2, 3], not {list(got)}"
    )
    got = lab.judge([2, 2], p, q, np.array([0.2, 0.9]), RISING, 9)
    assert list(got) == [2, 3], (
        "drafts 2 and 2, drawn: p(x) / q(x) is 0.25 and 0.58, u 0.2 and 0.9, so the second is replaced: "
        f"[2, 3], not {list(got)}"
    )
    got = lab.judge([2, 1], p, q, np.array([0.2, 0.5]), RISING, 9)
    assert list(got) == [2, 1, 9], (
        f"drafts 2 and 1, drawn: ratios 0.25 and 0.75, u 0.2 and 0.5: [2, 1, 9], not {list(got)}"
    )


def test_a_greedy_request_gets_what_it_would_have_got(lab: ModuleType) -> None:
    """A greedy request gets its likeliest tokens, up to and including the first that is not the draft."""
    best = np.array([3, 1, 2])
    for drafts, want in (
        ([3, 1, 2], [3, 1, 2, 7]),
        ([3, 1, 0], [3, 1, 2]),
        ([3, 0, 2], [3, 1]),
        ([0, 1, 2], [3]),
    ):
        got = lab.judge_greedy(drafts, best, 7)
        assert list(got) == want, (
            f"the likeliest tokens are 3, 1, 2 and then 7; drafts {drafts}: {want}, not {list(got)}"
        )
    got = lab.judge_greedy([], best[:0], 7)
    assert list(got) == [7], f"without drafts there is the bonus token: [7], not {list(got)}"


# ---- the step ------------------------------------------------------------------------------------


def test_which_rows_judge_which_drafts(lab: ModuleType) -> None:
    """Requests with 3, 0, 2, 0 and 1 draft tokens have 4, 1, 3, 1 and 2 rows of logits."""
    cases = [
        ([3, 0, 2, 0, 1], [0, 1, 2, 5, 6, 9], [3, 4, 7, 8, 10]),
        ([1], [0], [1]),
        ([0, 2], [1, 2], [0, 3]),
    ]
    for counts, judging, bonus in cases:
        got = [np.asarray(rows).tolist() for rows in lab.rows_of(counts)]
        assert got[0] == judging, (
            f"requests with {counts} drafts: rows {judging} judge them, not {got[0]}"
        )
        assert got[1] == bonus, f"requests with {counts} drafts: bonus rows {bonus}, not {got[1]}"


def test_a_table_with_a_row_per_request(lab: ModuleType) -> None:
    """The table is int64, one wider than the most drafts, with -1 after a request's last token."""
    logits = np.log(np.array([P, P[::-1], Q + 0.1, P, P[::-1]], np.float32))
    noise = np.array([1, 2, 3, 1], np.float32)
    got = lab.rejection_sample(
        np.array([0, 3]), [2, 0, 0], None, logits, np.array([True, False, True]),
        np.array([0.9, 0.9]), np.ones((3, 4), np.float32), np.tile(noise, (3, 1)),
    )  # fmt: skip
    assert isinstance(got, np.ndarray), f"an array, not {type(got).__name__}"
    assert got.dtype == np.int64, f"int64, not {got.dtype}"
    assert got.tolist() == [[0, 3, 2], [1, -1, -1], [3, -1, -1]], (
        "request 0 is greedy and has both drafts right, request 1 draws its bonus token with bonus_inv_q "
        f"{noise.tolist()}, request 2 is greedy: [[0, 3, 2], [1, -1, -1], [3, -1, -1]], not {got.tolist()}"
    )


@pytest.mark.parametrize("rule", ["greedy", "certain", "probabilistic", "mixed"])
def test_the_tokens_are_vllms(lab: ModuleType, rule: str) -> None:
    """The tokens are those that vLLM's rejection sampler gave for the same steps and draws (answers.json)."""
    steps = [(number, step) for number, step in enumerate(ANSWERS) if step["rule"] == rule]
    assert len(steps) >= 6, f"answers.json has {len(steps)} steps of the rule {rule}"
    for number, step in steps:
        got = np.asarray(lab.rejection_sample(**support.arguments(step))).tolist()
        for i, (mine, theirs) in enumerate(zip(got, step["tokens"], strict=True)):
            kind = "greedy" if step["is_greedy"][i] else "with a temperature"
            drafted = "certain" if step["draft_probs"] is None else "drawn"
            counts = step["num_draft_tokens"]
            first = sum(counts[:i])
            assert mine == theirs, (
                f"step {number}, request {i}, {kind}: {drafted} drafts "
                f"{step['draft_token_ids'][first : first + counts[i]]}; vLLM keeps {theirs}, and you {mine}"
            )


# ---- the distribution ----------------------------------------------------------------------------

RULES = ("certain", "drawn, judged as certain", "probabilistic")


@pytest.mark.parametrize("rule", RULES)
def test_the_text_is_the_models(lab: ModuleType, rule: str) -> None:
    """4,000 requests with one draft: first tokens are distributed as p, however the draft was made."""
    n = 4000
    rng = np.random.RandomState(2)
    q = np.array([0.1, 0.2, 0.1, 0.5, 0.1], np.float32)
    p = np.array([0.3, 0.25, 0.2, 0.15, 0.1])
    drafts = np.full(n, 3) if rule == "certain" else support.draw(rng, np.tile(q, (n, 1)))
    tokens = support.sample(
        lab,
        drafts[:, None],
        np.tile(q, (n, 1, 1)) if rule == "probabilistic" else None,
        np.tile(p, (n, 2, 1)),
        seed=3,
    )
    for what, some in (
        ("first tokens", tokens[:, 0]),
        ("bonus tokens", tokens[tokens[:, 1] >= 0, 1]),
    ):
        far, worst = support.judge_counts(some, p)
        share = float((some == worst).mean())
        assert far < support.CHI_SQUARE_0_001[4], (
            f"{rule}: of {len(some)} {what}, token {worst} makes up {share:.1%}, and p says {p[worst]:.1%}; "
            f"chi-square is {far:.0f}, and by chance above {support.CHI_SQUARE_0_001[4]} once in 1,000 runs"
        )
    accepted = float((tokens[:, 1] >= 0).mean())
    want = lab.acceptance_rates(p.astype(np.float32), q)[rule]
    assert abs(accepted - want) < 0.03, (
        f"{rule}: {accepted:.3f} of 4,000 drafts are kept by your sampler, and your acceptance_rates says "
        f"{want:.3f}"
    )


@pytest.mark.parametrize("rule", ["certain", "probabilistic"])
def test_pairs_are_the_models(lab: ModuleType, rule: str) -> None:
    """Pairs of tokens follow the model if the second of two drafts depends on the first."""
    n = 4000
    rng = np.random.RandomState(4)
    model = np.array([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1], [0.1, 0.2, 0.7], [0.4, 0.4, 0.2]])
    drafter = np.array([[0.4, 0.35, 0.25], [0.3, 0.3, 0.4], [0.3, 0.3, 0.4], [0.2, 0.7, 0.1]])
    at_first = np.tile(drafter[0], (n, 1))
    if rule == "certain":
        first = at_first.argmax(-1)
        second = drafter[1 + first].argmax(-1)
    else:
        first = support.draw(rng, at_first)
        second = support.draw(rng, drafter[1 + first])
    q = np.stack([at_first, drafter[1 + first]], axis=1)
    p = np.stack([np.tile(model[0], (n, 1)), model[1 + first], model[1 + second]], axis=1)
    drafts = np.stack([first, second], axis=1)
    tokens = support.sample(lab, drafts, q if rule == "probabilistic" else None, p, seed=5)
    # Where the first draft was replaced, the next step says what follows.
    later = tokens[:, 1] < 0
    tokens[later, 1] = support.draw(rng, model[1 + tokens[later, 0]])
    pairs = (model[0][:, None] * model[1:]).ravel()
    far, worst = support.judge_counts(tokens[:, 0] * 3 + tokens[:, 1], pairs)
    share = float(((tokens[:, 0] == worst // 3) & (tokens[:, 1] == worst % 3)).mean())
    assert far < support.CHI_SQUARE_0_001[8], (
        f"{rule}: of {n} pairs, {worst // 3} and then {worst % 3} makes up {share:.1%}, and the model says "
        f"{pairs[worst]:.1%}; chi-square is {far:.0f}, and by chance above "
        f"{support.CHI_SQUARE_0_001[8]} once in 1,000 runs"
    )


# ---- the decision --------------------------------------------------------------------------------


def test_acceptance_rates(lab: ModuleType) -> None:
    """The acceptance rates are those of 200,000 drafts, made and judged as the README says."""
    rng = np.random.RandomState(6)
    for case in range(5):
        p, q = rng.dirichlet([0.7] * 5), rng.dirichlet([0.7] * 5)
        got = lab.acceptance_rates(p.astype(np.float32), q.astype(np.float32))
        assert sorted(got) == sorted(RULES), f"rates for {sorted(RULES)}, not {sorted(got)}"
        drawn = support.draw(rng, np.tile(q, (200_000, 1)))
        likely = np.full(200_000, q.argmax())
        u = rng.random_sample(200_000)
        counted = {
            "certain": (u < p[likely]).mean(),
            "drawn, judged as certain": (u < p[drawn]).mean(),
            "probabilistic": (u < p[drawn] / q[drawn]).mean(),
        }
        for rule, share in counted.items():
            assert abs(got[rule] - share) < 0.006, (
                f"case {case}, {rule}: p {p.round(3).tolist()}, q {q.round(3).tolist()}; counted "
                f"{share:.3f}, and you say {got[rule]:.3f}"
            )


def test_the_choice(lab: ModuleType) -> None:
    """The choice goes by the mean over the positions; `greedy` if it makes no difference."""
    flat = np.full(4, 0.25, np.float32)
    sharp = np.array([0.85, 0.05, 0.05, 0.05], np.float32)
    other = np.array([0.05, 0.05, 0.05, 0.85], np.float32)
    mild = np.array([0.4, 0.3, 0.2, 0.1], np.float32)
    less = np.array([0.75, 0.09, 0.08, 0.08], np.float32)
    cases = [
        ("the model is sharp, the drafter flatter, with the same favourite", [sharp], [mild], "greedy"),
        ("the model is flat", [flat], [mild], "probabilistic"),
        ("they are equal, and certain", [np.eye(4)[1]], [np.eye(4)[1]], "greedy"),
        ("their favourites differ", [sharp], [other], "probabilistic"),
        ("one place each way, the second by more", [sharp, mild], [mild] * 2, "probabilistic"),
        ("two sharp places by a little, a third by much", [less] * 2 + [mild], [mild] * 3, "probabilistic"),
        ("three sharp places and a flat one", [sharp, sharp, sharp, flat], [mild] * 4, "greedy"),
    ]  # fmt: skip
    for what, p, q, want in cases:
        got = lab.choose_draft_sample_method(np.array(p, np.float32), np.array(q, np.float32))
        assert got == want, f"{what}: {want} accepts more, or as much; you choose {got!r}"
