"""The command `mini-vllm sweep`: `mini-vllm simulate` at every point of a grid of settings.

The vocabulary is that of `vllm bench sweep serve` (`vllm/benchmarks/sweep/serve.py:305 SweepServeArgs`):
`--serve-params` and `--bench-params`, whose files it reads too, `--num-runs`, `--dry-run`, `--resume`. A row
has what varies, the run's number and the figures, under the same keys. `--set` is for grids of one line.

A row depends on its point alone: the run's number is added to `--seed`, and all points of one number see
the same requests, so that settings are compared and not luck. Where and when it is computed changes no byte.
"""

from __future__ import annotations

import argparse
import socket
import sys
from contextlib import closing, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from mini_vllm.entrypoints.cli.errors import print_error
from mini_vllm.entrypoints.cli.flags import positive
from mini_vllm.entrypoints.cli.simulate import add_run_flags, check_target
from mini_vllm.utils.extras import how_to_get
from mini_vllm.utils.untrusted import shorten_repr

if TYPE_CHECKING:
    from collections.abc import Generator

    from mini_vllm.entrypoints.cli.sweep_point import Point
    from mini_vllm.sim.sweep_workers import Answer

_EPILOG = """\
examples:
  mini-vllm sweep --set max-num-batched-tokens=512,1024,2048 --request-rate 8 --num-prompts 2000
  mini-vllm sweep --set replicas=4,8 --set router=round-robin,least-loaded,prefix --request-rate 60
    --prefix-len 2000 --num-prefixes 40 --num-runs 3 --json fleets.jsonl
  mini-vllm sweep --serve-params serve.json --bench-params bench.json --json runs.jsonl --resume
  mini-vllm sweep --set request-rate=4,8,12 --ray --json rates.jsonl
"""


def add_sweep_parser(commands: Any) -> None:
    """Register `sweep` with the subparsers of `mini-vllm`."""
    parser = commands.add_parser(
        "sweep",
        help="simulate at every point of a grid of settings",
        description="Run mini-vllm simulate at every point of a grid, on all cores or on a Ray cluster. "
        "The flags are simulate's; what varies is given by --set, or by files that vllm bench sweep reads.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    grid = parser.add_argument_group("grid: the product of all that is given")
    grid.add_argument(
        "--set", action="append", default=[], metavar="NAME=V,V",
        help="a flag of simulate and its values; true and false for one that is on or off",
    )  # fmt: skip
    for flag in ("--serve-params", "--bench-params"):
        grid.add_argument(
            flag, metavar="FILE",
            help="a .json of combinations: a list of objects, of flags and their values, or an object of "
            "named ones",
        )  # fmt: skip
    grid.add_argument(
        "--num-runs", type=positive, default=1, metavar="N",
        help="runs of each point, with the seeds --seed, --seed + 1 ... (1)",
    )  # fmt: skip
    how = parser.add_argument_group("how it is run")
    how.add_argument(
        "--jobs", "-j", type=positive, metavar="N",
        help="points at once (as many as there are cores; with --ray: as the cluster can take)",
    )  # fmt: skip
    how.add_argument(
        "--ray", nargs="?", const="", metavar="ADDRESS",
        help="on a Ray cluster (extra 'ray'): at ADDRESS, as ray.init takes it; without one, where "
        "RAY_ADDRESS or `ray start` says, else on one of this machine",
    )  # fmt: skip
    how.add_argument(
        "--json", metavar="FILE",
        help="write a row to FILE as each point ends, a line of JSON each; in the grid's order at the end",
    )  # fmt: skip
    how.add_argument("--resume", action="store_true", help="run what FILE does not have yet")
    how.add_argument(
        "--dry-run", action="store_true", help="print the commands instead of running them"
    )
    add_run_flags(parser)
    parser.set_defaults(run=run_sweep)


def run_sweep(args: argparse.Namespace, out: TextIO) -> int:
    """The `sweep` command. Exit status 1 where some point could not be run; its row says why."""
    from mini_vllm.entrypoints.cli.sweep_point import make_points
    from mini_vllm.entrypoints.cli.sweep_table import table
    from mini_vllm.sim.sweep import Journal

    if args.resume and args.json is None:
        raise ValueError("--resume needs --json FILE")
    if args.json is not None:
        check_target("--json", Path(args.json))
    if args.ray is not None and find_spec("ray") is None:
        raise ValueError(f"--ray needs Ray: {how_to_get('ray')}")
    points = make_points(args)
    if args.dry_run:
        for point in points:
            out.write(f"{point.command}\n")
        return 0
    path = None if args.json is None else Path(args.json)
    commands = [point.command for point in points]
    with Journal(path, commands, lambda row: str(row["command"]), args.resume) as journal:
        todo = [point for point in points if point.command not in journal.lines]
        # Ray prints of a worker that died, and the table is to stand alone.
        with closing(_answers(args, todo)) as answers, redirect_stdout(sys.stderr):
            for done, (index, line) in enumerate(answers, 1):
                point = todo[index]
                journal.add(point.command, line or point.row_of_dead())
                print_error(f"{done} of {len(todo)}: {point.name}")
        rows = journal.rows()
    out.write(table(rows, points))
    failed = [row for row in rows if "error" in row]
    for row in failed:
        print_error(f"{row['command']}: {row['error']}")
    return 1 if failed else 0


def _answers(args: argparse.Namespace, todo: list[Point]) -> Generator[Answer, None, None]:
    from mini_vllm.entrypoints.cli.sweep_point import run_point
    from mini_vllm.sim.sweep_workers import run_on_processes, run_on_ray
    from mini_vllm.utils.threads import count_cores

    if args.ray is not None:
        _check_address(args.ray)
        return run_on_ray(run_point, todo, args.jobs, args.ray or None)

    def note(index: int, how: str) -> None:
        print_error(
            f"a worker was lost ({how}), and its point is given to another: {todo[index].name}"
        )

    return run_on_processes(run_point, todo, args.jobs or count_cores(), note)


def _check_address(address: str) -> None:
    """Raises ValueError where nothing listens: Ray would wait for minutes, and then say less."""
    host, _, port = address.rpartition(":")
    if "/" in host or not (port.isascii() and port.isdigit()):
        return  # "local", "auto", a client's ray://: those Ray refuses soon
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f"--ray {shorten_repr(address)}: no cluster there: {error}") from None
