"""Given: your rule in real vLLM on a CPU, with processes as stages. Needs vLLM 0.22.1.

    python in_vllm.py [solution | starter]   four requests together, without your rule and with it
    python in_vllm.py --record               write recorded.json, which the tests read

vLLM's scheduler is synchronous here, as on every CPU
(`vllm/platforms/cpu.py:135 in CpuPlatform.check_and_update_config`).

This file is also the module to name to a server, where it is on the path: `--scheduler-cls
in_vllm.SpreadScheduler`. `LAB_IMPL` says whose rule that is (solution).
"""

from __future__ import annotations

import json
import os
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from course.learner.labs import load_module, need_vllm

for name, value in (
    ("VLLM_LOGGING_LEVEL", "ERROR"),
    ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
    ("VLLM_CPU_KVCACHE_SPACE", "1"),
    ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
    ("OMP_NUM_THREADS", "1"),
    ("TORCH_COMPILE_DISABLE", "1"),
):
    os.environ.setdefault(name, value)

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))
support = load_module(HERE / "support.py", "lab_10_04_support")


def __getattr__(name: str) -> Any:
    """`SpreadScheduler`, made when vLLM asks for it."""
    if name != "SpreadScheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vllm.v1.core.sched.scheduler import Scheduler

    lab = load_module(
        HERE / f"{os.environ.get('LAB_IMPL', 'solution')}.py", "lab_10_04_in_vllm_lab"
    )
    return support.make_scheduler(Scheduler, lab.hold_back)


def server(work: Any) -> tuple[int, int, int]:
    """What makes another engine necessary."""
    return work.stages, work.max_num_seqs, work.max_num_batched_tokens


def play_all(works: dict[str, Any], spread: bool = False) -> dict[str, Any]:
    """What real vLLM does with each workload, with `LAB_IMPL`'s rule or by itself; an engine per server."""
    import vllm

    from mini_vllm.config.engine import DEFAULT_MODEL

    found = {}
    ordered = sorted(works.items(), key=lambda item: server(item[1]))
    for (stages, *_), group in groupby(ordered, lambda item: server(item[1])):
        named = list(group)
        rule = {"scheduler_cls": "in_vllm.SpreadScheduler"} if spread else {}
        llm = vllm.LLM(
            str(DEFAULT_MODEL),
            dtype="float32",
            enforce_eager=True,
            pipeline_parallel_size=stages,
            distributed_executor_backend="mp",
            num_gpu_blocks_override=128,
            **support.settings(named[0][1]),
            **rule,
        )
        core: Any = llm.llm_engine.engine_core
        inner = core.engine_core
        for name, work in named:
            # As a server does between two requests: nothing in flight, nothing to tell the workers.
            while inner.batch_queue or inner.scheduler.has_requests():
                inner.step_fn()
            found[name] = support.serve(
                llm.llm_engine,
                inner.scheduler,
                lambda inner=inner: len(inner.batch_queue),
                vllm.SamplingParams,
                work,
            )
        inner.shutdown()
        del llm, core, inner
    return found


def main(which: str = "starter") -> None:
    need_vllm()
    if which == "--record":
        played = play_all(support.WORKLOADS)
        lines = ",\n".join(
            f'"{name}":{json.dumps(support.as_json(work, played[name]), separators=(",", ":"))}'
            for name, work in support.WORKLOADS.items()
        )
        support.RECORDED.write_text(f'{{"vllm":"0.22.1","played":{{\n{lines}\n}}}}\n', "utf-8")
        return
    os.environ["LAB_IMPL"] = which
    works = {name: support.WORKLOADS[name] for name in ("four", "four unequal")}
    alone, ruled = play_all(works), play_all(works, spread=True)
    for name in works:
        for what, played in (("by itself", alone[name]), ("with your rule", ruled[name])):
            print(
                f"{name:13} {what:15} {len(played.schedules):2} schedules, {played.empty:2} of them empty"
            )
        same = alone[name].tokens == ruled[name].tokens
        print(f"{name:13} tokens {'equal' if same else 'DIFFER'}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
