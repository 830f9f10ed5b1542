"""Lab 04-07: where a decode of real vLLM parts from the same decode beside others. On a CPU.

    python phase-04-attention-backends/labs/lab-07-greedy-yet-different/capture.py
    python phase-04-attention-backends/labs/lab-07-greedy-yet-different/capture.py --replay
    python phase-04-attention-backends/labs/lab-07-greedy-yet-different/capture.py --record

Ida's prompt of some 860 tokens is asked alone, and with the prompts of others. Every part of the model is
watched, in the prefill and in the first decode, and the first part is named whose result for her last row
has another bit. That is done in float32 and in bfloat16, as vLLM comes, without its CPU backend's split of
the keys, and with VLLM_BATCH_INVARIANT=1. `--record` writes vllm.json, which the tests read; `--replay`
reads it and starts nothing. Needs vLLM 0.22.1 (its CPU build will do), two cores or more, and some minutes.
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
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))  # the repository, where it is not installed

from course.learner.stubs import run_script  # noqa: E402

MODEL = ROOT / "mini_vllm" / "checkpoints" / "tiny-llama"
RECORD = HERE / "vllm.json"
COMMAND = f"python {Path(__file__).resolve().relative_to(ROOT)} --record"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCH_COMPILE_DISABLE": "1",
}
RUNS: dict[str, dict[str, str]] = {
    "as it comes": {},
    "VLLM_CPU_ATTN_SPLIT_KV=0": {"VLLM_CPU_ATTN_SPLIT_KV": "0"},
    "VLLM_BATCH_INVARIANT=1": {"VLLM_BATCH_INVARIANT": "1"},
}
BESIDE = (1, 3)
PAGES = ("phase-01-architecture/00-guide.md", "phase-02-paged-attention/00-guide.md")


def prompts() -> list[str]:
    """Ida's 860 characters of the course's guides, then others' of 864 and more. A character is a token."""
    text = " ".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    words = re.sub(r" +", " ", re.sub(r"[^A-Za-z0-9 ,.'?]+", " ", text))
    return [words[1000 * i : 1000 * i + 860 + 4 * i] for i in range(1 + max(BESIDE))]


def start(dtype: str) -> Any:
    """An engine in this process, which plans a step when the one before it is over."""
    from vllm import LLM
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    return LLM(
        str(MODEL),
        dtype=dtype,
        enforce_eager=True,
        block_size=16,
        max_model_len=1024,
        max_num_batched_tokens=4096,
        async_scheduling=False,
        distributed_executor_backend=UniProcExecutor,
    )


class Watch:
    """What each part of the model returned, step by step."""

    def __init__(self, llm: Any) -> None:
        worker = llm.llm_engine.model_executor.driver_worker.worker
        self.log: list[tuple[str, Any]] = []
        for name, part in worker.model_runner.model.named_modules():
            if name and not list(part.children()):
                part.register_forward_hook(self.hook(name))

    def hook(self, name: str) -> Any:
        def keep(_part: Any, _args: Any, out: Any) -> None:
            first = out[0] if isinstance(out, tuple) else out
            if hasattr(first, "detach"):
                self.log.append((name, first.detach().clone()))

        return keep

    def steps(self) -> list[dict[str, Any]]:
        """The log, cut where the embedding begins a new step."""
        cut: list[dict[str, Any]] = []
        for name, out in self.log:
            if name.endswith("embed_tokens") and "lm_head" not in name:
                cut.append({})
            cut[-1].setdefault(name, out)
        return cut


def ask(llm: Any, texts: list[str]) -> list[list[int]]:
    """Two tokens for each of `texts`, all at once, from an empty prefix cache."""
    from vllm import SamplingParams

    llm.reset_prefix_cache()
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    return [list(one.outputs[0].token_ids) for one in llm.generate(texts, params, use_tqdm=False)]


