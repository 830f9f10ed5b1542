"""Lab 12-03 beside real vLLM: all that was recorded, measured again on three engines, each started once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from course.learner.labs import load_module

LAB = (
    Path(__file__).resolve().parents[2]
    / "phase-12-structured-outputs/labs/lab-03-json-schema-on-real-vllm"
)
pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def in_vllm() -> Any:
    return load_module(LAB / "in_vllm.py", "lab_12_03_in_vllm")


@pytest.fixture(scope="module")
def found(in_vllm: Any) -> Any:
    """In the child for guidance, a shortest and a longest document of each schema are tried as well."""
    return in_vllm.measure()


def test_documents_have_these_lengths(in_vllm: Any, found: Any) -> None:
    """All states of xgrammar's grammars, and 300 random documents of guidance's by schema."""
    assert found["lengths"] == in_vllm.support.recorded()["lengths"]


def test_outputs_and_rows(in_vllm: Any, found: Any) -> None:
    """Texts, and by step how many tokens were allowed."""
    for asked, mine, theirs in zip(
        in_vllm.support.REQUESTS,
        found["outputs"],
        in_vllm.support.recorded()["outputs"],
        strict=True,
    ):
        assert mine == theirs, asked.words()


def test_a_document_that_ended_by_itself_is_json(in_vllm: Any, found: Any) -> None:
    """Unless a string holds tabs, which xgrammar allows and guidance does not."""
    unread = []
    for asked, output in zip(in_vllm.support.REQUESTS, found["outputs"], strict=True):
        try:
            json.loads(output["text"])
        except ValueError:
            if output["finish_reason"] == "stop":
                unread.append((asked.setting, asked.bias))
    assert unread == [("xgrammar", "\t")]


def test_compiling(in_vllm: Any, found: Any) -> None:
    """The backend is asked once a request; whether xgrammar's cache grew; guidance has none."""
    for backend, rows in found["compiled"].items():
        recorded = in_vllm.support.recorded()["compiled"][backend]
        assert all(row["calls"] == 1 for row in rows)
        assert [row["grew"] > 0 for row in rows] == [row["grew"] > 0 for row in recorded]
    assert not any(row["grew"] for row in found["compiled"]["guidance"])


def test_the_batch(in_vllm: Any, found: Any) -> None:
    """Rows, where they were put, and the free requests' tokens, there and alone."""
    recorded = in_vllm.support.recorded()
    for name in ("steps", "free", "alone"):
        assert found["batch"][name] == recorded[name]
    assert found["batch"]["free"] == found["batch"]["alone"]


def test_the_predictions(in_vllm: Any, found: Any) -> None:
    """Each follows from what real vLLM did."""
    support = in_vllm.support
    lab = load_module(LAB / "solution.py", "lab_12_03_solution_vllm")
    said = lab.predictions()
    assert said["starts"] == [
        b for b in found["starts"] if b in ("auto", "guidance", "outlines", "xgrammar")
    ]
    outputs = dict(zip(support.REQUESTS, found["outputs"], strict=True))
    short = [
        one for asked, one in outputs.items() if (asked.setting, asked.max_tokens) == ("auto", 40)
    ]
    assert len(short) == 2
    assert all(
        lab.verdict(one["text"], one["finish_reason"]) == said["forty tokens"] for one in short
    )
    assert all(one["allowed"][1] == said["after the brace"] for one in short)
    exact = outputs[support.Asked("xgrammar", "bounded", 52, 1)]
    assert len(exact["text"].encode()) == 52
    verdict = lab.verdict(exact["text"], exact["finish_reason"])
    assert (exact["finish_reason"], verdict) == said["exactly enough"]
    reordered = next(
        n for n, key in enumerate(support.KEYS) if key[1].startswith('{"additionalProperties"')
    )
    assert found["compiled"]["xgrammar"][reordered]["grew"] > 0
    assert said["key order"] == "cold"
    step = found["batch"]["steps"][0]
    free = [
        row
        for i, row in zip(step["req_ids"], step["placed"], strict=True)
        if i not in step["bound"]
    ]
    assert free
    assert all(word == said["free row"] for row in free for word in row)
