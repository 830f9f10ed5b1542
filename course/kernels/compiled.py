"""The fourth judge: what the compiler makes of a kernel, for GPUs that are not here.

A stand-in for the driver names the architecture, and every launch ends after compiling. So the file's own
launcher decides grid, tiles and warps, as it would on a GPU; the machine code is read, and vLLM's kernel
for the same shape gets the same treatment.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from course.kernels import sass
from course.kernels.interpret import SEGMENTS
from course.kernels.loading import Refused, call, in_words, load_entry
from course.kernels.memory import memory_of
from course.kernels.problems.case import Case
from course.kernels.report import Finding

JUDGE = "compiled"
# architecture -> shared memory that one program may have, in bytes
SHARED = {75: 65536, 80: 166912, 90: 232448, 100: 232448}
WIDE = 0.5  # of the bytes that the main loop loads, this share must come 128 bits at a time
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


class StandIn:
    """As much of a driver as compiling needs."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # Triton keeps what it has compiled by device

    def get_current_stream(self, device: Any = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, kind: str) -> str:
        from triton.backends.nvidia.driver import ty_to_cpp

        return ty_to_cpp(kind)  # type: ignore[no-any-return]

    @staticmethod
    def is_active() -> bool:
        return True


@dataclass(frozen=True)
class Built:
    """One kernel, compiled for one architecture."""

    name: str
    capability: int
    code: sass.MachineCode
    shared: int
    warps: int
    reads_cache: bool  # it gets a tensor that the problem's kernels must read whole


class Compiled:
    """Judges files on the shape of one problem."""

    def __init__(self, problem: Any, vllm: bool) -> None:
        self.problem = problem
        self.case: Case = problem.shape()
        self.beside: list[tuple[str, Built]] = []
        if vllm and importlib.util.find_spec("vllm") is not None:
            for name, segments in (("vLLM 2D", 0), ("vLLM segmented", SEGMENTS)):
                for built in self._build(lambda n=segments: problem.vllm(self.case, n)):
                    self.beside.append((name, built))

    def judge(self, path: Path) -> list[Finding]:
        try:
            entry = load_entry(path, self.problem.ENTRY)
            built = list(self._build(lambda: call(entry, self.case.inputs, path)))
        except Refused as refused:
            return [Finding(JUDGE, False, f"it does not compile: {refused}")]
        except Exception as error:
            return [Finding(JUDGE, False, f"it does not compile: {in_words(error, path)}")]
        if not built:
            return [
                Finding(JUDGE, False, "no Triton kernel was started, so there is none to compile")
            ]
        rows = [_row("yours", one) for one in built] + [
            _row(name, one) for name, one in self.beside
        ]
        rows.sort(key=lambda row: SHARED_ORDER.index(str(row["GPU"])))
        figures = {"case": self.case.label, "rows": rows}
        wrong = list(_faults(built))
        if wrong:
            return [
                Finding(JUDGE, False, text, figures if not i else {})
                for i, text in enumerate(wrong)
            ]
        names = ", ".join(f"sm_{capability}" for capability in SHARED)
        text = f"for {names}: no spills, shared memory fits, wide loads from the caches ({self.case.label})."
        return [Finding(JUDGE, True, text, figures)]

    def _build(self, launch: Callable[[], Any]) -> Iterator[Built]:
        """Everything that `launch` starts, compiled for each architecture and never run."""
        needed = {memory_of(self.case.inputs[name]).data_ptr() for name in self.problem.NEEDED}
        run = JITFunction.run
        for capability in SHARED:
            triton.runtime.driver.set_active(StandIn(capability))
            torch.cuda.get_device_capability = lambda device=None, c=capability: divmod(c, 10)
            made: list[tuple[str, Any, bool]] = []

            def compile_only(kernel: Any, *args: Any, made: Any = made, **kwargs: Any) -> Any:
                binary = run(kernel, *args, **(kwargs | {"warmup": True}))
                tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
                reads = any(t.untyped_storage().data_ptr() in needed for t in tensors)
                made.append((kernel.__name__, binary, reads))
                return binary

            JITFunction.run = compile_only
            try:
                launch()
            finally:
                JITFunction.run = run
            for name, binary, reads in made:
                code = sass.read(*sass.disassemble(binary.asm["cubin"], TOOLS))
                meta = binary.metadata
                yield Built(name, capability, code, meta.shared, meta.num_warps, reads)


SHARED_ORDER = [f"sm_{capability}" for capability in SHARED]


def _row(whose: str, built: Built) -> dict[str, object]:
    """A line of the table, by column."""
    code = built.code
    return {
        "GPU": f"sm_{built.capability}",
        "whose": whose,
        "kernel": built.name,
        "warps": built.warps,
        "registers": code.registers,
        "shared": built.shared,
        "stack": code.stack,
        "spills": code.spills,
        "tensor core": code.tensor_core,
        "loads in the loop": " ".join(f"{count}x{width}" for width, count in code.loads.items()),
    }


def _faults(built: list[Built]) -> Iterator[str]:
    """What no kernel may do, the worst architecture of each kernel for each fault."""
    for name in dict.fromkeys(one.name for one in built):
        mine = [one for one in built if one.name == name]
        spilled = [one for one in mine if one.code.spills or one.code.stack or one.code.local]
        if spilled:
            worst = max(spilled, key=lambda one: (one.code.spills, one.code.stack))
            yield (
                f"{name} spills on {_where(spilled)}: {worst.code.spills} instructions go to local memory, "
                f"{worst.code.stack} bytes of stack a thread (sm_{worst.capability}). A smaller tile, or more "
                "warps, needs fewer registers"
            )
        too_big = [one for one in mine if one.shared > SHARED[one.capability]]
        if too_big:
            worst = too_big[0]
            yield (
                f"{name} cannot be started on {_where(too_big)}: it wants {worst.shared:,} bytes of shared "
                f"memory, and a program may have {SHARED[worst.capability]:,} there"
            )
        narrow = [one for one in mine if one.reads_cache and one.code.wide < WIDE]
        if narrow:
            worst = min(narrow, key=lambda one: one.code.wide)
            yield (
                f"{name} loads in small pieces on {_where(narrow)}: {worst.code.wide:.0%} of the bytes in its "
                f"loop come 128 bits at a time ({_row('', worst)['loads in the loop']}, sm_{worst.capability}). "
                "Neighbouring lanes must read neighbouring elements, and the compiler must see it"
            )


def _where(built: list[Built]) -> str:
    return ", ".join(f"sm_{one.capability}" for one in built)
