"""The command `mini-vllm trace`: look at a recorded run, or record a scenario and look at that."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from mini_vllm.utils.untrusted import decode, read_bytes, shorten_repr

if TYPE_CHECKING:
    from mini_vllm.trace.types import Trace

_EPILOG = """\
what FILE may be:
  a page, or data, that --trace has written      run.html, run.trace.json, run.trace.json.gz
  a scenario: requests with arrivals, in JSON    phase-03-scheduler/scenarios/NAME.json
  decisions of vLLM's own scheduler, recorded    tests/golden/scheduler-0.22.1.jsonl.gz

examples:
  mini-vllm generate "Paged attention" "A block table" --trace run.html
  mini-vllm trace tests/golden/scheduler-0.22.1.jsonl.gz --index 7 -o vllm.html
  mini-vllm trace scenario.json -o scenario.html
  mini-vllm trace run.html -o -
  mini-vllm trace before.html after.html --beside -o both.html
"""


def add_trace_parser(commands: Any) -> None:
    """Register `trace` with the subparsers of `mini-vllm`."""
    parser = commands.add_parser(
        "trace",
        help="step through a recorded run, also one of vLLM's own",
        description="Write what a run decided, step by step and with the reasons: as a page to step "
        "through (.html), as text (.txt, or '-' for here), for Perfetto (.json), or as data to read "
        "again (.trace.json, .trace.json.gz).",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="what to look at; see below")
    parser.add_argument(
        "-o", "--output", metavar="OUT",
        help="where to write; a folder if there are several FILEs (default: FILE's name with .html, "
        "in this folder)",
    )  # fmt: skip
    parser.add_argument(
        "--beside", action="store_true", help="two FILEs on one page, whose steps go together"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--index", type=int, metavar="N", help="which recording of a .jsonl file, from 0 (0)"
    )
    which.add_argument("--seed", type=int, metavar="S", help="the recording with this seed")
    parser.add_argument("--step", type=int, metavar="N", help="the step at which the page opens")
    parser.add_argument("--request", metavar="ID", help="the request that the page selects")
    parser.add_argument(
        "--model", metavar="DIR", help="checkpoint folder for a scenario (the shipped tiny Llama)"
    )
    parser.set_defaults(run=run_trace)


def read_trace(
    path: Path,
    index: int | None = None,
    seed: int | None = None,
    model: str | None = None,
    timed: bool = True,
) -> Trace:
    """The trace that a file holds, or that its scenario makes.

    Args:
        index, seed: which of several recordings.
        model, timed: for a scenario; see `run_scenario`.

    Raises ValueError for a file that is none of those that `mini-vllm trace` knows.
    """
    from mini_vllm.trace.data import FORMAT, from_data, loads
    from mini_vllm.trace.golden import from_golden, is_golden, pick, read_lines
    from mini_vllm.trace.page import data_of_page

    with _of(path):
        if path.suffix == ".html":
            with _broken():
                data = data_of_page(decode(read_bytes(path)))
            if data is None:
                raise ValueError("no page of mini-vllm's")
        elif path.name.endswith((".jsonl", ".jsonl.gz")):
            data = pick(path, read_lines(path), index, seed)
            with _broken():
                return from_golden(data, path.name)
        else:
            data = loads(read_bytes(path))
        if (isinstance(data, dict) and data.get("format") == FORMAT) or path.suffix == ".html":
            with _broken():
                return from_data(data)
        if isinstance(data, dict) and "traceEvents" in data:
            raise ValueError("this form is for Perfetto alone; write .trace.json to read it here")
        if is_golden(data):
            with _broken():
                return from_golden(data, path.name)
        if isinstance(data, dict) and "scenario" in data:
            from mini_vllm.config.engine import DEFAULT_MODEL
            from mini_vllm.trace.scenario import read_scenario, run_scenario

            return run_scenario(read_scenario(data), model or DEFAULT_MODEL, timed)
        raise ValueError("neither a trace, a scenario nor a recording of vLLM's scheduler")


@contextmanager
def _of(path: Path) -> Iterator[None]:
    """Names the file in errors that do not."""
    try:
        yield
    except (ValueError, TypeError) as error:
        text = str(error)
        raise ValueError(text if text.startswith(str(path)) else f"{path}: {text}") from error


@contextmanager
def _broken() -> Iterator[None]:
    """What a file of steps leads to when it is not what its form says: numbers that are texts, ids
    that no request has. Whatever that is, it is the file's fault."""
    try:
        yield
    except ValueError:
        raise
    except (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"a broken trace: {type(error).__name__}: {error}") from error


