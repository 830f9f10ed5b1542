"""Read machine code: what `cuobjdump` and `nvdisasm` say of a compiled kernel. Text in, counts out."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path

_LABEL = re.compile(r"^(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(.*?);")
_GUARD = re.compile(r"^@!?U?P\w+\s+")
_BACK = re.compile(r"\bBRA\b.*`\((\.L_x_\d+)\)")
_SOURCE = re.compile(r'^\s*//## File "[^"]*", line (\d+)')
_RESOURCE = re.compile(r"\b(REG|STACK|SHARED|LOCAL):(\d+)")
TENSOR_CORE = ("HMMA", "HGMMA", "QGMMA", "IMMA", "UTCHMMA", "UTCQMMA", "UTCIMMA")


@dataclass(frozen=True)
class MachineCode:
    """What one kernel became on one architecture."""

    registers: int
    stack: int  # bytes a thread; more than 0 means that registers were spilled to memory
    local: int
    spills: int  # instructions that load or store local memory
    loads: dict[
        int, int
    ]  # width in bits -> global loads, those of the main loop where there is one
    tensor_core: int
    instructions: int
    loop: dict[str, int] = field(default_factory=dict)  # those of the main loop, by name
    # line of the kernel's file -> width in bits -> global loads, of those in `loads`
    lines: dict[int, dict[int, int]] = field(default_factory=dict)

    def narrow(self) -> dict[int, int]:
        """Line of the kernel's file -> bits that it loads in pieces of less than 128."""
        found = {
            line: sum(width * count for width, count in widths.items() if width < 128)
            for line, widths in self.lines.items()
        }
        return {line: bits for line, bits in found.items() if bits}

    def wide(self, without: Set[int] = frozenset()) -> float:
        """The share of loaded bytes that come in loads of 128 bits, but for the lines `without`."""
        total, wide = 0, 0
        for line, widths in self.lines.items():
            if line not in without:
                total += sum(width * count for width, count in widths.items())
                wide += 128 * widths.get(128, 0)
        return wide / total if total else 1.0


def disassemble(cubin: bytes, tools: Path) -> tuple[str, str]:
    """The resources and the instructions of a binary, as the tools in the folder `tools` print them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()

        def run(tool: str, *options: str) -> str:
            command = [str(tools / tool), *options, file.name]
            return subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout

        return run("cuobjdump", "--dump-resource-usage"), run("nvdisasm", "-c", "-g")


def read(resources: str, code: str) -> MachineCode:
    """Count what matters in the two texts of `disassemble`."""
    used = {name: int(value) for name, value in _RESOURCE.findall(resources)}
    found, loop = _main_loop(code)
    instructions = [one for one, _ in found]
    kinds = Counter(one.split()[0].split(".")[0] for one in instructions)
    chosen = loop if _loads([one for one, _ in loop]) else found
    lines: dict[int, Counter[int]] = {}
    for one, line in chosen:
        for width, count in _loads([one]).items():
            lines.setdefault(line, Counter())[width] += count
    return MachineCode(
        registers=used.get("REG", 0),
        stack=used.get("STACK", 0),
        local=used.get("LOCAL", 0),
        spills=kinds["LDL"] + kinds["STL"],
        loads=_loads([one for one, _ in chosen]),
        tensor_core=sum(kinds[name] for name in TENSOR_CORE),
        instructions=len(instructions),
        loop=dict(Counter(one.split()[0].split(".")[0] for one, _ in loop)),
        lines={line: dict(widths) for line, widths in lines.items()},
    )


def _main_loop(code: str) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """All instructions, each with the line that it comes from, and those of the loop with the most bytes
    loaded ([] where none loads)."""
    labels: dict[str, int] = {}
    instructions: list[tuple[str, int]] = []
    source = 0
    for line in code.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif place := _SOURCE.match(line):
            source = int(place[1])
        elif found := _INSTRUCTION.match(line):
            instructions.append((_GUARD.sub("", found[1]), source))
    best: list[tuple[str, int]] = []
    most = 0
    for end, (instruction, _) in enumerate(instructions):
        jump = _BACK.search(instruction)
        if jump and labels.get(jump[1], end + 1) <= end:
            body = instructions[labels[jump[1]] : end + 1]
            bits = _bits(_loads([one for one, _ in body]))
            if bits > most:
                best, most = body, bits
    return instructions, best


def _bits(loads: dict[int, int]) -> int:
    return sum(width * count for width, count in loads.items())


def _loads(instructions: list[str]) -> dict[int, int]:
    """Global loads by width in bits; those that go to shared memory directly (LDGSTS) are loads too."""
    widths: Counter[int] = Counter()
    for instruction in instructions:
        name, *modifiers = instruction.split()[0].split(".")
        if name in ("LDG", "LDGSTS"):
            small = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}
            widths[next((small[m] for m in modifiers if m in small), 32)] += 1
    return dict(sorted(widths.items()))
