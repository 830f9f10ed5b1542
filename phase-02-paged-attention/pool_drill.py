"""Ada, Bo and Cy, stopped before their first step: a place for breakpoints in the block pool.

    python phase-02-paged-attention/pool_drill.py          mini_vllm
    python phase-02-paged-attention/pool_drill.py vllm     vLLM's scheduler and KV cache manager

Nine blocks of four tokens. Ada wants 4 tokens of answer, Bo 9, Cy 3; before the fifth step Dov comes with 16
tokens of his own. No model runs: `both_pools.World` makes the tokens. At the prompt of the debugger
`scheduler`, `manager` and `pool` are names, the same in both engines. EXERCISES.md has the drills.
"""

from __future__ import annotations

import bdb
import contextlib
import sys

from both_pools import CONFIG, PROMPTS, World

from course.parity.decisions import mini_parts


def main() -> None:
    if "vllm" in sys.argv[1:]:
        from course.parity.record import vllm_parts

        world = World(vllm_parts(CONFIG))
    else:
        world = World(mini_parts(CONFIG))
    for name, max_tokens in {"ada": 4, "bo": 9, "cy": 3}.items():
        world.ask(name, PROMPTS[name], max_tokens)
    scheduler, manager, pool = world.scheduler, world.manager, world.pool  # noqa: F841
    breakpoint()  # noqa: T100
    for number in range(1, 10):
        if number == 5:
            world.ask("dov", range(60, 76), max_tokens=2)
        world.step()


if __name__ == "__main__":
    with contextlib.suppress(bdb.BdbQuit):  # the debugger's `q`
        main()
