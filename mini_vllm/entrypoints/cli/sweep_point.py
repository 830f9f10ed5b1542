"""The points of a sweep: which they are, by the flags of `mini-vllm sweep`, and what is done at one.

A point is the command line of `mini-vllm simulate` that gives its figures, so a worker on another machine
needs nothing else, and a reader can run it alone.
"""

from __future__ import annotations

import argparse
import copy
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from mini_vllm.entrypoints.cli.simulate import add_run_flags
from mini_vllm.entrypoints.cli.simulation import finite, make_simulation
from mini_vllm.sim.sweep import BENCHMARK_NAME, MOST_POINTS, Combination, expand, read_params
from mini_vllm.sim.sweep_workers import MOST_TRIES
from mini_vllm.utils.untrusted import shorten_repr


@dataclass(frozen=True)
class Point:
    """One run of `mini-vllm simulate`.

    Attributes:
        argv: the flags that it is given, in the parser's order and without those that are at their default.
        settings: what varies in the sweep, by the names that it was given under with `_` in them.
        run_number: from 0.
    """

    argv: tuple[str, ...]
    settings: dict[str, Any]
    run_number: int

    @property
    def command(self) -> str:
        """What gives this point alone, and identifies it."""
        return shlex.join(["mini-vllm", "simulate", *self.argv])

    @property
    def name(self) -> str:
        """For a line of progress."""
        return " ".join(
            f"{k}={v}" for k, v in {**self.settings, "run_number": self.run_number}.items()
        )

    def row_of_dead(self) -> str:
        """The row of a point whose workers all died."""
        why = f"each of the {MOST_TRIES} workers that it was given to died, for want of memory perhaps"
        return self._row({"error": why})

    def _row(self, figures: dict[str, Any]) -> str:
        """What varies stands in front, and wins over a figure of its name, as in vLLM's rows."""
        head = {**self.settings, "run_number": self.run_number, "command": self.command}
        row = {**head, **figures, **head}
        return json.dumps({name: finite(value) for name, value in row.items()})


def run_point(point: Point) -> str:
    """The row of a point, as JSON on one line. What goes wrong is a row too: the others still count."""
    try:
        simulation = make_simulation(_make_parser("a point").parse_args(point.argv))
        return point._row({**simulation.settings, **simulation.run()})
    except Exception as error:
        return point._row({"error": f"{type(error).__name__}: {error}"})


class _Parser(argparse.ArgumentParser):
    """Raises ValueError that begins with where a flag was set."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{self.prog}: {message}")


def _make_parser(where: str) -> argparse.ArgumentParser:
    parser = _Parser(prog=where, allow_abbrev=False, add_help=False)
    add_run_flags(parser)
    parser.set_defaults(plot=None)
    return parser


def make_points(args: argparse.Namespace) -> list[Point]:
    """All points, each looked at as `mini-vllm simulate` would before it runs.

    Raises ValueError that names the flag, or file, and the value.
    """
    axes = _axes(args)
    if not axes and args.num_runs == 1:
        raise ValueError("nothing varies: give --set NAME=V,V, --serve-params or --bench-params")
    where = ", ".join(where for where, _ in axes) or "sweep"
    parser = _make_parser(where)
    flags = {flag: action for action in parser._actions for flag in action.option_strings}
    names = {action.dest for action in parser._actions}
    base = argparse.Namespace(**{k: v for k, v in vars(args).items() if k in names}, plot=None)
    points: dict[str, Point] = {}
    combinations = expand([axis for _, axis in axes])
    if len(combinations) * args.num_runs > MOST_POINTS:
        raise ValueError(
            f"--num-runs {shorten_repr(args.num_runs)} of {len(combinations)} points: at most "
            f"{MOST_POINTS} runs in all"
        )
    for combination in combinations:
        for run_number in range(args.num_runs):
            point = _make_point(base, parser, flags, combination, run_number)
            if point.command in points:
                raise ValueError(f"{where}: {shorten_repr(point.name)} is there twice")
            points[point.command] = point
    return list(points.values())


def _axes(args: argparse.Namespace) -> list[tuple[str, list[Combination]]]:
    """The lists whose product is the grid, with the flag that each comes from."""
    axes = []
    for flag in ("serve_params", "bench_params"):
        path = getattr(args, flag)
        if path is not None:
            where = f"--{flag.replace('_', '-')}"
            rows = read_params(where, Path(path))
            for row in rows:
                names = [name.replace("-", "_") for name in row]
                if len(set(names)) < len(names):
                    raise ValueError(f"{where} {shorten_repr(path)}: a flag is there twice")
            named = [{name.replace("-", "_"): value for name, value in row.items()} for row in rows]
            axes.append((f"{where} {shorten_repr(path)}", named))
    for text in args.set:
        name, equals, values = text.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        if not equals or not name or not all(value.strip() for value in values.split(",")):
            raise ValueError(
                f"--set {shorten_repr(text)}: must be NAME=VALUE,VALUE with a flag of simulate"
            )
        axes.append((f"--set {shorten_repr(text)}", [{name: v.strip()} for v in values.split(",")]))
    return axes


def _make_point(
    base: argparse.Namespace,
    parser: argparse.ArgumentParser,
    flags: dict[str, argparse.Action],
    combination: Combination,
    run_number: int,
) -> Point:
    where = parser.prog
    argv: list[str] = []
    for name, value in combination.items():
        if name != BENCHMARK_NAME:
            argv += _as_flags(flags, name, value, where)
    args = parser.parse_args(argv, copy.copy(base))
    args.seed += run_number
    if run_number and "seed" in combination:
        raise ValueError(f"{where}: --num-runs above 1 chooses the seeds, so they cannot be set")
    if args.cost == "list":
        raise ValueError(f"{where}: --cost list is for mini-vllm simulate")
    try:
        make_simulation(args)
    except ValueError as error:
        name = " ".join(f"{k}={v}" for k, v in combination.items())
        raise ValueError(f"at {name}: {error}" if name else str(error)) from None
    settings = {
        name: value if name == BENCHMARK_NAME else getattr(args, flags[_flag(name)].dest)
        for name, value in combination.items()
    }
    return Point(tuple(_as_argv(flags, args)), settings, run_number)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _as_flags(
    flags: dict[str, argparse.Action], name: str, value: Any, where: str
) -> Sequence[str]:
    """A flag and its value as they are typed (`ParameterSweepItem.apply_to_cmd` upstream)."""
    flag = _flag(name)
    action = flags.get(flag)
    if action is None:
        raise ValueError(f"{where}: mini-vllm simulate has no flag {shorten_repr(flag)}")
    if isinstance(action, argparse.BooleanOptionalAction):
        if isinstance(value, str) and value in ("true", "false"):
            value = value == "true"
        if not isinstance(value, bool):
            raise ValueError(f"{where}: {flag} is true or false, got {shorten_repr(value)}")
        return [flag if value else f"--no-{flag[2:]}"]
    if action.nargs == "+":
        values = value if isinstance(value, list) else str(value).split()
        return [flag, *map(str, values)]
    return [f"{flag}={json.dumps(value) if isinstance(value, dict) else value}"]


def _as_argv(flags: dict[str, argparse.Action], args: argparse.Namespace) -> list[str]:
    """Flags that give these settings, in one form whatever form they were given in."""
    argv: list[str] = []
    for action in dict.fromkeys(flags.values()):
        value = getattr(args, action.dest)
        if value != action.default:
            name = action.option_strings[0][2:].replace("-", "_")
            argv += _as_flags(flags, name, value, "")
    return argv
