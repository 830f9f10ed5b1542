"""Read Triton's own intermediate code (TTIR) of a compiled kernel: text in, sentences out.

It still has the shapes and types of the tiles, and the line of the file that each operation comes from, and
the compiler has taken its decisions about them already: how float32 is multiplied, for instance.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

_LOC = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.M)
_LINE = re.compile(r'"([^"]+)":(\d+):\d+')
_AT = re.compile(r"loc\((#loc\d*)\)\s*$")
_OP = re.compile(r"^\s*(%[\w$.-]+)(?::\d+)? = ([\w.]+) ?(.*)$")
_CARRIED = re.compile(r"(%[\w$.-]+) = (%[\w$.-]+)")
_NAME = re.compile(r"%[\w$.-]+(?:#\d+)?")
_HALF = re.compile(r"^(?:tensor<(?:\d+x)+)?(?:f16|bf16)>?$")
_TF32 = re.compile(r"inputPrecision = tf32 : tensor<[\dx]+xf32>")
_LANES = re.compile(r"(?:tensor<((?:\d+x)+)|: )!tt\.ptr<\w*?(\d+)>")
_DOT = re.compile(r"= tt\.dot .*-> tensor<[\dx]+xb?f16>")
_HALF_ATOMIC = re.compile(r"= tt\.atomic_rmw fadd,.*(?:tensor<[\dx]+x)?b?f16[,>]")
_SUMS = {"arith.addf", "arith.truncf", "tt.dot", "math.fma", "arith.mulf"}


@dataclass(frozen=True)
class Load:
    """A `tl.load` of a tile, or of one number."""

    line: int
    argument: str  # of the kernel
    lanes: int  # 0: one number, which is the same for all lanes
    bits: int  # of one
    conditional: bool = False  # it stands behind an `if`


class Text:
    """The code of one kernel."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self._locs = dict(_LOC.findall(text))
        self._from: dict[str, str] = {}  # a value -> the first that it is made of
        self._made: dict[str, str] = {}  # a value -> the operation that makes it
        for line in self.lines:
            for name, first in _CARRIED.findall(line.partition("iter_args(")[2]):
                self._from[name] = first
            if found := _OP.match(line):
                name, operation, rest = found.groups()
                self._made[name] = operation
                if names := _NAME.findall(rest):
                    self._from.setdefault(name, names[0])

    def line_of(self, text: str) -> int:
        """The line of the kernel's file that a line of the code comes from; 0 if that is not known."""
        at = _AT.search(text)
        return self._resolve(at[1]) if at else 0

    def _resolve(self, name: str, deep: int = 0) -> int:
        said = self._locs.get(name, "")
        # Of a call, the place in the kernel's own file: the other one may be Triton's.
        places = [(file, int(line)) for file, line in _LINE.findall(said)]
        own = [line for file, line in places if "/triton/" not in file]
        if own:
            return own[-1]
        for inner in reversed(re.findall(r"#loc\d*", said)) if deep < 9 else ():
            if line := self._resolve(inner, deep + 1):
                return line
        return 0

    def argument(self, name: str) -> str:
        """The kernel's argument that a pointer is made of."""
        for _ in range(99):
            if name not in self._from:
                break
            name = self._from[name]
        return name.removeprefix("%")

    def loads(self) -> Iterator[Load]:
        regions: list[bool] = []  # of those that are open: whether it is a branch of an `if`
        for line in self.lines:
            text = re.sub(r"\s*loc\(.*\)$", "", line.strip())
            branch = bool(text[:1] == "}" and regions and regions.pop())
            if text[-1:] == "{":
                regions.append(branch or "scf.if" in text)
            found = _OP.match(line)
            if found and found[2] == "tt.load" and (tile := _LANES.search(line)):
                sizes = tile[1].rstrip("x").split("x") if tile[1] else ["0"]
                lanes = math.prod(map(int, sizes))
                pointer = _NAME.search(found[3])
                assert pointer is not None
                name = self.argument(pointer[0])
                yield Load(self.line_of(line), name, lanes, int(tile[2]), any(regions))

    def beside_the_way(self) -> set[int]:
        """The lines whose loads say nothing of how wide a tile is loaded: of one number; and behind an `if`,
        where the same tensor is loaded without one."""
        loads = list(self.loads())
        always = {load.argument for load in loads if load.lanes and not load.conditional}
        kept = {
            load.line
            for load in loads
            if load.lanes and not (load.conditional and load.argument in always)
        }
        return {load.line for load in loads} - kept

    def rounded_products(self) -> list[int]:
        """The lines whose float32 product a GPU rounds to TF32, ten bits of fraction."""
        return sorted({self.line_of(line) for line in self.lines if _TF32.search(line)})

    def half_sums(self) -> list[int]:
        """The lines that add up in half precision: within a tile, in memory, or from one turn of a loop to
        the next; or that round a sum on its way to another."""
        found: set[int] = set()
        reducing = False
        for line in self.lines:
            if _DOT.search(line) or _HALF_ATOMIC.search(line):
                found.add(self.line_of(line))
            if (
                (made := _OP.match(line))
                and made[2] == "arith.extf"
                and self._is_rounded_sum(made[3])
            ):
                found.add(self.line_of(line))
            if '"tt.reduce"' in line or '"tt.scan"' in line:
                reducing = True
            elif reducing and ("tt.reduce.return" in line or "tt.scan.return" in line):
                reducing = False
            elif reducing and re.search(r"arith\.addf .*: b?f16\b", line):
                found.add(self.line_of(line))
            if line.strip().startswith("scf.yield "):
                values, _, kinds = line.strip().removeprefix("scf.yield ").partition(" : ")
                names = values.split(", ")
                types = re.sub(r"\s*loc\(.*", "", kinds).split(", ")
                for name, kind in zip(names, types, strict=False):
                    if _HALF.match(kind.strip()) and self._made.get(name) in _SUMS:
                        found.add(self._where(name))
        return sorted(found)

    def _is_rounded_sum(self, name: str) -> bool:
        """Whether a value of half precision was a float32 sum, which `arith.truncf` has rounded."""
        found = _NAME.search(name)
        if not found or self._made.get(found[0]) != "arith.truncf":
            return False
        return self._made.get(self._from.get(found[0], "")) in {"tt.dot", "arith.addf"}

    def _where(self, name: str) -> int:
        for line in self.lines:
            if line.strip().startswith(f"{name} = "):
                return self.line_of(line)
        return 0
