"""The problem `fused-moe`: a product of each row with the weights of its expert, found through a list.

    moe_gemm(x, w, topk_weights, sorted_pairs, block_experts, num_padded, top_k, block_size) -> out

`x` [rows, K], float32 or float16, any stride between rows; `w` [experts, N, K] in x's dtype, any stride
between experts; `out` [rows * top_k, N] in x's dtype, a row for each pair of a token and an expert. Pair p
reads row p // top_k of x; where `topk_weights` is not None (float32 [tokens, k], a number for each pair, with
any `top_k`), its product is multiplied by number p. `sorted_pairs` int32 has the pair of each row of the
blocks, those of an expert in any order, and the number of pairs where a row is padding; None: block b is pair
b alone. `block_experts` int32 has the expert of each block, `num_padded` int32 [1] how many rows the blocks
in use have; what both lists hold behind them may be anything. `block_size` is a power of two from 16 on.
vLLM's `moe_align_block_size` and `_prepare_expert_assignment` give that, and its `fused_moe_kernel` takes it.
Experts that no token chose hold NaN. Left out: experts on other GPUs, bias, quantised weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from course.kernels.case import Case
from course.kernels.memory import FAR, guarded, rows_of_wider, spread
from course.kernels.mistakes import nearly
from course.kernels.paged import EPSILON

ENTRY = "moe_gemm"
NEEDED = ("w", "x")
MOST_BYTES = 1.05
YARDSTICK = "the least of programs with a block of rows and 64 outputs each"
TENSOR_CORE = True
WIDE = "the weights"
FORMS = {"fused_moe_kernel": 0}
THEIR_FOLDER = "model_executor/layers/fused_moe"
BENCHMARK = "phase-07-gemm-and-moe/labs/lab-04-triton-fused-moe/show.py --device cuda"

OUTPUTS = 64  # of a program, for the yardstick


@dataclass(frozen=True)
class Spec:
    """What a case is drawn from."""

    tokens: int
    top_k: int
    experts: int
    inputs: int
    outputs: int
    block: int
    dtype: torch.dtype = torch.float32
    second: bool = False  # the second product of a layer: a row for each pair
    weighted: bool = False
    used: int = 0  # experts that are ever chosen; 0: all
    apart: int = 0  # elements from one expert to the next; 0: without gaps
    gap: int = 16  # between rows of x, as in `w4a16`
    # What the lists hold behind the blocks in use: "none", expert -1 and no pair; "others", pairs and experts
    # that there are; "wild". But for "none", an expert's pairs are in no order.
    behind: str = "none"
    # "random"; "far": sixteen products add up to more than float16 holds, and the sum comes back; "weights":
    # only topk_weights bring the products back into what float16 holds; "zeros": nothing is drawn
    mood: str = "random"
    seed: int = 0

    @property
    def label(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        mood = {
            "far": ", sums that go far out and come back",
            "weights": ", weights far below and above 1",
        }.get(self.mood, "")
        mood += ", rows of x gigabytes apart" if self.gap == FAR else ""
        mood += ", experts gigabytes apart" if self.apart else ""
        which = "second product, " if self.second else ""
        which += "weighted, " if self.weighted else ""
        tokens = "1 token" if self.tokens == 1 else f"{self.tokens} tokens"
        return (
            f"{kind}{mood}, {which}{tokens} with {self.top_k} of {self.experts} experts, {self.inputs} "
            f"inputs, {self.outputs} outputs, blocks of {self.block}"
        )


# A list or none, weights or none, a row for each token or for each pair: each with each.
_CASES = (
    Spec(7, 3, 4, 96, 48, 16, behind="others"),
    Spec(1, 8, 512, 40, 72, 16, torch.float16, seed=1),
    Spec(19, 2, 8, 80, 33, 16, second=True, weighted=True, used=5, apart=1 << 29, seed=2),
    Spec(2, 4, 64, 7, 70, 32, weighted=True, seed=3),
    Spec(40, 1, 3, 136, 64, 32, torch.float16, used=2, gap=FAR, behind="wild", seed=4),
    Spec(3, 3, 3, 256, 24, 16, torch.float16, True, True, behind="others", mood="far", seed=5),
    Spec(9, 8, 9, 64, 20, 16, torch.float16, weighted=True, gap=0, mood="weights", seed=10),
    # The limits: a large block, and the inputs of a model.
    Spec(70, 2, 2, 72, 130, 128, torch.float16, second=True, behind="wild", seed=6),
    Spec(1, 1, 1, 2048, 1, 16, weighted=True, seed=7),
)
_TRAFFIC = Spec(20, 2, 4, 512, 512, 16, torch.float16, seed=8)
# w13 of an expert of Qwen3-30B-A3B, with 8 experts instead of 128.
_SHAPE = Spec(16, 2, 8, 2048, 1536, 16, torch.float16, mood="zeros", seed=9)


def cases() -> list[Case]:
    return [_case(spec) for spec in _CASES]


def traffic() -> Case:
    return _case(_TRAFFIC)


def shape(tokens: int = _SHAPE.tokens, block: int = _SHAPE.block) -> Case:
    return _case(replace(_SHAPE, tokens=tokens, block=block))


def choose(spec: Spec, rng: torch.Generator) -> torch.Tensor:
    """The experts of each token, int32 [tokens, top_k]; of `used` random ones only."""
    names = torch.randperm(spec.experts, generator=rng)[: spec.used or spec.experts]
    rows = [
        names[torch.randperm(len(names), generator=rng)[: spec.top_k]] for _ in range(spec.tokens)
    ]
    return torch.stack(rows).int()


def align(
    ids: torch.Tensor, block: int, experts: int
) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
    """sorted_pairs, block_experts and num_padded, as vLLM makes them without an expert map."""
    flat = ids.flatten()
    pairs = len(flat)
    if pairs * 4 <= experts:
        return None, flat, torch.tensor([pairs * block], dtype=torch.int32, device=ids.device)
    room = pairs + min(pairs, experts) * (block - 1)
    kind = {"dtype": torch.int32, "device": ids.device}
    listed = torch.full((room,), pairs, **kind)
    of_blocks = torch.full((-(-room // block),), -1, **kind)
    used = 0
    for expert in range(experts):
        mine = (flat == expert).nonzero().flatten().int()
        blocks = -(-len(mine) // block)
        listed[used : used + len(mine)] = mine
        of_blocks[used // block : used // block + blocks] = expert
        used += blocks * block
    return listed, of_blocks, torch.tensor([used], **kind)


def _put_behind(
    spec: Spec, listed: torch.Tensor, of_blocks: torch.Tensor, used: int, rng: torch.Generator
) -> None:
    """Mix an expert's pairs, and fill what the lists hold behind the `used` rows and their blocks."""
    blocks = used // spec.block
    for expert in of_blocks[:blocks].unique().tolist():
        rows = (of_blocks[:blocks] == expert).repeat_interleave(spec.block).nonzero().flatten()
        rows = rows[listed[rows] < spec.tokens * spec.top_k]
        listed[rows] = listed[rows[torch.randperm(len(rows), generator=rng)]]
    # The pairs of the first blocks, with the experts of the last.
    for tensor, n, first in (
        (listed, used, listed),
        (of_blocks, blocks, of_blocks[:blocks].flip(0)),
    ):
        spare = len(tensor) - n
        if spec.behind == "others":
            tensor[n:] = first[:n].repeat(-(-spare // n))[:spare]
        else:
            tensor[n:] = torch.randint(-(2**31), 2**31, (spare,), generator=rng).int()


def _case(spec: Spec) -> Case:
    rng = torch.Generator().manual_seed(spec.seed)
    ids = choose(spec, rng)
    pairs = ids.numel()
    rows, top_k = (pairs, 1) if spec.second else (spec.tokens, spec.top_k)
    x, w = _draw(spec, rows, rng)
    chosen = ids.flatten().unique().long()
    live = torch.zeros(spec.experts, dtype=torch.bool)
    live[chosen] = True
    w[~live] = float("nan")
    weights = 0.1 + torch.rand(spec.tokens, spec.top_k, generator=rng) if spec.weighted else None
    if weights is not None and spec.mood == "weights":
        # Where the products are large, rounding them and weights to float16 gives inf, 0, or few digits.
        weights = weights * 10.0 ** (torch.arange(spec.tokens)[:, None] % 9 - 7)
        weights[0, 0], weights[-1] = 0, -weights[-1]
        x /= weights.abs().amax(1, keepdim=True).clamp(0.001)
    listed, of_blocks, padded = align(ids, spec.block, spec.experts)
    if listed is not None and spec.behind != "none":
        _put_behind(spec, listed, of_blocks, int(padded), rng)
    inputs: dict[str, Any] = {
        "x": rows_of_wider(x.to(spec.dtype), float("nan"), spec.gap),
        "w": spread(w.to(spec.dtype), spec.apart) if spec.apart else guarded(w.to(spec.dtype)),
        "topk_weights": None if weights is None else guarded(weights),
        "sorted_pairs": None if listed is None else guarded(listed),
        "block_experts": guarded(of_blocks),
        "num_padded": guarded(padded),
        "top_k": top_k,
        "block_size": spec.block,
    }
    item = inputs["x"].element_size()
    programs = -(-spec.outputs // OUTPUTS)
    blocks = int(padded) // spec.block
    matrix = spec.outputs * spec.inputs * item
    least = {
        "x": pairs * spec.inputs * item * programs,
        "w": blocks * matrix,
        "block_experts": blocks * 4 * programs,
        "num_padded": len(of_blocks) * 4 * programs,
        "out": pairs * spec.outputs * item,
    }
    if listed is not None:
        least["sorted_pairs"] = int(padded) * 4 * programs
    if weights is not None:
        least["topk_weights"] = pairs * 4 * programs
    about = {"ids": ids, "mood": spec.mood}
    return Case(
        spec.label, inputs, lambda: answer(inputs, ids), least, {"w": live}, about=about,
        dead="of an expert that no token has chosen: block b has the expert that block_experts[b] says",
        distinct={"w": len(chosen) * matrix, "x": rows * spec.inputs * item},
        other=lambda: _case(replace(spec, seed=spec.seed + 1000)),
        flip=lambda: inputs["w"].neg_(), flips=("w",),
    )  # fmt: skip


def _draw(spec: Spec, rows: int, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    size = spec.experts, spec.outputs, spec.inputs
    if spec.mood == "zeros":
        return torch.zeros(rows, spec.inputs), torch.zeros(size, dtype=spec.dtype)
    x = torch.randn(rows, spec.inputs, generator=rng)
    w = torch.randn(size, generator=rng)
    if spec.mood == "far":
        half = spec.inputs // 2
        x = 2000 * (1 + 0.03 * x)
        x[:, half:] *= -1
        w = 4 + w
        w[:, :, half:] = w[:, :, :half]
    elif spec.mood == "weights":
        w *= 20
    return x, w


def answer(
    inputs: dict[str, Any], ids: torch.Tensor, **wrong: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The products in float64, and a tolerance for each number; both [pairs, N].

    `wrong` puts one mistake in (see `MISTAKES`), to recognise it in a kernel's output.
    """
    x, w, top_k = inputs["x"], inputs["w"], inputs["top_k"]
    pair = torch.arange(ids.numel())
    expert = wrong.get("expert", lambda chosen, inputs: chosen)(ids.flatten().long(), inputs)
    row = wrong.get("row", lambda pair, top_k: pair // top_k)(pair, top_k) % len(x)
    of_pairs = x[row].double()
    of_pairs[:, x.shape[1] - wrong.get("drop", lambda n: 0)(x.shape[1]) :] = 0
    out = torch.empty(len(pair), w.shape[1], dtype=torch.float64)
    size = torch.empty_like(out)
    for e in expert.unique().tolist():
        mine = expert == e
        matrix = w[e].double()
        out[mine] = of_pairs[mine] @ matrix.T
        size[mine] = of_pairs[mine].square() @ matrix.square().T
    weights = inputs["topk_weights"]
    if weights is not None:
        of_pair = wrong.get("weight", lambda flat, ids: flat)(weights.flatten().double(), ids)
        out, size = out * of_pair[:, None], size * of_pair.square()[:, None]
    return out, EPSILON[x.dtype] * (4 * size.sqrt() + out.abs())


def _listed(flat: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Weights by a pair's rank in the list, without padding."""
    rank = ids.flatten().sort(stable=True).indices.argsort()
    return flat[rank]


# What an output looks like that one mistake has made: the mistake in words, and what `answer` does for it.
MISTAKES: list[tuple[str, dict[str, Any]]] = [
    (
        "the products are not multiplied by topk_weights",
        {"weight": lambda flat, ids: torch.ones_like(flat)},
    ),
    (
        "the products are multiplied by topk_weights twice",
        {"weight": lambda flat, ids: flat * flat},
    ),
    (
        "the weights are taken in the order of the list; pair p has number p",
        {"weight": _listed},
    ),
    (
        "the weight is that of pair p // k; pair p has number p",
        {"weight": lambda flat, ids: flat[torch.arange(len(flat)) // ids.shape[1]]},
    ),
    (
        "pair p reads row p % rows of x; it is row p // top_k",
        {"row": lambda pair, top_k: pair},
    ),
    (
        "pair p reads row p // 2 of x; it is row p // top_k",
        {"row": lambda pair, top_k: pair // 2},
    ),
    (
        "the topk_weights are rounded to float16; they are float32",
        {"weight": lambda flat, ids: flat.half()},
    ),
    (
        "all blocks take the weights of the first block's expert",
        {"expert": lambda chosen, inputs: chosen * 0 + int(inputs["block_experts"][0])},
    ),
    (
        "the weights are those of the expert behind the block's",
        {"expert": lambda chosen, inputs: (chosen + 1) % len(inputs["w"])},
    ),
]
MISTAKES += [
    (
        f"the last inputs are left out: K is rounded down to a multiple of {tile}",
        {"drop": lambda n, tile=tile: n % tile},
    )
    for tile in (16, 32, 64, 128, 256)
]


def explain(case: Case, got: torch.Tensor) -> str | None:
    """The one mistake that gives `got`, or None."""
    if not got.isfinite().all():
        if case.about["mood"] == "far":
            return (
                "sums on their way pass 65,504, the most that float16 holds, and never come back: accumulate "
                "in float32, also within a tl.dot"
            )
        if case.about["mood"] == "weights":
            return (
                "products pass 65,504, the most that float16 holds, before topk_weights make them smaller: "
                "multiply in float32, and convert once, when the result is stored"
            )
    for words, wrong in MISTAKES:
        expected, tolerance = answer(case.inputs, case.about["ids"], **wrong)
        near = (got.double() - expected).abs() <= 4 * tolerance
        tells = (expected - case.expected).abs() > 8 * case.tolerance
        if bool(near.all()) and bool(tells.any()):
            return words
    return nearly(case, got)


# -- the contract against the cases -----------------------------------------------------------------

# What the contract allows, as far as a case can go: each quantity's least and largest value.
ALLOWS: dict[str, tuple[float, float]] = {
    "bits of x": (16, 32),
    "rows of x": (1, 140),
    "experts": (1, 512),
    "a chosen expert": (0, 256),
    "inputs": (7, 2048),
    "outputs": (1, 130),
    "block_size": (16, 128),
    "top_k without weights, with a list": (1, 3),
    "top_k with weights, with a list": (1, 8),
    "top_k without weights, without a list": (8, 8),
    "top_k with weights, without a list": (4, 4),
    "pairs of a chosen expert": (1, 65),
    "blocks in use": (1, 8),
    "blocks behind those": (0, 2),
    "tiles of a block and 64 outputs": (1, 16),  # fewer and more than three processors
    "experts behind the blocks in use": (-1e9, 5e8),
    "pairs behind the blocks in use": (-2e9, 2e9),
    "steps back in an expert's pairs": (0, 1),
    "gap between rows of x": (0, 1 << 25),
    "last row of x begins at": (0, 1 << 31),
    "last expert begins at": (0, 1 << 31),
    "topk_weights": (-5, 1),
    "topk_weights, without a sign": (0, 5),
    "products without topk_weights": (1, 65505),
    "sum of 16 products": (1, 65505),
}


def measure(case: Case) -> dict[str, tuple[float, float]]:
    """The least and the largest value in this case of each quantity of `ALLOWS`."""
    x, w, weights, listed, of_blocks, padded, top_k, block = case.inputs.values()
    ids = case.about["ids"].flatten().long()
    blocks = int(padded) // block
    how = f"with{'' if weights is not None else 'out'} weights, with{'out' if listed is None else ''} a list"
    used_experts, counts = ids.unique(return_counts=True)
    one = {
        "bits of x": 8 * x.element_size(),
        "rows of x": len(x),
        "experts": len(w),
        "inputs": w.shape[2],
        "outputs": w.shape[1],
        "block_size": block,
        f"top_k {how}": top_k,
        "blocks in use": blocks,
        "blocks behind those": len(of_blocks) - blocks,
        "tiles of a block and 64 outputs": blocks * -(-w.shape[1] // OUTPUTS),
        "gap between rows of x": x.stride(0) - w.shape[2],
        "last row of x begins at": (len(x) - 1) * x.stride(0),
        "last expert begins at": int(used_experts.max()) * w.stride(0),
    }
    several: dict[str, torch.Tensor | None] = {
        "a chosen expert": used_experts,
        "pairs of a chosen expert": counts,
        "experts behind the blocks in use": of_blocks[blocks:],
        "topk_weights": weights,
        "topk_weights, without a sign": None if weights is None else weights.abs(),
    }
    if listed is not None:
        several["pairs behind the blocks in use"] = listed[int(padded) :]
        several["steps back in an expert's pairs"] = listed[:block].diff() < 0
    of_pairs = x[torch.arange(len(ids)) // top_k].double()
    mine = w[ids].double()
    several["products without topk_weights"] = torch.einsum("pk,pnk->pn", of_pairs, mine).abs()
    first = torch.einsum("pk,pnk->pn", of_pairs[:, :16], mine[:, :, :16])
    several["sum of 16 products"] = first.abs()
    found = {name: (float(value), float(value)) for name, value in one.items()}
    for name, t in several.items():
        if t is not None and t.numel():
            found[name] = float(t.min()), float(t.max())
    return found


# -- vLLM's kernel ----------------------------------------------------------------------------------


def vllm(case: Case, segments: int, **tile: int) -> torch.Tensor:
    """`fused_moe_kernel` of vLLM's on a case, started as its layers start it; `segments` means nothing.

    `tile` changes the configuration: the names are vLLM's.
    """
    import triton.language as tl
    from vllm.model_executor.layers.fused_moe import fused_moe

    given = case.inputs
    x, w, weights = given["x"], given["w"], given["topk_weights"]
    pairs = len(x) * given["top_k"]
    out = torch.empty(1, pairs, w.shape[1], dtype=x.dtype)
    config = {
        "BLOCK_SIZE_M": given["block_size"], "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1,
        "SPLIT_K": 1, "num_warps": 4, "num_stages": 3,
    } | tile  # fmt: skip
    fused_moe.invoke_fused_moe_triton_kernel(
        x, w, out, None, None, weights, given["sorted_pairs"], given["block_experts"], given["num_padded"],
        weights is not None, given["top_k"], config,
        tl.float16 if x.dtype == torch.float16 else tl.float32, False, False, False, False, False,
    )  # fmt: skip
    return out[0]
