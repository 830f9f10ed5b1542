"""`python -m mini_vllm.server`: the command `mini-vllm serve` by itself."""

from __future__ import annotations

from mini_vllm.cli.door import Parser, guarded
from mini_vllm.server.command import add_serve_arguments, run_serve


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="python -m mini_vllm.server")
    add_serve_arguments(parser)
    args = parser.parse_args(argv)
    return guarded(lambda out: run_serve(args, out))


if __name__ == "__main__":
    raise SystemExit(main())
