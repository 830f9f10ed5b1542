"""The problem `w4a16`: a linear layer whose weights have 4 bits, and a scale for each group of inputs.

    w4a16_gemm(x, weight_packed, weight_scale) -> out

`x` [rows, inputs], float32 or float16, any stride between rows; `weight_packed` int32 [outputs, inputs / 8],
eight codes a word along the input, little end first, any stride between rows; `weight_scale` [outputs,
groups] in x's dtype, without gaps; `out` [rows, outputs] in x's dtype. A weight is its code less 8, times the
scale of its group, which has inputs / groups inputs, a multiple of 8. So compressed-tensors stores a
symmetric layer (format pack-quantized), and so does GPTQ, but for the order in memory.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from course.kernels.case import Case
from course.kernels.memory import FAR, guarded, rows_of_wider
from course.kernels.mistakes import nearly
from course.kernels.paged import EPSILON

ENTRY = "w4a16_gemm"
NEEDED = ("weight_packed", "weight_scale")
MOST_BYTES = 1.25
YARDSTICK = "the least of programs with 64 outputs each, which load x once each"
TENSOR_CORE = True
WIDE = "the weights"
COUNTED = ("I2F", "STS")
FORMS = {"AWQ": 1}  # vLLM's Triton kernel for 4 bits, and into how many it splits the inputs
THEIR_FOLDER = "model_executor/layers/quantization"
BENCHMARK = "-m benchmarks.quantization"

BITS, CODES, OFFSET = 4, 8, 8
OUTPUTS = 64  # of a program, for the yardstick
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column that stands at place i of an AWQ word


@dataclass(frozen=True)
class Spec:
    """What a case is drawn from."""

    rows: int
    inputs: int
    outputs: int
    group: int
    dtype: torch.dtype = torch.float32
    # "random"; "wide": an output's scales may be ten thousand times another's; "far": sixteen products add up
    # to more than float16 holds, and the sum comes back
    mood: str = "random"
    # Elements between the rows of x and of words; FAR: the last row begins behind element 2**31.
    gap: int = 16
    seed: int = 0

    @property
    def label(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        said = {"far": ", sums that go far out and come back", "wide": ", scales far apart"}
        mood = said.get(self.mood, "") + (", rows gigabytes apart" if self.gap == FAR else "")
        rows = "1 row" if self.rows == 1 else f"{self.rows} rows"
        outputs = "1 output" if self.outputs == 1 else f"{self.outputs} outputs"
        return f"{kind}{mood}, {rows} of {self.inputs} inputs, {outputs}, groups of {self.group}"


# The first three have what vLLM's kernel asks for: outputs in eights, groups of 32, 64, 128 or all inputs.
_CASES = (
    Spec(5, 128, 72, 32),
    Spec(1, 384, 136, 128, torch.float16, seed=1),
    Spec(17, 64, 24, 64, gap=0, seed=2),
    Spec(3, 120, 33, 24, gap=FAR, seed=3),
    Spec(2, 512, 70, 512, torch.float16, "far", seed=4),
    Spec(33, 8, 7, 8, torch.float16, seed=5),
    Spec(150, 256, 70, 64, torch.float16, "wide", seed=7),
    Spec(9, 480, 65, 240, seed=6),
    # The limits: the inputs of a model, its groups, and more groups than any.
    Spec(2, 4096, 40, 128, seed=10),
    Spec(1, 2080, 1, 8, seed=12),
    Spec(16, 1024, 96, 128, torch.float16, seed=11),
)
_TRAFFIC = Spec(4, 1024, 512, 128, torch.float16, seed=8)
# A layer of Llama-3-8B (o_proj), sixteen requests.
_SHAPE = Spec(16, 4096, 4096, 128, torch.float16, seed=9)


def cases() -> list[Case]:
    return [_case(spec) for spec in _CASES]


def traffic() -> Case:
    return _case(_TRAFFIC)


def shape() -> Case:
    return _case(_SHAPE)


@dataclass
class Drawn:
    """A layer and its input."""

    x: torch.Tensor  # [rows, inputs]
    codes: torch.Tensor  # int64 [outputs, inputs], 0 to 15
    scale: torch.Tensor  # [outputs, groups]


def draw(spec: Spec) -> Drawn:
    """The layer that `spec` describes, the same for the same `spec`."""
    rng = torch.Generator().manual_seed(spec.seed)
    x = torch.randn(spec.rows, spec.inputs, generator=rng)
    codes = torch.randint(0, 16, (spec.outputs, spec.inputs), generator=rng)
    # Scales a few times apart, as they are in a model.
    scale = 0.01 * torch.randn(spec.outputs, spec.inputs // spec.group, generator=rng).exp()
    if spec.mood == "wide":
        scale *= 10 ** torch.linspace(-1.5, 2, spec.outputs)[:, None]
    elif spec.mood == "far":
        half = spec.inputs // 2
        x = 2000 * (1 + 0.03 * x)
        x[:, half:] *= -1
        codes = codes % 8 + 8
        codes[:, half:] = codes[:, :half]
        scale = scale * 0 + 1
    return Drawn(x.to(spec.dtype), codes, scale.to(spec.dtype))


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Codes [outputs, inputs] to int32 words [outputs, inputs / 8], the first code in the lowest bits."""
    words = (codes.unflatten(1, (-1, CODES)) << (BITS * torch.arange(CODES))).sum(-1)
    return (words - (words >> 31 << 32)).to(torch.int32)


