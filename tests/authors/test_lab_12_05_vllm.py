"""Lab 12-05 beside real vLLM: the recording, fresh grammars, deferrals, and the predictions worked out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_module
from tests.engine.helpers.thorough import either

LAB = (
    Path(__file__).resolve().parents[2]
    / "phase-12-structured-outputs/labs/lab-05-grammar-under-speculation"
)
pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def in_vllm() -> Any:
    return load_module(LAB / "in_vllm.py", "lab_12_05_in_vllm")


@pytest.fixture(scope="module")
def solution() -> Any:
    return load_module(LAB / "solution.py", "lab_12_05_solution_vllm")


def test_what_was_recorded_is_what_it_does(in_vllm: Any) -> None:
    """Real vLLM with n-gram speculation and without, and 1,000 grammars by vLLM's functions on xgrammar."""
    assert in_vllm.record() == in_vllm.support.RECORDED.read_text("utf-8")


def test_fresh_grammars(in_vllm: Any, solution: Any) -> None:
    """Tokens, counts, steps and the order of events, synchronous and asynchronous."""
    assert not in_vllm.differing_batches(solution, 2000, either(50, 500))


def test_deferrals(in_vllm: Any, solution: Any) -> None:
    """`must_defer` says what `AsyncScheduler` writes into the step."""
    assert not in_vllm.differing_deferrals(solution)


def test_a_wrong_function_is_noticed(in_vllm: Any, solution: Any) -> None:
    """The comparison sees one that samples a deferred step under rows from the old state."""
    lab = load_module(LAB / "solution.py", "lab_12_05_wrong")
    lab.__dict__["must_defer"] = lambda requests: False
    assert in_vllm.differing_deferrals(lab)
    with pytest.raises(in_vllm.parts.RefusedError):
        in_vllm.differing_batches(lab, 2000, 2)


def test_the_predictions_by_vllms_functions(in_vllm: Any, solution: Any) -> None:
    """The README's questions, asked of vLLM's functions and xgrammar's grammar of the part number."""
    support, parts = in_vllm.support, in_vllm.parts
    said = solution.predictions()
    read = parts.CHARACTERS.read
    backend = in_vllm.vllm_lab.Xgrammar(parts.CHARACTERS)
    lab = in_vllm.vllm_lab.VllmLab(len(parts.CHARACTERS), 4)

    def grammar(text: str) -> tuple[Any, Any]:
        counter = parts.Counter()
        made = backend.compile(parts.StructuredOutputOptions.REGEX, parts.PART_NUMBER, counter)
        assert made.accept_tokens("r", read(text))
        return made, counter

    def rows(text: str, drafts: list[int]) -> tuple[int, int]:
        made, counter = grammar(text)
        bitmask = np.zeros((5, 2), dtype=np.int32)
        return lab.fill_rows(made, drafts, bitmask, 0), counter.counts.fills

    made, _ = grammar("KX-1")
    kept = lab.filter_drafts(made, read("19X0"))
    assert len(kept) == said["kept"]
    new = lab.accept(made, kept, read("170"), parts.END, 9)
    assert "KX-1" + parts.CHARACTERS.spell(new).replace(" ", "") == said["text"]
    assert rows("KX-119", lab.filter_drafts(grammar("KX-119")[0], read("0.KZ"))) == said["ends"]
    kept = lab.filter_drafts(grammar("KX-")[0], read("12B4"))
    assert rows("KX-", kept + [-1] * (4 - len(kept))) == said["unknown"]

    text = read("KX-1190.")
    model = parts.ReplayModel([[1, *text]], len(parts.CHARACTERS), parts.END)
    job = parts.Job([1], ("", ""), 20)
    kind = parts.StructuredOutputOptions.REGEX
    for right in (True, False):
        answer = support.run_sync(
            lab, [job], model,
            lambda number, tokens, k=4 if right else 0: text[len(tokens) - 1 :][:k], 4,
            lambda job, counter: backend.compile(kind, parts.PART_NUMBER, counter),
        )  # fmt: skip
        assert answer.tokens == [text]
        found = (answer.num_steps, answer.counts["fills"])
        assert found == (said["all right"] if right else (8, 8))

    free, bound = False, True
    steps = {
        "a": [(free, False, 1)],
        "b": [(bound, True, 0)],
        "c": [(bound, False, 0), (free, False, 1)],
        "d": [(bound, False, 1)],
        "e": [(bound, False, 0), (free, False, 5)],
        "f": [*[(free, False, 0)] * 10, (bound, False, 5)],
    }
    waits = [
        name
        for name, requests in steps.items()
        if lab.must_defer([support.Scheduled("r", *request) for request in requests])
    ]
    assert waits == said["waits"]
