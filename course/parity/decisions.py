"""Replay recorded traces through a scheduler and compare every decision with vLLM's.

    python -m course.parity FILE... [--scheduler MODULE_OR_PATH:CLASS]

FILE is `.jsonl`, `.jsonl.gz` or `-`; its traces are of synchronous or of asynchronous scheduling (see
`traces.py` and `async_traces.py`). The scheduler is `mini_vllm.core.sched.scheduler.Scheduler` or, for
the latter, `mini_vllm.core.sched.async_scheduler.AsyncScheduler`, unless another is named, for instance a
learner's own:
`--scheduler labs/lab-01/starter.py:Scheduler`. It is made with an `EngineConfig` and must answer what
`course.parity.traces.Run` asks of it, or `AsyncRun`.

Prints totals, and for the first difference the step, the state before it, both decisions and the
rule that decides. Exit code 0: no difference, 1: some, 2: bad arguments or a bad file.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course.parity.async_traces import AsyncRun, Call, differing
from course.parity.report import report
from course.parity.rules import BROKEN, moment
from course.parity.traces import (
    EOS,
    Arrival,
    Config,
    Decision,
    Parts,
    Run,
    Trace,
    TraceError,
    is_async,
    read_traces,
)
from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.config.speculative import SpeculativeConfig
from mini_vllm.core.hybrid_kv_cache_manager import HybridKVCacheManager
from mini_vllm.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)
from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.output import DraftTokenIds, ModelRunnerOutput
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.sampling_params import SamplingParams

_FROM_FILE = "_parity_"  # begins the module names of --scheduler PATH
# In the order in which one decision causes the next, so that the first to differ is the cause.
FIELDS = ("preempted", "scheduled", "blocks", "finished", "running", "free")
DRAFT_FIELDS = (
    "preempted", "scheduled", "drafts", "blocks", "finished", "computed", "running", "free",
)  # with speculation  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """Where a replay first leaves its trace.

    `step` counts from 0, calls where the trace has calls; after the last step, `fields` names what
    differs in the end. `actual` is None where the scheduler raised, and `error` then says what.
    """

    where: str
    trace: Trace
    step: int
    fields: tuple[str, ...]
    expected: Decision | Call | None = None
    actual: Decision | Call | None = None
    error: str | None = None
    end: tuple[str, ...] = ()


def engine_config(config: Config) -> ResolvedConfig:
    """The settings that a trace's config means."""
    return ResolvedConfig(
        block_size=config["block_size"],
        num_gpu_blocks=config["num_blocks"],
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        long_prefill_token_threshold=config["long_prefill_token_threshold"],
        enable_prefix_caching=config["enable_prefix_caching"],
        max_model_len=config["max_model_len"],
        scheduling_policy=config["policy"],  # type: ignore[arg-type]  # it is checked there
        enable_chunked_prefill=config.get("enable_chunked_prefill", True),
        scheduler_reserve_full_isl=config.get("scheduler_reserve_full_isl", True),
        speculative_config=_speculation(config),
    )


def _speculation(config: Config) -> SpeculativeConfig | None:
    """The drafter's checkpoint is named and not there: a scheduler does not ask for it."""
    spec = config.get("speculative_config")
    if spec is None:
        return None
    model = None if spec["method"] == "ngram" else "a drafter"
    return SpeculativeConfig(**spec, model=model)


def hybrid_manager(config: Config) -> HybridKVCacheManager:
    """The manager for a trace's `kv_cache_groups`."""
    specs: list[KVCacheSpec] = []
    for group in config["kv_cache_groups"]:
        block_size = group.get("block_size", config["block_size"])
        if group["type"] == "full":
            specs.append(FullAttentionSpec(block_size))
        elif group["type"] == "sliding_window":
            specs.append(SlidingWindowSpec(block_size, sliding_window=group["size"]))
        else:
            specs.append(ChunkedLocalAttentionSpec(block_size, attention_chunk_size=group["size"]))
    groups = [KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(specs)]
    return HybridKVCacheManager(
        KVCacheConfig(config["num_blocks"], groups),
        config["max_model_len"],
        config["max_num_batched_tokens"],
        config["enable_prefix_caching"],
        use_eagle=config.get("speculative_config", {}).get("method") == "eagle",
    )


