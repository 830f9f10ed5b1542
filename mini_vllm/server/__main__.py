"""`python -m mini_vllm.server`: the command `mini-vllm serve` by itself."""

from __future__ import annotations

import argparse
import sys

from mini_vllm.server.command import add_serve_arguments, run_serve


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m mini_vllm.server")
    add_serve_arguments(parser)
    args = parser.parse_args(argv)
    try:
        return run_serve(args, sys.stdout)
    except (ValueError, TypeError, OSError) as error:
        print(f"mini-vllm: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
