"""Which client `LLM` gets, which processes there are, and what they cost while nobody asks.

    python phase-01-architecture/who_runs_where.py

Starts the real vLLM twice on the shipped checkpoint, with the core in a process of its own and
without. Needs vLLM.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

QUIET = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
}
IDLE_SECONDS = 5.0


def name(process: Any) -> str:
    """What vLLM calls a process of its own; None of Python's helpers."""
    line = " ".join(process.cmdline())
    return next((word for word in line.split() if word.startswith("VLLM::")), "")


def seconds(process: Any) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def look() -> None:
    """Start an engine, ask it once, and say what is there."""
    import psutil
    from vllm import LLM, SamplingParams

    from mini_vllm.config.engine import DEFAULT_MODEL

    llm = LLM(model=str(DEFAULT_MODEL), dtype="float32", enforce_eager=True, max_model_len=128)
    llm.generate("The KV cache", SamplingParams(temperature=0, max_tokens=6), use_tqdm=False)
    client = llm.llm_engine.engine_core
    core = getattr(client, "engine_core", None)
    here = "another process has it"
    if hasattr(core, "scheduler"):
        here = f"{type(core.scheduler).__name__}, an object of this process"
    print(f"  client     {type(client).__name__}")
    print(f"  scheduler  {here}")
    children = [p for p in psutil.Process().children(recursive=True) if name(p)]
    before = [seconds(process) for process in children]
    time.sleep(IDLE_SECONDS)
    for process, start in zip(children, before, strict=True):
        used = seconds(process) - start
        print(
            f"  process    {name(process):18} {used:.2f} s of processor time in {IDLE_SECONDS:.0f} idle s"
        )


def main() -> None:
    if "--look" in sys.argv:
        look()
        return
    for value in ("1", "0"):
        print(f"VLLM_ENABLE_V1_MULTIPROCESSING={value}")
        env = os.environ | QUIET | {"VLLM_ENABLE_V1_MULTIPROCESSING": value}
        command = [sys.executable, __file__, "--look"]
        done = subprocess.run(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        print("\n".join(line for line in done.stdout.splitlines() if line.startswith("  ")))


if __name__ == "__main__":
    main()
