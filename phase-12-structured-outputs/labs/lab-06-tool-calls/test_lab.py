"""Lab 12-06: the predictions, the rules beside vLLM's, finished texts, and every cut of a stream."""

from __future__ import annotations

import copy
import json
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
START, END, TOOLS = support.START, support.END, support.TOOLS


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your answers to the six questions hold, before anything is run."""
    tagged = "Which places are free text, and which are in a tag, where begin is spelled out?"
    may_end = "Where is the text free, and where has a tag begun that has to be finished?"
    facts: dict[str, tuple[Any, str]] = {
        "rules": ([False, False, True, True, False], "What has the text to obey in each of the five?"),
        "whole": (0, "What becomes of a text of which one call cannot be read?"),
        "streamed": (2, "When is a name sent, and when is the missing brace noticed?"),
        "cut off": (0, "Under required the text is one JSON list. Can half of one be read?"),
        "allowed": ([257, 257, 1, 3, 257], tagged),
        "may end": ([True, True, False, False, True], may_end),
    }  # fmt: skip
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"six questions; these stand in one of the README and your answers only: {apart}"
    )
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- the rule ------------------------------------------------------------------------------------


def check_rules(lab: ModuleType, name: str, wanted: str) -> None:
    """The lab's rules for a set of tools beside those that reached vLLM's engine."""
    for tools, choice, expected in support.recorded()["rules"]:
        kind = choice if isinstance(choice, str) else "named"
        if (tools, kind) != (name, wanted):
            continue
        rule = lab.tools_to_rule(copy.deepcopy(support.SETS[name]), choice)
        told = choice if isinstance(choice, str) else choice["function"]["name"]
        assert rule == expected, (
            f"tools with {name!r}, tool_choice {told!r}: vLLM's rule is {json.dumps(expected)}, and yours "
            f"{rule}"
        )


@pytest.mark.parametrize("name", support.SETS)
def test_no_rule(lab: ModuleType, name: str) -> None:
    """`none`, and `auto` without `strict`, set nothing."""
    check_rules(lab, name, "none")
    check_rules(lab, name, "auto")


@pytest.mark.parametrize("name", support.SETS)
def test_required(lab: ModuleType, name: str) -> None:
    """`required`: a list of calls, one alternative per tool."""
    check_rules(lab, name, "required")


@pytest.mark.parametrize("name", support.SETS)
def test_named(lab: ModuleType, name: str) -> None:
    """A tool by name: its parameters, and no rule if it has none."""
    check_rules(lab, name, "named")


def test_an_unknown_tool(lab: ModuleType) -> None:
    """A name that no tool has: ValueError."""
    with pytest.raises(ValueError):
        lab.tools_to_rule(TOOLS, support.named("fly"))


def test_strict_is_for_auto(lab: ModuleType) -> None:
    """The other choices do not look at `strict`, and the tools stay as they were."""
    for choice in support.choices(TOOLS):
        if choice == "auto":
            continue
        tools = copy.deepcopy(TOOLS)
        rule = lab.tools_to_rule(tools, choice, strict=True)
        plain = lab.tools_to_rule(tools, choice)
        assert rule == plain, f"tool_choice {choice}: strict changed {plain} to {rule}"
        assert tools == TOOLS, f"tool_choice {choice}: the request's tools were changed to {tools}"


def check_form(tag: dict[str, Any]) -> None:
    """The tag has the README's keys and types: one more, `stop_after_first` say, changes what it allows."""
    inner = tag["format"]
    parts = [("the tag", tag, "structural_tag", {"format"})]
    parts += [("format", inner, "triggered_tags", {"triggers", "tags"})]
    for one in inner["tags"]:
        parts += [("each of tags", one, "tag", {"begin", "content", "end"})]
        parts += [("content", one["content"], "json_schema", {"json_schema"})]
    for what, part, kind, keys in parts:
        assert part.get("type") == kind, (
            f"{what} has the type {kind!r}, and yours {part.get('type')!r}"
        )
        wanted, mine = sorted({"type", *keys}), sorted(part)
        assert mine == wanted, f"{what} has the keys {wanted}, and yours {mine}"


