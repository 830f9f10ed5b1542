"""`mini-vllm serve`: its flags, and the start.

Flags have the names of `vllm serve`'s (`vllm/entrypoints/openai/cli_args.py`). Nothing of the extra
`serve` is imported before the command runs, so that its `--help` needs none of it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from mini_vllm.utils.extras import how_to_get
from mini_vllm.utils.untrusted import shorten_repr

if TYPE_CHECKING:
    from mini_vllm.engine.async_llm import AsyncLLM
    from mini_vllm.entrypoints.openai.settings import ServerSettings

NEEDS = (
    "fastapi",
    "uvicorn",
    "httptools",
    "prometheus_client",
    "prometheus_fastapi_instrumentator",
    "jinja2",
)
_EPILOG = """\
examples:
  mini-vllm serve
  mini-vllm serve ./my-llama --max-model-len 512
  mini-vllm serve --port 9000 --served-model-name tiny --max-num-seqs 64
  VLLM_API_KEY=secret mini-vllm serve --host 0.0.0.0
  mini-vllm serve --enable-lora --max-loras 2 --lora-modules tenant=./my-adapter

  curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
    -d '{"prompt": "The KV cache", "max_tokens": 16, "temperature": 0}'
  curl -N http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "What is a block?"}], "stream": true}'

endpoints: /v1/models, /v1/completions, /v1/chat/completions, the same two with /render, /tokenize,
/detokenize, /health, /version, /metrics, /openapi.json; with VLLM_SERVER_DEV_MODE=1
/reset_prefix_cache; with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 /v1/load_lora_adapter and
/v1/unload_lora_adapter. Any OpenAI client works, with base_url http://HOST:PORT/v1. Flags of vllm
serve that change nothing here are taken.
"""
_DESCRIPTION = (
    "Serve the model over HTTP with OpenAI's API. SIGTERM or Ctrl-C lets running requests finish; "
    "a second one ends at once."
)

# The limits of `ServerSettings`: flag, least value, default, help.
_LIMITS: tuple[tuple[str, float, int | float, str], ...] = (
    ("--max-body-bytes", 1, 8388608, "longest request body"),
    ("--max-header-bytes", 1, 16384, "longest URL and headers of a request, together"),
    ("--max-sequences", 1, 1024, "most sequences in one request: its prompts times its n"),
    (
        "--max-output-values",
        1,
        262144,
        "most values in one answer: sequences x tokens x (logprobs + 1)",
    ),
    ("--max-connections", 1, 512, "most connections at a time"),
    (
        "--client-timeout",
        0.001,
        30.0,
        "seconds in which a request must be sent, and an answer taken",
    ),
    ("--step-timeout", 0.001, 60.0, "seconds after which a step counts as hung, for /health"),
)


def add_serve_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Register the command `serve` with `mini-vllm`'s parser."""
    parser = commands.add_parser("serve", help="serve the model over HTTP, with OpenAI's API")
    add_serve_arguments(parser)
    parser.set_defaults(run=run_serve)
    return parser


def _at_least(least: float, kind: type[int] | type[float] = int) -> type:
    def convert(text: str) -> float:
        value = kind(text)
        if not least <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {text}")
        return value

    convert.__name__ = kind.__name__
    return convert  # type: ignore[return-value]


