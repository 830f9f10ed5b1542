"""A simulated run from its flags, for `mini-vllm simulate` and for each point of `mini-vllm sweep`."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_vllm.config.engine import EngineConfig
from mini_vllm.entrypoints.cli.flags import make_config
from mini_vllm.entrypoints.cli.simulate_fleet import DEFAULT_ROUTER, router_of
from mini_vllm.utils.untrusted import shorten_repr

if TYPE_CHECKING:
    from mini_vllm.sim import Router, ServingMetrics, SimParts, SimRequest, Speculation, StepCost
    from mini_vllm.sim.graphs import GraphTally

MOST_PROMPTS = 100_000_000
"""Hours; for more, run it again with another seed."""
MOST_BLOCKS = 20_000_000
"""About 2 GB of bookkeeping; of all replicas together."""


@dataclasses.dataclass
class Simulation:
    """A run that is ready to begin: all flags have been looked at, no engine has been made.

    Attributes:
        rate: requests per second; in words where a dataset has times of its own.
        settings: what stands in front of the figures in JSON.
    """

    metrics: ServingMetrics
    cost: StepCost
    rate: float | str
    settings: dict[str, Any]
    _run: Callable[[], dict[str, Any]]

    def run(self) -> dict[str, Any]:
        """The figures of the run. Raises ValueError where every request was refused."""
        return self._run()


def make_simulation(args: argparse.Namespace) -> Simulation:
    """The run that the flags describe. Raises ValueError for flags that do not go together."""
    from mini_vllm.entrypoints.cli.simulate_ranks import cost_of
    from mini_vllm.sim import ServingMetrics
    from mini_vllm.sim.metrics import parse_goodput

    cost = cost_of(args)
    metrics = ServingMetrics(parse_goodput(args.goodput), _percentiles(args.metric_percentiles))
    config = _config(args, cost)
    cost, tally = _graphs(args, cost, config)
    speculation = _speculation(args, config)
    router = router_of(args, config, MOST_BLOCKS)
    requests, num_prompts, rate = _requests(args)
    settings = {
        "cost": {"name": cost.name, "source": cost.source},
        "request_rate": rate,
        "async_scheduling": args.async_scheduling,
        **({} if router is None else {"router": args.router or DEFAULT_ROUTER}),
        "config": dataclasses.asdict(config),
    }

    def run() -> dict[str, Any]:
        runner = _runner(args, config, cost, metrics, tally, speculation, router)
        runner.run(requests)
        if metrics.failed == num_prompts:
            raise ValueError(f"every request was refused; the first: {metrics.first_failure}")
        result: dict[str, Any] = runner.result()
        if tally is not None:
            result |= tally.result()
        if speculation is not None:
            result |= speculation.result()
        return result

    return Simulation(metrics, cost, rate, settings, run)


def _runner(
    args: argparse.Namespace,
    config: EngineConfig,
    cost: StepCost,
    metrics: ServingMetrics,
    tally: GraphTally | None,
    speculation: Speculation | None,
    router: Router | None,
) -> Any:
    """One engine, or a fleet of them."""
    from mini_vllm.sim import Fleet, Simulator, work_of

    def engine(index: int, metrics: ServingMetrics) -> Simulator:
        parts = _parts(config)
        observe = None
        if tally is not None:

            def observe(plan: Any, now: float) -> None:
                tally.add(work_of(plan, parts.scheduler.requests))

        return Simulator(parts, cost, metrics, observe, args.seed + index, speculation)

    return engine(0, metrics) if router is None else Fleet(engine, args.replicas, router, metrics)


def finite(value: Any) -> Any:
    """vLLM writes an infinite rate as the text "inf" too: JSON has no such number."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _percentiles(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"--metric-percentiles is numbers from 0 to 100 with commas between, got {shorten_repr(text)}"
        ) from None


def _config(args: argparse.Namespace, cost: StepCost) -> EngineConfig:
    """The engine's settings: what is given, else what goes with the cost."""
    config = make_config(args)
    if args.counted_mode is not None:
        config = dataclasses.replace(config, cudagraph_mode=args.counted_mode)
    slots = cost.num_kv_tokens
    if config.max_model_len is None:
        limit = _or_refuse(cost, "--max-model-len", cost.max_model_len)
        config = dataclasses.replace(config, max_model_len=limit)
    if config.num_gpu_blocks is None:
        blocks = None if slots is None else slots // config.block_size + 1
        blocks = _or_refuse(cost, "--num-gpu-blocks", blocks)
        config = dataclasses.replace(config, num_gpu_blocks=blocks)
    if config.num_gpu_blocks is not None and config.num_gpu_blocks > MOST_BLOCKS:
        raise ValueError(
            f"num_gpu_blocks {config.num_gpu_blocks}: the simulator keeps a record of each, and takes "
            f"at most {MOST_BLOCKS}"
        )
    return config


