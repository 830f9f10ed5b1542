"""The server's own settings, apart from the engine's (`mini_vllm.config.engine.EngineConfig`).

Mirrors the part of `vllm/entrypoints/openai/cli_args.py` that the miniature has. The limits on a
request's size are the miniature's own: vLLM leaves them to the proxy in front of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.tool_parsers import TOOL_PARSERS

_COUNTS = (
    "max_body_bytes",
    "max_sequences",
    "max_output_values",
    "max_header_bytes",
    "max_connections",
)


@dataclass(frozen=True)
class LoRAModulePath:
    """An adapter that is there from the start
    (`vllm/entrypoints/openai/models/protocol.py:15 LoRAModulePath`).

    Attributes:
        name: what requests call it.
        path: its folder.
        base_model_name: what `/v1/models` calls its parent, if it is one of the base's names.
        is_3d_lora_weight: upstream's; only False is taken.
    """

    name: str
    path: str
    base_model_name: str | None = None
    is_3d_lora_weight: bool = False


@dataclass(frozen=True)
class ServerSettings:
    """What `build_app` needs to know beside the engine.

    Attributes:
        model: the checkpoint folder: its chat template and its sampling defaults are used.
        served_model_names: names that `model` in a request may have; the first is the one that
            answers carry. Empty: the folder's name, and its path as given.
        lora_modules: adapters to load at the start.
        api_key: what `Authorization: Bearer ...` must carry below `/v1`; None: nothing.
        chat_template: a file with a Jinja template to use in place of the checkpoint's.
        allowed_origins: origins whose pages may use the server from a browser, such as
            `https://example.org`; `*`: any page's. Upstream that is the default; here none may, because a
            server on your machine is not there for every page that you visit.
        allowed_methods, allowed_headers: of requests from such pages; `*`: any.
        allow_credentials: whether such pages may send cookies
            (`vllm/entrypoints/openai/cli_args.py:257 FrontendArgs.allow_credentials`).
        enable_prompt_tokens_details: say in `usage` how many prompt tokens were cached
            (`vllm/entrypoints/openai/cli_args.py:135 BaseFrontendArgs.enable_prompt_tokens_details`).
        enable_auto_tool_choice: read tool calls
            (`vllm/entrypoints/openai/cli_args.py:108 BaseFrontendArgs.enable_auto_tool_choice`). Upstream's
            `required` and a tool by name need it, too.
        tool_call_parser: the format that the model writes them in; needed for that.
        max_body_bytes: the longest request body.
        max_sequences: most sequences in one request: its prompts times its `n`.
        max_output_values: most values in one answer. Each sequence counts its `max_tokens`, each token
            once and once more for every log probability that is asked for with it; prompt tokens
            count where the answer repeats them or gives their log probabilities.
        max_header_bytes: the longest URL and headers of a request, together.
        max_connections: most connections at a time. One more takes the place of the one that has
            been without a whole request the longest.
        client_timeout: seconds that a client has to send a request, from its first byte, and to
            take what fills its connection.
        step_timeout: seconds after which a step counts as hung, and `/health` says 503
            (`vllm/envs.py:27 VLLM_ENGINE_ITERATION_TIMEOUT_S`).

    Raises ValueError naming the field, its value and the rule.
    """

    model: Path = DEFAULT_MODEL
    served_model_names: tuple[str, ...] = ()
    lora_modules: tuple[LoRAModulePath, ...] = ()
    api_key: str | None = None
    chat_template: Path | None = None
    allowed_origins: tuple[str, ...] = ()
    allowed_methods: tuple[str, ...] = ("*",)
    allowed_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False
    enable_prompt_tokens_details: bool = False
    enable_auto_tool_choice: bool = False
    tool_call_parser: str | None = None
    max_body_bytes: int = 8 * 1024**2
    max_sequences: int = 1024
    max_output_values: int = 2**18
    max_header_bytes: int = 16 * 1024
    max_connections: int = 512
    client_timeout: float = 30.0
    step_timeout: float = 60.0

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        for name in ("client_timeout", "step_timeout"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 < value < math.inf:
                raise ValueError(f"{name} must be a number of seconds above 0, got {value!r}")
        if self.api_key is not None and not self.api_key:
            raise ValueError("api_key must not be empty, got ''")
        if self.tool_call_parser is not None and self.tool_call_parser not in TOOL_PARSERS:
            raise ValueError(
                f"tool_call_parser must be one of {', '.join(TOOL_PARSERS)}, got {self.tool_call_parser!r}"
            )
        if self.enable_auto_tool_choice and self.tool_call_parser is None:
            raise ValueError(
                "enable_auto_tool_choice=True needs a tool_call_parser, got tool_call_parser=None"
            )
        for name in self.served_model_names:
            if not name:
                raise ValueError(
                    f"served_model_names holds an empty name: {self.served_model_names}"
                )

    @property
    def model_names(self) -> tuple[str, ...]:
        """Every name that a request may use for the model; answers carry the first."""
        if self.served_model_names:
            return self.served_model_names
        return tuple(dict.fromkeys((self.model.resolve().name or "model", str(self.model))))
