"""Given: your file in both engines, with a pool so small that requests are preempted.

python in_both.py [solution | starter]   `mini_vllm`, and vLLM 0.22.1 where it is installed
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from course.learner.labs import load_module

for name, value in (
    ("VLLM_LOGGING_LEVEL", "ERROR"),
    ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
    ("VLLM_CPU_KVCACHE_SPACE", "1"),
    ("TORCH_COMPILE_DISABLE", "1"),
):
    os.environ.setdefault(name, value)

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_09_05_support")


def compare(engine: str, processor: Any, ahead: bool, asked: Any, expected: Any) -> tuple[int, int]:
    """How often somebody was preempted, and how many requests got other tokens than alone."""
    llm = support.make_llm(engine, processor, support.SMALL_POOL, async_scheduling=ahead)
    preempted = support.count_preemptions(llm)
    got = support.answers(llm, asked)
    return len(preempted), sum(mine != right for mine, right in zip(got, expected, strict=True))


def main(which: str = "starter") -> None:
    engines = {"mini_vllm": "mini_vllm.sample.logits_processor"}
    if importlib.util.find_spec("vllm"):
        engines["vllm"] = "vllm.v1.sample.logits_processor"
    asked = support.make_requests(24)
    expected = support.expected_answers(asked)
    print("24 requests          scheduling  preemptions  wrong, ported  wrong, wrapped V0")
    for engine, interface in engines.items():
        importlib.import_module(engine)
        lab = load_module(HERE / f"{which}.py", f"lab_09_05_{engine}")
        wrapped = support.wrapped_v0(importlib.import_module(interface))
        # On a CPU vLLM schedules synchronously, whatever it is asked for.
        for ahead in (False,) if engine == "vllm" else (False, True):
            preempted, ported = compare(engine, lab.SayAfter, ahead, asked, expected)
            _, v0 = compare(engine, wrapped, ahead, asked, expected)
            how = "async" if ahead else "sync"
            print(f"{engine:<20} {how:<11} {preempted:>11} {ported:>14} {v0:>18}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:2])
