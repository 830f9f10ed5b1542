"""`python -m mini_vllm.entrypoints.openai`: the command `mini-vllm serve` by itself."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO


def main(argv: list[str] | None = None) -> int:
    """Entry point; see `mini_vllm.entrypoints.cli.main`."""
    try:
        from mini_vllm.utils.interrupt import AtOnce

        with AtOnce("mini-vllm"):
            from mini_vllm.entrypoints.cli.errors import Parser, guarded

        def run(out: TextIO) -> int:
            with AtOnce("mini-vllm"):
                from mini_vllm.entrypoints.cli.serve import add_serve_arguments, run_serve

                parser = Parser(prog="python -m mini_vllm.entrypoints.openai")
                add_serve_arguments(parser)
                args = parser.parse_args(argv)
                import numpy  # noqa: F401  # the engine needs it
            return run_serve(args, out)

        return guarded(run)
    except KeyboardInterrupt:
        print("mini-vllm: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
