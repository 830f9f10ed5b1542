"""The fourth judge: what the compiler makes of a kernel, for GPUs that are not here.

A stand-in for the driver names the architecture, and every launch ends after compiling. So the file's own
launcher decides grid, tiles and warps, as it would on a GPU. The machine code is read, and vLLM's kernel
for the same shape gets the same treatment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.jit import JITFunction

from course.kernels import beside, sass
from course.kernels.case import Case
from course.kernels.loading import (
    CHOICE,
    Entry,
    Refused,
    StandIn,
    call,
    in_words,
    load_entry,
    processors_of,
    stand_in_driver,
)
from course.kernels.report import Finding
from course.kernels.starts import (
    Start,
    asks_who_runs_it,
    digest,
    starts_of_all,
    starts_on_a_gpu,
)
from course.kernels.ttir import Text

__all__ = ["SHARED", "TOOLS", "Built", "Compiled", "StandIn"]

JUDGE = "compiled"
# architecture -> shared memory that one program may have, in bytes
SHARED = {75: 65536, 80: 166912, 90: 232448, 100: 232448}
OLDEST = 75  # whose spills are only told: few run it, and it has half the registers to give
WIDE = 0.5  # of the bytes that the main loop loads, this share must come 128 bits at a time
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


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
    code_of_triton: str = ""  # TTIR
    arguments: dict[str, str] = field(
        default_factory=dict
    )  # those that are the case's inputs -> which
    config: int = 0  # of an autotuned kernel's configurations; 0 if there is one only
    source: str = ""  # what `starts.digest` makes of it

    @cached_property
    def wide(self) -> float:
        """The share of the main loop's bytes that come 128 bits at a time."""
        return self.code.wide(self.beside_the_way)

    @cached_property
    def beside_the_way(self) -> set[int]:
        return Text(self.code_of_triton).beside_the_way()

    @property
    def title(self) -> str:
        return f"{self.name}, configuration {self.config}" if self.config else self.name

    @property
    def loads(self) -> str:
        return " ".join(f"{count}x{width}" for width, count in self.code.loads.items())

    def row(self) -> dict[str, Any]:
        """A line of the report's table, by column."""
        number = f" #{self.config}" if self.config else ""
        row = {
            "GPU": f"sm_{self.capability}",
            "kernel": f"{self.whose} {self.name}{number}" if self.whose == "yours" else self.whose,
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
                self.vllm += self.build(f"vLLM {form}", partial(problem.vllm, self.case, segments))
            except Exception as error:  # a build of vLLM that cannot do it here
                self.alone = f"not to be compiled here, {type(error).__name__}: {error}"

    @cached_property
    def cases(self) -> list[Case]:
        """As the interpreter has them: what starts on these is what it has seen."""
        return [*self.problem.cases(), self.problem.traffic()]

    def judge(self, path: Path) -> tuple[list[Finding], list[list[Start]]]:
        """Every finding about one file; and what it starts, by case."""
        seen: list[list[Start]] = []
        try:
            entry = load_entry(path, self.problem.ENTRY)
            seen, asking = self._look(entry, path)
            built: list[Built] = []
            for config in range(64):
                made = list(
                    self.build("yours", partial(call, entry, self.case.inputs, path), config)
                )
                built += made
                if config + 1 >= CHOICE.most:
                    break
            rounded = self._rounded(entry, path)
            self._compile_other_types(entry, path)
        except Refused as refused:
            return [Finding(JUDGE, False, f"it does not compile: {refused}")], seen
        except Exception as error:
            return [Finding(JUDGE, False, f"it does not compile: {in_words(error, path)}")], seen
        if not built:
            return [
                Finding(JUDGE, False, "no Triton kernel was started, so none was compiled")
            ], seen
        both = sorted([*built, *self.vllm], key=lambda one: one.capability)
        figures = {"case": self.case.label, "rows": [one.row() for one in both]}
        what = getattr(self.problem, "WIDE", "the caches")
        wrong = [*asking, *_faults(built, getattr(self.problem, "TENSOR_CORE", False))]
        wrong += [*_half_sums(built), *rounded, *_unseen(built, seen)]
        if wrong:
            found = [
                Finding(JUDGE, False, text, {} if i else figures) for i, text in enumerate(wrong)
            ]
            return found, seen
        warned = " ".join(f"Mind: {text}." for text in _warnings(built))
        names = ", ".join(f"sm_{capability}" for capability in SHARED)
        spills = "no spills from sm_80 on" if warned else "no spills"
        text = f"{names}: {spills}, shared memory fits, {what} are loaded in wide pieces"
        text += ", tensor cores multiply" if getattr(self.problem, "TENSOR_CORE", False) else ""
        text += f"; vLLM's kernel: {self.alone}" if self.alone else ""
        text = f"{text} ({self.case.label}). {warned}".rstrip()
        return [Finding(JUDGE, True, text, figures)], seen

    def end(self) -> None:
        """No more files."""

    def _look(self, entry: Entry, path: Path) -> tuple[list[list[Start]], list[str]]:
        """What starts on each case, and what is wrong with how it is chosen."""
        stand_in_driver()
        wrong: list[str] = []
        kernels: dict[int, Any] = {}
        torch.use_deterministic_algorithms(True, warn_only=True)
        inputs = [case.inputs for case in self.cases]
        seen = starts_of_all(JITFunction, entry, inputs, path, kernels)
        torch.use_deterministic_algorithms(False)
        for kernel in kernels.values():
            if asked := asks_who_runs_it(kernel):
                wrong.append(
                    f"{asked}: a kernel computes, and does not ask who runs it. The interpreter and the "
                    "compiler give other answers"
                )
        for number, (one, here) in enumerate(zip(inputs[:2], seen, strict=False)):
            with processors_of(number, len(inputs)):
                there = starts_on_a_gpu(entry, one, path)
            if there != here and there[-1:] and there[-1][0] != "raised":
                wrong.append(
                    "for tensors on a GPU other kernels start, or with other arguments, than for the same "
                    "tensors on a CPU: then nothing that was seen here holds on a GPU"
                )
                break
        return seen, wrong

    def _rounded(self, entry: Entry, path: Path) -> list[str]:
        """Products of float32 that a GPU would round, from the compiler's own code for sm_80."""
        cases = [case for case in self.cases if case.dtype == torch.float32]
        cases = [*cases[:1], *cases[-1:]] if len(cases) > 1 else cases
        found: dict[str, list[int]] = {}
        for case in cases:
            for config in range(max(1, CHOICE.most)):
                for name, text in _code_of_triton(partial(call, entry, case.inputs, path), config):
                    if lines := Text(text).rounded_products():
                        found[name] = lines
        return [
            f"{name} multiplies float32 in TF32 from sm_80 on, which keeps 10 bits of each number's 23 (line "
            f"{', '.join(map(str, lines))}): the interpreter does not round, a GPU does. "
            'Give that tl.dot input_precision="ieee"'
            for name, lines in found.items()
        ]

    def _compile_other_types(self, entry: Entry, path: Path) -> None:
        """In the types of the other cases it has to compile as well, which the interpreter does not ask.

        Raises:
            Refused: where it does not.
        """
        [name, *_] = self.problem.NEEDED
        done = {self.case.inputs[name].dtype}
        for case in self.cases:
            if (dtype := case.inputs[name].dtype) not in done:
                done.add(dtype)
                try:
                    _code_of_triton(partial(call, entry, case.inputs, path), 0)
                except Exception as error:
                    kind = str(dtype).removeprefix("torch.")
                    raise Refused(f"where {name} is {kind}: {in_words(error, path)}") from error

    def build(self, whose: str, launch: Callable[[], Any], config: int = 0) -> Iterator[Built]:
        """Everything that `launch` starts, compiled for each architecture and never run."""
        inputs = {
            value.untyped_storage().data_ptr(): name
            for name, value in self.case.inputs.items()
            if isinstance(value, torch.Tensor)
        }
        exact = {
            value.data_ptr(): name
            for name, value in self.case.inputs.items()
            if isinstance(value, torch.Tensor)
        }
        needed = {
            self.case.inputs[name].untyped_storage().data_ptr() for name in self.problem.NEEDED
        }
        needed |= {t.untyped_storage().data_ptr() for t in self.case.about.get("vllm needs", ())}
        run = JITFunction.run
        for capability in SHARED:
            stand_in_driver(capability)
            made: list[tuple[Any, Any, bool, dict[str, str]]] = []

            def compile_only(kernel: Any, *args: Any, made: Any = made, **kwargs: Any) -> Any:
                binary = run(kernel, *args, **(kwargs | {"warmup": True}))
                named = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
                tensors = {n: v for n, v in named.items() if isinstance(v, torch.Tensor)}
                whole = {n: t.untyped_storage().data_ptr() for n, t in tensors.items()}
                names = {
                    name: exact.get(tensor.data_ptr(), inputs.get(whole[name], ""))
                    for name, tensor in tensors.items()
                }
                made.append((kernel, binary, bool(needed & {*whole.values()}), names))
                return binary

            JITFunction.run = compile_only
            CHOICE.number, CHOICE.most = config, 1
            try:
                launch()
            finally:
                JITFunction.run = run
            for kernel, binary, main, names in made:
                code = sass.read(*sass.disassemble(binary.asm["cubin"], TOOLS))
                also = "" if main else ", merge"
                title = whose if whose == "yours" else whose + also
                meta = binary.metadata
                counted = getattr(self.problem, "COUNTED", ())
                sizes = meta.shared, meta.num_warps
                yield Built(
                    title, kernel.__name__, capability, code, *sizes, main, counted,
                    str(binary.asm["ttir"]), names, config + 1 if CHOICE.most > 1 else 0,
                    digest(kernel) if whose == "yours" else "",
                )  # fmt: skip


class _EnoughError(Exception):
    """Thrown to end a compilation when what was to be read is there."""


def _code_of_triton(launch: Callable[[], Any], config: int) -> list[tuple[str, str]]:
    """Name and TTIR of everything that `launch` starts, for sm_80. The compiler goes no further."""
    stand_in_driver()
    found: list[tuple[str, str]] = []
    run, further = JITFunction.run, CUDABackend.make_ttgir

    def enough(module: Any, *rest: Any) -> Any:
        raise _EnoughError(str(module))

    def compile_first(kernel: Any, *args: Any, **kwargs: Any) -> None:
        try:
            text = run(kernel, *args, **(kwargs | {"warmup": True})).asm["ttir"]
        except _EnoughError as error:
            text = str(error)
        found.append((kernel.__name__, str(text)))

    CHOICE.number = config
    JITFunction.run, CUDABackend.make_ttgir = compile_first, staticmethod(enough)
    try:
        launch()
    finally:
        JITFunction.run, CUDABackend.make_ttgir = run, staticmethod(further)
    return found


def _unseen(built: list[Built], seen: list[list[Start]]) -> Iterator[str]:
    """Kernels that the interpreter was not asked to run on any case."""
    known = {start[1] for case in seen for start in case if start[0] != "raised"}
    for one in {one.source: one for one in built if one.source not in known}.values():
        yield (
            f"{one.name} starts for the shape that is compiled, and on none of the cases that are "
            "interpreted: nobody has seen whether it is right"
        )


def _half_sums(built: list[Built]) -> Iterator[str]:
    for one in {one.name: one for one in built if one.capability == 80}.values():
        if lines := Text(one.code_of_triton).half_sums():
            yield (
                f"{one.name} adds up in half precision (line {', '.join(map(str, lines))}): float16 keeps 10 "
                "bits, so a sum of many numbers loses the last of them. Sum in float32, in tl.sum and in "
                "loops, and convert once, when the result is stored"
            )


def _groups(built: list[Built]) -> Iterator[list[Built]]:
    """One list for each kernel and configuration."""
    for title in dict.fromkeys(one.title for one in built):
        yield [one for one in built if one.title == title]


def _spilled(mine: list[Built]) -> list[Built]:
    return [one for one in mine if one.code.spills or one.code.stack or one.code.local]


def _warnings(built: list[Built]) -> Iterator[str]:
    """What is worth knowing, and no reason to refuse."""
    for mine in _groups(built):
        if spilled := _spilled(mine):
            yield _spills(spilled)
        for one in mine:
            if one.shared > SHARED[one.capability]:
                yield (
                    f"{one.title} wants {one.shared:,} bytes of shared memory, more than sm_"
                    f"{one.capability} gives; the autotuner passes over it there"
                )


def _spills(spilled: list[Built]) -> str:
    worst = max(spilled, key=lambda one: (one.code.spills, one.code.stack))
    return (
        f"{worst.title} spills on {_where(spilled)}: on sm_{worst.capability} {worst.code.spills} "
        f"instructions go to local memory, with {worst.code.stack} bytes of stack a thread. A "
        "smaller tile, or more warps, would need fewer registers"
    )


def _faults(built: list[Built], tensor_core: bool) -> Iterator[str]:
    """What no kernel may do: a sentence for each kernel and fault, with the worst architecture."""
    fits = {(one.name, one.capability) for one in built if one.shared <= SHARED[one.capability]}
    for mine in _groups(built):
        name = mine[0].title
        spilled = _spilled(mine)
        if any(one.capability > OLDEST for one in spilled):
            yield _spills(spilled)
        too_big = [one for one in mine if (one.name, one.capability) not in fits]
        if too_big:
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
        if narrow := [one for one in mine if one.main and one.wide < WIDE]:
            worst = min(narrow, key=lambda one: one.wide)
            yield (
                f"{name} loads in small pieces on {_where(narrow)}: on sm_{worst.capability} only "
                f"{worst.wide:.0%} of the bytes in its loop come 128 bits at a time ({worst.loads})"
                f"{_narrowest(worst)}. "
                "Neighbouring lanes must read neighbouring elements, and the compiler must be able to see "
                "it: in the addresses, and in the mask, which has to be one for a whole piece"
            )


def _narrowest(one: Built) -> str:
    """Which tensor comes in small pieces, and in which line."""
    narrow = {at: n for at, n in one.code.narrow().items() if at not in one.beside_the_way}
    if not narrow:
        return ""
    line = max(narrow, key=lambda at: narrow[at])
    loads = [load for load in Text(one.code_of_triton).loads() if load.line == line]
    name = one.arguments.get(loads[0].argument, "") if loads else ""
    pieces = " ".join(f"{count}x{width}" for width, count in one.code.lines[line].items())
    said = f"; most of the small ones are loads of {name or 'a tensor'} in line {line}, {pieces}"
    if "scale" in name:
        said += (
            f", for {loads[0].lanes:,} lanes: one scale serves a whole group, so load it once for each "
            "output and group, and multiply the sums"
        )
    return said


def _where(built: list[Built]) -> str:
    return ", ".join(f"sm_{one.capability}" for one in built)
