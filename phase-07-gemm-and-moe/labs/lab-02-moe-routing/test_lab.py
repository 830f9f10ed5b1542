"""Lab 07-02: the router, with groups and without, one expert, and the layer in two ways."""

from __future__ import annotations

import warnings
from types import ModuleType

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Three about the router, two about the bill of Phi-3.5-MoE."""
    touched = {m: 16 * (1 - (14 / 16) ** m) for m in (1, 8, 32)}
    one = 32 * 3 * 4096 * 6400 * 2 / 1e9
    facts = {
        "two weights": ([0.5, 0.25], "What do the four odds add up to, and which two stay?"),
        "renormalised": ([2 / 3, 1 / 3], "What do the two weights add up to?"),
        "with one group": ([0, 1], "Which group has the most probable expert, and who else is in it?"),
        "experts touched": (
            list(touched.values()), "How likely is it that one token misses an expert, and that all do?",
        ),
        "GB per token": (
            [touched[m] * one / m for m in touched],
            "How many GB has one expert in all layers, how many are read, and how many tokens share them?",
        ),
    }  # fmt: skip
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"five questions; these stand in one of the README and your answers only: {apart}"
    )
    near = {
        "two weights": 0.002,
        "renormalised": 0.002,
        "experts touched": 0.011,
        "GB per token": 0.011,
    }
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact, near.get(name, 0))
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- the router ----------------------------------------------------------------------------------


def test_a_token_gets_its_most_probable_experts(lab: ModuleType) -> None:
    """The largest first."""
    logits = np.log(np.array([[1, 2, 8, 5], [4, 3, 2, 7]], np.float32))
    weights, ids = lab.route(logits, 2, False)
    assert np.asarray(ids).tolist() == [[2, 3], [3, 0]], (
        f"odds 1 2 8 5 and 4 3 2 7 go to experts [[2, 3], [3, 0]], not {np.asarray(ids).tolist()}"
    )
    assert weights.dtype == np.float32, f"weights are float32, not {weights.dtype}"
    assert np.allclose(weights, [[0.5, 5 / 16], [7 / 16, 4 / 16]], atol=1e-6), (
        f"16 odds in each row: 8 and 5 of them, 7 and 4 of them, as shares of all; not {weights.tolist()}"
    )


def test_renormalised_weights_add_up_to_one(lab: ModuleType) -> None:
    """Mixtral's do; those of a model with norm_topk_prob false do not."""
    _, _, _, logits = support.draw(50, 8, 2, 4, 4, 1)
    plain, kept = lab.route(logits, 2, False)
    scaled, same = lab.route(logits, 2, True)
    assert np.array_equal(kept, same), "the experts are the same with renormalisation and without"
    assert np.allclose(scaled.sum(1), 1, atol=1e-6), (
        f"renormalised weights of a token add up to 1, not {scaled.sum(1)[0]:.3f}"
    )
    want = np.take_along_axis(support.softmax(logits), kept, 1)
    assert np.allclose(plain, want, atol=1e-6), (
        f"without renormalisation they stay shares of all 8 experts: {want[0].round(3).tolist()} for the "
        f"first token, not {plain[0].round(3).tolist()}"
    )


def test_of_equal_experts_the_lower_comes_first(lab: ModuleType) -> None:
    """As in vLLM's kernel on a GPU."""
    _, ids = lab.route(np.zeros((1, 6), np.float32), 3, True)
    assert np.asarray(ids).tolist() == [[0, 1, 2]], (
        f"six equal experts give [0, 1, 2], not {np.asarray(ids)[0].tolist()}"
    )
    _, ids = lab.route_in_groups(np.zeros((1, 6), np.float32), 3, True, 3, 2)
    assert np.asarray(ids).tolist() == [[0, 1, 2]], (
        f"in three equal groups, two of them kept, they give [0, 1, 2], not {np.asarray(ids)[0].tolist()}"
    )


def test_of_many_equal_experts_too(lab: ModuleType) -> None:
    """64 experts with four different logits, alone and in groups of two."""
    logits = np.random.RandomState(6).randint(0, 4, (8, 64)).astype(np.float32)
    best = np.argsort(-logits, axis=1, kind="stable")
    _, ids = lab.route(logits, 6, True)
    assert np.array_equal(ids, best[:, :6]), (
        "64 experts have four different logits, so many are equal: the first six of the best are chosen, in "
        "order. By six experts alone it does not show which sort keeps the order of equal ones"
    )
    pairs = logits[:, :32]
    kept = np.argsort(-pairs, axis=1, kind="stable")[:, :3]
    _, ids = lab.route_in_groups(np.repeat(pairs, 2, axis=1), 3, True, 32, 3)
    assert (np.asarray(ids)[:, :, None] // 2 == kept[:, None]).any(2).all(), (
        "32 groups of two experts, many equally good: the first three of the best are kept"
    )


