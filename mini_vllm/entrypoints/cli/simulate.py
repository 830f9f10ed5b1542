"""The command `mini-vllm simulate`: a workload through the scheduler on a virtual clock.

Prints what `vllm bench serve` prints, in the same words, and what the scheduler did below. Flags that
vllm has too bear its names: `--num-prompts`, `--request-rate`, `--burstiness`, `--goodput`.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from mini_vllm.entrypoints.cli.flags import (
    add_cudagraph_flags,
    add_engine_flags,
    not_negative,
    positive,
)
from mini_vllm.entrypoints.cli.simulate_fleet import add_fleet_flags, replica_lines
from mini_vllm.entrypoints.cli.simulate_ranks import add_rank_flags
from mini_vllm.utils.untrusted import shorten_repr

if TYPE_CHECKING:
    from mini_vllm.sim import ServingMetrics, StepCost

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
    add_run_flags(parser)
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE; '-': here")
    parser.add_argument("--plot", metavar="FILE", help="draw the run: .png, .svg or .pdf")
    parser.set_defaults(run=run_simulate)


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that say what is run, which `mini-vllm sweep` has too."""
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
    add_engine_flags(parser, with_model=False)


def run_simulate(args: argparse.Namespace, out: TextIO) -> int:
    """The `simulate` command."""
    from mini_vllm.entrypoints.cli.simulation import finite, make_simulation
    from mini_vllm.sim import cards, models
    from mini_vllm.sim.cost import presets

    if args.cost == "list":
        for name, preset in presets().items():
            out.write(f"{name:24}{preset.source}\n")
        out.write(f"{'CARD-MODEL':24}cards {', '.join(cards())}; models {', '.join(models())}\n")
        return 0
    simulation = make_simulation(args)
    if args.json not in (None, "-"):
        check_target("--json", Path(args.json))
    if args.plot is not None:
        from mini_vllm.entrypoints.cli.simulate_plot import check_plot

        check_target("--plot", Path(args.plot))
        check_plot(Path(args.plot))
    result = simulation.run()
    if args.json is not None:
        row = {**simulation.settings, **result}
        text = json.dumps({k: finite(v) for k, v in row.items()}, indent=1) + "\n"
        if args.json == "-":
            out.write(text)
        else:
            Path(args.json).write_text(text, encoding="utf-8")
    if args.plot is not None:
        from mini_vllm.entrypoints.cli.simulate_plot import write_plot

        write_plot(Path(args.plot), simulation.metrics, simulation.cost.name)
    if args.json != "-":
        out.write(table(result, simulation.metrics, simulation.cost, simulation.rate))
    return 0


def check_target(flag: str, path: Path) -> None:
    """Raises ValueError, before the run, where its figures could not be written after it."""
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(
            f"{flag} {shorten_repr(str(path))}: must be a file in a folder that exists"
        )


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
