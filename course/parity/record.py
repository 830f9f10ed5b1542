"""Record the decisions of vLLM's own scheduler on seeded random workloads.

    python -m course.parity.record SEED... [--shape SHAPE] > traces.jsonl
    python -m course.parity.record SEED... --async-scheduling   > traces.jsonl
    python -m course.parity.record --again FILE...         > traces.jsonl

Needs vLLM (its CPU build will do) and no model: a configuration of a few lines is made on the
spot. No weights are loaded and no token is computed; the scheduler and the KV cache manager are
vLLM's, the sampled tokens are `course.parity.traces.token`. `--again` takes the workloads of recorded
files and decides them anew, which is how the golden files move to another release: by the scheduler,
synchronous or asynchronous, that had decided them. One JSON trace a line.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from course.parity.async_traces import AsyncRun
from course.parity.traces import (
    EOS,
    Arrival,
    Config,
    Group,
    Parts,
    Run,
    Speculation,
    Trace,
    TraceError,
    Workload,
    is_async,
    read_traces,
    token,
)

STEP_LIMIT = 100_000
METHODS = ["ngram", "draft_model", "eagle"]

# What each shape draws from. Blocks are given as spare room over the longest request alone:
# a number of blocks, or a share of that request's need.
SHAPES: dict[str, dict[str, Any]] = {
    "mixed": {},
    "odd-blocks": {"block_size": [3, 5, 7, 32]},
    "large-budget": {"budget": [1024, 4096], "max_num_seqs": [16, 64], "requests": (40, 90)},
    "no-chunks": {
        "chunked": [False],
        "budget": [128],
        "max_model_len": [128],
        "spare": [6.0],
        "threshold": [0],
        "max_num_seqs": [8, 12],
        "gap": [0, 0, 0, 0, 2],
    },
    "no-gate": {"gate": [False], "spare": [1, 2, 0.5]},
    "crowd": {
        "requests": (200, 260),
        "max_num_seqs": [32, 64, 128],
        "budget": [256, 1024],
        "block_size": [4, 16],
        "spare": [4.0, 12.0, 30.0],
        "gap": [0, 0, 0, 0, 0, 0, 0, 1],
    },
    "priority": {"policy": ["priority"], "spare": [0, 1, 0.5]},
    "short-model": {"max_model_len": [48, 64]},
    "no-cache": {"caching": [False], "spare": [0, 2, 1.0]},
    "stop-tokens": {"stop": (0, 4)},
    "conversations": {"caching": [True], "block_size": [1, 2, 3, 4], "spare": [1, 1.0, 4.0]},
    "windows": {"groups": ["full w", "full w", "full w", "w", "full w w", "full w v", "w v"]},
    "block-sizes": {
        "groups": ["full w", "full w", "full w w", "full w v", "w v", "w full"],
        "block_size": [1, 2, 4],
        "multiples": [1, 1, 2, 3, 4],
    },
    "chunks": {"groups": ["full c", "c", "full c c"], "block_size": [1, 2, 4, 8]},
    "drafts": {"drafts": METHODS, "resets": True},
    "drafts-tight": {"drafts": METHODS, "spare": [0, 1, 0.5], "policy": ["fcfs", "priority"]},
    "drafts-priority": {"drafts": METHODS, "policy": ["priority"], "spare": [1, 0.5, 1.0]},
    "drafts-short-model": {"drafts": METHODS, "max_model_len": [48, 64]},
    "drafts-stop-tokens": {"drafts": METHODS, "stop": (0, 4)},
    "drafts-conversations": {
        "drafts": METHODS,
        "caching": [True],
        "block_size": [1, 2, 3, 4],
        "spare": [1, 1.0, 4.0],
        "resets": True,
    },
    "drafts-windows": {
        "drafts": METHODS,
        "groups": ["full w", "full w", "w", "full w w", "full w v", "w v"],
    },
    "drafts-block-sizes": {
        "drafts": METHODS,
        "groups": ["full w", "full w", "full w w", "full w v", "w v", "w full"],
        "block_size": [1, 2, 4],
        "multiples": [1, 1, 2, 3, 4],
    },
}


def workload(seed: int, shape: str = "mixed") -> Workload:
    """A random workload of a shape; the same for the same arguments, for ever.

    Raises ValueError for an unknown shape.
    """
    if shape not in SHAPES:
        raise ValueError(f"unknown shape {shape!r}; one of {', '.join(SHAPES)}")
    ranges = SHAPES[shape]
    rng = random.Random(f"{shape} {seed}")

    def draw(key: str, default: list[Any]) -> Any:
        return rng.choice(ranges.get(key, default))

    block_size = draw("block_size", [1, 2, 4, 8, 16])
    max_model_len = draw("max_model_len", [256])
    max_num_seqs = draw("max_num_seqs", [1, 2, 4, 7, 12])
    budget = max(draw("budget", [8, 16, 48, 64, 256]), max_num_seqs)
    count = rng.randint(*ranges.get("requests", (4, 40)))
    gaps = ranges.get("gap", [0, 0, 0, 1, 1, 3, 6])
    requests = _requests(rng, count, gaps, max_model_len)
    if shape == "conversations":
        _follow_up(rng, requests, max_model_len)
    if "stop" in ranges:
        for q in requests:
            q["stop_token_ids"] = rng.sample(range(3, 51), rng.randint(*ranges["stop"]))
    # Enough for the longest request alone (vLLM would wait for ever otherwise), seldom for all.
    longest = max(min(len(q["prompt"]) + q["max_tokens"], max_model_len) for q in requests)
    spec: Speculation | None = None
    if "drafts" in ranges:
        spec = {"method": draw("drafts", []), "num_speculative_tokens": rng.randint(1, 5)}
        budget = max(budget, 2 * max_num_seqs)  # a draft model has a row a request of it
        # Two plans' drafts past the end, and the drafter's slots past those.
        longest = min(longest + 3 * spec["num_speculative_tokens"], max_model_len)
    need = -(-longest // block_size)
    groups = _groups(rng, rng.choice(ranges["groups"])) if "groups" in ranges else []
    if "multiples" in ranges:
        for group in groups:
            group["block_size"] = block_size * draw("multiples", [])
        rng.choice(groups)["block_size"] = block_size  # the others' greatest common divisor
    if groups:
        at_once = budget + (spec["num_speculative_tokens"] if spec else 0)
        need = sum(_blocks_at_most(g, longest, block_size, at_once, max_model_len) for g in groups)
        need += len(groups) * (spec is not None)
    spare = draw("spare", [0, 1, 3, 1.0, 4.0])
    num_blocks = 1 + need + (spare if isinstance(spare, int) else int(spare * need))
    config: Config = {
        "block_size": block_size,
        "num_blocks": num_blocks,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": budget,
        "long_prefill_token_threshold": draw("threshold", [0, 0, 3, 16]),
        "enable_prefix_caching": draw("caching", [True, True, True, False]),
        "max_model_len": max_model_len,
        "policy": draw("policy", ["fcfs", "fcfs", "priority"]),
        "enable_chunked_prefill": draw("chunked", [True]),
        "scheduler_reserve_full_isl": draw("gate", [True]),
    }
    if groups:
        config["kv_cache_groups"] = groups
    work: Workload = {"seed": seed, "config": config, "requests": requests}
    if spec is not None:
        config["speculative_config"] = spec
        if ranges.get("resets") and rng.random() < 0.5:
            last = max(q["step"] for q in requests) + 20
            work["resets"] = sorted(rng.sample(range(last), 3))
    return work


def _groups(rng: random.Random, letters: str) -> list[Group]:
    """Groups from a word for each: `w` and `v` are windows of two sizes, `c` is a chunk of tokens."""
    window, other = rng.sample([1, 2, 3, 5, 8, 9, 16, 17, 33, 64, 100], 2)
    kinds: dict[str, Group] = {
        "full": {"type": "full", "size": 0},
        "w": {"type": "sliding_window", "size": window},
        "v": {"type": "sliding_window", "size": other},
        "c": {"type": "chunked_local", "size": rng.choice([4, 8, 16, 40])},
    }
    return [kinds[letter].copy() for letter in letters.split()]


def _blocks_at_most(
    group: Group, num_tokens: int, block_size: int, budget: int, max_model_len: int
) -> int:
    """What a request of `num_tokens` tokens can hold of one group while it is alone."""
    block_size = group.get("block_size", block_size)
    every = -(-num_tokens // block_size)
    if group["type"] == "full":
        return every
    sliding = group["type"] == "sliding_window"
    at_once = min(group["size"] - sliding + budget, max_model_len)
    return min(every, -(-at_once // block_size) + sliding)


def _requests(rng: random.Random, count: int, gaps: list[int], max_model_len: int) -> list[Arrival]:
    """`count` requests, each a number of steps drawn from `gaps` after the one before.

    Prompts often share a beginning, so that the prefix cache has work.
    """

    def words(low: int, high: int) -> list[int]:
        return [rng.randint(3, 50) for _ in range(rng.randint(low, high))]

    prefixes = [words(1, 90) for _ in range(3)]
    requests: list[Arrival] = []
    step = 0
    for i in range(count):
        step += rng.choice(gaps)
        kind = rng.random()
        if kind < 0.15 and requests:
            prompt = list(rng.choice(requests)["prompt"])
        elif kind < 0.7:
            prompt = rng.choice(prefixes) + words(0, 30)
        else:
            prompt = words(1, 60)
        requests.append(
            {
                "id": f"r{i:03d}",
                "step": step,
                "prompt": prompt[: max_model_len - 1],
                "max_tokens": rng.randint(1, 48),
                "ignore_eos": rng.random() < 0.4,
                "priority": rng.randint(0, 3),
                "abort": step + rng.randint(0, 25) if rng.random() < 0.1 else None,
            }
        )
    return requests


def _follow_up(rng: random.Random, requests: list[Arrival], max_model_len: int) -> None:
    """Let prompts be an earlier one with its answer, which the prefix cache may hold too."""
    for i, q in enumerate(requests[2:], 2):
        if rng.random() < 0.6:
            before = rng.randrange(i)
            said = list(requests[before]["prompt"])
            for _ in range(requests[before]["max_tokens"]):
                said.append(token(before, len(said)))
            q["prompt"] = (said + q["prompt"][:2])[: max_model_len - 1]


def vllm_parts(config: Config, async_scheduling: bool = False) -> Parts:
    """vLLM's scheduler for a config, ready for `Run`, or its `AsyncScheduler`, for `AsyncRun`.

    Raises ImportError without vLLM.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    import torch
    from vllm.config import (
        CacheConfig,
        ModelConfig,
        ParallelConfig,
        SchedulerConfig,
        SpeculativeConfig,
        VllmConfig,
    )
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import (
        ChunkedLocalAttentionSpec,
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        SlidingWindowSpec,
    )
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus
    from vllm.v1.structured_output import StructuredOutputManager

    block_size, max_model_len = config["block_size"], config["max_model_len"]
    init_none_hash(sha256)
    with tempfile.TemporaryDirectory() as folder:
        # ModelConfig reads config.json and nothing else when there is no tokenizer to set up.
        (Path(folder) / "config.json").write_text(json.dumps(_MODEL), encoding="utf-8")
        model_config = ModelConfig(
            model=folder, dtype="float32", skip_tokenizer_init=True, max_model_len=max_model_len
        )
        speculative_config = None
        if spec := config.get("speculative_config"):
            method: Any = spec["method"]
            if method == "ngram" and async_scheduling:
                method = "ngram_gpu"  # vLLM's other one: the only one that it takes then
            speculative_config = SpeculativeConfig(
                method=method,
                num_speculative_tokens=spec["num_speculative_tokens"],
                model=None if spec["method"] == "ngram" else folder,
                target_model_config=model_config,
                target_parallel_config=ParallelConfig(),
            )
    cache_config = CacheConfig(
        block_size=block_size, enable_prefix_caching=config["enable_prefix_caching"]
    )
    cache_config.num_gpu_blocks = config["num_blocks"]
    vllm_config = VllmConfig(
        model_config=model_config,
        cache_config=cache_config,
        speculative_config=speculative_config,
        scheduler_config=SchedulerConfig(
            max_model_len=max_model_len,
            is_encoder_decoder=False,
            max_num_seqs=config["max_num_seqs"],
            max_num_batched_tokens=config["max_num_batched_tokens"],
            long_prefill_token_threshold=config["long_prefill_token_threshold"],
            enable_chunked_prefill=config.get("enable_chunked_prefill", True),
            scheduler_reserve_full_isl=config.get("scheduler_reserve_full_isl", True),
            policy=config["policy"],
            async_scheduling=async_scheduling,
        ),
    )
    layer: dict[str, Any] = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    groups = config.get("kv_cache_groups")
    specs: list[Any] = []
    for group in groups or [{"type": "full", "size": 0}]:
        sizes = {**layer, "block_size": group.get("block_size", block_size)}
        if group["type"] == "full":
            specs.append(FullAttentionSpec(**sizes))
        elif group["type"] == "sliding_window":
            specs.append(SlidingWindowSpec(**sizes, sliding_window=group["size"]))
        else:
            specs.append(ChunkedLocalAttentionSpec(**sizes, attention_chunk_size=group["size"]))
    scheduler = (AsyncScheduler if async_scheduling else Scheduler)(
        vllm_config=vllm_config,
        kv_cache_config=KVCacheConfig(
            num_blocks=config["num_blocks"],
            kv_cache_tensors=[],
            kv_cache_groups=[
                KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(specs)
            ],
        ),
        structured_output_manager=StructuredOutputManager(vllm_config),
        block_size=math.lcm(*(spec.block_size for spec in specs)),
        hash_block_size=block_size,
        log_stats=False,
    )
    caching = config["enable_prefix_caching"]
    hasher = get_request_block_hasher(block_size, sha256) if caching else None

    def make_request(q: Arrival, index: int) -> Any:
        params = SamplingParams(
            max_tokens=q["max_tokens"],
            ignore_eos=q["ignore_eos"],
            stop_token_ids=q.get("stop_token_ids"),
        )
        params.update_from_generation_config({}, EOS)
        return Request(
            request_id=q["id"],
            prompt_token_ids=list(q["prompt"]),
            sampling_params=params,
            pooling_params=None,
            arrival_time=float(index),
            priority=q["priority"],
            block_hasher=hasher,
        )

    def make_output(req_ids: list[str], sampled: list[list[int]]) -> Any:
        return ModelRunnerOutput(
            req_ids=req_ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(req_ids)},
            sampled_token_ids=sampled,
        )

    def block_ids(request_id: str) -> Any:
        tables = [list(ids) for ids in scheduler.kv_cache_manager.get_block_ids(request_id)]
        return tables if groups else tables[0]

    return Parts(
        scheduler=scheduler,
        make_request=make_request,
        block_ids=block_ids,
        make_output=make_output,
        aborted=RequestStatus.FINISHED_ABORTED,
        make_drafts=DraftTokenIds,
    )


