"""What lab 04-03 gives: parts merged along a tree, and outputs merged with their log-sum-exp."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module

LAB = ROOT / "phase-04-attention-backends/labs/lab-03-flash-decoding-partitions"
support = load_module(LAB / "support.py", "lab_04_03_support_for_authors")
INF = np.inf


@pytest.fixture
def lab() -> ModuleType:
    return load_module(LAB / "solution.py", "lab_04_03_solution_for_authors")


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 16, 33])
def test_merge_tree(lab: ModuleType, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours pair by pair: all states once, in as few rounds as there can be."""
    rng = np.random.default_rng(count)
    scores, value = support.whole_numbers(rng, count)
    states = [support.state_of(lab, scores[[i]], value[[i]]) for i in range(count)]
    given = list(states)
    # Each state with how it came about; they are kept, so that no id is used twice.
    made: dict[int, tuple[Any, str]] = {
        id(state): (state, str(i)) for i, state in enumerate(states)
    }
    right = lab.merge

    def name_of(state: Any) -> str:
        return made.get(id(state), (state, "?"))[1]

    def watched(a: Any, b: Any) -> Any:
        merged = right(a, b)
        made[id(merged)] = (merged, f"({name_of(a)} {name_of(b)})")
        return merged

    monkeypatch.setattr(lab, "merge", watched)
    got, rounds = lab.merge_tree(states)
    assert [id(state) for state in states] == [id(state) for state in given], (
        "the list is the caller's, and is left as it is"
    )
    want = support.state_of(lab, scores, value)
    assert support.same_bits(got, want), (
        f"{count} states, one key each: {support.show(got)}; all keys at once {support.show(want)}. "
        "Whoever has no neighbour goes on to the next round"
    )
    least = (count - 1).bit_length()
    assert rounds == least, (
        f"{count} states are one after {least} rounds, each of which halves them; yours took {rounds}"
    )
    level = [str(i) for i in range(count)]
    while len(level) > 1:
        pairs = [f"({a} {b})" for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[2 * len(pairs) :]
    assert count == 1 or name_of(got) == level[0], (
        f"neighbours are merged, the first with the second, and who has none stays at the end: {level[0]}; "
        f"yours {name_of(got)}"
    )


def test_merge_outputs() -> None:
    """Outputs and their lse, merged without a state; at ten thousand, and with nothing on either side."""
    rng = np.random.default_rng(1)
    rows = {
        "alike": (1.0, 2.0), "far apart": (-800.0, 700.0), "both near 10,000": (1e4, 1e4 + 1),
        "both near -10,000": (-1e4, -1e4 - 1), "nothing on the left": (-INF, 3.0),
        "nothing on the right": (3.0, -INF), "+inf on the left": (INF, 3.0), "+inf on the right": (3.0, INF),
        "nothing": (-INF, -INF), "nothing, twice +inf": (INF, INF),
    }  # fmt: skip
    lse_a, lse_b = np.array(list(rows.values())).T
    out_a, out_b = rng.normal(size=(2, len(rows), 3))
    out_a[~np.isfinite(lse_a)] = np.nan
    out_b[~np.isfinite(lse_b)] = np.nan
    copies = [array.copy() for array in (out_a, lse_a, out_b, lse_b)]

    outputs = load_module(LAB / "outputs.py", "lab_04_03_outputs_for_authors")
    with np.errstate(all="ignore"):
        out, lse = outputs.merge_outputs(out_a, lse_a, out_b, lse_b)
    for now, then in zip((out_a, lse_a, out_b, lse_b), copies, strict=True):
        assert np.array_equal(now, then, equal_nan=True), (
            f"{then.tolist()} became {now.tolist()}: they are the caller's"
        )
    for i, name in enumerate(rows):
        parts = [(o[i], x[i]) for o, x in ((out_a, lse_a), (out_b, lse_b)) if np.isfinite(x[i])]
        if parts:
            largest = max(x for _, x in parts)
            weights = [np.exp(x - largest) for _, x in parts]
            want = sum(w * o for w, (o, _) in zip(weights, parts, strict=True)) / sum(weights)
            want_lse = largest + np.log(sum(weights))
        else:
            want, want_lse = np.zeros(3), -INF
        wrong = support.what_is_wrong(np.asarray(out)[i], np.asarray(want))
        assert not wrong, (
            f"{name}, lse {lse_a[i]:g} and {lse_b[i]:g}: the output is {np.round(want, 3).tolist()}, yours "
            f"{np.round(np.asarray(out)[i], 3).tolist()}: {wrong}. Each output counts by its share of "
            "all weights, and one without a key holds NaN here: 0 times NaN is NaN"
        )
        assert np.isclose(lse[i], want_lse, rtol=1e-12), (
            f"{name}, lse {lse_a[i]:g} and {lse_b[i]:g}: together {want_lse:.6g}, yours {lse[i]:.6g}"
        )
