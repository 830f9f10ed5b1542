"""`python -m mini_vllm.entrypoints.openai`: the command `mini-vllm serve` by itself."""

from __future__ import annotations

from mini_vllm.entrypoints.cli.door import Parser, guarded
from mini_vllm.entrypoints.cli.serve import add_serve_arguments, run_serve


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="python -m mini_vllm.entrypoints.openai")
    add_serve_arguments(parser)
    args = parser.parse_args(argv)
    return guarded(lambda out: run_serve(args, out))


if __name__ == "__main__":
    raise SystemExit(main())