def _case(spec: Spec) -> Case:
    drawn = draw(spec)
    words = pack(drawn.codes)
    inputs = {
        "x": rows_of_wider(drawn.x, float("nan"), spec.gap),
        "weight_packed": rows_of_wider(words, -1, spec.gap),
        "weight_scale": guarded(drawn.scale),
    }

    def flip() -> None:
        inputs["weight_packed"].bitwise_not_()
        drawn.codes.neg_().add_(15)

    item = drawn.x.element_size()
    programs = -(-spec.outputs // OUTPUTS)
    least = {
        "x": spec.rows * spec.inputs * item * programs,
        "weight_packed": spec.outputs * spec.inputs // 2,
        "weight_scale": drawn.scale.numel() * item,
        "out": spec.rows * spec.outputs * item,
    }
    about: dict[str, Any] = {"drawn": drawn, "far": spec.mood == "far"}
    if spec.outputs % CODES == 0:
        about["vllm"] = to_awq(drawn)
        about["vllm needs"] = [about["vllm"][0]]
    return Case(
        spec.label, inputs, lambda: answer(drawn), least, {}, about,
        other=lambda: _case(replace(spec, seed=spec.seed + 1000)), flip=flip, flips=("weight_packed",),
    )  # fmt: skip


def answer(drawn: Drawn, **wrong: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The product in float64, and a tolerance for each number; both [rows, outputs].

    The tolerance lets a kernel round each weight to x's dtype, as vLLM's do, and the result. `wrong` puts one
    mistake in (see `MISTAKES`), to recognise it in a kernel's output.
    """
    outputs, inputs = drawn.codes.shape
    groups = drawn.scale.shape[1]
    at = torch.arange(inputs)
    places = wrong.get("order", lambda i: i)(at % CODES)
    codes = drawn.codes[:, at // CODES * CODES + places]
    values = wrong.get("value", lambda code: code - OFFSET)(codes).double()
    group = wrong.get("group", lambda i, size: i // size)(at, inputs // groups)
    flat = (
        torch.arange(outputs)[:, None] * groups + group
    )  # a wrong group runs into the next output's
    scale = drawn.scale.double().flatten()[flat % drawn.scale.numel()]
    kept = at < inputs - wrong.get("drop", lambda n: 0)(inputs)
    weight = values * wrong.get("scale", lambda s: s)(scale) * kept
    x = drawn.x.double()
    out = x @ weight.T
    rounding = (x.square() @ weight.square().T).sqrt()
    return out, EPSILON[drawn.x.dtype] * (4 * rounding + out.abs())


# What an output looks like that one mistake has made: the mistake in words, and what `answer` does for it.
MISTAKES: list[tuple[str, dict[str, Any]]] = [
    (
        "the codes are taken as they are, 0 to 15; a weight is its code less 8",
        {"value": lambda code: code},
    ),
    (
        "the codes are taken as signed numbers, 8 to 15 as -8 to -1; a weight is its code less 8",
        {"value": lambda code: (code + 8) % 16 - 8},
    ),
    ("7 is taken from the codes, and it is 8", {"value": lambda code: code - 7}),
    (
        "the codes of a word are taken from its high end; the first stands in the lowest 4 bits",
        {"order": lambda place: 7 - place},
    ),
    (
        "a word's codes are taken in AWQ's order 0 4 1 5 2 6 3 7, and x in its own; here they lie in order",
        {"order": lambda place: place % 2 * 4 + place // 2},
    ),
    (
        "the weights come in the order 0 2 4 6 1 3 5 7 within a word, and x in its own",
        {"order": lambda place: place % 4 * 2 + place // 4},
    ),
    ("all inputs take the scale of their first group", {"group": lambda i, size: i * 0}),
    ("the scales are left out", {"scale": lambda scale: scale * 0 + 1}),
    (
        "the weights are divided by their scale; they are multiplied by it",
        {"scale": lambda s: 1 / s},
    ),
    (
        "the group of input i is i % group_size; it is i // group_size",
        {"group": lambda i, size: i % size},
    ),
]
MISTAKES += [
    (
        f"every {tile} inputs take a scale of their own, whatever the group size says",
        {"group": lambda i, size, tile=tile: i // tile},
    )
    for tile in (8, 16, 32, 64, 128)
]
MISTAKES += [
    (
        f"the last inputs are left out: their number is rounded down to a multiple of {tile}",
        {"drop": lambda n, tile=tile: n % tile},
    )
    for tile in (16, 32, 64, 128, 256)
]


def explain(case: Case, got: torch.Tensor) -> str | None:
    """The one mistake that gives `got`, or None."""
    drawn = case.about["drawn"]
    if case.about["far"] and not got.isfinite().all():
        return (
            "sums on their way pass 65,504, the most that float16 holds, and never come back: accumulate in "
            "float32"
        )
    for words, wrong in MISTAKES:
        expected, tolerance = answer(drawn, **wrong)
        near = (got.double() - expected).abs() <= 4 * tolerance
        tells = (expected - case.expected).abs() > 8 * case.tolerance
        if bool(near.all()) and bool(tells.any()):
            return words
    return nearly(case, got)


# -- the contract against the cases -----------------------------------------------------------------

# What the contract allows, as far as a case can go: each quantity's least and largest value.
ALLOWS: dict[str, tuple[float, float]] = {
    "bits of x": (16, 32),
    "rows": (1, 150),
    "inputs": (8, 4096),
    "outputs": (1, 136),
    "inputs of a group": (8, 512),
    "groups": (1, 260),
    "tiles of 16 rows and 64 outputs": (1, 20),  # fewer and more than three processors
    "gap between rows of x": (0, 1 << 29),
    "last row of x begins at": (0, 1 << 31),
    "last row of words begins at": (0, 1 << 31),
    "codes": (0, 15),
    "scales": (2e-4, 4),
    "sum of 16 products without the scale": (1, 65504),
}


def measure(case: Case) -> dict[str, tuple[float, float]]:
    """The least and the largest value in this case of each quantity of `ALLOWS`."""
    x, words, scale = (case.inputs[name] for name in ("x", "weight_packed", "weight_scale"))
    drawn: Drawn = case.about["drawn"]
    (rows, inputs), (outputs, groups) = x.shape, scale.shape
    one = {
        "bits of x": 8 * x.element_size(),
        "rows": rows,
        "inputs": inputs,
        "outputs": outputs,
        "inputs of a group": inputs // groups,
        "groups": groups,
        "tiles of 16 rows and 64 outputs": -(-rows // 16) * -(-outputs // OUTPUTS),
        "gap between rows of x": x.stride(0) - inputs,
        "last row of x begins at": (rows - 1) * x.stride(0),
        "last row of words begins at": (outputs - 1) * words.stride(0),
    }
    tile = drawn.x[:, :16].double() @ (drawn.codes[:, :16] - OFFSET).double().T
    several = {
        "codes": drawn.codes,
        "scales": scale,
        "sum of 16 products without the scale": tile.abs(),
    }
    found = {name: (float(value), float(value)) for name, value in one.items()}
    return found | {name: (float(t.min()), float(t.max())) for name, t in several.items()}


# -- vLLM's Triton kernel for 4 bits, which takes AWQ's layout ---------------------------------------


def to_awq(drawn: Drawn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same layer as AWQ stores it: qweight int32 [inputs, outputs / 8], scales [groups, outputs] and
    qzeros int32 [groups, outputs / 8], every zero point 8."""
    outputs, groups = drawn.scale.shape
    order = torch.tensor(AWQ_ORDER)
    columns = drawn.codes.T.unflatten(1, (-1, CODES))[:, :, order].flatten(1)
    zeros = pack(torch.full((groups, outputs), OFFSET))
    return pack(columns), drawn.scale.T.contiguous(), zeros


def vllm(case: Case, segments: int) -> torch.Tensor:
    """`awq_gemm_triton` of vLLM's on a case; `segments` programs share the inputs."""
    qweight, scales, zeros = case.about["vllm"]
    x = case.about["drawn"].x
    out: torch.Tensor = _awq_triton().awq_gemm_triton(x, qweight, scales, zeros, segments)
    return out


@cache
def _awq_triton() -> Any:
    """The file alone: its package's __init__ imports the whole of vLLM."""
    found = importlib.util.find_spec("vllm")
    assert found is not None
    root = Path(next(iter(found.submodule_search_locations or [])))
    path = root / THEIR_FOLDER / "awq_triton.py"
    spec = importlib.util.spec_from_file_location("awq_triton_of_vllm", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
