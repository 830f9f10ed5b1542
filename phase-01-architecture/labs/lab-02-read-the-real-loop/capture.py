"""Lab 01-02: run the real vLLM on workload.json, listen, and lay it beside `mini_vllm`.

    python phase-01-architecture/labs/lab-02-read-the-real-loop/capture.py --impl starter
    python phase-01-architecture/labs/lab-02-read-the-real-loop/capture.py --impl starter --replay
    python phase-01-architecture/labs/lab-02-read-the-real-loop/capture.py --record

Needs vLLM 0.22.1; its CPU build will do (scripts/install_vllm_cpu.sh). vLLM is started twice, each time in a
process of its own: with the engine core in that process, where `watch` can reach its scheduler,
and as it starts by itself, with the core in another process and its busy loop. `--record` writes what
was said to the folder capture/, which the tests read; `--replay` reads it, too, and starts
nothing. Nothing here is graded.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))  # the repository, where it is not installed

from course.learner.labs import load_module  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402

engines = load_module(HERE / "engines.py", "lab_01_02_engines")
listening = engines.listening
COMMAND = f"python {Path(__file__).resolve().relative_to(ROOT)} --record"
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "TORCH_COMPILE_DISABLE": "1",  # a few helpers would be compiled even so, which takes longer than the rest
}

KEPT = (
    "config/scheduler.py:",
    "config/vllm.py:",
    "v1/engine/core.py:",
    "v1/core/kv_cache_utils.py:",
    "v1/worker/cpu_worker.py:",
    "v1/worker/gpu_worker.py:",
    "v1/worker/gpu_model_runner.py:",
)
"""The files of vLLM whose lines are kept in capture/; the others speak of platforms and plugins."""
WIDEST = 260


def load_lab(choice: str) -> ModuleType:
    """`starter`, `solution` or a file."""
    named = {"solution": HERE / "solution.py", "starter": HERE / "starter.py"}
    return load_module(named.get(choice, Path(choice)), "lab_01_02_captured")


def start(mode: str, env: dict[str, str]) -> tuple[list[dict[str, Any]], str]:
    """Run this file's child in a process of its own: the lines it wrote, and its log."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "records.jsonl"
        done = subprocess.run(
            [sys.executable, __file__, "--child", mode, "--out", str(out)],
            env=os.environ | QUIET | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"vLLM ended with status {done.returncode}:\n{done.stdout[-3000:]}")
        text = out.read_text(encoding="utf-8") if out.exists() else ""
    return [json.loads(line) for line in text.splitlines()], done.stdout


def in_process(choice: str) -> tuple[dict[str, str], list[dict[str, Any]], str]:
    """vLLM with its core in the process that drives it, watched: its versions, records and log."""
    (versions, *records), log = start("in_process", load_lab(choice).environment())
    return versions, records, log


def busy_loop(choice: str) -> str:
    """vLLM as it starts by itself, on one request of four tokens: the log alone."""
    env = load_lab(choice).environment() | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    return start("busy_loop", env)[1]


def child(mode: str, out: Path) -> None:
    workload = engines.load_workload()
    import torch
    import vllm

    arguments = listening.llm_arguments(workload["settings"])
    if mode == "busy_loop":
        arguments.pop("async_scheduling", None)  # left to vLLM, to see what it says
        llm = vllm.LLM(str(engines.MODEL), **arguments)
        params = vllm.SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        llm.generate(workload["requests"][0]["prompt"], params, use_tqdm=False)
        time.sleep(2)  # what the core does after the last token is of interest, too
        return
    llm = vllm.LLM(str(engines.MODEL), **arguments)
    with out.open("w", encoding="utf-8") as file:
        versions = {"vllm": vllm.__version__, "torch": torch.__version__.partition("+")[0]}
        print(json.dumps(versions | {"python": platform.python_version()}), file=file)
        core = llm.llm_engine.engine_core.engine_core
        listening.watch(core.scheduler, lambda record: print(json.dumps(record), file=file))
        engines.drive(llm.llm_engine, workload["requests"], vllm.SamplingParams)


