"""Given: what vLLM's attention backends allow in a graph, and what each mode becomes on them.

    python in_vllm.py              # the recorded levels
    python in_vllm.py --modes      # and what the five modes become
    python in_vllm.py --record     # asks vLLM, if it is installed, for three GPUs, and writes levels.json

Each backend's metadata builder says its level (`get_cudagraph_support`), for the shipped model's shape, and
`CompilationConfig.resolve_cudagraph_mode_and_sizes` lowers the mode. No GPU is needed: the stand-in of lab
04-04 tells vLLM which one it is on, in a process for each, because some levels are fixed when a module is
imported.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
RECORD = HERE / "levels.json"
COMMAND = "python phase-05-cuda-graphs/labs/lab-04-cudagraph-mode/in_vllm.py --record"
STAND_IN = "phase-04-attention-backends/labs/lab-04-backend-selection/cuda_stand_in.py"
GPUS = {"A100": (8, 0), "H100": (9, 0), "B200": (10, 0)}
BACKENDS = (
    "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT", "FLASH_ATTN_MLA",
    "FLASHMLA", "FLASHINFER_MLA", "CUTLASS_MLA", "TRITON_MLA", "CPU_ATTN",
)  # fmt: skip
MODES = ("FULL", "FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "PIECEWISE", "NONE")


def ask(gpu: str) -> dict[str, Any]:
    """The levels on one GPU and the modes that each leaves; once in a process."""
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    load_module(ROOT / STAND_IN, "lab_05_04_stand_in").stand_in().become(GPUS[gpu])
    import torch
    import vllm
    from vllm.config import CUDAGraphMode, set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    model = str(ROOT / "mini_vllm/checkpoints/tiny-llama")
    config = EngineArgs(model=model, dtype="float16", max_model_len=256).create_engine_config()
    spec = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=32, dtype=torch.float16)
    levels, modes = {}, {}
    compilation = config.compilation_config
    for name in BACKENDS:
        with set_current_vllm_config(config):
            builder = AttentionBackendEnum[name].get_class().get_builder_cls()
            level = builder.get_cudagraph_support(config, spec)
        levels[name] = level.name
        for mode in MODES:
            compilation.cudagraph_mode = CUDAGraphMode[mode]
            try:
                left = compilation.resolve_cudagraph_mode_and_sizes(level, name).name
            except ValueError:
                left = "an error"
            modes.setdefault(level.name, {})[mode] = left
    versions = {"vllm": vllm.__version__.split("+")[0], "torch": torch.__version__.split("+")[0]}
    return {"versions": versions, "levels": levels, "modes": modes}


def record() -> None:
    """Every GPU, each in its process, with how that was done."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    told = {}
    for gpu in GPUS:
        command = [sys.executable, __file__, "--one", gpu]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, check=True, cwd=ROOT
        )
        told[gpu] = json.loads(done.stdout.splitlines()[-1])
    modes: dict[str, dict[str, str]] = {}
    for one in told.values():
        modes |= one["modes"]
    kept = {
        "made": {
            "command": COMMAND,
            "date": datetime.date.today().isoformat(),
            "versions": told["A100"]["versions"] | {"python": platform.python_version()},
        },
        "levels": {gpu: one["levels"] for gpu, one in told.items()},
        "modes": modes,
    }
    RECORD.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def show(with_modes: bool) -> None:
    """A line for each backend, and with `with_modes` one for each level."""
    kept = json.loads(RECORD.read_text(encoding="utf-8"))
    print(f"{'':15} " + " ".join(f"{gpu:28}" for gpu in kept["levels"]).rstrip())
    for name in BACKENDS:
        levels = " ".join(f"{one[name]:28}" for one in kept["levels"].values())
        print(f"{name:15} {levels}".rstrip())
    for level, modes in kept["modes"].items() if with_modes else ():
        print(f"\n{level}")
        for asked, left in modes.items():
            print(f"  {asked:19} {'as asked' if left == asked else left}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modes", action="store_true", help="and what each mode becomes")
    parser.add_argument("--record", action="store_true", help=f"ask vLLM, write {RECORD.name}")
    parser.add_argument("--one", choices=GPUS, help="ask vLLM for one GPU, print JSON")
    args = parser.parse_args()
    if args.one:
        with contextlib.redirect_stdout(io.StringIO()):
            told = ask(args.one)
        print(json.dumps(told))
    elif args.record:
        record()
    else:
        show(args.modes)


if __name__ == "__main__":
    main()
