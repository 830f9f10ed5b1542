"""Lab 09-06: the predictions, what two logs tell, the recorded tickets, and proofs on a running engine."""

from __future__ import annotations

from dataclasses import fields
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support

support = load_support(__file__)
PROMPT = tuple(support.prompt_of(0))
HOT = {"temperature": 4.0, "seed": 7}


def make_run(lab: ModuleType, **given: Any) -> Any:
    """A log written by hand: five tokens, of which the fields of `Situation` and `Run` are given."""
    settings = {one.name for one in fields(lab.Situation)}
    situation = lab.Situation(**{k: v for k, v in given.items() if k in settings})
    log: dict[str, Any] = {
        "tokens": (4, 5, 6, 7, 8), "best": ((-0.5, -1.5),) * 5,
        "cached": 0, "chunks": (44,), "batches": (1,) * 5,
    }  # fmt: skip
    return lab.Run(situation, **(log | {k: v for k, v in given.items() if k not in settings}))


def tell(**given: Any) -> str:
    """The fields that are not usual, in words, up to position 1."""
    words = {"best": "logprobs {0[0]}, {0[1]}", "batches": "batches {0[0]}, {0[1]}", "tokens": ""}
    said = [words.get(name, name + " {0}").format(value) for name, value in given.items()]
    return ", ".join(filter(None, said)) or "the usual log"


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your predictions hold for four pairs of runs and for a ticket."""

    def play(**settings: Any) -> Any:
        return support.play(lab, lab.Situation(prompt=PROMPT, **settings), num_tokens=4).tokens

    free = {"temperature": 4.0}
    pairs: dict[str, tuple[Any, Any, str]] = {
        "no seed, two fresh engines": (free, free, "Where does the shared stream begin in a fresh engine?"),
        "no seed, another before": (
            free, free | {"neighbours": (None,)}, "Whose row takes the stream's first numbers?",
        ),
        "seed at temperature 0": ({"seed": 7}, {"seed": 8}, "What is drawn at temperature 0?"),
        "top_k=1": (
            HOT | {"top_k": 1}, HOT | {"top_k": 1, "seed": 8}, "How many tokens are left to draw from?",
        ),
    }  # fmt: skip
    ask = "Move one setting, and say what the CPU path does with seed 7 then."
    facts: dict[str, tuple[Any, str]] = {
        name: ("same" if play(**one) == play(**other) else "different", ask_)
        for name, (one, other, ask_) in pairs.items()
    }
    facts |= {"enough": ([], ask), "needed": (["cpu_path", "neighbours"], ask)}
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"six questions; these stand in one of the README and your answers only: {apart}"
    )
    for name, (fact, hint) in facts.items():
        mine = said[name]
        if isinstance(mine, list | tuple | set):
            mine = sorted(mine)
        assert mine == fact, f"{name}: {said[name]!r} is wrong. {hint}"


# ---- what two logs tell --------------------------------------------------------------------------


def test_where_two_runs_part(lab: ModuleType) -> None:
    """Two runs part at the first position with different tokens."""
    for one, other, want in (
        ((4, 5, 6), (4, 9, 6), 1),
        ((4, 5, 6), (3, 5, 6), 0),
        ((4, 5, 6), (4, 9, 9), 1),
        ((4, 5, 6), (4, 5, 6), None),
        ((4, 5), (4, 5, 6), None),
        ((4, 5, 6, 7), (4, 5, 9), 2),
    ):
        got = lab.parts_at(make_run(lab, tokens=one), make_run(lab, tokens=other))
        assert got == want, f"{one} and {other} part at {want}, and you say {got}"


TIED = ((-0.5, -1.5), (-0.5, -0.5)) + ((-0.5, -1.5),) * 3
DRAWN: list[tuple[dict[str, Any], bool]] = [
    ({"temperature": 0.0, "seed": 7}, False),
    ({"temperature": 0.0, "best": TIED}, False),
    ({"temperature": 9e-6}, False),
    ({"temperature": 1e-5}, True),
    ({"temperature": 1.0}, True),
    ({"temperature": 1.0, "seed": 7}, True),
    ({"temperature": 1.0, "top_k": 40}, True),
    ({"temperature": 1.0, "top_k": 2}, True),
    ({"temperature": 1.0, "top_k": 1}, False),
    ({"temperature": 1.0, "top_k": 1, "best": TIED}, True),
    ({"temperature": 1.0, "top_k": 1, "best": TIED[::-1]}, False),
    ({"temperature": 1.0, "top_p": 0.01}, True),
]


def test_who_draws(lab: ModuleType) -> None:
    """A tie matters at the position that is asked for, and nowhere else."""
    for given, want in DRAWN:
        got = lab.draws(make_run(lab, **given), 1)
        assert bool(got) == want, (
            f"position 1, {tell(**given)}: another random number {'could' if want else 'could not'} give "
            "another token"
        )


def test_top_k_1_keeps_a_tie() -> None:
    """The engine's top_k 1 keeps a tie, which is the reason for the rule in `draws`."""
    import numpy as np

    from mini_vllm.sample.ops import apply_top_k_top_p

    left = apply_top_k_top_p(np.array([[2.0, 2.0, 1.0]], np.float32), np.array([1]), None)
    assert np.isfinite(left).tolist() == [[True, True, False]], f"top_k 1 leaves {left.tolist()}"


