"""The command `mini-vllm simulate`: a workload through the scheduler on a virtual clock.

Prints what `vllm bench serve` prints, in the same words, and what the scheduler did below. Flags that
vllm has too bear its names: `--num-prompts`, `--request-rate`, `--burstiness`, `--goodput`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from mini_vllm.config.engine import EngineConfig
from mini_vllm.entrypoints.cli.flags import (
    add_cudagraph_flags,
    add_engine_flags,
    make_config,
    not_negative,
    positive,
)
from mini_vllm.entrypoints.cli.simulate_fleet import (
    DEFAULT_ROUTER,
    add_fleet_flags,
    replica_lines,
    router_of,
)
from mini_vllm.entrypoints.cli.simulate_ranks import add_rank_flags, cost_of
from mini_vllm.utils.untrusted import shorten_repr

if TYPE_CHECKING:
    from mini_vllm.sim import ServingMetrics, SimParts, SimRequest, Speculation, StepCost
    from mini_vllm.sim.graphs import GraphTally

MOST_PROMPTS = 100_000_000
"""Hours; for more, run it again with another seed."""
MOST_BLOCKS = 20_000_000
"""About 2 GB of bookkeeping; of all replicas together."""
_EPILOG = """\
a length is: N, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA[:MOST], in tokens

examples:
  mini-vllm simulate --num-prompts 2000 --request-rate 12 --input-len 500 --output-len lognormal:200:0.8
  mini-vllm simulate --request-rate 20 --burstiness 0.25 --prefix-len 2000 --goodput ttft:500 tpot:30
  mini-vllm simulate --dataset lengths.csv --request-rate 10 --plot run.png --json run.json
  mini-vllm simulate --cost my-engine.json --num-gpu-blocks 4000 --max-model-len 4096
  mini-vllm simulate --replicas 8 --router prefix --request-rate 90 --prefix-len 2000 --num-prefixes 40
  mini-vllm simulate --cost h100-llama-3-70b --tensor-parallel-size 8 --request-rate 4
  mini-vllm simulate --cost h100-llama-3.2-1b --cudagraph-mode FULL_AND_PIECEWISE --launch-us 5
  mini-vllm simulate --speculative-config '{"method": "ngram", "num_speculative_tokens": 3,
    "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.7, 0.5, 0.4]}'
