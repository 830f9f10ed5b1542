"""Scripts that import vLLM, each in a process of its own, and what its kernels can do on this processor."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engine.helpers.real_vllm import warm

ROOT = Path(__file__).resolve().parents[4]
NO_FOUR_BITS = (
    "vLLM's CPU build has its 4-bit kernel (cpu_gemm_wna16) for processors with AVX-512 only; the extension "
    "that it loads on this one lacks it"
)
NO_FP8_CACHE = "vLLM's CPU build attends to a cache in FP8 on processors with AVX-512 or AMX only"
SATURATES = (
    "vLLM's int8 product is wrong on this processor: without VNNI oneDNN adds two products in 16 bits "
    "(phase-06-quantization/int8_saturation.py)"
)


@dataclass(frozen=True)
class CpuKernels:
    """vLLM's kernels for quantised linears, on this processor.

    Attributes:
        four_bits: is there one for 4-bit weights?
        exact_int8: does the one for int8 give the exact sums?
        fp8_cache: does its attention read a KV cache in FP8?
    """

    four_bits: bool
    exact_int8: bool
    fp8_cache: bool


@functools.cache
def cpu_kernels() -> CpuKernels:
    """Asked of vLLM once, in a process of its own."""
    printed = output_of(ROOT / "tests/engine/helpers/real_vllm/vllm_cpu_kernels.py")
    return CpuKernels(**json.loads(printed.splitlines()[-1]))


def skip_unless_right(bits: int) -> None:
    """Skip the test where vLLM has no kernel for weights of 4 bits, or none for 8 that is right."""
    if bits == 4 and not cpu_kernels().four_bits:
        pytest.skip(NO_FOUR_BITS)
    if bits == 8 and not cpu_kernels().exact_int8:
        pytest.skip(SATURATES)


def output_of(*command: object, **environment: str) -> str:
    """What a Python script prints that is started in the repository's root, in a process of its own.

    Variables of vLLM, torch and Triton's interpreter are not handed on: other tests of this process may
    have set some. `environment` is set on top.
    """
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("VLLM_", "TORCH", "TRITON_INTERPRET"))
    }
    env |= {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    env |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind"} | environment
    arguments = [str(part) for part in command]
    if warm.fits(arguments, env):
        done = warm.run(arguments, env)
    else:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def read_by_vllm(
    root: Path, folders: list[Path], products: bool = False
) -> dict[str, dict[str, Any] | str]:
    """What vLLM's reader makes of checkpoint folders, by their names; see `files_vllm_child.py`. `root` is a
    place for the job."""
    job = {"folders": [str(folder) for folder in folders], "products": products}
    (root / "job.json").write_text(json.dumps(job))
    child = ROOT / "tests/engine/helpers/models/files_vllm_child.py"
    printed = output_of(child, root / "job.json", VLLM_CPU_KVCACHE_SPACE="1")
    answers = json.loads(printed.strip().splitlines()[-1])
    return {folder.name: answer for folder, answer in zip(folders, answers, strict=True)}


class Forking:
    """Stands for the module `subprocess` in a lab's script that starts itself, so that it is forked too."""

    PIPE, STDOUT = subprocess.PIPE, subprocess.STDOUT

    @staticmethod
    def run(
        command: list[str], env: dict[str, str], **how: Any
    ) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run`, with texts; standard error stands behind standard output, not among it."""
        env = env | {"PYTHONPATH": str(ROOT), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        if not warm.fits(command[1:], env):
            return subprocess.run(command, env=env, **how)
        done = warm.run(command[1:], env)
        if how.get("stderr") == subprocess.STDOUT:
            done.stdout += done.stderr
        return done