NEAR = ((-0.5, -1.5), (-0.5000001, -1.5)) + ((-3.0, -4.0),) * 3
NEAR_SECOND = ((-0.5, -1.5), (-0.5, -1.5000001)) + ((-0.5, -1.5),) * 3
LATER = ((-0.5, -1.5),) * 2 + ((-3.0, -4.0),) * 3
EARLIER = ((-0.6, -1.5),) + ((-0.5, -1.5),) * 4
LAYERS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"best": NEAR}, "model"),
    ({}, {"best": NEAR_SECOND}, "model"),
    ({"temperature": 1.0}, {"temperature": 1.0}, "sampler"),
    ({"temperature": 1.0}, {"temperature": 1.0, "best": LATER}, "sampler"),
    ({"temperature": 1.0}, {"temperature": 1.0, "best": EARLIER}, "sampler"),
    ({"temperature": 1.0}, {"temperature": 1.0, "best": NEAR}, "either"),
    ({"temperature": 1.0}, {"best": NEAR}, "either"),
    ({}, {"temperature": 1.0, "best": NEAR}, "either"),
    ({}, {"temperature": 1.0}, "sampler"),
    ({"temperature": 1.0, "top_k": 1}, {"temperature": 1.0, "top_k": 1, "best": NEAR}, "model"),
]


def test_which_layer(lab: ModuleType) -> None:
    """The layer follows from the logprobs where the tokens part; later ones follow another text."""
    for one, other, want in LAYERS:
        got = lab.layer(make_run(lab, **one), make_run(lab, **other), 1)
        assert got == want, (
            f"the runs part at 1; a: {tell(**one)}; b: {tell(**other)}: {want!r}, not {got!r}"
        )


