"""A chat made into one prompt, by the checkpoint's own template.

Mirrors `vllm/renderers/hf.py:613 safe_apply_chat_template` and what stands behind it in
transformers: the template is Jinja, run in a sandbox that cannot change what it is given and cannot
reach Python's internals, since a checkpoint is somebody else's code. Needs jinja2, of the extra
`serve`.

Left out: pictures and sound in messages, templates that a request brings along, tool-call parsing.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from mini_vllm.checkpoint import read_json
from mini_vllm.llama_config import CheckpointError
from mini_vllm.server.errors import bad_request, short
from mini_vllm.server.protocol import ChatCompletionRequest, ChatMessageParam

_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_OURS = {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}
_END = "\u241e final message goes on \u241e"


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks text for training; here it is just text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    known = {k: options[k] for k in ("ensure_ascii", "separators", "sort_keys") if k in options}
    return json.dumps(value, indent=indent, **{"ensure_ascii": False, **known})


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


class ChatTemplate:
    """A chat template, compiled.

    Args:
        source: Jinja.
        variables: what every rendering sees, such as `bos_token`.

    Raises ValueError for a source that is no Jinja.
    """

    def __init__(self, source: str, variables: dict[str, Any] | None = None) -> None:
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            self._used = jinja2.meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template is not valid Jinja: {error}") from error
        self._variables = variables or {}

    @classmethod
    def from_folder(cls, folder: Path, override: Path | None = None) -> ChatTemplate | None:
        """The checkpoint's template, or the file `override`; None where there is neither.

        Looks for `chat_template.jinja`, then in `tokenizer_config.json`.
        """
        path = folder / "tokenizer_config.json"
        config = read_json(path) if path.is_file() else {}
        file = override or folder / "chat_template.jinja"
        source: Any = config.get("chat_template")
        if override is not None or file.is_file():
            source = file.read_text(encoding="utf-8")
        elif isinstance(source, list):  # several, each with a name
            named = {entry.get("name"): entry.get("template") for entry in source}
            source = named.get("default")
        if source is None:
            return None
        if not isinstance(source, str):
            raise CheckpointError(f"{path}: chat_template must be a string, got {short(source)}")
        variables = {}
        for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
            token = config.get(name)
            variables[name] = token.get("content") if isinstance(token, dict) else token
        return cls(source, {k: v for k, v in variables.items() if v is not None})

    def render(self, body: ChatCompletionRequest) -> str:
        """The prompt's text. Raises ApiError, also for what the template itself refuses."""
        messages = [conversation_message(m, i) for i, m in enumerate(body.messages)]
        if body.continue_final_message:
            messages[-1]["content"] += _END
        extra = {
            name: value
            for name, value in (body.chat_template_kwargs or {}).items()
            if name in self._used and name not in _OURS
        }
        if body.reasoning_effort is not None:
            extra.setdefault("reasoning_effort", body.reasoning_effort)
        given = {
            "messages": messages,
            "tools": body.tools,
            "documents": body.documents,
            "add_generation_prompt": body.add_generation_prompt,
            "continue_final_message": body.continue_final_message,
        }
        try:
            text = self._template.render(**{**self._variables, **extra, **given})
        except jinja2.TemplateError as error:
            raise bad_request(
                f"the chat template refuses these messages: {error}", "messages"
            ) from (error)
        except Exception as error:  # a template may fail in any way on messages it did not expect
            raise bad_request(
                f"the chat template failed on these messages: {type(error).__name__}: {error}",
                "messages",
            ) from error
        if not body.continue_final_message:
            return text
        head, found, _ = text.rpartition(_END)
        if not found:
            raise bad_request(
                "continue_final_message: the chat template leaves the last message out, so it "
                "cannot be continued",
                "continue_final_message",
            )
        return head


def conversation_message(message: ChatMessageParam, place: int) -> dict[str, Any]:
    """A message as templates know it: its content is one text, parts joined by newlines
    (`vllm/entrypoints/chat_utils.py:1550 _parse_chat_message_content_parts`).

    Raises ApiError for a part that is not text.
    """
    content = message.content
    if not isinstance(content, str):
        texts = []
        for part in content or []:
            kind = part.get("type")
            text = part.get(_TEXT_PARTS.get(kind, "")) if isinstance(kind, str) else None
            if not isinstance(text, str):
                raise bad_request(
                    f"messages[{place}].content: this model reads text only; each part must be "
                    f"{{'type': 'text', 'text': ...}}, got {short(part)}",
                    "messages",
                )
            texts.append(text)
        content = "\n".join(texts)
    return {**(message.model_extra or {}), "role": message.role, "content": content}