def watched(dtype: str) -> dict[str, Any]:
    """Prefill and first decode of Ida's prompt, alone against beside 1 and 3 others."""
    texts = prompts()
    llm = start(dtype)
    watch = Watch(llm)
    last = len(llm.get_tokenizer().encode(texts[0])) - 1
    runs, told = {}, {}
    for beside in (0, *BESIDE):
        watch.log = []
        told[beside] = ask(llm, texts[: beside + 1])[0]
        runs[beside] = watch.steps()
        rows = [len(next(iter(step.values()))) for step in runs[beside]]
        if len(rows) != 2 or rows[1] != beside + 1:
            raise RuntimeError(
                f"a prefill and a decode of {beside + 1} were wanted, rows are {rows}"
            )
    found: dict[str, Any] = {}
    for beside in BESIDE:
        for step, at in ((0, last), (1, 0)):
            name = f"{('prefill', 'decode')[step]}, {beside} beside her"
            found[name] = first_part(runs[0][step], runs[beside][step], at)
        found[f"tokens, {beside} beside her"] = [told[0], told[beside]]
    return found


def first_part(alone: dict[str, Any], beside: dict[str, Any], row: int) -> dict[str, Any]:
    """The first part with another bit in that row, how many parts have one, and how far the logits moved."""
    differ = []
    for name, out in alone.items():
        at = (
            0 if len(out) == 1 else row
        )  # of the logits there is one row a request, and hers is the first
        if not bool((out[at] == beside[name][at]).all()):
            differ.append(name)
    last = next(reversed(alone))
    moved = float((alone[last][0].float() - beside[last][0].float()).abs().max())
    return {
        "first": differ[0] if differ else None,
        "parts": len(alone),
        "differ": len(differ),
        "last": last,
        "logits_by": moved,
    }


def run(environment: dict[str, str], dtype: str) -> Any:
    """`watched` in a process of its own."""
    env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, __file__, "--child", dtype],
        env=env | ENVIRONMENT | environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"vLLM ended with {done.returncode}:\n{done.stderr[-3000:]}")
    [line] = [line for line in done.stdout.splitlines() if line.startswith("LAB ")]
    return json.loads(line[4:])


def child(dtype: str) -> dict[str, Any]:
    """One run, in this process."""
    import torch
    import vllm

    found = watched(dtype)
    versions = {"vllm": vllm.__version__, "torch": torch.__version__.partition("+")[0]}
    return {"versions": versions, "threads": torch.get_num_threads(), "found": found}


def processor() -> str:
    """The processor by its name, and how many cores it lends."""
    name = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists() and (found := re.search(r"model name\s*:\s*(.*)", info.read_text("utf-8"))):
        name = found[1]
    return f"{name}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}"


def capture() -> dict[str, Any]:
    """All runs, and how they were made."""
    record: dict[str, Any] = {
        "command": COMMAND,
        "date": datetime.date.today().isoformat(),
        "hardware": processor(),
        "runs": {},
    }
    for name, environment in RUNS.items():
        for dtype in ("float32", "bfloat16"):
            said = run(environment, dtype)
            record["versions"] = said["versions"] | {"python": platform.python_version()}
            record["threads"] = said["threads"]
            record["runs"][f"{name}, {dtype}"] = said["found"]
    return record


def show(record: dict[str, Any]) -> None:
    """A line for each step."""
    print(f"{record['threads']} threads, vLLM {record['versions']['vllm']}")
    for name, found in record["runs"].items():
        print(name)
        for where, said in found.items():
            if where.startswith("tokens"):
                continue
            first = said["first"] or "no part differs"
            by = f"{said['differ']} of {said['parts']} parts, logits by {said['logits_by']:.1e}"
            print(f"  {where:24}{first:34}{by if said['first'] else ''}".rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="write vllm.json")
    parser.add_argument("--replay", action="store_true", help="read vllm.json, start nothing")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print("LAB " + json.dumps(child(args.child)))
        return
    record = json.loads(RECORD.read_text(encoding="utf-8")) if args.replay else capture()
    if args.record:
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    show(record)


if __name__ == "__main__":
    run_script(main)