OTHER = {"tokens": (4, 9, 6, 7, 8)}
MOVED = OTHER | {"best": NEAR}
CPU = HOT | {"cpu_path": True}
SUSPECTS: dict[str, tuple[dict[str, Any], dict[str, Any], set[str]]] = {
    "equal answers": ({}, {"cached": 32, "chunks": (12,), "best": NEAR}, set()),
    "a prefix hit": ({}, MOVED | {"cached": 32, "chunks": (12,)}, {"prefix hit"}),
    "two chunks": ({}, MOVED | {"chunks": (32, 12)}, {"chunks"}),
    "a cut under the hit": ({"chunks": (12, 32)}, MOVED | {"cached": 16, "chunks": (28,)}, {"prefix hit"}),
    "a cut where the hit ends": (
        {"chunks": (16, 28)}, MOVED | {"cached": 16, "chunks": (28,)}, {"prefix hit"},
    ),
    "cuts elsewhere": ({"chunks": (32, 12)}, MOVED | {"chunks": (16, 16, 12)}, {"chunks"}),
    "a cut behind the hit": (
        {"chunks": (20, 24)}, MOVED | {"cached": 16, "chunks": (20, 8)}, {"prefix hit", "chunks"},
    ),
    "the hit in a": ({"cached": 32, "chunks": (12,)}, MOVED | {"chunks": (20, 24)}, {"prefix hit"}),
    "a batch in that step": ({}, MOVED | {"batches": (1, 2, 1, 1, 1)}, {"batch"}),
    "a batch before": ({}, MOVED | {"batches": (2, 1, 1, 1, 1)}, {"batch"}),
    "a batch afterwards": ({}, MOVED | {"batches": (1, 1, 2, 2, 2), "chunks": (32, 12)}, {"chunks"}),
    "greedy, other seeds": ({"seed": 7}, MOVED | {"seed": 8, "top_p": 0.5, "chunks": (32, 12)}, {"chunks"}),
    "equal logprobs": (HOT, HOT | OTHER | {"seed": 8, "batches": (2,) * 5}, {"seed"}),
    "other seeds, other logprobs": (
        HOT, HOT | MOVED | {"seed": 8, "cached": 32, "chunks": (12,)}, {"seed", "prefix hit"},
    ),
    "a lost seed": (HOT, HOT | OTHER | {"seed": None}, {"seed"}),
    "no seed in either": (HOT | {"seed": None}, HOT | OTHER | {"seed": None}, {"seed"}),
    "seed 0 in both": (HOT | {"seed": 0}, HOT | MOVED | {"seed": 0, "batches": (2,) * 5}, {"batch"}),
    "top_k": (HOT, HOT | OTHER | {"top_k": 40}, {"knobs"}),
    "top_p": (HOT, HOT | OTHER | {"top_p": 0.9}, {"knobs"}),
    "a temperature": (HOT, HOT | OTHER | {"temperature": 1.0}, {"knobs"}),
    "greedy and drawn": ({"seed": 8}, HOT | OTHER, {"knobs"}),
    "greedy with two sets of knobs": (
        {"top_k": 40}, MOVED | {"top_k": 2, "temperature": 1e-6, "batches": (2,) * 5}, {"batch"},
    ),
    "top_k 1, other seeds": (
        HOT | {"top_k": 1}, HOT | MOVED | {"top_k": 1, "seed": 8, "batches": (2,) * 5}, {"batch"},
    ),
    "top_k 1 on a tie": (
        HOT | {"top_k": 1, "best": TIED}, HOT | OTHER | {"top_k": 1, "seed": 8, "best": TIED}, {"seed"},
    ),
    "an unseeded neighbour": (
        CPU | {"neighbours": (3,)}, CPU | OTHER | {"neighbours": (3, None)}, {"neighbours"},
    ),
    "a greedy neighbour": (CPU, CPU | OTHER | {"neighbours": ("greedy",)}, {"neighbours"}),
    "a neighbour with seed 0": (
        CPU, CPU | MOVED | {"neighbours": (0,), "batches": (2,) * 5}, {"batch"},
    ),
    "ignored in both": (
        CPU | {"neighbours": (None,)}, CPU | OTHER | {"neighbours": (None, None)}, {"neighbours"},
    ),
    "ignored in both, other seeds": (
        CPU | {"neighbours": (None,)}, CPU | OTHER | {"neighbours": (None,), "seed": 8}, {"seed"},
    ),
    "top_k 1, a tie in one": (
        HOT | {"top_k": 1, "best": TIED}, HOT | OTHER | {"top_k": 1, "batches": (2,) * 5}, {"batch"},
    ),
    "an unseeded neighbour elsewhere": (
        HOT, HOT | MOVED | {"neighbours": (None,), "batches": (2,) * 5}, {"batch"},
    ),
    "another path": (
        HOT | {"neighbours": (None,)}, CPU | OTHER | {"neighbours": (None,)}, {"neighbours"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SUSPECTS)
def test_the_suspects(lab: ModuleType, name: str) -> None:
    """Two hand-written logs that part at position 1 have these suspects, from both sides."""
    one, other, want = SUSPECTS[name]
    a, b = make_run(lab, **one), make_run(lab, **other)
    right = sorted(want)
    for pair in ((a, b), (b, a)):
        got = sorted(lab.suspects(*pair))
        assert got == right, (
            f"{name}; a: {tell(**one)}; b: {tell(**other)}: {right}, and you suspect {got}"
        )


# ---- tickets -------------------------------------------------------------------------------------

BOTH, ENOUGH, NEEDED, NEITHER = (True, True), (True, False), (False, True), (False, False)
TICKETS: dict[str, tuple[set[str], dict[str, tuple[bool, bool]]]] = {
    "A": ({"prefix hit"}, {"seed": NEITHER, "warm": BOTH}),
    "B": ({"chunks"}, {"seed": NEITHER, "token_budget": BOTH}),
    "C": ({"batch", "prefix hit"}, {"neighbours": BOTH, "warm": NEITHER}),
    "D": ({"batch", "chunks"}, {"neighbours": ENOUGH, "token_budget": ENOUGH}),
    "E": ({"prefix hit", "seed"}, {"seed": BOTH, "warm": NEITHER}),
    "F": ({"neighbours"}, {"neighbours": BOTH}),
    "G": ({"chunks", "knobs"}, {"top_k": BOTH, "token_budget": NEITHER}),
    "H": ({"neighbours"}, {"neighbours": NEEDED, "cpu_path": NEEDED}),
}


def compare(name: str, proofs: Any, want: dict[str, tuple[bool, bool]]) -> None:
    """Fails where a proof is missing or wrong."""
    assert sorted(proofs) == sorted(want), (
        f"{name}: {sorted(want)} differ, and you have moved {sorted(proofs)}"
    )
    for setting, (enough, needed) in want.items():
        got = proofs[setting]
        for word, is_so in (("enough", enough), ("needed", needed)):
            assert getattr(got, word) is is_so, (
                f"{name}: {setting} is {'' if is_so else 'not '}{word}, and you say {getattr(got, word)!r}"
            )


@pytest.mark.parametrize("name", TICKETS)
def test_a_recorded_ticket(lab: ModuleType, name: str) -> None:
    """A recorded ticket has these suspects and proofs (recorded.json)."""
    runs = support.tickets(lab)[name]
    suspects, want = TICKETS[name]
    got, right = sorted(lab.suspects(*runs[:2])), sorted(suspects)
    assert got == right, f"ticket {name}: {right} differ and can have acted, and you suspect {got}"
    compare(f"ticket {name}", lab.prove(support.replayed(runs), *runs[:2]), want)


LIVE: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, tuple[bool, bool]]]] = {
    "a lost seed": (HOT, HOT | {"seed": None}, {"seed": BOTH}),
    "a knob": (HOT, HOT | {"top_k": 40}, {"top_k": BOTH}),
    "a neighbour": (
        CPU | {"neighbours": (3,)}, CPU | {"neighbours": ("greedy",)}, {"neighbours": BOTH},
    ),
    "a path and a neighbour": (
        HOT | {"neighbours": (3,)}, CPU | {"neighbours": (None,)}, {"neighbours": NEEDED, "cpu_path": NEEDED},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LIVE)
def test_a_proof_on_the_engine(lab: ModuleType, name: str) -> None:
    """A proof holds on the engine, for pairs of one shape, so that the model computes the same in both."""
    one, other, want = LIVE[name]

    def play(situation: Any) -> Any:
        return support.play(lab, situation, num_tokens=4)

    a, b = (play(lab.Situation(prompt=PROMPT, **settings)) for settings in (one, other))
    assert a.best[0] == b.best[0], "given: of one shape, the first logprobs are the same"
    compare(name, lab.prove(play, a, b), want)


@pytest.mark.parametrize("which", ["a", "b"])
def test_what_cannot_be_repeated_proves_nothing(lab: ModuleType, which: str) -> None:
    """A run that gives other tokens the second time proves nothing."""
    a, b = make_run(lab), make_run(lab, warm=True, **OTHER)
    known = {a.situation: a, b.situation: b}
    moved = a if which == "a" else b
    known[moved.situation] = make_run(lab, warm=which == "b", tokens=(4, 1, 1, 1, 1))
    try:
        proofs = lab.prove(known.__getitem__, a, b)
    except ValueError:
        return
    pytest.fail(f"run {which}, repeated, gives other tokens, and you say {proofs}: a ValueError")


def test_one_setting_is_moved_at_a_time(lab: ModuleType) -> None:
    """With three different settings there are two repeats, and two runs per setting; all tokens count."""
    settings = {"warm": True, "seed": 8, "top_p": 0.9}
    a, b = make_run(lab), make_run(lab, **settings, **OTHER)
    third = (4, 9, 1, 7, 8)
    asked: list[Any] = []

    def play(situation: Any) -> Any:
        asked.append(situation)
        tokens = third if situation.warm else a.tokens
        if situation in (a.situation, b.situation):
            tokens = a.tokens if situation == a.situation else b.tokens
        moved = {k: getattr(situation, k) for k in settings}
        return make_run(lab, tokens=tokens, best=NEAR, **moved)

    try:
        proofs = lab.prove(play, a, b)
    except ValueError:
        pytest.fail(
            "both runs give their tokens again, with other logprobs; that is the same answer"
        )
    none = {"warm": NEEDED, "seed": NEITHER, "top_p": NEITHER}
    compare("warm gives a third answer unless all three are moved", proofs, none)
    want = {lab.Situation(), lab.Situation(**settings)}
    for name, value in settings.items():
        back = settings | {name: getattr(a.situation, name)}
        want |= {lab.Situation(**{name: value}), lab.Situation(**back)}
    extra = [one for one in asked if one not in want]
    assert not extra, f"played, and neither a nor b with at most one setting moved: {extra[:1]}"
    assert set(asked) == want, f"of {len(want)} situations you have played {len(set(asked))}"