def _or_refuse(cost: StepCost, flag: str, value: int | None) -> int:
    if value is None:
        raise ValueError(
            f"the cost {cost.name!r} does not say how large its model's limit or cache is: give {flag}"
        )
    return value


def _graphs(
    args: argparse.Namespace, cost: StepCost, config: EngineConfig
) -> tuple[StepCost, GraphTally | None]:
    """The cost, with launches if they are to be counted, and what counts them."""
    from mini_vllm.sim.graphs import LAUNCH_S, GraphTally, with_graphs

    if args.counted_mode is None:
        for name in ("launch_us", "cudagraph_capture_sizes"):
            if getattr(args, name) is not None:
                raise ValueError(f"--{name.replace('_', '-')} needs a --cudagraph-mode")
        return cost, None
    counted = with_graphs(
        cost, config, LAUNCH_S if args.launch_us is None else args.launch_us / 1e6
    )
    return counted, GraphTally(counted)


def _speculation(args: argparse.Namespace, config: EngineConfig) -> Speculation | None:
    """What drafts, and at what cost. Raises ValueError for flags that do not go together."""
    from mini_vllm.sim import Speculation, load_cost

    spec = config.speculation
    if spec is None:
        if args.draft_cost is not None:
            raise ValueError(
                f"--draft-cost {shorten_repr(args.draft_cost)} needs a --speculative-config"
            )
        return None
    if (spec.method == "ngram") != (args.draft_cost is None):
        needs = "has no passes that cost anything: leave" if spec.method == "ngram" else "needs"
        raise ValueError(f"speculative_config: method {spec.method!r} {needs} --draft-cost")
    drafter = None if args.draft_cost is None else load_cost(args.draft_cost)
    return Speculation(spec, drafter, args.seed)


def _parts(config: EngineConfig) -> SimParts:
    from mini_vllm.core.sched.async_scheduler import AsyncScheduler
    from mini_vllm.sim import mini_parts

    if not config.async_scheduling:
        return mini_parts(config)
    return mini_parts(config, AsyncScheduler, async_scheduling=True)


def _requests(args: argparse.Namespace) -> tuple[Iterator[SimRequest], int, float | str]:
    """The requests, how many they are, and their rate, in words where a file has times of its own.

    Raises ValueError for flags that do not go together.
    """
    from mini_vllm.sim import Lengths, arrival_times, dataset_requests, random_requests

    if args.burstiness is not None and args.request_rate is None:
        raise ValueError(f"--burstiness {args.burstiness} needs a --request-rate")
    if args.num_prompts is not None and args.num_prompts > MOST_PROMPTS:
        raise ValueError(f"--num-prompts {shorten_repr(args.num_prompts)}: at most {MOST_PROMPTS}")
    rate = math.inf if args.request_rate is None else args.request_rate
    burstiness = 1.0 if args.burstiness is None else args.burstiness

    def arrivals(count: int) -> Iterator[float]:
        return arrival_times(count, rate, burstiness, args.seed)

    if args.dataset is None:
        count = args.num_prompts or 1000
        requests = random_requests(
            arrivals(count),
            Lengths.parse("512" if args.input_len is None else args.input_len),
            Lengths.parse("128" if args.output_len is None else args.output_len),
            args.prefix_len or 0,
            args.num_prefixes or 1,
            args.seed,
        )
        return requests, count, rate
    for name in ("input_len", "output_len", "prefix_len", "num_prefixes"):
        if getattr(args, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} and --dataset: the file has the lengths")
    rows = _rows(args)
    count = args.num_prompts or len(rows)
    if args.request_rate is None and any(row.arrival is not None for row in rows):
        return dataset_requests(rows, count), count, "the file's times"
    return dataset_requests(rows, count, arrivals(count), args.seed), count, rate


def _rows(args: argparse.Namespace) -> list[Any]:
    path = Path(args.dataset)
    if path.suffix != ".jsonl" and args.tokenizer is not None:
        raise ValueError("--tokenizer is for a --dataset of texts, a .jsonl")
    try:
        stat = path.stat()
    except OSError:  # reading it says so
        return _read_rows(path, args.tokenizer, None)
    return _read_rows(path, args.tokenizer, (stat.st_mtime_ns, stat.st_size))


@lru_cache(maxsize=1)  # the points of a sweep have mostly the same file
def _read_rows(path: Path, tokenizer: str | None, state: object) -> list[Any]:
    """The rows of a file in this `state`: another has to be read again."""
    from mini_vllm.config.engine import DEFAULT_MODEL
    from mini_vllm.sim import read_dataset

    if path.suffix != ".jsonl":
        return read_dataset(path)
    from mini_vllm.model_loader import find_model
    from mini_vllm.tokenizer import Tokenizer

    encode = Tokenizer.from_folder(find_model(tokenizer or DEFAULT_MODEL)).encode
    return read_dataset(path, encode)
