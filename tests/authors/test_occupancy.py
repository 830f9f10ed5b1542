"""`tracks/occupancy.py` says what NVIDIA's own calculation says, which Triton brings as a C header."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module

occupancy = load_module(ROOT / "tracks" / "occupancy.py", "tracks_occupancy")
PROGRAM = """
#include <limits.h>
#include <stdio.h>
#include "cuda_occupancy.h"

int main(void) {
    int major, warps, sm_warps, registers;
    size_t shared, sm_shared, reserved;
    while (scanf("%d %d %d %d %zu %zu %zu", &major, &sm_warps, &warps, &registers, &shared, &sm_shared,
                 &reserved) == 7) {
        cudaOccDeviceProp card = {0};
        card.computeMajor = major;
        card.computeMinor = major == 7 ? 5 : 0;
        card.maxThreadsPerBlock = 1024;
        card.maxThreadsPerMultiprocessor = 32 * sm_warps;
        card.regsPerBlock = card.regsPerMultiprocessor = 65536;
        card.warpSize = 32;
        card.sharedMemPerBlock = 49152;
        card.sharedMemPerMultiprocessor = sm_shared;
        card.sharedMemPerBlockOptin = sm_shared - reserved;
        card.reservedSharedMemPerBlock = reserved;
        card.numSms = 1;
        cudaOccFuncAttributes kernel = {0};
        kernel.maxThreadsPerBlock = INT_MAX;
        kernel.numRegs = registers;
        kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        kernel.maxDynamicSharedSizeBytes = sm_shared - reserved;
        kernel.numBlockBarriers = 1;
        cudaOccDeviceState state = {0};
        state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
        cudaOccResult result;
        if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &card, &kernel, &state, 32 * warps, shared))
            return 1;
        printf("%d %d %d %d %d\\n", result.blockLimitRegs, result.blockLimitSharedMem,
               result.blockLimitWarps, result.blockLimitBlocks, result.activeBlocksPerMultiprocessor);
    }
    return 0;
}
"""
KERNELS = [
    occupancy.Compiled(gpu, warps, registers, shared)
    for gpu, warps, registers, shared in itertools.product(
        occupancy.HOLDS,
        (1, 2, 4, 8, 16),
        (16, 31, 32, 34, 40, 80, 96, 108, 117, 128),
        (1, 1024, 2048, 12928, 21632, 24576, 39168, 48 * 1024, 60_000),
    )
]


@pytest.mark.triton
def test_it_is_what_nvidias_header_computes(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    spec = importlib.util.find_spec("triton")
    assert spec is not None
    assert spec.origin is not None
    include = Path(spec.origin).parent / "backends" / "nvidia" / "include"
    (tmp_path / "ask.c").write_text(PROGRAM, "utf-8")
    built = [compiler, "-O1", "-w", f"-I{include}", "ask.c", "-o", "ask"]
    subprocess.run(built, cwd=tmp_path, check=True)

    def question(one: occupancy.Compiled) -> str:  # type: ignore[name-defined]
        holds = occupancy.HOLDS[one.gpu]
        major = int(one.gpu.removeprefix("sm_")) // 10
        card = f"{one.shared} {holds.shared} {holds.reserved}"
        return f"{major} {holds.warps} {one.warps} {one.registers} {card}"

    asked = "\n".join(map(question, KERNELS))
    answer = subprocess.run(
        [tmp_path / "ask"], input=asked, capture_output=True, text=True, check=True
    ).stdout
    theirs = [tuple(map(int, line.split())) for line in answer.splitlines()]
    ours = [(*occupancy.limits(one).values(), occupancy.resident(one)) for one in KERNELS]
    assert ours == theirs


@pytest.mark.torch
@pytest.mark.triton
def test_the_page_shows_what_the_compiler_makes() -> None:
    """Its two outputs, but for the words around the table: the same versions make the same code."""
    lab = "phase-04-attention-backends/labs/lab-06-split-kv-decode/solution.py"
    report = ["-m", "course", "kernel", lab, "--problem", "split-decode", "--judge", "compiled"]
    page = occupancy.PAGE.read_text("utf-8")
    for arguments in ([*report, "--no-vllm"], ["tracks/shared_layouts.py", lab, "split-decode"]):
        printed = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        ).stdout
        lines = [line.rstrip() for line in printed.splitlines() if "_kernel  " in line]
        assert lines
        assert "\n".join(lines) in page


def test_a_report_is_read_from_the_page() -> None:
    split = occupancy.reported("split_kernel", "sm_80")
    assert (split.warps, split.registers, split.shared) == (4, 80, 21632)
    with pytest.raises(LookupError, match="no report of split_kernel on sm_70"):
        occupancy.reported("split_kernel", "sm_70")


def test_a_pass_answers_each_bank_once() -> None:
    assert occupancy.passes(16) == 1  # eight pieces side by side: 128 bytes, all 32 banks
    assert occupancy.passes(128) == occupancy.passes(256) == 8
    assert occupancy.passes(256, swizzle=4) == 2
    assert occupancy.passes(256 + 16) == 1  # a padded row does it, too
