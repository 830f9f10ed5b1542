"""Generated tokens a second on the shipped mixture of experts, as `benchmarks.generate` measures them.

    python -m benchmarks.moe [--save]

`mini_vllm` runs twice: grouped, its default, where an expert's tokens are neighbours, and in the form to
read, expert by expert with a mask (`reference_experts`). Beside it vLLM's CPU backend, eager and compiled,
and Hugging Face's `generate`, at 1, 16 and 64 requests. Where vLLM's grouped kernel does not apply (no
AVX-512, or AMX), a mixture dies in vLLM at its first forward and vLLM is left out (docs/FOUND_IN_VLLM.md, 6).
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from benchmarks import generate, machine
from mini_vllm.layers.fused_moe import layer as moe_layer
from mini_vllm.layers.fused_moe.fused_moe import reference_experts
from mini_vllm.utils.blas import faster_core_type

MODEL = Path(__file__).parent.parent / "mini_vllm" / "checkpoints" / "tiny-mixtral"


def reference_worker(model: str) -> generate.Generate:
    """The engine with the plain experts."""
    setattr(moe_layer, "fused_experts", reference_experts)  # noqa: B010
    return generate.mini_worker(model)


generate.WORKERS["mini_vllm, reference"] = reference_worker


def vllm_runs_mixtures() -> bool:
    """Whether vLLM is installed, and has its grouped kernel for float32 on this processor."""
    info = Path("/proc/cpuinfo")
    flags = info.read_text(encoding="utf-8").split() if info.is_file() else []
    fits = "avx512f" in flags and "amx_tile" not in flags  # with AMX it takes bfloat16 alone
    return fits and importlib.util.find_spec("vllm") is not None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worker", choices=list(generate.WORKERS), help=argparse.SUPPRESS)
    parser.add_argument("--model", default=str(MODEL), help="checkpoint folder (the shipped one)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds after the warm-up (3)")
    parser.add_argument("--input-len", type=int, default=64, help="prompt tokens (64)")
    parser.add_argument("--output-len", type=int, default=128, help="output tokens (128)")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/moe.json")
    args = parser.parse_args(argv)
    if args.worker:
        return generate.worker_main(args.worker, args.model)
    names = ["mini_vllm", "mini_vllm, reference"]
    if vllm_runs_mixtures():
        names += ["vLLM eager", "vLLM compiled"]
    if importlib.util.find_spec("transformers") is not None:
        names.append("HF")
    core_type = faster_core_type()
    if core_type is not None:
        print(f"mini_vllm with OPENBLAS_CORETYPE={core_type}", file=sys.stderr)
    rows = generate.measure(
        names,
        args.model,
        args.rounds,
        args.input_len,
        args.output_len,
        core_type,
        "benchmarks.moe",
        64,
    )
    print(machine.table(rows))
    if args.save:
        command = (
            f"python -m benchmarks.moe --input-len {args.input_len} --output-len {args.output_len}"
        )
        print(machine.save("moe", command, rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
