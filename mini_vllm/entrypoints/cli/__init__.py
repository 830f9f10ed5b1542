"""The `mini-vllm` command; its subcommands are in `parser.py`."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing takes 20 ms, in which Ctrl-C would end in a traceback
if TYPE_CHECKING:
    import argparse
    from typing import TextIO

__all__ = ["build_parser", "main"]


def main(argv: list[str] | None = None) -> int:
    """Entry point. Exit status: 0 done, 1 some prompt refused, 2 nothing could be run, 130 Ctrl-C."""

    # Nothing is imported before this line, so that Ctrl-C while it loads ends in one line too.
    try:
        from mini_vllm.utils.interrupt import AtOnce

        with AtOnce("mini-vllm"):
            from mini_vllm.entrypoints.cli.errors import guarded

        def run(out: TextIO) -> int:
            with AtOnce("mini-vllm"):
                args = build_parser().parse_args(argv)
                import numpy  # noqa: F401  # every command needs it
            return int(args.run(args, out))

        return guarded(run)
    except KeyboardInterrupt:
        print("mini-vllm: interrupted", file=sys.stderr)
        return 130


def build_parser() -> argparse.ArgumentParser:
    """The command's parser."""
    from mini_vllm.entrypoints.cli.parser import build_parser as build

    return build()