@pytest.mark.parametrize("name", support.SETS)
def test_the_tag(lab: ModuleType, name: str) -> None:
    """A tag per tool: what comes before the arguments, their schema, what comes after."""
    tools = support.SETS[name]
    rule = lab.tools_to_rule(copy.deepcopy(tools), "auto", strict=True)
    keys = list(rule or {})
    assert keys == ["structural_tag"], f"strict auto is to give a structural_tag, and gives {keys}"
    text = rule["structural_tag"]
    assert isinstance(text, str), f"the tag is to be JSON text, and is a {type(text).__name__}"
    triggers, tags = support.read_tag(rule)
    if "structures" not in json.loads(text):
        check_form(json.loads(text))
    assert triggers == [START], f"the only trigger is {START!r}, and yours are {triggers}"
    count = len(tags)
    assert count == len(tools), f"{len(tools)} tools need as many tags, and there are {count}"
    for one, (begin, schema, end) in zip(tools, tags, strict=True):
        called = one["function"]["name"]
        before = f'{START}\n{{"name": "{called}", "arguments": '
        assert begin == before, f"{called}'s begin is {before!r}, and yours {begin!r}"
        wanted = one["function"].get("parameters") or {"type": "object", "properties": {}}
        assert schema == wanted, f"{called}'s schema is {wanted}, and yours {schema}"
        after = f"}}\n{END}"
        assert end == after, f"{called}'s end is {after!r}, and yours {end!r}"


def test_what_the_tag_lets_through_is_a_call(lab: ModuleType) -> None:
    """The tag and the parser speak of one format."""
    rule = lab.tools_to_rule(TOOLS, "auto", strict=True)
    for begin, _, end in support.read_tag(rule)[1]:
        reply = lab.parse_calls(f"Now.\n{begin}{{}}{end}")
        found = [(call.name in begin, call.arguments) for call in reply.calls]
        assert found == [(True, "{}")], f"{begin}{{}}{end} is a call, and parse_calls finds {found}"


# ---- the whole text ------------------------------------------------------------------------------


def check_whole(lab: ModuleType, text: str, content: str | None, calls: list[list[str]]) -> None:
    """A finished text beside what vLLM made of it."""
    reply = lab.parse_calls(text)
    mine = [[call.name, call.arguments] for call in reply.calls]
    assert len(mine) == len(calls), f"{text!r}: vLLM finds {len(calls)} calls, and you {len(mine)}"
    assert mine == calls, f"{text!r}: vLLM's calls are {calls}, and yours {mine}"
    assert reply.content == content, (
        f"{text!r}: vLLM's content is {content!r}, and yours {reply.content!r}"
    )


def test_finished_texts(lab: ModuleType) -> None:
    """40 texts with calls, and some without, are read as vLLM reads them."""
    for text, content, calls in support.recorded()["whole"]:
        if calls or START not in text:
            check_whole(lab, text, content, calls)


def test_a_call_that_cannot_be_read(lab: ModuleType) -> None:
    """One such call, and the whole text is content, as in vLLM."""
    for text, content, calls in support.recorded()["whole"]:
        if START in text and not calls:
            check_whole(lab, text, content, calls)
    control = '{"name": "look_up", "arguments": {"part": "\n"}}'  # a line break inside a string
    for call in ('["a"]', '{"name": 3, "arguments": {}}', '"look_up"', "3", "", control):
        text = f"Now.\n{START}{call}{END}"
        check_whole(lab, text, text, [])


@pytest.mark.parametrize("arguments", ["null", "3", '"KX-1190"', '["é"]', '""', "{}"])
def test_arguments_may_be_anything(lab: ModuleType, arguments: str) -> None:
    """Arguments of every kind are written as JSON: a string keeps its quotes."""
    text = f'{START}{{"name": "look_up", "arguments": {arguments}}}{END}'
    check_whole(lab, text, None, [["look_up", arguments]])


# ---- the stream ----------------------------------------------------------------------------------


def check_stream(lab: ModuleType, pieces: list[str], content: str, calls: list[list[str]]) -> None:
    """A text in pieces beside what a client is to get of it."""
    seen = support.stream(lab, pieces)
    text = "".join(pieces)
    told = f"{text!r} in {len(pieces)} pieces" + (
        f", the first of {len(pieces[0])} characters" if len(pieces) == 2 else ""
    )
    assert not seen.wrong, f"{told}: {seen.wrong}"
    assert seen.content == content, (
        f"{told}: the content is {content!r}, and yours {seen.content!r}"
    )
    names, mine = [call[0] for call in calls], [call[0] for call in seen.calls]
    assert mine == names, f"{told}: the names are {names}, and yours {mine}"
    for (name, wanted), (_, got) in zip(calls, seen.calls, strict=True):
        assert got == wanted, f"{told}: the arguments of {name} are {wanted!r}, and yours {got!r}"


def test_every_cut(lab: ModuleType) -> None:
    """However a text is cut, the client gets what vLLM's parser gives for single characters."""
    for seed, (text, content, calls) in enumerate(support.recorded()["streamed"]):
        for pieces in support.cuts(text, seed, every=3):
            check_stream(lab, pieces, content, calls)


