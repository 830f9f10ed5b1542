"""Noon, stopped before its first step: a place for breakpoints in the scheduler.

    python phase-03-scheduler/scheduler_drill.py          mini_vllm
    python phase-03-scheduler/scheduler_drill.py vllm     vLLM's scheduler and KV cache manager

Eve, Fay, Gil and Hal ask as in the guide. No model runs: `both_schedulers.World` makes the tokens, and both
schedulers are the synchronous ones. At the prompt of the debugger `scheduler` and `manager` are names, the
same in both engines. EXERCISES.md has the drills.
"""

from __future__ import annotations

import bdb
import contextlib
import sys

from both_schedulers import CONFIG, World

from course.parity.decisions import mini_parts


def main() -> None:
    if "vllm" in sys.argv[1:]:
        from course.parity.record import vllm_parts

        world = World(vllm_parts(CONFIG))
    else:
        world = World(mini_parts(CONFIG))
    scheduler, manager = world.scheduler, world.manager  # noqa: F841
    breakpoint()  # noqa: T100
    for _ in range(25):
        world.step()


if __name__ == "__main__":
    with contextlib.suppress(bdb.BdbQuit):  # the debugger's `q`
        main()