def _strings(text: str) -> list[str]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise argparse.ArgumentTypeError(
            f"must be a JSON list of strings, such as '[\"http://localhost:3000\"]', got {text}"
        )
    return value


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags: the server's own, then the engine's as every command has them."""
    from mini_vllm.entrypoints.cli.flags import add_engine_flags, positive
    from mini_vllm.entrypoints.cli.lora_flags import add_serve_lora_flags
    from mini_vllm.entrypoints.cli.vllm_flags import add_vllm_flags

    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "model_tag", nargs="?", metavar="MODEL",
        help="checkpoint folder, as --model (default: the shipped tiny Llama)",
    )  # fmt: skip
    group = parser.add_argument_group("server")
    group.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (127.0.0.1: this machine only)"
    )
    group.add_argument(
        "--port", type=int, default=8000, help="port to listen on; 0: any that is free (8000)"
    )
    group.add_argument(
        "--served-model-name", nargs="+", default=[], metavar="NAME",
        help="names that requests may use for the model; answers carry the first (the folder's)",
    )  # fmt: skip
    group.add_argument(
        "--api-key", metavar="KEY",
        help="ask for this key below /v1; better set in the environment, as VLLM_API_KEY, where "
        "other users cannot see it",
    )  # fmt: skip
    group.add_argument(
        "--chat-template", metavar="FILE", help="a Jinja file in place of the checkpoint's template"
    )
    group.add_argument(
        "--allowed-origins", type=_strings, default=[], metavar="JSON",
        help="origins whose pages may use the server from a browser, such as "
        """'["http://localhost:3000"]'; '["*"]': any page's (none)""",
    )  # fmt: skip
    for what in ("methods", "headers"):
        group.add_argument(
            f"--allowed-{what}", type=_strings, default=["*"], metavar="JSON",
            help=f"{what} of such pages' requests (any)",
        )  # fmt: skip
    group.add_argument(
        "--allow-credentials", action=argparse.BooleanOptionalAction, default=False,
        help="let such pages send cookies",
    )  # fmt: skip
    group.add_argument(
        "--enable-prompt-tokens-details", action=argparse.BooleanOptionalAction, default=False,
        help="say in usage how many prompt tokens were cached",
    )  # fmt: skip
    group.add_argument(
        "--enable-auto-tool-choice", action=argparse.BooleanOptionalAction, default=False,
        help="read tool calls; needs --tool-call-parser",
    )  # fmt: skip
    group.add_argument(
        "--tool-call-parser", metavar="NAME",
        help="the format that the model writes tool calls in: hermes (none)",
    )  # fmt: skip
    group.add_argument(
        "--shutdown-timeout", type=_at_least(0, float), default=30.0, metavar="S",
        help="seconds that running requests have after SIGTERM (30)",
    )  # fmt: skip
    for flag, least, default, text in _LIMITS:
        kind = type(default)
        group.add_argument(
            flag, type=_at_least(least, kind), default=default,
            metavar="N" if kind is int else "S", help=f"{text} ({default})",
        )  # fmt: skip
    group.add_argument(
        "--uvicorn-log-level", default="warning", metavar="LEVEL",
        choices=("critical", "error", "warning", "info", "debug", "trace"),
        help="what the HTTP server logs; info: every request (warning)",
    )  # fmt: skip
    group.add_argument(
        "--data-parallel-size", "-dp", type=positive, default=1, metavar="N",
        help="engines, each a process with its own scheduler and KV cache, that share the requests (1)",
    )  # fmt: skip
    group.add_argument(
        "--disable-log-stats", action="store_true",
        help="with speculation: no line every 10 seconds about its drafts",
    )  # fmt: skip
    group.add_argument(
        "--mine", action="store_true", help="run on the parts that you built, where their labs pass"
    )
    add_engine_flags(parser)
    add_serve_lora_flags(parser)
    group.add_argument(
        "--seed", dest="engine_seed", type=int, default=0, metavar="N",
        help="seed of what requests without a seed of their own draw from (0)",
    )  # fmt: skip
    add_vllm_flags(parser)