def processor() -> str:
    """The processor by its name, and how many cores it lends."""
    name = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists() and (found := re.search(r"model name\s*:\s*(.*)", info.read_text("utf-8"))):
        name = found[1]
    return f"{name}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}"


def tidy(log: str) -> str:
    """A log fit to be kept: what start-up and steps say, without paths and addresses of the machine."""
    lines = []
    for line in log.splitlines():
        if any(f" [{source}" in line for source in KEPT):
            line = line.replace(str(ROOT), ".").replace(str(Path.home()), "~")
            line = re.sub(r"(tcp|ipc)://[^\s'\"]+", r"\1://...", line)
            lines.append(line if len(line) <= WIDEST else line[:WIDEST] + " [...]")
    return "\n".join(lines) + "\n"


def record(versions: dict[str, str], records: list[dict[str, Any]], logs: dict[str, str]) -> None:
    """Write the folder capture/."""
    made = {
        "command": COMMAND,
        "date": datetime.date.today().isoformat(),
        "hardware": processor(),
        "versions": versions,
    }
    engines.CAPTURE.mkdir(exist_ok=True)
    lines = [json.dumps(line) for line in (made, *records)]
    (engines.CAPTURE / "in_process.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name, log in logs.items():
        (engines.CAPTURE / f"{name}.log").write_text(tidy(log), encoding="utf-8")


def groups(iteration: Any) -> str:
    """The two groups of an iteration, in words."""
    _, requests, tokens, others, more = iteration
    return f"context {requests} requests {tokens:2} tokens, generation {others} requests {more:2} tokens"


def report(
    lab: ModuleType, records: list[dict[str, Any]], log: str, other: str, tokens: bool = True
) -> None:
    """Print what was found, vLLM's beside mini_vllm's; with `tokens` they are compared, too."""
    theirs = listening.to_events(records)
    ours = listening.to_events(engines.run_mini_vllm(engines.load_workload()))
    said, computed = lab.parse_iterations(log), lab.iterations_of(ours)
    s = listening.parse_startup(log)
    print(
        f"vLLM {s.version}: {s.num_kv_cache_tokens} tokens of KV cache, {s.max_concurrency:.2f} requests "
        f"of {s.max_model_len}, {s.max_num_batched_tokens} tokens a step"
    )
    for i, (a, b) in enumerate(zip(said, computed, strict=False)):
        same = "" if a == b else f"   <-- yours, from mini_vllm's events: {tuple(b)}"
        print(f"step {i + 1:2}: {groups(a)}{same}")
    print(f"iterations: vLLM logged {len(said)}, mini_vllm would have logged {len(computed)}")
    print(f"events: vLLM {len(theirs)}, mini_vllm {len(ours)}")
    print(f"first difference: {listening.first_difference(theirs, ours, tokens)}")
    print("one request of four tokens, core in a process of its own:")
    for i, iteration in enumerate(lab.parse_iterations(other), 1):
        print(f"step {i:2}: {groups(iteration)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--impl", default="solution", help="solution, starter or a file")
    parser.add_argument("--record", action="store_true", help="write the folder capture/")
    parser.add_argument(
        "--replay",
        action="store_true",
        help="read capture/ instead of starting vLLM; tokens are not compared",
    )
    parser.add_argument("--child", choices=["in_process", "busy_loop"], help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.out)
        return
    lab = load_lab(args.impl)
    if args.replay:
        records = engines.read_capture()[1]
        report(lab, records, engines.read_log("in_process"), engines.read_log("busy_loop"), False)
        return
    versions, records, log = in_process(args.impl)
    other = busy_loop(args.impl)
    report(lab, records, log, other)
    if args.record:
        record(versions, records, {"in_process": log, "busy_loop": other})


if __name__ == "__main__":
    run_script(main)