_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 64,
    "max_position_embeddings": 1 << 20,
    "bos_token_id": 1,
    "eos_token_id": EOS,
}


def record(work: Workload, parts: Parts, async_scheduling: bool = False) -> Trace:
    """Drive the scheduler until the workload is done; the trace of what it decided.

    Raises RuntimeError if it is not done after `STEP_LIMIT` steps, or turns.
    """
    run: Run | AsyncRun
    steps: list[Any] = []
    if async_scheduling:
        run = AsyncRun(work, parts)
        for call in run.calls():
            steps.append(call)
            _check_limit(work, run)
    else:
        run = Run(work, parts)
        while not run.done:
            _check_limit(work, run)
            run.arrive()
            steps.append(run.decide())
    trace: Trace = {
        "seed": work["seed"],
        "config": work["config"],
        "requests": work["requests"],
        "steps": steps,
        "outputs": run.outputs(),
        "final": run.final(),
        "preemptions": run.preemptions(),
    }
    if "resets" in work:
        trace["resets"] = work["resets"]
    return trace


def _check_limit(work: Workload, run: Run) -> None:
    if run.step == STEP_LIMIT:
        raise RuntimeError(f"seed {work['seed']}: not done after {STEP_LIMIT} steps")


def _workloads(args: argparse.Namespace) -> Iterator[tuple[Workload, bool]]:
    """Each workload, and whether it is to be scheduled asynchronously."""
    for seed in args.seeds:
        yield workload(seed, args.shape), args.async_scheduling
    for file in args.again:
        for _, trace in read_traces(file):
            yield trace, is_async(trace)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m course.parity.record",
        description="Record vLLM's scheduler; a trace a line.",
    )
    parser.add_argument("seeds", nargs="*", type=int, metavar="SEED", help="workloads to draw")
    parser.add_argument("--shape", default="mixed", choices=SHAPES, help="what to draw from")
    parser.add_argument(
        "--async-scheduling",
        action="store_true",
        help="by vLLM's AsyncScheduler, two plans in flight",
    )
    parser.add_argument(
        "--again", nargs="+", default=[], metavar="FILE", help="decide these files' workloads anew"
    )
    args = parser.parse_args(argv)
    if not args.seeds and not args.again:
        parser.error("name a SEED, or --again FILE")
    try:
        for work, ahead in _workloads(args):
            trace = record(work, vllm_parts(work["config"], ahead), ahead)
            print(json.dumps(trace, separators=(",", ":")))
    except ImportError as error:
        print(f"recording needs vLLM: {error}; see SETUP.md", file=sys.stderr)
        return 2
    except (TraceError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
