"""The fuzz as a command: `python -m course.fuzz run|show|again|known`."""

from __future__ import annotations

import argparse
import json
import logging
import platform
import sys
from pathlib import Path
from typing import Any

from course.fuzz.causes import COMPANY, goes_wrong
from course.fuzz.draw import named
from course.fuzz.drive import Make
from course.fuzz.engines import ENGINES, can_play, engine_of, release
from course.fuzz.hunt import SCHEDULERS, hunt, kind_of
from course.fuzz.known import KNOWN, KNOWN_WITH_DRAFTS
from course.fuzz.show import script, story
from course.fuzz.world import World, world_of

RESULTS = Path(__file__).parent / "results"


def _make(engine: str) -> Make:
    def make(world: World) -> Any:
        return engine_of(engine, world)

    return make


def _run(args: argparse.Namespace) -> int:
    schedulers = [args.scheduler] if args.scheduler else list(SCHEDULERS)
    schedulers = [name for name in schedulers if can_play(args.engine, SCHEDULERS[name][0])]
    policies = [args.policy] if args.policy else ["fcfs", "priority"]
    runs = []
    for scheduler in schedulers:
        for policy in policies:
            print(f"{scheduler}, {policy}", flush=True)
            run = hunt(
                args.engine,
                scheduler,
                policy,
                args.steps,
                args.seed,
                report=_say,
                with_drafts=args.drafts,
            )
            runs.append(run)
            print(
                f"  {run['steps']:,} steps, {run['worlds']:,} worlds, {run['preemptions']:,} "
                f"preemptions, {len(run['findings'])} findings",
                flush=True,
            )
            for finding in run["findings"]:
                print(f"  {finding['worlds']} worlds: {finding['kind']} [{finding['cause']}]")
                print(_indented(script(world_of(finding["shrunk"])), finding["message"]))
    if args.out:
        result = {
            "engine": args.engine,
            "release": release(args.engine),
            "python": platform.python_version(),
            "runs": runs,
        }
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 1 if any(run["findings"] for run in runs) else 0


def _say(line: str) -> None:
    print(f"  {line}", flush=True)


def _indented(*texts: str) -> str:
    return "\n".join(f"    {line}" for text in texts for line in text.splitlines())


def _show(args: argparse.Namespace) -> int:
    world = named(args.world)
    print(script(world))
    print(story(world, _make(args.engine), args.turns))
    return 0


def _again(args: argparse.Namespace) -> int:
    """Replay the shrunk worlds of result files on the engine that is installed."""
    wrong = 0
    seen = set()
    for file in args.files or sorted(str(path) for path in RESULTS.glob("vllm-*.json")):
        for run in json.loads(Path(file).read_text(encoding="utf-8"))["runs"]:
            for finding in run["findings"]:
                world = world_of(finding["shrunk"])
                if world in seen or not can_play(args.engine, world.mode):
                    continue
                seen.add(world)
                error = goes_wrong(world, _make(args.engine))
                wrong += error is not None
                print(f"{Path(file).name}, {run['scheduler']}, {run['policy']}: {finding['cause']}")
                print(_indented(script(world), story(world, _make(args.engine), args.turns)))
                print(f"  here: {kind_of(error) if error else 'ends well'}")
    print(f"{release(args.engine)}: {wrong} of {len(seen)} worlds go wrong")
    return 1 if wrong else 0


def _known(args: argparse.Namespace) -> int:
    """What the worlds of `known` do here; those that end well, in company too."""
    make, found = _make(args.engine), {}
    for world in KNOWN_WITH_DRAFTS if args.drafts else KNOWN:
        if not can_play(args.engine, world.mode):
            continue
        error = goes_wrong(world, make)
        found[f"{world.name}, {world.mode}"] = kind_of(error) if error else "ends well"
        if error is None and args.engine == "vllm" and not args.drafts:
            error = goes_wrong(world, make, COMPANY)
            found[f"{world.name}, {world.mode}, {COMPANY.name}"] = (
                kind_of(error) if error else "ends well"
            )
    for name, what in found.items():
        print(f"{name}: {what}")
    if args.out:
        out = Path(args.out)
        known = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
        known[release(args.engine)] = found
        out.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m course.fuzz",
        description="Does every read of the KV cache find what the reader thinks it finds?",
    )
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="run random worlds; shrink and sort what goes wrong")
    run.add_argument("--steps", type=int, default=20_000, help="per scheduler and policy (20,000)")
    run.add_argument("--seed", type=int, default=0, help="the first world (0)")
    run.add_argument("--scheduler", choices=SCHEDULERS, help="one of them (default: both)")
    run.add_argument("--policy", choices=("fcfs", "priority"), help="one of them (default: both)")
    run.add_argument("--drafts", action="store_true", help="worlds with speculative decoding")
    run.add_argument("--out", metavar="FILE", help="write the result as JSON")
    run.set_defaults(call=_run)
    show = commands.add_parser("show", help="one world, turn by turn")
    show.add_argument("world", help="its name, such as 'withdrawn 15 sync priority'")
    show.set_defaults(call=_show)
    again = commands.add_parser("again", help="replay the shrunk worlds of results")
    again.add_argument("files", nargs="*", metavar="FILE", help="(default: the committed ones)")
    again.set_defaults(call=_again)
    known = commands.add_parser("known", help="the worlds that go wrong at the pin, here")
    known.add_argument("--drafts", action="store_true", help="those with speculative decoding")
    known.add_argument("--out", metavar="FILE", help="add the answer to a JSON file, by release")
    known.set_defaults(call=_known)
    for command in (run, show, again, known):
        command.add_argument("--engine", choices=ENGINES, default="vllm")
        command.add_argument("--turns", type=int, default=40, help="that are shown (40)")
    args = parser.parse_args(argv)
    quiet_before = logging.root.manager.disable
    logging.disable(logging.ERROR)  # a pool that is too small is what this is about
    try:
        return int(args.call(args))
    except ImportError as error:
        print(f"this needs vLLM: {error}; see SETUP.md", file=sys.stderr)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
    finally:
        logging.disable(quiet_before)
    return 2