def test_large_logits_do_not_overflow(lab: ModuleType) -> None:
    """exp(1000) is infinite, and infinity over infinity NaN."""
    logits = np.array([[1000, 999, -1000, 0]], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weights, ids = lab.route(logits, 2, True)
    assert np.asarray(ids).tolist() == [[0, 1]], (
        f"logits 1000 999 -1000 0 go to experts [0, 1], not {np.asarray(ids)[0].tolist()}"
    )
    assert np.allclose(weights, [[0.7310586, 0.2689414]], atol=1e-6), (
        f"logits 1000 and 999 are weighted 0.731 and 0.269, as 1 and 0 are; not {weights[0].tolist()}"
    )


def test_a_token_stays_in_its_best_groups(lab: ModuleType) -> None:
    """A group is judged by its best expert, not by what its experts add up to."""
    odds = np.array([[30, 1, 20, 2, 18, 17, 6, 6]], np.float32)
    for kept, want in ((1, [0, 1]), (2, [0, 2]), (3, [0, 2]), (4, [0, 2])):
        weights, ids = lab.route_in_groups(np.log(odds), 2, False, 4, kept)
        assert np.asarray(ids).tolist() == [want], (
            f"odds 30 1 | 20 2 | 18 17 | 6 6, {kept} groups kept: experts {want}, not "
            f"{np.asarray(ids)[0].tolist()}"
        )
        assert np.allclose(weights, odds[:, want] / 100, atol=1e-6), (
            f"odds 30 1 | 20 2 | 18 17 | 6 6, {kept} groups kept: the weights are shares of all 100, "
            f"{(odds[0, want] / 100).round(2).tolist()}, not {weights[0].round(3).tolist()}"
        )
    weights, _ = lab.route_in_groups(np.log(odds), 2, True, 4, 2)
    assert np.allclose(weights, [[0.6, 0.4]], atol=1e-6), (
        f"renormalised, 30 and 20 are weighted 0.6 and 0.4, not {weights[0].round(3).tolist()}"
    )


def test_no_expert_of_another_group_is_better(lab: ModuleType) -> None:
    """Nor as good: an expert of a kept group may have a probability of 0 in float32, and any logit."""
    for logits in ([-1, -200, 0, -200], [-5, -6, -3, -4]):
        _, ids = lab.route_in_groups(np.array([logits], np.float32), 2, False, 2, 1)
        assert np.asarray(ids).tolist() == [[2, 3]], (
            f"logits {logits}, the second of two groups is kept: experts 2 and 3 are all it has, and yours "
            "takes one of the first group. What is its score?"
        )


# ---- the layer -----------------------------------------------------------------------------------


def apart(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference, in parts of the largest number."""
    return float(np.abs(got - want).max() / np.abs(want).max())


def test_one_expert(lab: ModuleType) -> None:
    """The gate is what SiLU is applied to, and it lies in the upper rows."""
    x, w13, w2, _ = support.draw(3, 1, 1, 6, 4, 2)
    got = lab.expert(x, w13[0], w2[0])
    assert got.shape == (3, 6), f"3 rows come out as [3, 6], not {list(got.shape)}"
    want = support.exact(x, w13, w2, np.ones((3, 1)), np.zeros((3, 1), int))
    assert apart(got, want) < 1e-5, (
        f"down(silu(gate(x)) * up(x)) begins {want[0, :3].round(4).tolist()}, and yours {got[0, :3].tolist()}"
    )


CASES = [(7, 4, 2), (33, 8, 2), (1, 8, 3), (64, 6, 6), (3, 16, 1)]


@pytest.mark.parametrize("name", ["moe_reference", "moe_grouped"])
@pytest.mark.parametrize(("tokens", "experts", "top_k"), CASES)
def test_a_token_is_the_weighted_sum_of_its_experts(
    lab: ModuleType, name: str, tokens: int, experts: int, top_k: int
) -> None:
    """Both ways, against float64; weights that add up to 1, and others that do not."""
    x, w13, w2, _ = support.draw(tokens, experts, top_k, 24, 16, 3)
    for seed in range(2):
        rng = np.random.RandomState(seed)
        ids = np.array([rng.permutation(experts)[:top_k] for _ in range(tokens)])
        weights = rng.uniform(0.1, 1, (tokens, top_k)).astype(np.float32)
        got = getattr(lab, name)(x, w13, w2, weights, ids)
        assert got.shape == x.shape, f"{name}: a layer returns {x.shape}, not {got.shape}"
        assert got.dtype == np.float32, f"{name}: a layer returns float32, not {got.dtype}"
        want = support.exact(x, w13, w2, weights, ids)
        worst = int(np.abs(got - want).max(1).argmax())
        assert apart(got, want) < 1e-5, (
            f"{name}: {tokens} tokens, {top_k} of {experts} experts: token {worst}, which has experts "
            f"{ids[worst].tolist()}, differs from its weighted sum by {apart(got, want):.2g} of the largest "
            "number"
        )


def test_the_index_list_sorts_pairs_by_expert(lab: ModuleType) -> None:
    """Numbers of pairs, not of tokens, and a count for experts without any."""
    ids = np.array([[2, 0], [0, 4], [2, 1]])
    pairs, counts = lab.index_list(ids, 6)
    assert np.asarray(pairs).tolist() == [1, 2, 5, 0, 4, 3], (
        f"experts 2 0, 0 4, 2 1: pairs by expert are [1, 2, 5, 0, 4, 3], not {np.asarray(pairs).tolist()}"
    )
    assert np.asarray(counts).tolist() == [2, 1, 2, 0, 1, 0], (
        f"six experts have [2, 1, 2, 0, 1, 0] pairs, not {np.asarray(counts).tolist()}"
    )


def test_the_pairs_of_an_expert_ascend(lab: ModuleType) -> None:
    """Also of 128 pairs, where numpy's default sort no longer keeps the order of equal ones."""
    ids = np.random.RandomState(7).randint(0, 4, (64, 2))
    pairs = np.asarray(lab.index_list(ids, 4)[0])
    assert np.array_equal(pairs, np.argsort(ids.ravel(), kind="stable")), (
        "128 pairs, four experts: those of an expert stand in ascending order. Six pairs alone do not "
        "show which sort keeps it"
    )


def test_each_expert_is_read_once_and_only_if_needed(lab: ModuleType) -> None:
    """64 tokens share an expert's weights; of an expert without tokens nothing is read."""
    x, w13, w2, logits = support.draw(64, 8, 2, 16, 8, 4)
    logits[:, [1, 6]] = -50
    ids = np.argsort(-logits, 1)[:, :2]
    weights = np.full((64, 2), 0.5, np.float32)
    read = {"w13": support.Experts(w13), "w2": support.Experts(w2)}
    lab.moe_grouped(x, read["w13"], read["w2"], weights, ids)
    for name, matrix in read.items():
        empty = sum(matrix.reads[e] for e in (1, 6))
        assert empty == 0, (
            f"experts 1 and 6 have no tokens, and {name} of theirs is read {empty} times"
        )
        most = max(matrix.reads.values())
        assert most == 1, (
            f"{name} of one expert is read {most} times in a layer; its tokens share what was read once"
        )


def test_a_batch_without_tokens(lab: ModuleType) -> None:
    """An empty step of a rank that has nothing to do: [0, H]."""
    x, w13, w2, _ = support.draw(0, 4, 2, 8, 8, 5)
    weights, ids = np.zeros((0, 2), np.float32), np.zeros((0, 2), np.int64)
    got = lab.moe_grouped(x, w13, w2, weights, ids)
    assert np.shape(got) == (0, 8), f"no tokens give [0, 8], not {np.shape(got)}"


# ---- vLLM ----------------------------------------------------------------------------------------


def test_the_router_is_vllms(lab: ModuleType) -> None:
    """What vLLM 0.22.1 said to the same logits (answers.json, written by in_vllm.py)."""
    for answer in support.answers()["routers"]:
        logits = support.draw(*answer["drawn"])[3]
        top_k, renormalize, groups = answer["top_k"], answer["renormalize"], answer["groups"]
        got = (
            lab.route_in_groups(logits, top_k, renormalize, *groups)
            if groups
            else lab.route(logits, top_k, renormalize)
        )
        mine = support.by_expert(*got)
        for row, said in enumerate(answer["says"]):
            want = {int(e): weight for e, weight in said.items()}
            assert mine[row] == pytest.approx(want, abs=2e-5), (
                f"{answer['who']}, renormalize={renormalize}, top_k={top_k}, groups {groups}: token {row} "
                f"gets {want}, and from you {mine[row]}"
            )


def test_the_layer_is_vllms(lab: ModuleType) -> None:
    """What its `CPUFusedMOE` made of the same layers, router and experts."""
    for answer in support.answers()["layers"]:
        x, w13, w2, logits = support.draw(*answer["drawn"])
        routed = lab.route(logits, answer["drawn"][2], answer["renormalize"])
        got = lab.moe_grouped(x, w13, w2, *routed)
        differs = float(np.abs(got - np.array(answer["says"])).max())
        assert differs < 2e-5, (
            f"CPUFusedMOE, renormalize={answer['renormalize']}, {answer['drawn'][:3]} tokens, experts and "
            f"top_k: your layer differs by {differs:.2g}"
        )
