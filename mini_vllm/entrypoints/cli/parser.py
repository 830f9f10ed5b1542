"""The `mini-vllm` command's parser: its eight commands and their flags.

Mirrors the spirit of `vllm` (`vllm/entrypoints/cli/main.py`).
"""

from __future__ import annotations

import argparse
from functools import cache

from mini_vllm.entrypoints.cli.bench import add_bench_parser
from mini_vllm.entrypoints.cli.chat import add_chat_parser
from mini_vllm.entrypoints.cli.errors import EPILOG, Parser
from mini_vllm.entrypoints.cli.generate import add_generate_parser
from mini_vllm.entrypoints.cli.quantize import add_quantize_parser
from mini_vllm.entrypoints.cli.serve import add_serve_parser
from mini_vllm.entrypoints.cli.simulate import add_simulate_parser
from mini_vllm.entrypoints.cli.sweep import add_sweep_parser
from mini_vllm.entrypoints.cli.trace import add_trace_parser
from mini_vllm.version import __version__


@cache
def build_parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = Parser(
        prog="mini-vllm",
        description="vLLM's engine in miniature, on numpy: same decisions, same tokens.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_generate_parser(commands)
    add_chat_parser(commands)
    add_trace_parser(commands)
    add_serve_parser(commands)
    add_bench_parser(commands)
    add_simulate_parser(commands)
    add_sweep_parser(commands)
    add_quantize_parser(commands)
    return parser
