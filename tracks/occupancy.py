"""From a report of `course kernel` to programs on a multiprocessor, waves, and banks. Arithmetic, no GPU.

The limits are those of NVIDIA's CUDA C++ Programming Guide, table "Technical Specifications per Compute
Capability"; how registers and shared memory are handed out is NVIDIA's `cuda_occupancy.h`, which Triton
brings along (`triton/backends/nvidia/include`). `tests/authors/test_occupancy.py` compiles that file and
holds this one against it.

The page `why-is-my-kernel-slow.md` imports this module by its name: start Python in this folder.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parent / "why-is-my-kernel-slow.md"
RESULT = PAGE.parents[1] / "benchmarks" / "results" / "attention_compiled.json"
THREADS = 32
"""Threads of a warp."""
REGISTERS = 65_536
"""Registers of a multiprocessor, 32 bits each: 16,384 for each of its four quarters."""
QUARTERS = 4
REGISTER_UNIT = 256
"""A warp gets its registers in units of this many."""
BANKS, BANK_BYTES = 32, 4
"""Of shared memory: each bank answers once a cycle, and neighbouring words are in neighbouring banks."""
SMS = {"A100": 108, "H100": 132}
"""Multiprocessors: NVIDIA's white papers on the A100 (2020) and the H100 SXM5 (2022)."""


@dataclass(frozen=True)
class Multiprocessor:
    """What one multiprocessor can hold.

    Attributes:
        warps: resident at once.
        programs: resident at once ("thread blocks").
        shared: bytes of shared memory for all programs together.
        reserved: bytes of it that the driver takes for each program.
        unit: a program gets its shared memory in units of this many bytes.
    """

    warps: int
    programs: int
    shared: int
    reserved: int
    unit: int


HOLDS = {
    "sm_75": Multiprocessor(warps=32, programs=16, shared=64 * 1024, reserved=0, unit=256),
    "sm_80": Multiprocessor(warps=64, programs=32, shared=164 * 1024, reserved=1024, unit=128),
    "sm_90": Multiprocessor(warps=64, programs=32, shared=228 * 1024, reserved=1024, unit=128),
    "sm_100": Multiprocessor(warps=64, programs=32, shared=228 * 1024, reserved=1024, unit=128),
}


@dataclass(frozen=True)
class Compiled:
    """A line of a report: what one kernel became on one architecture."""

    gpu: str
    warps: int
    registers: int
    shared: int


def reported(kernel: str, gpu: str, page: Path = PAGE) -> Compiled:
    """The line of `kernel` on `gpu` in the report that `page` shows, so that no figure is typed twice."""
    current = ""
    for line in page.read_text("utf-8").splitlines():
        if match := re.match(r"(sm_\d+)?\s+yours (\w+)\s+(\d+)\s+(\d+)\s+(\d+)\s", line):
            current = match[1] or current
            if (match[2], current) == (kernel, gpu):
                return Compiled(gpu, *map(int, match.groups()[2:]))
    raise LookupError(f"{page.name} shows no report of {kernel} on {gpu}")


def benchmarked(kernel: str, gpu: str) -> Compiled:
    """A kernel of the engine's or vLLM's, as `python -m benchmarks.attention_compiled` found it."""
    rows = json.loads(RESULT.read_text("utf-8"))["rows"]
    [row] = [row for row in rows if (row["kernel"], row["GPU"]) == (kernel, gpu)]
    return Compiled(gpu, row["warps"], row["registers"], row["shared"])


def round_up(number: int, unit: int) -> int:
    return math.ceil(number / unit) * unit


def limits(one: Compiled) -> dict[str, int]:
    """How many programs of `one` a multiprocessor can hold at once, as far as each resource goes."""
    holds = HOLDS[one.gpu]
    for_a_warp = round_up(one.registers * THREADS, REGISTER_UNIT)
    warps = REGISTERS // QUARTERS // for_a_warp * QUARTERS
    for_a_program = round_up(one.shared + holds.reserved, holds.unit)
    return {
        "registers": warps // one.warps,
        "shared memory": holds.shared // for_a_program if for_a_program else holds.programs,
        "warps": holds.warps // one.warps,
        "programs": holds.programs,
    }


def resident(one: Compiled) -> int:
    """Programs of `one` that a multiprocessor holds at once: the least of `limits`."""
    return min(limits(one).values())


def occupancy(one: Compiled) -> float:
    """The share of a multiprocessor's warps that can be there at once."""
    return resident(one) * one.warps / HOLDS[one.gpu].warps


def waves(programs: int, one: Compiled, card: str) -> float:
    """How many times the card is filled with programs, the last time perhaps only in part."""
    return programs / (resident(one) * SMS[card])


def passes(row_bytes: int, swizzle: int = 1) -> int:
    """How often shared memory is asked for eight pieces of 16 bytes, one in each of eight rows.

    Piece 0 of each row is wanted, as a tensor core wants them. With `swizzle` n the pieces of row r are
    stored at their number XOR (r mod n). One pass answers each bank once, and 32 banks are eight pieces.
    """
    piece = 4 * BANK_BYTES
    banks = Counter(
        (row * row_bytes + (row % swizzle) * piece) // BANK_BYTES % BANKS for row in range(8)
    )
    return max(banks.values())