def _stem(path: Path) -> str:
    name = path.name
    for ending in (".gz", ".jsonl", ".json", ".trace", ".html"):
        name = name.removesuffix(ending)
    return name


def _check_view(args: argparse.Namespace, path: Path, trace: Trace) -> None:
    """Raise ValueError if the trace has not the request or the step that the page is to open at."""
    if args.request is not None and args.request not in {r.request_id for r in trace.requests}:
        raise ValueError(f"{path}: no request has the id {shorten_repr(args.request)}")
    if args.step is not None and args.step not in {step.index for step in trace.steps}:
        first, last = (trace.steps[i].index if trace.steps else 0 for i in (0, -1))
        raise ValueError(f"{path}: no step {args.step}; it has {first} to {last}")


def _beside(args: argparse.Namespace, paths: list[Path], out: TextIO) -> int:
    from mini_vllm.trace.beside import beside

    target = Path(args.output or "beside.html")
    if len(paths) != 2 or target.suffix != ".html" or target.is_dir():
        raise ValueError("--beside takes two FILEs and writes a page: -o NAME.html")
    if any(path.exists() and target.exists() and target.samefile(path) for path in paths):
        raise ValueError(f"{target} is what is to be read; give another name with -o")
    one, other = (read_trace(path, args.index, args.seed, args.model) for path in paths)
    _check_view(args, paths[0], one)
    title = f"{paths[0].name} and {paths[1].name}"
    target.write_text(beside(title, (one, other), args.step, args.request), encoding="utf-8")
    out.write(f"{target}: {len(one.steps)} and {len(other.steps)} steps\n")
    return 0


def run_trace(args: argparse.Namespace, out: TextIO) -> int:
    """The `trace` command. Exit status 0; an input that cannot be read is a ValueError."""
    from mini_vllm.trace import check_trace_path, to_text
    from mini_vllm.trace.files import trace_bytes
    from mini_vllm.trace.page import to_html

    paths = [Path(name) for name in args.files]
    if args.beside:
        return _beside(args, paths, out)
    to = None if args.output is None else Path(args.output)
    folder = to if to is not None and (len(paths) > 1 or to.is_dir()) else None
    if folder is not None and args.output != "-" and not folder.is_dir():
        raise ValueError(f"-o {args.output}: several files go into a folder, and this is none")
    for path in paths:
        target = to if to is not None and folder is None else None
        if target is None:
            target = (folder or Path()) / f"{_stem(path)}.html"
        if args.output != "-":
            check_trace_path(target)
            if target.exists() and path.exists() and target.samefile(path):
                raise ValueError(f"{target} is what is to be read; give another name with -o")
        trace = read_trace(path, args.index, args.seed, args.model)
        _check_view(args, path, trace)
        with _of(path), _broken():
            if args.output == "-":
                text = to_text(trace.steps)
            elif target.suffix == ".html":
                content = to_html(trace, args.step, args.request).encode()
            else:
                content = trace_bytes(trace, target)
        if args.output == "-":
            out.write(text)
            continue
        target.write_bytes(content)
        out.write(f"{target}: {len(trace.requests)} requests, {len(trace.steps)} steps\n")
    return 0