def mini_parts(config: Config, scheduler_class: Any = Scheduler) -> Parts:
    """A scheduler of `mini_vllm`'s interface, ready for `Run`."""
    engine = engine_config(config)
    groups = config.get("kv_cache_groups")
    scheduler = (
        scheduler_class(engine, hybrid_manager(config)) if groups else scheduler_class(engine)
    )
    block_size = engine.block_size if engine.enable_prefix_caching else None

    def make_request(q: Arrival, index: int) -> Request:
        params = SamplingParams(
            max_tokens=q["max_tokens"],
            ignore_eos=q["ignore_eos"],
            stop_token_ids=q.get("stop_token_ids"),
        )
        params.update_from_generation_config({}, EOS)
        return Request(
            q["id"],
            list(q["prompt"]),
            params,
            arrival_time=float(index),
            priority=q["priority"],
            block_size=block_size,
        )

    def make_output(req_ids: list[str], sampled: list[list[int]]) -> ModelRunnerOutput:
        index = {request_id: i for i, request_id in enumerate(req_ids)}
        return ModelRunnerOutput(req_ids, index, sampled)

    def block_ids(request_id: str) -> Any:
        tables = scheduler.kv_cache_manager.get_block_ids(request_id)
        return list(tables) if groups else tables[0]

    return Parts(
        scheduler=scheduler,
        make_request=make_request,
        block_ids=block_ids,
        make_output=make_output,
        aborted=RequestStatus.FINISHED_ABORTED,
        make_drafts=DraftTokenIds,
    )


def _differing(expected: Any, actual: Any) -> tuple[str, ...]:
    fields = DRAFT_FIELDS if "drafts" in expected else FIELDS
    unlike = [name for name in fields if expected[name] != actual[name]]
    if "scheduled" not in unlike and list(expected["scheduled"]) != list(actual["scheduled"]):
        unlike.insert(unlike.index("preempted") + 1 if "preempted" in unlike else 0, "scheduled")
    return tuple(unlike)


def scheduler_for(trace: Trace) -> Any:
    """The class of `mini_vllm` that is to decide as this trace's did."""
    return AsyncScheduler if is_async(trace) else Scheduler


def _decisions(trace: Trace, run: Run) -> Iterator[Decision | Call]:
    """What the scheduler decides, one after the other, as long as the trace has something to compare."""
    if isinstance(run, AsyncRun):
        yield from run.calls()
        return
    for _ in trace["steps"]:
        run.arrive()
        yield run.decide()


def replay(where: str, trace: Trace, scheduler_class: Any = None) -> Difference | None:
    """Replay one trace; the first difference, or None. Without a class: see `scheduler_for`.

    Raises TraceError if the trace's config is none that an engine can have, and NotImplementedError
    if the scheduler is not written yet: that is no difference.
    """
    try:
        engine_config(trace["config"])
    except ValueError as error:
        raise TraceError(f"{where}: {error}") from error
    step = 0
    kind, compare = (AsyncRun, differing) if is_async(trace) else (Run, _differing)
    try:
        run = kind(trace, mini_parts(trace["config"], scheduler_class or scheduler_for(trace)))
        decided = _decisions(trace, run)
        for expected in trace["steps"]:
            actual = next(decided, None)
            if actual is None:
                break  # it is done, and the trace goes on
            if fields := compare(expected, actual):
                return Difference(where, trace, step, fields, expected, actual)
            step += 1
        end = _end(trace, run, step)
    except NotImplementedError:
        raise
    except Exception as error:
        return Difference(
            where,
            trace,
            step,
            ("error",),
            expected=trace["steps"][step] if step < len(trace["steps"]) else None,
            error=_short_traceback(error),
        )
    return (
        Difference(where, trace, step, tuple(e[0] for e in end), end=end_lines(end))
        if end
        else None
    )


def _end(trace: Trace, run: Run, step: int) -> list[tuple[str, str, object, object]]:
    """(field, request id, vLLM's, the scheduler's) for all that differs when the trace is over."""
    found: list[tuple[str, str, object, object]] = []
    for field, mine in (
        ("outputs", run.outputs()),
        ("final", run.final()),
        ("preemptions", run.preemptions()),
    ):
        theirs: dict[str, Any] = trace[field]  # type: ignore[literal-required]
        ids = [*theirs, *(i for i in mine if i not in theirs)]
        found += [
            (field, i, theirs.get(i), mine.get(i)) for i in ids if theirs.get(i) != mine.get(i)
        ]
    if not run.done:
        found.append(("unfinished", "-", "all done", "requests are left over"))
    elif step < len(trace["steps"]):
        found.append(("unfinished", "-", f"goes on after call {step}", "all done"))
    return found


