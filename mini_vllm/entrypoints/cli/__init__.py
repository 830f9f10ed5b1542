"""The `mini-vllm` command: `generate`, `chat`, `trace`, `serve`, `bench`, `simulate` and `quantize`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    import argparse

__all__ = ["build_parser", "main"]


def main(argv: list[str] | None = None) -> int:
    """Entry point. Exit status: 0 done, 1 some prompt refused, 2 nothing could be run, 130 Ctrl-C."""

    def run(out: TextIO) -> int:
        args = build_parser().parse_args(argv)
        return int(args.run(args, out))

    # Nothing is imported before this line, so that Ctrl-C while it loads ends in one line too.
    try:
        from mini_vllm.entrypoints.cli.door import guarded

        return guarded(run)
    except KeyboardInterrupt:
        print("mini-vllm: interrupted", file=sys.stderr)
        return 130


def build_parser() -> argparse.ArgumentParser:
    """The command's parser."""
    from mini_vllm.entrypoints.cli.parser import build_parser as build

    return build()
