"""Chat templates: what checkpoints write in them, what fails in them, and where they are found."""

from __future__ import annotations

import json
from pathlib import Path
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

from mini_vllm.entrypoints.openai.chat import ChatTemplate  # noqa: E402
from mini_vllm.entrypoints.openai.errors import ApiError  # noqa: E402
from mini_vllm.entrypoints.openai.protocol import ChatCompletionRequest  # noqa: E402


def render(source: str, *messages: dict[str, Any], **fields: Any) -> str:
    body = ChatCompletionRequest.model_validate({"messages": list(messages), **fields})
    return ChatTemplate(source, {"bos_token": "<s>"}).render(body)


HELLO = {"role": "user", "content": "Hello"}


def test_templates_as_checkpoints_have_them() -> None:
    """What Hugging Face's templates use: special tokens, loop controls, tojson, namespaces."""
    source = (
        "{{ bos_token }}{% set ns = namespace(n=0) %}{% for m in messages %}"
        "{% if m.role == 'system' %}{% continue %}{% endif %}{% set ns.n = ns.n + 1 %}"
        "{% generation %}[{{ m['content'] | trim }}]{% endgeneration %}{% endfor %}{{ ns.n }}"
        "{% if tools %}{{ tools | tojson }}{% endif %}{% if think %}!{% endif %}"
        "{{ '>' if add_generation_prompt }}"
    )
    system = {"role": "system", "content": "x"}
    assert render(source, system, HELLO) == "<s>[Hello]1>"
    tool = {"type": "function", "function": {"name": "<f>"}}
    shown = render(source, HELLO, tools=[tool], tool_choice="none", add_generation_prompt=False)
    whole = {"name": "<f>", "description": None, "parameters": None}  # as vLLM fills it up
    assert shown == f"<s>[Hello]1[{json.dumps({'type': 'function', 'function': whole})}]"
    assert render(source, HELLO, chat_template_kwargs={"think": True, "messages": []})[-2:] == "!>"


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("{{ raise_exception('no ' + messages[0].role) }}", "no user"),
        ("{{ messages[9].content }}", "refuses"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages.append(1) }}", "refuses"),
        ("{{ ''.__class__.__mro__ }}", "refuses"),
        ("{{ ().__class__.__base__.__subclasses__() }}", "refuses"),
    ],
)
def test_a_template_that_fails_is_a_bad_request(source: str, part: str) -> None:
    with pytest.raises(ApiError, match=part) as caught:
        render(source, HELLO)
    assert caught.value.status == 400


def test_a_message_cannot_be_continued_that_the_template_drops() -> None:
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    assert render("{{ messages[-1].content }}</s>", HELLO, **fields) == "Hello"
    with pytest.raises(ApiError, match="cannot be continued"):
        render("nothing", HELLO, **fields)


def test_where_templates_are_found(tmp_path: Path) -> None:
    config = tmp_path / "tokenizer_config.json"
    assert ChatTemplate.from_folder(tmp_path) is None
    body = ChatCompletionRequest.model_validate({"messages": [HELLO]})

    def found(override: Path | None = None) -> str:
        template = ChatTemplate.from_folder(tmp_path, override)
        assert template is not None
        return template.render(body)

    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert found() == "d"
    config.write_text(
        json.dumps({"chat_template": "{{ eos_token }}", "eos_token": {"content": "</s>"}})
    )
    assert found() == "</s>"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert found() == "file"
    (tmp_path / "mine.jinja").write_text("mine")
    assert found(tmp_path / "mine.jinja") == "mine"
    (tmp_path / "mine.jinja").write_text("{% if %}")
    with pytest.raises(ValueError, match="not valid Jinja"):
        found(tmp_path / "mine.jinja")
