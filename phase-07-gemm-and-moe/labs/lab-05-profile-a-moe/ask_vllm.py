"""Profile real vLLM on the shipped Mixtral, on a CPU, and keep what its trace says.

    python ask_vllm.py               # all of it anew (two minutes), printed
    python ask_vllm.py --record      # and kept: profile.json, and step.trace.json for Perfetto
    python ask_vllm.py --one DIR     # one profile of 16 requests, its whole trace in DIR (an absolute path)

Needs vLLM 0.22.1, its CPU build, and a processor with AVX-512: without, a SiLU mixture dies at its first
forward (docs/FOUND_IN_VLLM.md, 6).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.append(str(ROOT))  # the repository, where it is not installed

from course.learner.labs import load_module  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402

MODEL = ROOT / "mini_vllm" / "checkpoints" / "tiny-mixtral"
RECORD, TRACE = HERE / "profile.json", HERE / "step.trace.json"
COMMAND = f"python {Path(__file__).resolve().relative_to(ROOT)} --record"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}  # fmt: skip
BATCHES, PROMPT, STEPS = (1, 16, 64), 16, 9
"""Requests, tokens of each prompt, and steps: one prefill and eight decodes."""
LAYERS, EXPERTS = 4, 8


def start(folder: str | None) -> Any:
    """An engine whose profiler writes into `folder`; without one it has none."""
    from vllm import LLM
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    profiler = {
        "profiler": "torch", "torch_profiler_dir": folder, "torch_profiler_with_stack": False,
        "torch_profiler_record_shapes": True, "torch_profiler_use_gzip": False,
    }  # fmt: skip
    return LLM(
        str(MODEL), dtype="float32", enforce_eager=True, block_size=16, max_model_len=512,
        max_num_batched_tokens=2048, enable_prefix_caching=False, async_scheduling=False,
        distributed_executor_backend=UniProcExecutor, **({"profiler_config": profiler} if folder else {}),
    )  # fmt: skip


def generate(llm: Any, requests: int, steps: int = STEPS) -> None:
    """Prompts that differ, greedy."""
    from vllm import SamplingParams

    pages = (ROOT / "phase-01-architecture" / "00-guide.md").read_text(encoding="utf-8").encode()
    prompts = [
        {"prompt_token_ids": [1, *(8 + byte for byte in pages[100 * i : 100 * i + PROMPT - 1])]}
        for i in range(requests)
    ]
    wanted = SamplingParams(temperature=0, max_tokens=steps, ignore_eos=True)
    llm.generate(prompts, wanted, use_tqdm=False)


def profiled(llm: Any, folder: str, requests: int) -> dict[str, Any]:
    """The trace of one run, as JSON."""
    before = set(Path(folder).glob("*.json"))
    llm.start_profile()
    generate(llm, requests)
    llm.stop_profile()
    [file] = set(Path(folder).glob("*.json")) - before
    trace: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return trace


def inside() -> dict[str, Any]:
    """In this process: a profile for each batch, and which experts each step's tokens go to."""
    from vllm.model_executor.layers.fused_moe import cpu_fused_moe

    touched: list[int] = []
    plain = cpu_fused_moe.select_experts

    def tapped(*args: Any, **named: Any) -> Any:
        weights, ids = plain(*args, **named)
        touched.append(len(ids.unique()))
        return weights, ids

    lab = load_module(HERE / "solution.py", "lab_07_05_solution")
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        llm = start(folder)
        for requests in BATCHES:
            generate(llm, requests)  # warm
            cpu_fused_moe.select_experts = tapped
            touched.clear()
            generate(llm, requests)
            cpu_fused_moe.select_experts = plain
            trace = profiled(llm, folder, requests)
            steps = lab.steps_of(trace)
            assert len(steps) == STEPS, [step.name for step in steps]
            decodes = steps[1:]
            selfs = [lab.self_times(step.events) for step in decodes]
            names = {name for one in selfs for name in one}
            middle = {
                name: statistics.median(one.get(name, 0.0) for one in selfs) for name in names
            }
            told[str(requests)] = {
                "step": statistics.median(step.duration for step in decodes),
                "operators": statistics.median(sum(one.values()) for one in selfs),
                "events": len(decodes[0].events),
                "self": {name: round(us, 1) for name, us in sorted(middle.items(), key=lambda x: -x[1])[:12]},
                "calls": dict(Counter(event.name for event in decodes[0].events).most_common()),
                "touched": touched[LAYERS:],
            }  # fmt: skip
            if requests == 16:
                median = sorted(steps[1:], key=lambda step: float(step.duration))[len(decodes) // 2]
                told["trace"] = cut(trace, median)
    return told


def cut(trace: dict[str, Any], step: Any) -> dict[str, Any]:
    """One step of a trace, with times from its start, and no more arguments than the shapes."""
    kept = []
    for event in trace["traceEvents"]:
        if event.get("ph") != "X" or event.get("cat") not in ("cpu_op", "user_annotation"):
            continue
        if not step.start <= event["ts"] < step.start + step.duration:
            continue
        dims = [one for one in event.get("args", {}).get("Input Dims", []) if one]
        args = {"Input Dims": dims} if re.match("_C|vllm", event["name"]) and dims else {}
        kept.append(
            {
                "ph": "X", "cat": event["cat"], "name": event["name"], "pid": 1, "tid": 1,
                "ts": round(event["ts"] - step.start, 3), "dur": round(event["dur"], 3),
            } | ({"args": args} if args else {})
        )  # fmt: skip
    return {"displayTimeUnit": "ms", "traceEvents": kept}


def outside() -> int:
    """Products that a profiler around `generate` sees, in the process that calls it."""
    import torch

    llm = start(None)
    generate(llm, 1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        generate(llm, 1)
    return sum("onednn_mm" in event.name for event in seen.events())


def child(what: str, **more: str) -> Any:
    """This script in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", what],
        env=os.environ | ENVIRONMENT | more,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    [line] = [one for one in done.stdout.splitlines() if one.startswith("TOLD")]
    return json.loads(line[4:])


def show(found: dict[str, Any]) -> None:
    """A table per batch, the longest operators first."""
    for requests in BATCHES:
        row = found["batches"][str(requests)]
        print(
            f"{requests} decode: a step of {row['step'] / 1e3:.2f} ms, {row['events']} operators in "
            f"{row['operators'] / 1e3:.2f} ms"
        )
        for name, us in list(row["self"].items())[:6]:
            share = us / row["operators"]
            print(f"  {name:40}{row['calls'].get(name, 0):5} calls{us:8.0f} us{share:7.0%}")
    for name, count in found["outside"].items():
        print(f"products seen by a profiler around generate, {name}: {count}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--record", action="store_true", help="write profile.json and step.trace.json"
    )
    parser.add_argument("--replay", action="store_true", help="read profile.json, start nothing")
    parser.add_argument("--one", metavar="DIR", help="one profile, left in DIR")
    parser.add_argument("--child", choices=("inside", "outside", "one"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child in ("inside", "outside"):
        print("TOLD" + json.dumps(inside() if args.child == "inside" else outside()))
        return
    if args.replay:
        show(json.loads(RECORD.read_text(encoding="utf-8")))
        return
    if args.one:
        os.environ |= ENVIRONMENT | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        llm = start(args.one)
        generate(llm, 16)
        profiled(llm, args.one, 16)
        print(f"open the newest file of {args.one} at ui.perfetto.dev")
        return
    batches = child("inside", VLLM_ENABLE_V1_MULTIPROCESSING="0")
    trace = batches.pop("trace")
    found: dict[str, Any] = {
        "batches": batches,
        "outside": {
            "as it comes": child("outside"),
            "in one process": child("outside", VLLM_ENABLE_V1_MULTIPROCESSING="0"),
        },
    }
    if args.record:
        from importlib.metadata import version

        [capture] = ROOT.glob("phase-04*/labs/lab-07*/capture.py")
        versions = {
            "python": platform.python_version(),
            "torch": version("torch"),
            "vllm": "0.22.1",
        }
        found = {
            "command": COMMAND, "date": datetime.date.today().isoformat(), "versions": versions,
            "hardware": load_module(capture, "lab_04_07_capture_for_05").processor(),
        } | found  # fmt: skip
        RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        lines = ",\n".join(json.dumps(event) for event in trace["traceEvents"])
        TRACE.write_text(f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n', "utf-8")
    show(found)


if __name__ == "__main__":
    run_script(main)
