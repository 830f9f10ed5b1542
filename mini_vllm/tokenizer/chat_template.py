"""A chat made into one prompt, by the checkpoint's own template.

Mirrors `vllm/renderers/hf.py:613 safe_apply_chat_template` and what stands behind it in
transformers: the template is Jinja, run in a sandbox that cannot change what it is given and cannot
reach Python's internals, since a checkpoint is somebody else's code. Needs jinja2, of the extra
`serve`, and imports it when a template is compiled.

Left out: pictures and sound in messages, tool-call parsing.
"""

from __future__ import annotations

import datetime
import json
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from mini_vllm.config.checks import CheckpointError
from mini_vllm.model_loader import read_json
from mini_vllm.utils.extras import how_to_get

_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
RESERVED = {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}
"""Variables that no `chat_template_kwargs` can change."""
_END = "\u241e final message goes on \u241e"
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlevel = 2


class ChatTemplateError(ValueError):
    """Messages that the template refuses or cannot render, or a template that is no Jinja.

    Attributes:
        argument: what is to blame: `messages`, `continue_final_message` or `chat_template`.
    """

    def __init__(self, message: str, argument: str = "messages") -> None:
        super().__init__(message)
        self.argument = argument


def _raise_exception(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    known = {k: options[k] for k in ("ensure_ascii", "separators", "sort_keys") if k in options}
    return json.dumps(value, indent=indent, **{"ensure_ascii": False, **known})


def _environment() -> Any:
    try:
        import jinja2.ext
        import jinja2.sandbox
    except ImportError as error:
        raise ImportError(
            f"a chat template needs jinja2, of the extras 'serve' and 'gguf': {how_to_get('serve')}"
        ) from error

    def parse(self: Any, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    # `{% generation %}…{% endgeneration %}` marks text for training; here it is just text.
    members = {"tags": {"generation"}, "parse": parse, "__module__": __name__}
    generation_tag = type("GenerationTag", (jinja2.ext.Extension,), members)
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[generation_tag, jinja2.ext.loopcontrols]
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

    Raises ChatTemplateError, a ValueError, for a source that is no Jinja.
    """

    def __init__(self, source: str, variables: dict[str, Any] | None = None) -> None:
        environment = _environment()
        import jinja2.meta

        try:
            self._template = environment.from_string(source)
            self._used = jinja2.meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateError as error:
            raise ChatTemplateError(
                f"the chat template is not valid Jinja: {error}", "chat_template"
            ) from error
        self._variables = variables or {}

    @classmethod
    def from_folder(cls, folder: str | Path, override: str | Path | None = None) -> Self | None:
        """The checkpoint's template, or the file `override`; None where there is neither.

        Looks for `chat_template.jinja`, then in `tokenizer_config.json`.
        """
        found = read_template(Path(folder), None if override is None else Path(override))
        return None if found is None else cls(*found)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt's text. `kwargs` are variables for the template; those it does not use are
        dropped.

        Raises ChatTemplateError, also for what the template itself refuses.
        """
        import jinja2

        conversation = [conversation_message(m, place) for place, m in enumerate(messages)]
        if not conversation:
            raise ChatTemplateError(
                "the conversation is empty: a chat template needs at least one message"
            )
        if continue_final_message:
            if add_generation_prompt:
                raise ChatTemplateError(
                    "continue_final_message and add_generation_prompt cannot both be True",
                    "continue_final_message",
                )
            conversation[-1]["content"] += _END
        extra = {k: v for k, v in kwargs.items() if k in self._used and k not in RESERVED}
        given = {
            "messages": conversation,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
        }
        try:
            text: str = self._template.render(**{**self._variables, **extra, **given})
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template refuses these messages: {error}") from error
        except Exception as error:  # a template may fail in any way on messages it did not expect
            raise ChatTemplateError(
                f"the chat template failed on these messages: {type(error).__name__}: {error}"
            ) from error
        if not continue_final_message:
            return text
        head, found, _ = text.rpartition(_END)
        if not found:
            raise ChatTemplateError(
                "continue_final_message: the chat template leaves the last message out, so it "
                "cannot be continued",
                "continue_final_message",
            )
        return head


def read_template(folder: Path, override: Path | None = None) -> tuple[str, dict[str, Any]] | None:
    """The source of a checkpoint's template and the special tokens that it sees.

    Raises CheckpointError for a template that is no string.
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
        raise CheckpointError(f"{path}: chat_template must be a string, got {_SHORT.repr(source)}")
    return source, template_variables(config)


def template_variables(config: Mapping[str, Any]) -> dict[str, Any]:
    """The texts of the tokens that a `tokenizer_config.json` names."""
    variables = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        token = config.get(name)
        variables[name] = token.get("content") if isinstance(token, dict) else token
    return {k: v for k, v in variables.items() if v is not None}


def conversation_message(message: Mapping[str, Any], place: int) -> dict[str, Any]:
    """A message as templates know it: its content is one text, parts joined by newlines
    (`vllm/entrypoints/chat_utils.py:1550 _parse_chat_message_content_parts`).

    Args:
        message: `role`, `content` (a text, a list of parts or None), and what else it has.
        place: its index in the conversation, for the message of the error.

    Raises ChatTemplateError for a part that is not text, or a message without a role.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ChatTemplateError(
            f"messages[{place}] must be a dict with a role, got {_SHORT.repr(message)}"
        )
    content = message.get("content")
    if not isinstance(content, str):
        texts = []
        for part in content or []:
            kind = part.get("type") if isinstance(part, Mapping) else None
            text = part.get(_TEXT_PARTS.get(kind, "")) if isinstance(kind, str) else None
            if not isinstance(text, str):
                raise ChatTemplateError(
                    f"messages[{place}].content: this model reads text only; each part must be "
                    f"{{'type': 'text', 'text': ...}}, got {_SHORT.repr(part)}"
                )
            texts.append(text)
        content = "\n".join(texts)
    return {**message, "content": content}
