"""The `mini-vllm` command's parser: its six commands and their flags.

Mirrors the spirit of `vllm` (`vllm/entrypoints/cli/main.py`).
"""

from __future__ import annotations

import argparse
from functools import cache

from mini_vllm.cli.bench import add_bench_parser
from mini_vllm.cli.door import EPILOG, Parser
from mini_vllm.cli.generate import add_generate_parser
from mini_vllm.cli.quantize import add_quantize_parser
from mini_vllm.cli.simulate import add_simulate_parser
from mini_vllm.cli.trace import add_trace_parser
from mini_vllm.server.command import add_serve_parser


@cache
def build_parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = Parser(
        prog="mini-vllm",
        description="vLLM's engine in miniature, on numpy: same decisions, same tokens.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_generate_parser(commands)
    add_trace_parser(commands)
    add_serve_parser(commands)
    add_bench_parser(commands)
    add_simulate_parser(commands)
    add_quantize_parser(commands)
    return parser
