"""An engine with our four in its queue, stopped before its first step: a place for breakpoints.

    python phase-01-architecture/drill.py          mini_vllm
    python phase-01-architecture/drill.py vllm     real vLLM, its core in this process

Four batch slots, 16 tokens per step, six blocks of 16. At the prompt of the debugger `engine`, `scheduler`,
`runner` and `check_stop` are names, so that the same commands work in both: `b scheduler.schedule`,
`c`. EXERCISES.md has the drills.
"""

from __future__ import annotations

import bdb
import contextlib
import os
import sys
from typing import Any

from anna import EVERYBODY, PROMPTS, WANTED, ask, new_engine


def ours() -> tuple[Any, Any, Any, Any]:
    from mini_vllm.core.sched.utils import check_stop

    engine = new_engine(max_num_seqs=4, budget=16, blocks=6)
    ask(engine, *EVERYBODY)
    core = engine.engine_core
    return engine, core.scheduler, core.model_runner, check_stop


def theirs() -> tuple[Any, Any, Any, Any]:
    # With the core in another process no breakpoint of this one would ever be reached.
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    os.environ |= {"TORCH_COMPILE_DISABLE": "1"}
    import vllm
    from vllm.v1.core.sched.utils import check_stop
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    from mini_vllm.config.engine import DEFAULT_MODEL

    llm = vllm.LLM(
        str(DEFAULT_MODEL),
        dtype="float32",
        enforce_eager=True,
        block_size=16,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        max_model_len=96,  # what six blocks can hold
        num_gpu_blocks_override=7,
        # As a class: the CPU platform makes a worker process of the word "uni".
        distributed_executor_backend=UniProcExecutor,
    )
    for name in EVERYBODY:
        params = vllm.SamplingParams(temperature=0, max_tokens=WANTED[name], ignore_eos=True)
        llm.llm_engine.add_request(name, PROMPTS[name], params)
    core: Any = llm.llm_engine.engine_core
    core = core.engine_core
    runner = core.model_executor.driver_worker.model_runner
    return llm.llm_engine, core.scheduler, runner, check_stop


def main() -> None:
    engine, scheduler, runner, check_stop = theirs() if "vllm" in sys.argv[1:] else ours()  # noqa: RUF059
    breakpoint()  # noqa: T100
    while engine.has_unfinished_requests():
        engine.step()


if __name__ == "__main__":
    with contextlib.suppress(bdb.BdbQuit):  # the debugger's `q`
        main()
