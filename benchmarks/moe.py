"""Generated tokens a second of a mixture of experts: `mini_vllm` beside vLLM on the CPU, and transformers.

    python -m benchmarks.moe [--save]

`benchmarks.generate` on the shipped tiny Mixtral, with one engine more: `mini_vllm` whose experts compute
one after the other (`reference_experts`), which says what sorting the rows by expert is worth. Where
vLLM's grouped kernel does not apply, its plain mixture runs, with the fault lifted that ends it
(FOUND_IN_VLLM.md, 6).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import generate, machine
from benchmarks.generate import Generate
from mini_vllm.utils.blas import faster_core_type

MODEL = Path(__file__).parent.parent / "mini_vllm" / "checkpoints" / "tiny-mixtral"
PLAIN = "mini_vllm plain"


def plain_worker(model: str) -> Generate:
    from mini_vllm.layers.fused_moe import fused_moe, layer

    vars(layer)["fused_experts"] = fused_moe.reference_experts
    return generate.mini_worker(model)


def vllm_worker(model: str, enforce_eager: bool) -> Generate:
    """vLLM in two processes, as it is served; the core is forked, so that it has what is lifted here."""
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    from tests.engine.helpers.moe_parity import lift_the_fault

    lift_the_fault()
    return generate.vllm_worker(model, enforce_eager)


def eager_worker(model: str) -> Generate:
    return vllm_worker(model, enforce_eager=True)


def compiled_worker(model: str) -> Generate:
    return vllm_worker(model, enforce_eager=False)


WORKERS: dict[str, Callable[[str], Generate]] = {
    "mini_vllm": generate.mini_worker,
    PLAIN: plain_worker,
    "vLLM eager": eager_worker,
    "vLLM compiled": compiled_worker,
    "HF": generate.hf_worker,
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worker", choices=list(WORKERS), help=argparse.SUPPRESS)
    parser.add_argument("--model", default=str(MODEL), help="checkpoint folder (the tiny Mixtral)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds after the warm-up (5)")
    parser.add_argument("--input-len", type=int, default=64, help="prompt tokens (64)")
    parser.add_argument("--output-len", type=int, default=128, help="output tokens (128)")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/moe.json")
    args = parser.parse_args(argv)
    if args.worker:
        generate.WORKERS |= WORKERS
        return generate.worker_main(args.worker, args.model)
    names = ["mini_vllm", PLAIN]
    if importlib.util.find_spec("vllm") is not None:
        names += ["vLLM eager", "vLLM compiled"]
    if importlib.util.find_spec("transformers") is not None:
        names.append("HF")
    core_type = faster_core_type()
    if core_type is not None:
        print(f"mini_vllm with OPENBLAS_CORETYPE={core_type}", file=sys.stderr)
    lengths = args.input_len, args.output_len
    rows = generate.measure(
        names, args.model, args.rounds, *lengths, core_type, module="benchmarks.moe"
    )
    print(machine.table(rows))
    if args.save:
        command = (
            f"python -m benchmarks.moe --input-len {args.input_len} --output-len {args.output_len}"
        )
        print(machine.save("moe", command, rows, core_type=core_type or "default"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
