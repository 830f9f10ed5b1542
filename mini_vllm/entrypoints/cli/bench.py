"""The command `mini-vllm bench`: random prompts through the engine, as fast as it goes.

Prints what `vllm bench throughput` and `vllm bench serve` print, for requests that are all there at
the start. Left out: arrivals over time (`mini-vllm serve` and a client give those).
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any, TextIO

from mini_vllm.core.stats import SpecDecodingStats
from mini_vllm.entrypoints.cli.flags import (
    add_engine_flags,
    make_engine,
    not_negative,
    observe_drafts,
    positive,
)
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams
from mini_vllm.utils.untrusted import shorten_repr

MOST_PROMPTS, MOST_TOKENS = 1_000_000, 100_000_000
"""What `bench` makes before it starts: about 2 KB a request and 8 bytes a prompt token."""


def add_bench_parser(commands: Any) -> None:
    """Register `bench` with the subparsers of `mini-vllm`."""
    bench = commands.add_parser(
        "bench",
        help="measure throughput and latency",
        description="Run random prompts of one length to outputs of one length, all added at the start, "
        "and print what vLLM's benchmarks print: throughput, time to first token, time between tokens.",
    )
    bench.add_argument(
        "--num-prompts", type=positive, default=64, metavar="N", help="requests (64)"
    )
    bench.add_argument(
        "--input-len", type=positive, default=64, metavar="N", help="prompt tokens (64)"
    )
    bench.add_argument(
        "--output-len", type=positive, default=64, metavar="N", help="output tokens (64)"
    )
    bench.add_argument(
        "--seed", type=not_negative, default=0, help="seed of the random prompts (0)"
    )
    bench.add_argument("--json", action="store_true", help="print the figures as JSON")
    add_engine_flags(bench)
    bench.set_defaults(run=run_bench)


def run_bench(args: argparse.Namespace, out: TextIO) -> int:
    """The `bench` command."""
    import numpy as np

    if args.num_prompts > MOST_PROMPTS or args.num_prompts * args.input_len > MOST_TOKENS:
        raise ValueError(
            f"--num-prompts {shorten_repr(args.num_prompts)} of --input-len "
            f"{shorten_repr(args.input_len)}: at most "
            f"{MOST_PROMPTS} prompts of {MOST_TOKENS} tokens together"
        )
    engine = make_engine(args)
    total, limit = args.input_len + args.output_len, engine.config.max_model_len
    if total > (limit or total):
        raise ValueError(
            f"--input-len {args.input_len} and --output-len {args.output_len} make {total} tokens, "
            f"more than the maximum model length of {limit}"
        )
    rng = np.random.default_rng(args.seed)
    low = min(8, engine.model.config.vocab_size - 1)  # the shipped model's first ids are special
    prompts = rng.integers(low, engine.model.config.vocab_size, (args.num_prompts, args.input_len))
    params = SamplingParams(
        temperature=0, max_tokens=args.output_len, ignore_eos=True, detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )  # fmt: skip
    drafts = observe_drafts(engine)
    start = time.perf_counter()
    for number, prompt in enumerate(prompts):
        engine.add_request(str(number), prompt.tolist(), params)
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    gaps: list[float] = []
    while engine.has_unfinished_requests():
        outputs = engine.step()
        now = time.perf_counter()
        for output in outputs:
            request_id = output.request_id
            if request_id in first:
                gaps.append(now - last[request_id])
            else:
                first[request_id] = now
            last[request_id] = now
    elapsed = time.perf_counter() - start
    ttft = np.array([t - start for t in first.values()])
    itl = np.array(gaps or [0.0])
    generated = args.num_prompts * args.output_len
    figures = {
        "requests": args.num_prompts,
        "input_tokens": args.num_prompts * args.input_len,
        "output_tokens": generated,
        "duration_s": elapsed,
        "request_throughput_per_s": args.num_prompts / elapsed,
        "output_throughput_tokens_per_s": generated / elapsed,
        "ttft_ms_median": 1e3 * float(np.median(ttft)),
        "ttft_ms_p99": 1e3 * float(np.percentile(ttft, 99)),
        "itl_ms_median": 1e3 * float(np.median(itl)),
        "itl_ms_p99": 1e3 * float(np.percentile(itl, 99)),
        "steps": engine.engine_core.num_steps,
        "preemptions": engine.engine_core.scheduler.num_preemptions,
    }
    if drafts is not None:
        total = drafts.total or SpecDecodingStats(0)
        figures["drafts"] = total.num_drafts
        figures["drafted_tokens"] = total.num_draft_tokens
        figures["accepted_tokens"] = total.num_accepted_tokens
    if args.json:
        out.write(json.dumps(figures) + "\n")
    else:
        for name, value in figures.items():
            shown = f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
            out.write(f"{name.replace('_', ' '):32}{shown:>14}\n")
    return 0
