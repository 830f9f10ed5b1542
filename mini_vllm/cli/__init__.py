"""The `mini-vllm` command: `generate`, `trace`, `serve` and `bench`. `main.py` is its door."""

from mini_vllm.cli.main import build_parser, main

__all__ = ["build_parser", "main"]
