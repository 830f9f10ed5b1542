"""Lab 12-06 beside real vLLM: the recording, fresh texts, the tag in xgrammar, what the README says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from course.learner.labs import load_module
from tests.engine.helpers.thorough import either

LAB = Path(__file__).resolve().parents[2] / "phase-12-structured-outputs/labs/lab-06-tool-calls"
pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def in_vllm() -> Any:
    return load_module(LAB / "in_vllm.py", "lab_12_06_in_vllm")


@pytest.fixture(scope="module")
def solution() -> Any:
    return load_module(LAB / "solution.py", "lab_12_06_solution_vllm")


def test_what_was_recorded_is_what_it_does(in_vllm: Any) -> None:
    assert in_vllm.record() == in_vllm.support.RECORDED.read_text("utf-8")


def test_rules_and_fresh_texts(in_vllm: Any, solution: Any) -> None:
    assert not in_vllm.differing_rules(solution)
    assert not in_vllm.differing_texts(solution, 5000, either(100, 2000))


def test_the_tag_in_xgrammar(in_vllm: Any, solution: Any) -> None:
    assert not in_vllm.refused_by_the_tag(solution)


def test_the_predictions(in_vllm: Any, solution: Any) -> None:
    """Each as vLLM or xgrammar answers it."""
    support, said = in_vllm.support, solution.predictions()
    choices = ("none", "auto", "required", support.named("look_up"), support.named("hang_up"))
    rules = [in_vllm.vllm_rule(support.TOOLS, choice) is not None for choice in choices]
    assert rules == said["rules"]
    assert len(in_vllm.vllm_whole(support.SHORT)[1]) == said["whole"]
    assert len(in_vllm.vllm_stream(list(support.SHORT))[1]) == said["streamed"]
    assert len(support.recorded()["cut off"][2]) == said["cut off"]
    rows = {place: (count, end) for place, count, end in support.recorded()["allowed"]}
    places = ("", "I <tool_call", "<tool_call>", '<tool_call>\n{"name": "', support.LINE)
    assert [rows[place][0] for place in places] == said["allowed"]
    assert [rows[place][1] for place in places] == said["may end"]


def test_a_valid_document_may_end_the_call(in_vllm: Any, solution: Any) -> None:
    """The end tag inside a string fits schema and tag, and is the end to the parser."""
    tag = in_vllm.Tagged(
        solution.tools_to_rule(in_vllm.support.TOOLS, "auto", strict=True)["structural_tag"]
    )
    text = in_vllm.LINE.replace("kettle", "</tool_call>")
    assert 256 in tag.allowed(text)
    assert in_vllm.vllm_whole(text) == [text, []]


def test_the_tag_passes_as_a_response_format(in_vllm: Any, solution: Any) -> None:
    """`auto` leaves a client's own structural tag in place; `required` puts its schema there instead."""
    tools = in_vllm.support.TOOLS
    rule = solution.tools_to_rule(tools, "auto", strict=True)
    tag = json.loads(rule["structural_tag"])
    passed = in_vllm.vllm_rule(tools, "auto", response_format=tag)
    assert json.loads(passed["structural_tag"]) == tag
    instead = in_vllm.vllm_rule(tools, "required", response_format=tag)
    assert instead == in_vllm.vllm_rule(tools, "required")


def test_both_forms_of_a_tag_allow_the_same(in_vllm: Any, solution: Any) -> None:
    """The older form, `structures`, too: at each place of a text the same tokens."""
    rule = solution.tools_to_rule(in_vllm.support.TOOLS, "auto", strict=True)
    triggers, tags = in_vllm.support.read_tag(rule)
    older = {
        "structures": [{"begin": b, "schema": s, "end": e} for b, s, e in tags],
        "triggers": triggers,
    }
    forms = [in_vllm.Tagged(rule["structural_tag"]), in_vllm.Tagged(json.dumps(older))]
    line = in_vllm.LINE
    for at in range(len(line) + 1):
        first, second = (form.allowed(line[:at]) for form in forms)
        assert first == second, line[:at]


def test_unusual_calls(in_vllm: Any) -> None:
    """Line breaks, odd names, tags in strings and calls that lack something, streamed."""
    for text, calls in in_vllm.support.UNUSUAL.values():
        assert in_vllm.vllm_stream(list(text)) == ["", calls], text


def test_arguments_may_be_anything(in_vllm: Any) -> None:
    for arguments in ("null", "3", '"KX-1190"', '["é"]', '""', "{}"):
        text = f'<tool_call>{{"name": "look_up", "arguments": {arguments}}}</tool_call>'
        assert in_vllm.vllm_whole(text) == [None, [["look_up", arguments]]]
    text = '<tool_call>{"name": "look_up", "arguments": {"part": "\n"}}</tool_call>'
    assert in_vllm.vllm_whole(text) == [text, []]


@pytest.mark.parametrize(
    ("text", "streamed"),
    [
        ("I would <tool", ["I would ", []]),  # what was held back is lost
        (  # the name is looked for in all of the call
            '<tool_call>{"arguments": {"name": "Bo"}, "name": "look_up"}</tool_call>',
            ["", [["Bo", '{"name": "Bo"}, "name": "look_up"']]],
        ),
    ],
)
def test_where_the_stream_goes_wrong(in_vllm: Any, text: str, streamed: list[Any]) -> None:
    """Two more faults of vLLM's stream; finished, both texts are read well."""
    assert in_vllm.vllm_stream(list(text)) == streamed
    content, calls = in_vllm.vllm_whole(text)
    assert (content, calls) in ((text, []), (None, [["look_up", '{"name": "Bo"}']]))
