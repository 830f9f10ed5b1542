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
    Parts,
    Run,
    Trace,
    TraceError,
    Workload,
    is_async,
    read_traces,
)
from course.parity.workloads import SHAPES, workload

__all__ = ["SHAPES", "record", "vllm_parts", "workload"]

STEP_LIMIT = 100_000


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
    # Unset where the platform is a CPU. From 0.26 on, how many plans are in flight decides how many blocks of
    # a window a request may hold; the pin's scheduler does not read it.
    vllm_config.scheduler_config.async_scheduling = async_scheduling
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
    kv_cache_config = KVCacheConfig(
        num_blocks=config["num_blocks"],
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(specs)],
    )
    if hasattr(kv_cache_config, "prefix_cache_retention_interval"):
        kv_cache_config.prefix_cache_retention_interval = 0  # from 0.29 on what `EngineArgs` sets
    scheduler = (AsyncScheduler if async_scheduling else Scheduler)(
        vllm_config=vllm_config,
        kv_cache_config=kv_cache_config,
        structured_output_manager=StructuredOutputManager(vllm_config),
        block_size=math.lcm(*(spec.block_size for spec in specs)),
        hash_block_size=block_size,
        log_stats=False,
    )
    caching = config["enable_prefix_caching"]
    # From 0.33 on a hash may cover tokens after its block, too.
    ahead = [n] if (n := getattr(vllm_config, "num_hash_lookahead_tokens", 0)) else []
    hasher = get_request_block_hasher(block_size, sha256, *ahead) if caching else None

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


def record(
    work: Workload, parts: Parts, async_scheduling: bool = False, step_limit: int = STEP_LIMIT
) -> Trace:
    """Drive the scheduler until the workload is done; the trace of what it decided.

    Raises RuntimeError if it is not done after `step_limit` steps, or turns.
    """
    run: Run | AsyncRun
    steps: list[Any] = []
    if async_scheduling:
        run = AsyncRun(work, parts)
        for call in run.calls():
            steps.append(call)
            _check_limit(work, run, step_limit)
    else:
        run = Run(work, parts)
        while not run.done:
            _check_limit(work, run, step_limit)
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
    if "resets" in work and not async_scheduling:
        trace["resets"] = work["resets"]
    return trace


def _check_limit(work: Workload, run: Run, step_limit: int) -> None:
    if run.step == step_limit:
        raise RuntimeError(f"seed {work['seed']}: not done after {step_limit} steps")


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