def check_extra() -> None:
    """Raises ValueError that names the extra, if one of its packages is missing."""
    missing = [name.replace("_", "-") for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(
            f"serve needs {', '.join(missing)}, of the extra 'serve': {how_to_get('serve')}"
        )


def make_settings(args: argparse.Namespace) -> ServerSettings:
    """Raises ValueError for a setting that is not usable."""
    from mini_vllm.config.engine import DEFAULT_MODEL
    from mini_vllm.entrypoints.openai.settings import LoRAModulePath, ServerSettings
    from mini_vllm.model_loader import find_model

    if not 0 <= args.port <= 65535:
        raise ValueError(f"--port must be in [0, 65535], got {args.port}")
    template = Path(args.chat_template) if args.chat_template else None
    try:
        if template is not None and not template.is_file():
            raise ValueError(f"--chat-template {shorten_repr(args.chat_template, 300)} is no file")
    except OSError as error:  # a name that is too long
        raise ValueError(
            f"--chat-template {shorten_repr(args.chat_template)}: {error.strerror}"
        ) from error
    model = find_model(args.model) if args.model else DEFAULT_MODEL
    names = tuple(args.served_model_name)
    if args.model and not names and model != Path(args.model):
        names = (args.model,)  # what the user wrote, and not the name of a folder in the cache
    return ServerSettings(
        model=model,
        served_model_names=names,
        lora_modules=tuple(LoRAModulePath(**module) for module in args.lora_modules),
        api_key=args.api_key
        if args.api_key is not None
        else os.environ.get("VLLM_API_KEY") or None,
        chat_template=template,
        allowed_origins=tuple(args.allowed_origins),
        allowed_methods=tuple(args.allowed_methods),
        allowed_headers=tuple(args.allowed_headers),
        allow_credentials=args.allow_credentials,
        enable_prompt_tokens_details=args.enable_prompt_tokens_details,
        enable_auto_tool_choice=args.enable_auto_tool_choice,
        tool_call_parser=args.tool_call_parser,
        max_body_bytes=args.max_body_bytes,
        max_header_bytes=args.max_header_bytes,
        max_sequences=args.max_sequences,
        max_output_values=args.max_output_values,
        max_connections=args.max_connections,
        client_timeout=args.client_timeout,
        step_timeout=args.step_timeout,
    )


def describe_kv_cache(llm: AsyncLLM) -> str:
    """The size of the KV cache, and why the process does not have it yet."""
    from mini_vllm.core.kv_cache_groups import block_bytes
    from mini_vllm.spec_decode.loading import drafter_block_bytes

    core = llm.engine.engine_core
    config, model = core.config, llm.engine.model.config
    size = block_bytes(model, config.block_size, config.kv_cache_dtype)
    size += drafter_block_bytes(config.speculation, config.block_size, config.kv_cache_dtype)
    engines = f"; in each of {config.data_parallel_size} engines"
    engines = engines if config.data_parallel_size > 1 else ""
    return (
        f"KV cache: {config.num_gpu_blocks * size / 2**20:,.1f} MiB, {config.num_gpu_blocks:,} blocks of "
        f"{config.block_size} tokens; paged in as they are used{engines}"
    )


def run_serve(args: argparse.Namespace, out: TextIO) -> int:
    """Serve until a signal. Exit status 0 after an orderly end, 1 if the engine died.

    Raises ValueError or OSError where it cannot start.
    """
    if args.model_tag is not None:
        if args.model not in (None, args.model_tag):
            raise ValueError(
                f"the model is given twice: {args.model_tag!r} and --model {args.model!r}"
            )
        args.model = args.model_tag
    check_extra()
    settings = make_settings(args)
    from mini_vllm.engine.async_llm import AsyncLLM
    from mini_vllm.entrypoints.cli.flags import make_engine
    from mini_vllm.entrypoints.openai.app import build_app
    from mini_vllm.entrypoints.openai.run import bind, is_loopback, serve

    sock = bind(args.host, args.port)  # before the model loads: a port in use is told at once
    with sock:
        llm = AsyncLLM(make_engine(args))
        try:
            app = build_app(llm, settings)
            host, port = sock.getsockname()[:2]
            if not is_loopback(host) and settings.api_key is None:
                print(
                    f"mini-vllm: warning: {host} can be reached from other machines, and no "
                    "--api-key is set",
                    file=sys.stderr,
                )
            shown = f"[{host}]" if ":" in host else host

            def started() -> None:
                name = settings.model_names[0]
                out.write(f"mini-vllm: serving {name!r} on http://{shown}:{port}\n")
                out.write(f"mini-vllm: {describe_kv_cache(llm)}\n")
                out.flush()

            return serve(
                app, llm, sock,
                shutdown_timeout=args.shutdown_timeout,
                log_level=args.uvicorn_log_level,
                started=started,
                log_stats=not args.disable_log_stats,
            )  # fmt: skip
        finally:
            llm.shutdown(timeout=10)