def test_stream_and_whole_agree(lab: ModuleType) -> None:
    """A call's streamed arguments are the same JSON as those read from the finished text."""
    for seed in range(100, 130):
        text = support.draw_text(seed).text
        seen = support.stream(lab, [text[i : i + 5] for i in range(0, len(text), 5)])
        streamed = [(name, json.loads(arguments or "null")) for name, arguments in seen.calls]
        whole = [(c.name, json.loads(c.arguments)) for c in lab.parse_calls(text).calls]
        assert streamed == whole, f"{text!r}: streamed {streamed}, finished {whole}"


def _without_half(text: str, tag: str) -> str:
    """A text without the longest beginning of `tag` at its end."""
    return next(
        text[: len(text) - n] for n in range(len(tag) - 1, -1, -1) if text.endswith(tag[:n])
    )


def test_as_soon_as_it_is_certain(lab: ModuleType) -> None:
    """Character by character: nothing is sent too early, and nothing but half a tag is held back."""
    for seed in range(12):
        made = support.draw_text(seed)
        reader, seen = lab.CallStream(), support.Seen()
        for at, character in enumerate(made.text, 1):
            seen.take(reader.feed(character))
            shown = made.text[:at]
            assert not seen.wrong, f"after {shown!r}: {seen.wrong}"
            content = made.content
            if at < len(content) + len(START):
                content = _without_half(shown, START)
            assert seen.content == content, (
                f"after {shown!r}: the content so far is {content!r}, and yours {seen.content!r}"
            )
            names = [n for n, end in zip(made.names, made.name_at, strict=True) if end <= at]
            mine = [call[0] for call in seen.calls]
            assert mine == names, f"after {shown!r}: the names so far are {names}, and yours {mine}"
            for index in range(len(names)):
                begin, whole = made.arguments_at[index], made.arguments[index]
                arguments = made.text[begin : max(begin, at)][: len(whole)]
                if at - begin < len(whole):
                    arguments = _without_half(arguments, END)
                got = seen.calls[index][1]
                assert got == arguments, (
                    f"after {shown!r}: the arguments so far are {arguments!r}, and yours {got!r}"
                )


def test_half_a_tag_at_the_end(lab: ModuleType) -> None:
    """What was held back and is no tag is sent when the text has ended, as what it is."""
    for at in range(len(START)):
        for pieces in support.cuts(f"a < b {START[:at]}"):
            check_stream(lab, pieces, "".join(pieces), [])
    inside = f'{START}{{"name": "look_up", "arguments": {{"part": "'
    for at in range(len(END)):
        for pieces in support.cuts(f"{inside}{END[:at]}"):
            check_stream(lab, pieces, "", [["look_up", f'{{"part": "{END[:at]}']])


def test_the_other_tag_is_not_held_back(lab: ModuleType) -> None:
    """Half a start tag inside a call is no reason to wait."""
    text = f'{START}{{"name": "look_up", "arguments": {{"part": "{START[:6]}'
    reader, seen = lab.CallStream(), support.Seen()
    seen.take(reader.feed(text))
    wanted, mine = [["look_up", f'{{"part": "{START[:6]}']], seen.calls
    assert mine == wanted, f"after {text!r}: the calls so far are {wanted}, and yours {mine}"


def test_half_a_tag_elsewhere(lab: ModuleType) -> None:
    """Behind a call, or behind its arguments, half a tag at the end of the text belongs to nothing."""
    calls = [["book_repair", '{"item": "kettle", "days": 3}']]
    for text in (f"{support.LINE}\n{START[:6]}", support.LINE[:-5]):
        for pieces in support.cuts(text, every=3):
            check_stream(lab, pieces, "Let me see.\n", calls)


@pytest.mark.parametrize("which", support.UNUSUAL)
def test_unusual_calls(lab: ModuleType, which: str) -> None:
    """Line breaks around the colons, names such as look-up.2, tags in strings, calls that lack something."""
    text, calls = support.UNUSUAL[which]
    for pieces in support.cuts(text, every=3):
        check_stream(lab, pieces, "", calls)


def test_a_broken_call_does_not_depend_on_the_cut(lab: ModuleType) -> None:
    """A call without its last brace: the client gets the same pieces however the text is cut."""
    calls = [["book_repair", '{"item": "kettle", "days": 3}'], ["look_up", '{"part": "KX-1190"}']]
    for pieces in support.cuts(support.SHORT):
        check_stream(lab, pieces, "Let me see.\n", calls)
