"""Lab 09-02: the predictions, the streams, noise without streams, both in the engine, and the experiments."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in
from mini_vllm.sample.generator import TorchGenerator

support = load_support(__file__)
V = 6


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your answers about five situations hold, before any of them is run."""
    facts: dict[str, tuple[Any, str]] = {
        "one stream": ([8, 20], "How many numbers are taken before Noor's third row is drawn?"),
        "thrown away": (3, "In which steps is the prompt's last token not computed yet?"),
        "the CPU path": (
            ["greedy", "no seed"], "Which of the four has a generator of its own?",
        ),
        "the same seed": (1, "With which numbers does each of the two draw its first token?"),
        "by step": (
            ["a prompt in chunks", "preempted"],
            "In which of the three does her k-th token come in another step?",
        ),
    }  # fmt: skip
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"five questions; these stand in one of the README and your answers only: {apart}"
    )
    for name, (fact, ask) in facts.items():
        mine = said[name]
        if name in ("the CPU path", "by step") and isinstance(mine, list | tuple | set):
            mine = sorted(mine)
        wrong = wrong_in(mine, fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- streams, called by hand ---------------------------------------------------------------------


class Asked:
    """A lab's streams, and what the right ones give."""

    def __init__(self, lab: ModuleType) -> None:
        self.lab, self.streams = lab, lab.Streams(11)

    def draw(self, *rows: tuple[str, int | None]) -> Any:
        """[n, V]"""
        got = self.streams.noise([self.lab.Row(i, seed, 9) for i, seed in rows], V)
        assert isinstance(got, np.ndarray), f"an array, not {type(got).__name__}"
        assert got.shape == (len(rows), V), f"noise for {len(rows)} rows has the shape {got.shape}"
        assert got.dtype == np.float32, f"float32, not {got.dtype}"
        return got


def drawn(seed: int, number: int) -> Any:
    """The draws of a stream, [number, V]."""
    return TorchGenerator(seed).standard_exponential((number, V))


def which(got: Any, seeds: tuple[int, ...] = (7, 3, 11)) -> str:
    """Whose draw a row of noise is, in words."""
    for seed in seeds:
        for number, row in enumerate(drawn(seed, 6), start=1):
            if np.array_equal(row, got):
                return f"draw {number} of {'the shared stream' if seed == 11 else f'seed {seed}'}"
    return "no draw of any stream in question"


def expect(got: Any, seed: int, number: int, what: str) -> None:
    """Fails where the noise is not that draw of that stream."""
    want = drawn(seed, number)[number - 1]
    assert np.array_equal(got, want), f"{what}: {which(want)}, and yours is {which(got)}"


def test_a_stream_goes_on_where_it_stopped(lab: ModuleType) -> None:
    """A stream's draws 1, 2 and 3 follow each other, even with steps without the request in between."""
    asked = Asked(lab)
    expect(asked.draw(("noor", 7))[0], 7, 1, "seed 7's first row")
    asked.draw(("eve", 3))
    got = asked.draw(("eve", 3), ("noor", 7))
    expect(got[1], 7, 2, "seed 7's second row, after a step without it")
    expect(got[0], 3, 2, "seed 3's second row")
    expect(asked.draw(("noor", 7), ("eve", 3))[0], 7, 3, "seed 7's third row, in another place")


def test_equal_seeds_have_equal_streams(lab: ModuleType) -> None:
    """Two requests with equal seeds have equal streams, not one stream between them."""
    asked = Asked(lab)
    got = asked.draw(("noor", 7), ("eve", 7))
    expect(got[0], 7, 1, "the first of two requests with seed 7")
    expect(got[1], 7, 1, "the second of two requests with seed 7")
    expect(asked.draw(("cy", 7), ("noor", 7))[0], 7, 1, "a third one that comes later")


def test_rows_without_a_seed_share_a_stream(lab: ModuleType) -> None:
    """Rows without a seed share a stream in batch order; seeded rows take nothing from it."""
    asked = Asked(lab)
    got = asked.draw(("ada", None), ("noor", 7), ("bo", None))
    expect(got[0], 11, 1, "the first row without a seed")
    expect(got[1], 7, 1, "the row with seed 7 between two without")
    expect(got[2], 11, 2, "the second row without a seed")
    asked.draw(("noor", 7))
    expect(asked.draw(("bo", None))[0], 11, 3, "the third, after a step with seed 7 alone")
    got = asked.draw(("zero", 0))
    expect(got[0], 0, 1, "0 is a seed, too")


def test_a_discarded_draw_comes_again(lab: ModuleType) -> None:
    """A discarded draw comes again, once for each discard; then the stream goes on."""
    asked = Asked(lab)
    for step in (1, 2, 3):
        got = asked.draw(("noor", 7), ("eve", 3), ("ada", None))
        expect(got[0], 7, 1, f"seed 7 in step {step}; steps 1 and 2 were thrown away")
        expect(got[1], 3, step, f"seed 3 in step {step}; nothing of it was thrown away")
        expect(got[2], 11, step, f"the row without a seed in step {step}")
        if step < 3:
            asked.streams.discard("noor")
            asked.streams.discard("ada")
    expect(asked.draw(("noor", 7))[0], 7, 2, "seed 7 after a draw that counted")
    asked.streams.discard("noor")
    expect(asked.draw(("noor", 7))[0], 7, 2, "seed 7's second draw was thrown away")
    expect(asked.draw(("noor", 7))[0], 7, 3, "seed 7 after its second draw")


def test_nothing_is_left_of_a_finished_request(lab: ModuleType) -> None:
    """A finished request leaves neither its stream nor a draw that was taken back."""
    asked = Asked(lab)
    asked.draw(("noor", 7), ("ada", None))
    asked.draw(("noor", 7))
    asked.streams.finish("noor")
    asked.streams.finish("ada")
    expect(asked.draw(("noor", 7))[0], 7, 1, "a new request with a finished one's id")
    asked.draw(("noor", 7))
    asked.streams.discard("noor")
    asked.streams.finish("noor")
    asked.streams.discard("noor")
    what = "noor drew, had it thrown away, and ended; a new noor with seed 3"
    expect(asked.draw(("noor", 3))[0], 3, 1, what)


# ---- no streams ----------------------------------------------------------------------------------


def test_noise_from_seed_and_position(lab: ModuleType) -> None:
    """Stateless noise is vLLM's Gumbel noise, before its outer logarithm."""
    from mini_vllm.sample.gumbel import gumbel_noise

    rows = [
        lab.Row("noor", 7, 43),
        lab.Row("eve", 7, 44),
        lab.Row("cy", 3, 43),
        lab.Row("bo", 0, 0),
    ]
    got = np.asarray(lab.stateless_noise(rows, 50))
    assert got.shape == (4, 50), f"four rows and 50 tokens: [4, 50], not {list(got.shape)}"
    assert got.dtype == np.float32, f"float32, not {got.dtype}"
    for row, mine in zip(rows, got, strict=True):
        want = np.exp(-gumbel_noise(row.seed, row.position, np.arange(50)))
        later = np.exp(-gumbel_noise(row.seed, row.position + 1, np.arange(50)))
        assert not np.allclose(mine, later, rtol=1e-4), (
            f"seed {row.seed}, position {row.position}: yours is the noise of position {row.position + 1}"
        )
        assert np.allclose(mine, want, rtol=1e-4), (
            f"seed {row.seed}, position {row.position}: noise begins {_short(want)}, and yours {_short(mine)}"
        )
    again = np.asarray(lab.stateless_noise(rows[::-1], 50))
    assert np.array_equal(again[::-1], got), "the same rows in another order get other noise"


def _short(noise: Any) -> str:
    """Its first three numbers."""
    return " ".join(f"{float(number):.3f}" for number in noise[:3])


def test_noise_is_never_zero(lab: ModuleType) -> None:
    """A u of 0 is raised, so that its logarithm is finite."""
    found: list[Any] = []
    asked = lab.uniform
    try:
        lab.uniform = lambda seed, ids: found.append(ids) or np.zeros(len(ids), np.float32)
        with np.errstate(all="ignore"):
            got = np.asarray(lab.stateless_noise([lab.Row("noor", 7, 1)], 3))
    finally:
        lab.uniform = asked
    if found:
        assert np.isfinite(got).all(), f"where every u is 0, your noise is {got.tolist()}"
    assert got.shape == (1, 3), f"one row and three tokens: [1, 3], not {list(got.shape)}"


@pytest.mark.parametrize("scheme", ["streams", "stateless"])
def test_draws_follow_the_probabilities(lab: ModuleType, scheme: str) -> None:
    """3,000 draws from four tokens follow their probabilities, by chi-square."""
    probs, number = np.array([0.4, 0.3, 0.2, 0.1]), 3000
    rows = [[lab.Row("noor", 7, position)] for position in range(number)]
    draw = lab.Streams(0).noise if scheme == "streams" else lab.stateless_noise
    tokens = [int((probs / np.asarray(draw(row, 4))[0]).argmax()) for row in rows]
    counts = np.bincount(tokens, minlength=4)
    far = float(((counts - number * probs) ** 2 / (number * probs)).sum())
    assert far < 16.27, (
        f"{scheme}: {number} draws from {probs.tolist()} gave {counts.tolist()}; chi-square is {far:.0f}, "
        "and by chance above 16.27 once in 1,000 runs"
    )


# ---- in the engine -------------------------------------------------------------------------------

SERVED = {
    "alone": {},
    "beside seed 7": {"neighbours": (7,)},
    "beside three": {"neighbours": (None, 3, "greedy")},
    "in chunks of 16": {"token_budget": 16},
    "in chunks beside one": {"neighbours": (3,), "token_budget": 24},
    "preempted": {"neighbours": (3,), "num_blocks": 8},
}


@pytest.mark.parametrize("name", SERVED)
def test_the_engine_on_your_streams(lab: ModuleType, name: str) -> None:
    """On your streams the request always gets the tokens that vLLM gives it alone (recorded.json)."""
    want = support.recorded()["()"]
    situation = lab.Situation(**SERVED[name])
    got, draws = support.serve(lab.Streams(0), situation, lab.Row)
    happened = {"thrown away": draws.discarded > 0, "preempted": draws.preempted > 0}
    meant = {"thrown away": "chunks" in name, "preempted": name == "preempted"}
    assert happened == meant, f"given: {name}, {situation} is to show {meant}, and shows {happened}"
    assert got == want, (
        f"{name}, {situation}: the request with seed 7 gets {got}; in vLLM alone it gets {want}"
    )


@pytest.mark.parametrize("name", SERVED)
def test_the_engine_on_stateless_noise(lab: ModuleType, name: str) -> None:
    """On stateless noise the request gets the tokens that it gets alone."""

    def play(situation: Any) -> Any:
        return support.serve(support.Stateless(lab.stateless_noise, lab.Row), situation, lab.Row)[0]

    alone, situation = play(lab.Situation()), lab.Situation(**SERVED[name])
    got = play(situation)
    assert got == alone, f"{name}, {situation}: {got}, and alone {alone}"
    other = support.recorded()["()"]
    assert got != other, f"without streams the tokens are still those of the streams: {got}"


# ---- the experiments -----------------------------------------------------------------------------


def test_what_has_changed(lab: ModuleType) -> None:
    """`changed_by` compares each situation with the request alone, and keeps their order."""
    situations = [lab.Situation(num_blocks=blocks) for blocks in (10, 11, 12, 64)]
    got = lab.changed_by(lambda s: [1, 2, s.num_blocks % 2], situations)
    assert got == [situations[1]], (
        f"alone the tokens are 1 2 0, and with 11 blocks 1 2 1: that one has changed, not {got}"
    )
    got = lab.changed_by(lambda s: [s.num_blocks], situations)
    assert got == situations[:3], f"all but the last differ from alone, and you say {got}"


def test_a_right_sampler_passes_your_experiments(lab: ModuleType) -> None:
    """A right sampler's tokens change in none of your experiments, of which there are at most five."""
    situations = lab.experiments()
    assert len(situations) <= 5, f"at most five situations, and you have {len(situations)}"
    changed = lab.changed_by(support.player(lab, support.Right), situations)
    assert not changed, f"a sampler without a fault is said to change its tokens in {changed}"


@pytest.mark.parametrize("fault", support.FAULTS)
def test_your_experiments_notice(lab: ModuleType, fault: str) -> None:
    """At least one of your experiments shows other tokens for a sampler with this fault."""
    scheme = support.FAULTS[fault]
    situations = lab.experiments()
    changed = lab.changed_by(support.player(lab, scheme), situations)
    if changed:
        return
    runs = [support.serve(support.Right(), one, lab.Row)[1] for one in situations]
    missing = {
        "no rewind": (sum(run.discarded for run in runs), "No prompt comes in chunks in any of them."),
        "in the batch only": (
            sum(run.preempted for run in runs),
            "Our request is preempted in none of them. It must start beside another and lack a block later.",
        ),
    }  # fmt: skip
    happened, why = missing.get(fault, (1, ""))
    pytest.fail(
        f"{scheme.__doc__.splitlines()[0]} In none of your {len(situations)} situations does that show. "
        f"{'' if happened else why}".rstrip()
    )