def end_lines(found: list[tuple[str, str, object, object]]) -> tuple[str, ...]:
    return tuple(f"{field} of {i}: vLLM {theirs}, here {mine}" for field, i, theirs, mine in found)


def _short_traceback(error: Exception) -> str:
    """The exception, and the last lines of code that led to it."""
    frames = traceback.extract_tb(error.__traceback__)[-2:]
    places = [f"  {Path(f.filename).name}:{f.lineno} in {f.name}: {f.line}" for f in frames]
    return "\n".join([*traceback.format_exception_only(error)[-1:][0].splitlines(), *places])


def explain(difference: Difference, scheduler_class: Any = None) -> str:
    """The report of a difference. Follows the recorded decisions up to it, for the state before."""
    trace = difference.trace
    scheduler_class = scheduler_class or scheduler_for(trace)
    source = sys.modules[scheduler_class.__module__]
    is_file = scheduler_class.__module__.startswith(_FROM_FILE)
    place = getattr(source, "__file__", None) if is_file else scheduler_class.__module__
    now = None
    # With several groups the rules would have to speak of each; the decisions stand side by side.
    if difference.expected is not None and "kv_cache_groups" not in trace["config"]:
        with suppress(*BROKEN):  # steps that were not compared need not be possible
            now = moment(trace, difference.step)
    return report(
        where=difference.where,
        trace=trace,
        step=difference.step,
        fields=difference.fields,
        now=now,
        expected=difference.expected,
        actual=difference.actual,
        error=difference.error,
        end=difference.end,
        who=f"{scheduler_class.__qualname__} of {place}",
    )


def load_class(spec: str) -> Any:
    """The class that `module:Class`, `path.py:Class` or either without `:Class` names.

    Raises ValueError where there is no such thing.
    """
    source, _, class_name = spec.partition(":")
    class_name = class_name or "Scheduler"
    try:
        if source.endswith(".py"):
            path = Path(source).resolve()
            found = importlib.util.spec_from_file_location(_FROM_FILE + path.stem, path)
            if found is None or found.loader is None or not path.is_file():
                raise ValueError(f"--scheduler {spec}: there is no file {path}")
            module = importlib.util.module_from_spec(found)
            sys.modules[found.name] = module
            found.loader.exec_module(module)
        else:
            module = importlib.import_module(source)
    except ImportError as error:
        raise ValueError(f"--scheduler {spec}: {error}") from error
    found_class = getattr(module, class_name, None)
    if not isinstance(found_class, type):
        raise ValueError(f"--scheduler {spec}: {source} has no class {class_name}")
    return found_class


def steps_of(trace: Trace, end: int | None = None) -> int:
    """Steps up to entry `end` of the trace's list, without the calls that take results in."""
    return sum(step.get("call") != "update" for step in trace["steps"][:end])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m course.parity",
        description="Compare a scheduler's decisions with those recorded from vLLM's own.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help=".jsonl, .jsonl.gz, or - (stdin)")
    parser.add_argument(
        "--scheduler",
        metavar="MODULE_OR_PATH:CLASS",
        help="the class to compare (default: mini_vllm.core.sched.scheduler:Scheduler, or for traces of "
        "asynchronous scheduling mini_vllm.core.sched.async_scheduler:AsyncScheduler)",
    )
    args = parser.parse_args(argv)
    began = time.perf_counter()
    traces = steps = equal = requests = 0
    differences: list[Difference] = []
    try:
        scheduler_class = load_class(args.scheduler) if args.scheduler else None
        for file in args.files:
            for where, trace in read_traces(file):
                found = replay(where, trace, scheduler_class)
                traces += 1
                requests += len(trace["requests"])
                steps += steps_of(trace)
                equal += steps_of(trace, None if found is None else found.step)
                if found is not None:
                    if not differences:
                        print(explain(found, scheduler_class), end="\n\n")
                    differences.append(found)
    except (TraceError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    except NotImplementedError as error:
        print(f"--scheduler {args.scheduler}: not written yet", file=sys.stderr)
        print(_short_traceback(error), file=sys.stderr)
        return 2
    took = f"{requests:,} requests, {time.perf_counter() - began:.1f} s"
    if not differences:
        print(f"{traces} traces, {steps:,} steps, 0 differences ({took})")
        return 0
    seeds = ", ".join(str(d.trace["seed"]) for d in differences[:10])
    more = f" and {len(differences) - 10} more" if len(differences) > 10 else ""
    print(
        f"{traces} traces, {steps:,} steps, {len(differences)} differences (a trace stops at its "
        f"first): seed {seeds}{more}; {equal:,} steps are equal ({took})"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