"""


def add_simulate_parser(commands: Any) -> None:
    """Register `simulate` with the subparsers of `mini-vllm`."""
    parser = commands.add_parser(
        "simulate",
        help="what a workload would do to the scheduler, without a model",
        description="Run a workload through the real scheduler and KV cache manager on a virtual clock. "
        "A step takes what --cost says; a request ends at its number of output tokens.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    load = parser.add_argument_group("workload")
    load.add_argument("--num-prompts", type=positive, metavar="N", help="requests (1000)")
    load.add_argument(
        "--input-len", metavar="LENGTH", help="prompt tokens beyond the shared prefix (512)"
    )
    load.add_argument("--output-len", metavar="LENGTH", help="output tokens (128)")
    load.add_argument(
        "--prefix-len",
        type=not_negative,
        metavar="N",
        help="shared tokens in front of a prompt (0)",
    )
    load.add_argument(
        "--num-prefixes", type=positive, metavar="N", help="how many different prefixes (1)"
    )
    load.add_argument(
        "--dataset", metavar="FILE",
        help="requests from a file that vLLM's benchmarks read: .jsonl with prompt and output_tokens, "
        "BurstGPT's .csv, or a .csv with the columns prompt and output (tokens)",
    )  # fmt: skip
    load.add_argument(
        "--tokenizer",
        metavar="DIR",
        help="for a .jsonl: checkpoint folder (the shipped tiny Llama)",
    )
    load.add_argument(
        "--request-rate", type=float, metavar="R",
        help="requests a second; inf: all at the start (inf; with a --dataset of times: those)",
    )  # fmt: skip
    load.add_argument(
        "--burstiness", type=float, metavar="B",
        help="1: Poisson; less: in bursts; more: evenly; needs --request-rate (1)",
    )  # fmt: skip
    load.add_argument("--seed", type=not_negative, default=0, help="seed of all that is random (0)")
    add_fleet_flags(parser)
    add_rank_flags(parser)
    parser.add_argument(
        "--cost", default="a100-llama-3-8b", metavar="COST",
        help="what a step costs: a preset, or a .json file (a100-llama-3-8b); 'list' shows the presets",
    )  # fmt: skip
    add_cudagraph_flags(
        parser, dest="counted_mode", default=None,
        text="count kernel launches too, and run steps without graphs (NONE) or with (launches cost nothing)",
    )  # fmt: skip
    parser.add_argument(
        "--launch-us", type=float, metavar="US",
        help="microseconds a launch; needs --cudagraph-mode (5)",
    )  # fmt: skip
    parser.add_argument(
        "--draft-cost", metavar="COST",
        help="with --speculative-config: what a pass of the drafter costs, as --cost; not for ngram",
    )  # fmt: skip
    parser.add_argument(
        "--goodput", nargs="+", default=[], metavar="NAME:MS",
        help="limits that a good request keeps: ttft, tpot, e2el in milliseconds",
    )  # fmt: skip
    parser.add_argument(
        "--metric-percentiles", default="99", metavar="P,P", help="percentiles to print (99)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE; '-': here")
    parser.add_argument("--plot", metavar="FILE", help="draw the run: .png, .svg or .pdf")
    add_engine_flags(parser, with_model=False)
    parser.set_defaults(run=run_simulate)


def run_simulate(args: argparse.Namespace, out: TextIO) -> int:
    """The `simulate` command."""
    from mini_vllm.sim import Fleet, ServingMetrics, Simulator, cards, models, work_of
    from mini_vllm.sim.cost import presets
    from mini_vllm.sim.metrics import parse_goodput

    if args.cost == "list":
        for name, preset in presets().items():
            out.write(f"{name:24}{preset.source}\n")
        out.write(f"{'CARD-MODEL':24}cards {', '.join(cards())}; models {', '.join(models())}\n")
        return 0
    cost = cost_of(args)
    percentiles = _percentiles(args.metric_percentiles)
    metrics = ServingMetrics(parse_goodput(args.goodput), percentiles)
    config = _config(args, cost)
    cost, tally = _graphs(args, cost, config)
    speculation = _speculation(args, config)
    router = router_of(args, config, MOST_BLOCKS)
    requests, num_prompts, rate = _requests(args)
    if args.json not in (None, "-"):
        check_target("--json", Path(args.json))
    if args.plot is not None:
        from mini_vllm.entrypoints.cli.simulate_plot import check_plot

        check_target("--plot", Path(args.plot))
        check_plot(Path(args.plot))

    def engine(index: int, metrics: ServingMetrics) -> Simulator:
        parts = _parts(config)
        observe = None
        if tally is not None:

            def observe(plan: Any, now: float) -> None:
                tally.add(work_of(plan, parts.scheduler.requests))

        return Simulator(parts, cost, metrics, observe, args.seed + index, speculation)

    runner = engine(0, metrics) if router is None else Fleet(engine, args.replicas, router, metrics)
    runner.run(requests)
    if metrics.failed == num_prompts:
        raise ValueError(f"every request was refused; the first: {metrics.first_failure}")
    result = runner.result()
    if tally is not None:
        result |= tally.result()
    if speculation is not None:
        result |= speculation.result()
    if args.json is not None:
        settings = {
            "cost": {"name": cost.name, "source": cost.source},
            "request_rate": rate,
            "async_scheduling": args.async_scheduling,
            **({} if router is None else {"router": args.router or DEFAULT_ROUTER}),
            "config": dataclasses.asdict(config),
        }
        _write_json({**settings, **result}, args.json, out)
    if args.plot is not None:
        from mini_vllm.entrypoints.cli.simulate_plot import write_plot

        write_plot(Path(args.plot), metrics, cost.name)
    if args.json != "-":
        out.write(table(result, metrics, cost, rate))
    return 0


def check_target(flag: str, path: Path) -> None:
    """Raises ValueError, before the run, where its figures could not be written after it."""
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(
            f"{flag} {shorten_repr(str(path))}: must be a file in a folder that exists"
        )


def _write_json(data: dict[str, Any], to: str, out: TextIO) -> None:
    text = json.dumps({k: _finite(v) for k, v in data.items()}, indent=1) + "\n"
    if to == "-":
        out.write(text)
    else:
        Path(to).write_text(text, encoding="utf-8")


def _finite(value: Any) -> Any:
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
    from mini_vllm.config.engine import DEFAULT_MODEL
    from mini_vllm.sim import read_dataset

    path = Path(args.dataset)
    if path.suffix != ".jsonl":
        if args.tokenizer is not None:
            raise ValueError("--tokenizer is for a --dataset of texts, a .jsonl")
        return read_dataset(path)
    from mini_vllm.model_loader import find_model
    from mini_vllm.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(find_model(args.tokenizer or DEFAULT_MODEL))
    return read_dataset(path, tokenizer.encode)


def table(
    result: dict[str, Any], metrics: ServingMetrics, cost: StepCost, rate: float | str
) -> str:
    """The figures as `vllm bench serve` prints them (`vllm/benchmarks/serve.py:608 benchmark`), and
    the scheduler's own below."""
    from mini_vllm.sim.metrics import LATENCIES
    from mini_vllm.sim.sketch import RELATIVE_ERROR

    lines = [f"{' Simulated Serving Benchmark Result ':=^50}"]

    def row(title: str, value: Any) -> None:
        shown = f"{value:.2f}" if isinstance(value, float) else str(value)
        lines.append(f"{title:<40} {shown:<10}".rstrip())

    row("Successful requests:", result["completed"])
    row("Failed requests:", result["failed"])
    if not (isinstance(rate, float) and math.isinf(rate)):
        row("Request rate configured (RPS):", rate)
    row("Benchmark duration (s):", result["duration"])
    row("Total input tokens:", result["total_input_tokens"])
    row("Total generated tokens:", result["total_output_tokens"])
    row("Request throughput (req/s):", result["request_throughput"])
    if metrics.goodput:
        row("Request goodput (req/s):", result["request_goodput"])
    row("Output token throughput (tok/s):", result["output_throughput"])
    row("Peak output token throughput (tok/s):", result["max_output_tokens_per_s"])
    row("Peak concurrent requests:", float(result["max_concurrent_requests"]))
    row("Total token throughput (tok/s):", result["total_token_throughput"])
    for name, (short_name, title) in LATENCIES.items():
        lines.append(f"{title:-^50}")
        row(f"Mean {short_name} (ms):", result[f"mean_{name}_ms"])
        row(f"Median {short_name} (ms):", result[f"median_{name}_ms"])
        for p in metrics.percentiles:
            row(f"P{p:g} {short_name} (ms):", result[f"p{p:g}_{name}_ms"])
    if "spec_decode_num_drafts" in result:
        lines.append(f"{'Speculative Decoding':-^50}")
        row("Acceptance rate (%):", result["spec_decode_acceptance_rate"])
        row("Acceptance length:", result["spec_decode_acceptance_length"])
        row("Drafts:", result["spec_decode_num_drafts"])
        row("Draft tokens:", result["spec_decode_draft_tokens"])
        row("Accepted tokens:", result["spec_decode_accepted_tokens"])
        lines.append("Per-position acceptance (%):")
        for position, rate in enumerate(result["spec_decode_per_position_acceptance_rates"]):
            row(f"  Position {position}:", 100 * rate)
    lines.append(f"{'Scheduler':-^50}")
    row("Steps:", result["num_steps"])
    row("Empty steps:", result["empty_steps"])
    row("Requests a step:", result["requests_per_step"])
    row("Tokens a step:", result["tokens_per_step"])
    row("Preemptions:", result["num_preemptions"])
    row("Computed tokens:", result["computed_tokens"])
    row("Cached prompt tokens:", result["cached_prompt_tokens"])
    row("Most running:", result["max_running"])
    row("Most waiting:", result["max_waiting"])
    row("Peak KV cache usage (%):", 100 * result["max_kv_cache_usage_perc"])
    row("Device busy (%):", 100 * result["device_busy_share"])
    if "replicas" in result:
        lines += replica_lines(result)
    if "cudagraph_mode" in result:
        lines.append(f"{'CUDA graphs':-^50}")
        row("Steps replayed whole (FULL):", result["steps_full"])
        row("Steps replayed in pieces (PIECEWISE):", result["steps_piecewise"])
        row("Steps without a graph (NONE):", result["steps_none"])
        row("Launches a step:", result["launches_per_step"])
        row("Padded tokens a step:", result["padded_tokens_per_step"])
    lines.append("=" * 50)
    lines.append(f"The cost of a step: {cost.name}; {cost.source}.")
    lines.append(f"Percentiles are within {100 * RELATIVE_ERROR:g} % of their values.")
    if result.get("replicas", 1) > 1:
        lines.append("Most running, most waiting and peak KV cache usage are one replica's.")
    if metrics.failed:
        lines.append(f"The first that failed: {shorten_repr(metrics.first_failure, 300)}")
    return "\n".join(lines) + "\n"
