"""What the compiler makes of the decode kernels, and the bytes they ask for: without a GPU.

    python -m benchmarks.attention_compiled [--save]

The first table: `mini_vllm`'s kernel and vLLM's Triton kernels, compiled ahead of time for four GPUs
at one decode step of Llama-3-8B (32 query heads over 8 KV heads of 128 numbers, float16, blocks of 16).
Registers are those of one thread; `loads` are the global loads of the main loop by their width in bits.

The second: bytes loaded and stored, against the least that the shape needs. One KV head of one sequence
of 16,384 tokens runs under Triton's interpreter, cut up as on an H100 with 16 such sequences of 8 KV
heads; the other heads and sequences are alike. A byte that one instruction fetches for many lanes counts
once.

`course.kernels` does the work; this file chooses what stands in the tables.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

from benchmarks import machine

CONTEXT, BATCH, KV_HEADS = 16_384, 16, 8
SHAPES = ((128, 1), (128, 4), (128, 8), (64, 1), (64, 4), (64, 8))  # head size, GQA
SEGMENTS = 16  # vLLM's NUM_PAR_SOFTMAX_SEGMENTS
COLUMNS = ("GPU", "kernel", "warps", "registers", "shared", "stack", "spills", "loads")


def compiled() -> list[dict[str, Any]]:
    """In a child: every kernel for every GPU."""
    import torch
    import triton
    from triton.runtime.jit import JITFunction

    from course.kernels import sass
    from course.kernels.compiled import SHARED, TOOLS, StandIn
    from course.kernels.problems import decode
    from mini_vllm.gpu.kernels.paged_decode import Plan, paged_decode, plan_decode

    case = decode.shape()
    query, key = case.inputs["query"], case.inputs["key_cache"]
    shape = (len(query), query.shape[1], key.shape[2], query.shape[2], 2, CONTEXT)
    rows = []
    for capability in SHARED:
        triton.runtime.driver.set_active(StandIn(capability))
        torch.cuda.get_device_capability = lambda device=None, c=capability: divmod(c, 10)
        plan = plan_decode(*shape, capability=capability)
        whole = Plan(plan.tile, plan.keys_per_split, 1)
        launches = {
            "mini_vllm": lambda p=whole: paged_decode(**case.inputs, plan=p),
            "mini_vllm, split": lambda p=plan: paged_decode(**case.inputs, plan=p),
            "vLLM 2D": lambda: decode.vllm(case, 0),
            "vLLM segmented": lambda: decode.vllm(case, SEGMENTS),
        }
        for name, launch in launches.items():
            # What a launch starts is compiled and never run. The second kernel of two merges.
            made: list[Any] = []
            run = JITFunction.run

            def compile_only(
                kernel: Any, *args: Any, to: Any = made, how: Any = run, **kw: Any
            ) -> Any:
                to.append(how(kernel, *args, **(kw | {"warmup": True})))
                return to[-1]

            JITFunction.run = compile_only
            try:
                launch()
            finally:
                JITFunction.run = run
            for binary, part in zip(made, ("", ", merge"), strict=False):
                code = sass.read(*sass.disassemble(binary.asm["cubin"], TOOLS))
                rows.append(
                    {
                        "GPU": f"sm_{capability}", "kernel": name + part,
                        "warps": binary.metadata.num_warps, "registers": code.registers,
                        "shared": binary.metadata.shared, "stack": code.stack,
                        "spills": code.spills, "instructions": code.instructions,
                        "tensor core": code.tensor_core,
                        "loads": " ".join(f"{n}x{width}" for width, n in code.loads.items()),
                        "wide": code.wide,
                    }
                )  # fmt: skip
    return rows


def traffic() -> list[dict[str, Any]]:
    """In a child, under the interpreter: bytes against the least, for each shape."""
    import torch

    from course.kernels import paged
    from course.kernels.record import Recorder
    from course.kernels.traffic import count
    from mini_vllm.gpu.kernels.paged_decode import Plan, paged_decode, plan_decode

    rows = []
    for head_size, group in SHAPES:
        spec = paged.Spec(
            (CONTEXT,), heads=group, kv_heads=1, head_size=head_size, dtype=torch.float16
        )
        drawn = paged.draw(spec)
        inputs = {
            "query": drawn.query, "key_cache": drawn.keys, "value_cache": drawn.values,
            "block_table": drawn.table, "seq_lens": drawn.seq_lens, "scale": drawn.scale,
        }  # fmt: skip
        plan = plan_decode(BATCH, group * KV_HEADS, KV_HEADS, head_size, 2, CONTEXT)
        whole = Plan(plan.tile, -(-CONTEXT // plan.tile) * plan.tile, 1)
        launches = {
            "mini_vllm": lambda i=inputs, p=whole: paged_decode(**i, plan=p),
            "mini_vllm, split": lambda i=inputs, p=plan: paged_decode(**i, plan=p),
        }
        if (head_size, group) == (128, 4):
            launches["vLLM 2D"] = lambda d=drawn: paged.unified_attention(d, 0)
            launches["vLLM segmented"] = lambda d=drawn: paged.unified_attention(d, SEGMENTS)
        least = sum(paged.least(spec).values())
        row: dict[str, Any] = {"head": head_size, "GQA": group, "least": least}
        for name, launch in launches.items():
            recorder = Recorder(inputs | {"out": None})
            with recorder.watching():
                launch()
            row[name] = count(recorder.accesses).total / least
        row["keys a split"] = plan.keys_per_split
        rows.append(row)
    return rows


def child(what: str) -> list[dict[str, Any]]:
    env = os.environ | {
        # Empty, not unset: vLLM then keeps its Triton kernels although there is no driver.
        "CUDA_VISIBLE_DEVICES": "",
        "TRITON_INTERPRET": "1" if what == "traffic" else "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks.attention_compiled",
        "--child",
        what,
    ]
    ran = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    rows: list[dict[str, Any]] = json.loads(ran.stdout.splitlines()[-1])
    return rows


def shown(rows: list[dict[str, Any]], names: tuple[str, ...]) -> str:
    """The columns `names` as a table; a ratio with three decimals."""
    cells = [
        {n: f"{row[n]:.3f}" if isinstance(row.get(n), float) else row.get(n) for n in names}
        for row in rows
    ]
    return machine.table(cells)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--child", choices=["compiled", "traffic"], help=argparse.SUPPRESS)
    parser.add_argument("--save", action="store_true", help="write results/attention_compiled.json")
    args = parser.parse_args(argv)
    if args.child:
        print(json.dumps(compiled() if args.child == "compiled" else traffic()))
        return 0
    rows, bytes_ = child("compiled"), child("traffic")
    print(shown(rows, COLUMNS))
    print("\nbytes loaded and stored, in multiples of the least")
    names = "mini_vllm", "mini_vllm, split", "vLLM 2D", "vLLM segmented"
    print(shown(bytes_, ("head", "GQA", "least", *names, "keys a split")))
    if args.save:
        command = "python -m benchmarks.attention_compiled"
        print(machine.save("attention_compiled", command, rows, bytes=bytes_))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
