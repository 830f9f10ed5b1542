"""The fourth judge: what the compiler makes of a kernel, for GPUs that are not here.

A stand-in for the driver names the architecture, and every launch ends after compiling. So the file's own
launcher decides grid, tiles and warps, as it would on a GPU. The machine code is read, and vLLM's kernel
for the same shape gets the same treatment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from course.kernels import beside, sass
from course.kernels.loading import Refused, call, in_words, load_entry
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

    whose: str
    name: str
    capability: int
    code: sass.MachineCode
    shared: int
    warps: int
    main: bool  # it gets a tensor that the problem's kernels must read whole
    counted: tuple[str, ...] = ()  # instructions of the main loop that get a column

    @property
    def loads(self) -> str:
        return " ".join(f"{count}x{width}" for width, count in self.code.loads.items())

    def row(self) -> dict[str, Any]:
        """A line of the report's table, by column."""
        row = {
            "GPU": f"sm_{self.capability}",
            "kernel": f"{self.whose} {self.name}" if self.whose == "yours" else self.whose,
            "warps": self.warps,
            "registers": self.code.registers,
            "shared": self.shared,
            "stack": self.code.stack,
            "spills": self.code.spills,
            "tensor core": self.code.tensor_core,
            "loads": self.loads,
        }
        if self.counted:  # where a column fits no more: more than 0 is refused in words
            del row["stack"]
        return row | {name: self.code.loop.get(name, 0) for name in self.counted}


class Compiled:
    """Judges files on the shape of one problem."""

    def __init__(self, problem: Any, vllm: bool) -> None:
        self.problem = problem
        self.case: Case = problem.shape()
        self.vllm: list[Built] = []
        self.alone = beside.why_not(vllm)
        for form, segments in beside.forms(problem).items() if not self.alone else ():
            try:
                self.vllm += self._build(f"vLLM {form}", partial(problem.vllm, self.case, segments))
            except Exception as error:  # a build of vLLM that cannot do it here
                self.alone = f"not to be compiled here, {type(error).__name__}: {error}"

    def judge(self, path: Path) -> list[Finding]:
        try:
            entry = load_entry(path, self.problem.ENTRY)
            built = list(self._build("yours", lambda: call(entry, self.case.inputs, path)))
        except Refused as refused:
            return [Finding(JUDGE, False, f"it does not compile: {refused}")]
        except Exception as error:
            return [Finding(JUDGE, False, f"it does not compile: {in_words(error, path)}")]
        if not built:
            return [Finding(JUDGE, False, "no Triton kernel was started, so none was compiled")]
        both = sorted([*built, *self.vllm], key=lambda one: one.capability)
        figures = {"case": self.case.label, "rows": [one.row() for one in both]}
        what = getattr(self.problem, "WIDE", "the caches")
        if wrong := list(_faults(built, getattr(self.problem, "TENSOR_CORE", False))):
            return [
                Finding(JUDGE, False, text, {} if i else figures) for i, text in enumerate(wrong)
            ]
        names = ", ".join(f"sm_{capability}" for capability in SHARED)
        text = f"{names}: no spills, shared memory fits, {what} are loaded in wide pieces"
        text += ", tensor cores multiply" if getattr(self.problem, "TENSOR_CORE", False) else ""
        text += f"; vLLM's kernel: {self.alone}" if self.alone else ""
        return [Finding(JUDGE, True, f"{text} ({self.case.label}).", figures)]

    def _build(self, whose: str, launch: Callable[[], Any]) -> Iterator[Built]:
        """Everything that `launch` starts, compiled for each architecture and never run."""
        needed = {
            self.case.inputs[name].untyped_storage().data_ptr() for name in self.problem.NEEDED
        }
        needed |= {t.untyped_storage().data_ptr() for t in self.case.about.get("vllm needs", ())}
        run = JITFunction.run
        for capability in SHARED:
            triton.runtime.driver.set_active(StandIn(capability))
            torch.cuda.get_device_capability = lambda device=None, c=capability: divmod(c, 10)
            made: list[tuple[str, Any, bool]] = []

            def compile_only(kernel: Any, *args: Any, made: Any = made, **kwargs: Any) -> Any:
                binary = run(kernel, *args, **(kwargs | {"warmup": True}))
                tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
                main = any(t.untyped_storage().data_ptr() in needed for t in tensors)
                made.append((kernel.__name__, binary, main))
                return binary

            JITFunction.run = compile_only
            try:
                launch()
            finally:
                JITFunction.run = run
            for name, binary, main in made:
                code = sass.read(*sass.disassemble(binary.asm["cubin"], TOOLS))
                also = "" if main else ", merge"
                title = whose if whose == "yours" else whose + also
                meta = binary.metadata
                counted = getattr(self.problem, "COUNTED", ())
                sizes = meta.shared, meta.num_warps
                yield Built(title, name, capability, code, *sizes, main, counted)


def _faults(built: list[Built], tensor_core: bool) -> Iterator[str]:
    """What no kernel may do: a sentence for each kernel and fault, with the worst architecture."""
    for name in dict.fromkeys(one.name for one in built):
        mine = [one for one in built if one.name == name]
        if spilled := [one for one in mine if one.code.spills or one.code.stack or one.code.local]:
            worst = max(spilled, key=lambda one: (one.code.spills, one.code.stack))
            yield (
                f"{name} spills on {_where(spilled)}: on sm_{worst.capability} {worst.code.spills} "
                f"instructions go to local memory, with {worst.code.stack} bytes of stack a thread. A "
                "smaller tile, or more warps, would need fewer registers"
            )
        if too_big := [one for one in mine if one.shared > SHARED[one.capability]]:
            worst = too_big[0]
            yield (
                f"{name} cannot start on {_where(too_big)}: it wants {worst.shared:,} bytes of shared "
                f"memory, and sm_{worst.capability} gives a program {SHARED[worst.capability]:,}"
            )
        idle = [
            one for one in mine if one.main and one.capability >= 80 and not one.code.tensor_core
        ]
        if tensor_core and idle:
            yield (
                f"{name} uses no tensor cores on {_where(idle)}. tl.dot does, where both "
                'operands have 16 bits; float32 with input_precision="ieee" is multiplied without them'
            )
        if narrow := [one for one in mine if one.main and one.code.wide < WIDE]:
            worst = min(narrow, key=lambda one: one.code.wide)
            yield (
                f"{name} loads in small pieces on {_where(narrow)}: on sm_{worst.capability} only "
                f"{worst.code.wide:.0%} of the bytes in its loop come 128 bits at a time ({worst.loads}). "
                "Neighbouring lanes must read neighbouring elements, and the compiler must be able to see "
                "it: in the addresses, and in the mask, which has to be one for a whole piece"
            )


def _where(built: list[Built]) -> str:
    return ", ".join(f"sm_{one.capability}" for one in built)
