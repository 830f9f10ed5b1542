"""What phase 12's script prints of real vLLM is what the phase's pages show, and what they say beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from topic_helpers import load_scripts, topics_on

from course.docs.pages import ROOT
from tests.engine.helpers.real_vllm.vllm_helpers import output_of
from tests.engine.helpers.thorough import either

PHASE = ROOT / "phase-12-structured-outputs"
(grammars,) = load_scripts(PHASE, "vllm_grammars")
TOPICS = either([topic for topic in grammars.TOPICS if topic != "collides"], list(grammars.TOPICS))

pytestmark = pytest.mark.vllm


def shown() -> Iterator[tuple[str, list[str]]]:
    """Topic and lines of each block on the phase's pages that the script has printed."""
    for page in sorted(PHASE.glob("*.md")):
        for blocks in topics_on(page, {"vllm_grammars.py": grammars}).values():
            yield from blocks.items()


def test_the_pages_show_every_topic() -> None:
    assert {topic for topic, _ in shown()} == set(grammars.TOPICS)


@pytest.mark.parametrize("topic", TOPICS)
def test_the_pages_show_what_is_printed(topic: str) -> None:
    """`collides` starts a whole engine, so it is run where tests may take long."""
    lines = output_of(PHASE / "vllm_grammars.py", topic).splitlines()
    printed = lines[lines.index(f"{topic}, vLLM") :]
    assert printed == dict(shown())[topic]


def test_the_server_drops_a_field_that_it_does_not_have() -> None:
    """Deep dive, section 1."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    def rule_of(**more: Any) -> Any:
        messages: Any = [{"role": "user", "content": "A part"}]
        request = ChatCompletionRequest(model="any", messages=messages, **more)
        return request.to_sampling_params(10, {}).structured_outputs

    assert rule_of(guided_json={"type": "object"}) is None
    assert rule_of(structured_outputs={"json": {"type": "object"}}) is not None


def test_an_escape_that_xgrammar_does_not_know_is_its_letter() -> None:
    """Deep dive, section 1."""
    params = grammars.check_rule(regex=r"\A" + grammars.PART)
    assert params.structured_outputs._backend == "xgrammar"
    manager = grammars.make_manager()
    grammar = grammars.compile_rule(manager, grammars.make_request("bo", 4, params))
    assert grammar.accept_tokens("bo", grammars.encode("AKX-1190"))


def test_guidance_answers_a_rule_that_does_not_compile_by_the_end() -> None:
    """Deep dive, section 3."""
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions

    manager = grammars.make_manager()
    grammars.make_backend(manager, "guidance")
    grammar = manager.backend.compile_grammar(StructuredOutputOptions.REGEX, "(?=K)a")
    rows = manager.backend.allocate_token_bitmask(1)
    assert grammars.fill(grammar, rows) == "1, the end token"


@pytest.mark.parametrize(
    ("requests", "drafts", "threads"), [(128, 0, 0), (129, 0, 9), (129, 1, 0)], ids=str
)
def test_rows_are_filled_in_groups_of_16_above_128_requests(
    requests: int, drafts: int, threads: int
) -> None:
    """Deep dive, section 4."""
    manager = grammars.make_manager(max_num_seqs=200, drafts=drafts)
    params = grammars.check_rule(regex=grammars.PART)
    made = {str(n): grammars.make_request(str(n), 4, params) for n in range(requests)}
    for request in made.values():
        grammars.compile_rule(manager, request)
    groups: list[int] = []
    submit = manager._async_submit_fill_bitmask

    def count(batch: Any) -> Any:
        groups.append(len(batch))
        return submit(batch)

    manager._async_submit_fill_bitmask = count
    assert len(manager.grammar_bitmask(made, list(made), {})) == requests
    assert len(groups) == threads
    assert not groups or max(groups) == 16


def test_a_draft_that_is_barred_fails_an_assertion() -> None:
    """Deep dive, section 6."""
    manager = grammars.make_manager(drafts=1)
    request = grammars.make_request("bo", 4, grammars.check_rule(regex=grammars.PART))
    grammars.compile_rule(manager, request)
    with pytest.raises(AssertionError):
        manager.grammar_bitmask({"bo": request}, ["bo"], {"bo": grammars.encode("q")})


def test_thoughts_are_bound_where_that_is_asked_for() -> None:
    """Deep dive, section 7: by `enable_in_reasoning`, and by a request that says that they are over."""
    manager = grammars.make_manager(reasoner=lambda **_: None)
    request = grammars.make_request("bo", 4, grammars.check_rule(regex=grammars.PART))
    thinks: Any = object()
    request.structured_output_request.reasoner = thinks
    request.structured_output_request.reasoning_ended = False
    assert not manager.should_fill_bitmask(request)
    request.structured_output_request.reasoning_ended = True
    assert manager.should_fill_bitmask(request)
    request.structured_output_request.reasoning_ended = False
    manager.enable_in_reasoning = True
    assert manager.should_fill_bitmask(request)
    assert manager.should_advance(request)


def test_a_tool_choice_of_auto_makes_no_schema() -> None:
    """Deep dive, section 7."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers.utils import get_json_schema_from_tools

    parameters = {"type": "object", "properties": {"part": {"type": "string"}}}
    function = {"name": "look_up", "parameters": parameters}
    named = {"type": "function", "function": {"name": "look_up"}}

    def schema_of(tool_choice: Any) -> Any:
        messages: Any = [{"role": "user", "content": "A part"}]
        tools: Any = [{"type": "function", "function": function}]
        request = ChatCompletionRequest(
            model="any", messages=messages, tools=tools, tool_choice=tool_choice
        )
        return get_json_schema_from_tools(request.tool_choice, request.tools)

    assert schema_of("none") is None
    assert schema_of("auto") is None
    assert schema_of(named) == parameters
    required = schema_of("required")
    assert (required["type"], required["minItems"]) == ("array", 1)
