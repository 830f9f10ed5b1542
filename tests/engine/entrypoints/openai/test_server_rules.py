"""Requests with a rule: what they are answered, and that nothing else notices. The native backend."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

for package in (
    "fastapi",
    "uvicorn",
    "prometheus_client",
    "prometheus_fastapi_instrumentator",
    "jinja2",
):
    pytest.importorskip(package)

from mini_vllm import LLM, EngineConfig, SamplingParams  # noqa: E402
from mini_vllm.entrypoints.openai import rules  # noqa: E402
from mini_vllm.entrypoints.openai.protocol import CompletionRequest  # noqa: E402
from mini_vllm.utils.structured_params import StructuredOutputsParams  # noqa: E402
from tests.engine.helpers.server.odd_rules import TICKET, odd_rules  # noqa: E402
from tests.engine.helpers.server.server_helpers import (  # noqa: E402
    Answer,
    ServerHere,
    open_request,
    serve_here,
)

CONFIG = {"backend": "native", "disable_any_whitespace": True}  # blanks have no end
PART = "[A-Z]{2}-[0-9]{3,4}"
KINDS = ["repair", "return", "question"]
FORMAT = {"type": "json_schema", "json_schema": {"name": "ticket", "schema": TICKET}}
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerHere]:
    with serve_here(EngineConfig(structured_outputs_config=CONFIG)) as running:
        yield running
        running.check_unharmed()


def ask(server: ServerHere, path: str, **body: Any) -> Answer:
    given: dict[str, Any] = {"prompt": "A mail: "}
    if path == CHAT:
        given = {"messages": [{"role": "user", "content": "A mail: "}]}
    return server.send(path, {**given, "temperature": 0, "max_tokens": 120, **body})


def texts(answer: Answer) -> list[str]:
    """By choice, streamed or not."""
    assert answer.status == 200, answer.body
    found: dict[int, str] = {}
    for event in answer.events if b"data: " in answer.body[:6] else [answer.json]:
        for choice in event["choices"]:
            said = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
            found[choice["index"]] = found.get(choice["index"], "") + (said["content"] or "")
    return [found[index] for index in sorted(found)]


def is_ticket(text: str) -> bool:
    ticket = json.loads(text)
    return (
        list(ticket) == list(TICKET["properties"])
        and len(ticket["item"]) <= 12
        and ticket["kind"] in KINDS
        and isinstance(ticket["urgent"], bool)
        and 1 <= ticket["days"] <= 30
    )


# -- good ones ------------------------------------------------------------------------------------


RULES: dict[str, tuple[dict[str, Any], Any]] = {
    "regex": ({"structured_outputs": {"regex": PART}}, re.compile(PART).fullmatch),
    "choice": ({"structured_outputs": {"choice": KINDS}}, KINDS.__contains__),
    "json": ({"structured_outputs": {"json": TICKET}}, is_ticket),
    "json, a text": ({"structured_outputs": {"json": json.dumps(TICKET)}}, is_ticket),
    "json_schema": ({"response_format": FORMAT}, is_ticket),
    "with nulls": ({"structured_outputs": {"json": None, "regex": PART}}, re.compile(PART).fullmatch),
    "beside text": (
        {"response_format": {"type": "text"}, "structured_outputs": {"choice": KINDS}}, KINDS.__contains__),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "path", "stream"),
    [
        *((name, TEXT, False) for name in RULES),
        *((name, path, True) for name in ("regex", "json_schema") for path in (TEXT, CHAT)),
        ("choice", CHAT, False),
    ],
)
def test_the_output_obeys(server: ServerHere, name: str, path: str, stream: bool) -> None:
    fields, is_good = RULES[name]
    one = texts(ask(server, path, stream=stream, **fields))
    two = texts(ask(server, path, stream=stream, n=2, seed=3, **fields, temperature=1.5))
    assert len(one) == 1
    assert len(two) == 2
    assert all(is_good(text) for text in one + two), one + two


def test_an_object_of_json_object_begins_as_one(server: ServerHere) -> None:
    format = {"type": "json_object", "schema": TICKET}  # the schema is ignored, as in vLLM
    for fields in ({"response_format": format}, {"structured_outputs": {"json_object": True}}):
        [text] = texts(ask(server, TEXT, **fields))
        assert text.startswith("{")
        assert not text.startswith('{"item"')


def test_what_a_json_schema_says_beside_its_schema_changes_nothing(server: ServerHere) -> None:
    more = {"description": "a mail", "strict": False, "more": 1}
    format = {"type": "json_schema", "json_schema": {**FORMAT["json_schema"], **more}, "more": 2}  # type: ignore[dict-item]
    assert texts(ask(server, CHAT, response_format=format)) == texts(
        ask(server, CHAT, response_format=FORMAT)
    )


def test_it_is_what_the_engine_gives_offline(server: ServerHere) -> None:
    llm = LLM(structured_outputs_config=CONFIG)
    rule = StructuredOutputsParams(regex=PART)
    params = SamplingParams(temperature=0, max_tokens=120, structured_outputs=rule)
    [output] = llm.generate(["A mail: "], params, use_tqdm=False)
    assert texts(ask(server, TEXT, structured_outputs={"regex": PART})) == [output.outputs[0].text]


def test_a_free_prompt_beside_bound_ones_is_answered_as_ever(server: ServerHere) -> None:
    alone = texts(ask(server, TEXT, ignore_eos=True))
    bound = {
        "prompt": "A mail: ",
        "max_tokens": 900,
        "stream": True,
        "structured_outputs": {"regex": "a*"},
    }
    with open_request(server, {**bound, "temperature": 0, "logit_bias": {"2": -100}}) as sock:
        assert sock.recv(12) == b"HTTP/1.1 200"
        assert texts(ask(server, TEXT, ignore_eos=True)) == alone
        assert server.engine.has_unfinished_requests(), "the bound one still runs"
    server.wait_idle()


def test_a_rule_is_rendered_as_it_was_given(server: ServerHere) -> None:
    answer = ask(server, TEXT + "/render", structured_outputs={"regex": PART})
    shown = answer.json[0]["sampling_params"]["structured_outputs"]
    assert shown["regex"] == PART
    assert shown["_backend"] is None
    free = ask(server, TEXT + "/render").json[0]["sampling_params"]
    assert "structured_outputs" not in free
    assert server.send("/tokenize", {"prompt": "x", "structured_outputs": 5}).status == 200


# -- bad ones -------------------------------------------------------------------------------------


def so(**rule: Any) -> dict[str, Any]:
    return {"structured_outputs": rule}


def rf(kind: str, **more: Any) -> dict[str, Any]:
    return {"response_format": {"type": kind, **more}}


def schema(**more: Any) -> dict[str, Any]:
    return rf("json_schema", json_schema={"name": "x", **more})


SO, RF = "structured_outputs", "response_format"
# fields, param of the error, a part of its message
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({SO: {}}, SO, "exactly one of json, regex, choice"),
    ({SO: 5}, SO, "must be an object, got 5"),
    ({SO: "regex"}, SO, "must be an object, got 'regex'"),
    (so(regex=5), SO, "structured_outputs.regex must be a string, got 5"),
    (so(regex="a("), SO, "structured_outputs.regex 'a(': "),
    (so(regex="a", choice=["a"]), SO, "got regex='a', choice=['a']"),
    (so(regex="a", regexp="b"), SO, "has no key 'regexp'"),
    (so(regex="a", _backend="xgrammar"), SO, "has no key '_backend'"),
    (so(regex="a", whitespace_pattern=" "), SO, "structured_outputs.whitespace_pattern=' '"),
    (so(choice=[]), SO, "structured_outputs.choice cannot be an empty list"),
    (so(choice="a"), SO, "structured_outputs.choice must be a list of strings, got 'a'"),
    (so(grammar=" "), SO, "structured_outputs.grammar cannot be an empty string"),
    (so(grammar='root ::= "a"'), SO, "no rules of the kind grammar"),
    (so(json="{"), SO, "structured_outputs.json must be a JSON schema, got '{'"),
    (so(json=[]), SO, "structured_outputs.json must be a JSON schema"),
    (so(json={"type": "frog"}), SO, "structured_outputs.json '{\"type\": \"frog\"}'"),
    (so(json_object=False), SO, "json_object must be True or left out"),
    (so(regex="(a{1,900}){1,900}"), SO, "structured_outputs.regex '(a{1,900}){1,900}'"),
    (so(regex="a" * 70_000), SO, "70000 characters, more than the 65536"),
    (so(json={"anyOf": [{"const": "a" * 70_000}]}), SO, "more than the 65536"),
    ({RF: "json_object"}, RF, "must be an object, got 'json_object'"),
    ({RF: {}}, RF, "type must be one of text, json_object, json_schema, structural_tag, got None"),
    (rf("json"), RF, "got 'json'"),
    (rf("json_schema"), RF, "json_schema must be an object with name and schema, got None"),
    (rf("text", json_schema=5), RF, "json_schema must be an object"),
    (rf("json_schema", json_schema={"schema": {}}), RF, "json_schema.name must be a string"),
    (schema(), RF, "json_schema.schema must be an object, a JSON schema, got None"),
    (schema(schema="{}"), RF, "json_schema.schema must be an object, a JSON schema, got '{}'"),
    (schema(schema={}, strict="very"), RF, "json_schema.strict must be true or false, got 'very'"),
    (schema(schema={}, description=5), RF, "json_schema.description must be a string"),
    (schema(schema={"type": "frog"}), RF, "response_format.json_schema.schema '{\"type\": \"frog\"}'"),
    (rf("structural_tag"), RF, "needs format, or structures and triggers"),
    (rf("structural_tag", structures=[5], triggers=[]), RF, "structures[0] must be an object"),
    (rf("structural_tag", structures=[{"begin": "x"}], triggers=[]), RF, "structures[0].end must be"),
    (rf("structural_tag", structures=[], triggers="x"), RF, "triggers must be a list of strings"),
    (rf("structural_tag", format={"type": "any_text"}), RF, "no rules of the kind structural_tag"),
    (rf("json_object") | so(regex="a"), RF, "both give a rule"),
    (schema(schema={}) | so(json={}), RF, "both give a rule"),
    (so(regex="a") | {"use_beam_search": True, "n": 2}, SO, "cannot be had with use_beam_search"),
    (rf("json_object") | {"use_beam_search": True, "n": 2}, RF, "cannot be had with use_beam_search"),
    (so(regex="ab") | {"ignore_eos": True}, SO, "structured_outputs.regex 'ab': the grammar rejected"),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(BAD)))
def test_a_bad_rule_is_refused_by_field_and_value(server: ServerHere, place: int) -> None:
    fields, param, part = BAD[place]
    answer = ask(server, (TEXT, CHAT)[place % 2], **fields)
    assert answer.status == 400, answer.body
    assert answer.error["param"] == param
    assert part in answer.error["message"], answer.error["message"]


def test_a_rule_too_deep_is_refused_in_either_form(server: ServerHere) -> None:
    deep: Any = {}
    for _ in range(rules.MOST_RULE_DEPTH):
        deep = {"items": deep}
    for fields in (so(json=deep), so(json=json.dumps(deep)), schema(schema=deep)):
        assert "more than 64 lists and objects" in ask(server, TEXT, **fields).error["message"]


def test_a_stream_whose_rule_fails_to_compile_has_the_status(server: ServerHere) -> None:
    """Nothing has been sent by then."""
    answer = ask(server, TEXT, stream=True, **so(regex="(a{1,900}){1,900}"))
    assert answer.status == 400
    assert answer.error["param"] == SO


def test_a_stream_that_cannot_go_on_ends_with_the_error(server: ServerHere) -> None:
    answer = ask(server, TEXT, stream=True, ignore_eos=True, **so(regex="a{40}"))
    assert answer.status == 200
    *said, error = answer.events
    assert set("".join(event["choices"][0]["text"] for event in said)) == {"a"}
    assert "structured_outputs.regex 'a{40}': the grammar rejected" in error["error"]["message"]


def test_a_rule_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """To check, and to compile: a library may go on for ever."""
    import threading

    import mini_vllm.structured_output.manager as manager

    end = threading.Event()
    monkeypatch.setattr(manager, "COMPILE_SECONDS", 0.1)
    monkeypatch.setattr("mini_vllm.entrypoints.openai.body.CHECK_SECONDS", 0.1)
    with serve_here(EngineConfig(structured_outputs_config=CONFIG)) as server:
        for place, name in (
            (manager, "choose_backend"),
            (manager.StructuredOutputManager, "_compile"),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(place, name, lambda *_: end.wait())
                for _ in range(
                    4
                ):  # two of them are given up, and for the others there is no thread
                    answer = ask(server, TEXT, **so(regex="ab"))
                    assert answer.status == 400
                    assert "in time. A rule has " in answer.error["message"]
                    assert "'ab'" in answer.error["message"]
                assert ask(server, TEXT).status == 200, "one without a rule needs none"
            end.set()
            server.wait_until(
                lambda: ask(server, TEXT, **so(regex="ab")).status == 200, "threads are free again"
            )
            end.clear()
        server.check_unharmed()


def test_odd_rules_are_answered_or_refused_and_a_neighbour_goes_on(server: ServerHere) -> None:
    """Eighty of them; `tests/authors/test_server_odd_rules.py` has a thousand, with each backend."""
    asked = {"max_tokens": 200, "ignore_eos": True}
    alone = texts(ask(server, TEXT, **asked))
    counts = {200: 0, 400: 0}
    for place, fields in enumerate(odd_rules(80)):
        answer = ask(server, (TEXT, CHAT)[place % 2], **fields, max_tokens=4)
        assert answer.status in counts, (fields, answer.body)
        counts[answer.status] += 1
        if answer.status == 400:
            assert answer.error["param"] in (SO, RF), (fields, answer.error)
            assert answer.error["message"].startswith((SO, RF)), (fields, answer.error)
        if place % 40 == 0:
            assert texts(ask(server, TEXT, **asked)) == alone
    assert min(counts.values()) >= 8, counts


# -- by themselves --------------------------------------------------------------------------------


def test_which_bodies_have_a_rule() -> None:
    def made(**fields: Any) -> CompletionRequest:
        return CompletionRequest.model_validate({"prompt": "x", **fields})

    assert rules.rule_of(made()) is None
    assert rules.rule_of(made(response_format={"type": "text"})) is None
    assert rules.check_too_long(made(response_format={"type": "text"})) is None
    assert rules.check_too_long(made(response_format={"type": "json_object"})) is not None
    rule = rules.rule_of(
        made(response_format={"type": "structural_tag", "format": {"type": "any_text"}})
    )
    assert rule is not None
    assert json.loads(str(rule.structural_tag))["format"] == {"type": "any_text"}
    old = {"type": "structural_tag", "structures": [], "triggers": ["x"]}
    assert json.loads(str(rules.rule_of(made(response_format=old)).structural_tag)) == old  # type: ignore[union-attr]


def test_the_flag_of_the_backend() -> None:
    """As `vllm serve` spells it."""
    import argparse

    from mini_vllm.entrypoints.cli.flags import make_config
    from mini_vllm.entrypoints.cli.serve import add_serve_arguments

    parser = argparse.ArgumentParser()
    add_serve_arguments(parser)
    for flags in (
        ["--structured-outputs-config.backend", "native"],
        ["--structured-outputs-config", '{"backend": "native"}'],
    ):
        settings = make_config(parser.parse_args(flags)).structured_outputs_config
        assert settings is not None
        assert settings.backend == "native"


def test_a_server_whose_library_is_missing_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mini_vllm.structured_output.manager._is_installed", lambda library: False)
    with (
        pytest.raises(
            ValueError, match="backend='xgrammar' needs xgrammar, which is not installed"
        ),
        serve_here(EngineConfig(structured_outputs_config={"backend": "xgrammar"})),
    ):
        pass
