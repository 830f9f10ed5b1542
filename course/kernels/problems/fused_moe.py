"""The problem `fused-moe`: a product of each row with the weights of its expert, found through a list.

    moe_gemm(x, w, topk_weights, sorted_pairs, block_experts, num_padded, top_k, block_size) -> out

`x` [rows, K], any stride between rows; `w` [experts, N, K], any stride between experts; `out` [rows *
top_k, N] in x's dtype, a row for each pair of a token and an expert. Pair p reads row p // top_k of x;
where `topk_weights` is not None (float32 [tokens, k], a number for each pair), its product is multiplied by
number p. `sorted_pairs` int32 has the pair of each row of the blocks, and the number of pairs where a row
is padding; None: block b is pair b alone. `block_experts` int32 has the expert of each block, `num_padded`
int32 [1] how many rows the blocks in use have. vLLM's `moe_align_block_size` and
`_prepare_expert_assignment` give that, and its `fused_moe_kernel` takes it. Experts that nobody chose hold
NaN. Left out: experts on other GPUs, bias, quantised weights.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from course.kernels.memory import guarded
from course.kernels.problems.case import Case
from course.kernels.problems.mistakes import nearly
from course.kernels.problems.paged import EPSILON
from course.kernels.problems.w4a16 import rows_of_wider

ENTRY = "moe_gemm"
NEEDED = ("w", "x")
MOST_BYTES = 1.05
YARDSTICK = "the least of programs with a block of rows and 64 outputs each"
TENSOR_CORE = True
WIDE = "the weights"
FORMS = {"fused_moe_kernel": 0}
THEIR_FOLDER = "model_executor/layers/fused_moe"

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
    second: bool = False  # the second product of a layer: a row for each pair, and weights
    used: int = 0  # experts that are ever chosen; 0: all
    apart: int = 0  # elements from one expert to the next; 0: without gaps
    # "random"; "far": the sums go far beyond what float16 holds, and come back; "zeros": nothing is drawn
    mood: str = "random"
    seed: int = 0

    @property
    def label(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        mood = ", sums that go far out and come back" if self.mood == "far" else ""
        which = "second product, " if self.second else ""
        tokens = "1 token" if self.tokens == 1 else f"{self.tokens} tokens"
        return (
            f"{kind}{mood}, {which}{tokens} with {self.top_k} of {self.experts} experts, {self.inputs} "
            f"inputs, {self.outputs} outputs, blocks of {self.block}"
        )


_CASES = (
    Spec(7, 2, 4, 96, 48, 16),
    Spec(1, 2, 8, 64, 72, 16, torch.float16, seed=1),
    Spec(19, 2, 8, 80, 33, 16, second=True, used=5, apart=1 << 29, seed=2),
    Spec(2, 4, 64, 40, 70, 32, second=True, seed=3),
    Spec(40, 1, 3, 136, 64, 32, torch.float16, used=2, seed=4),
    Spec(3, 3, 3, 256, 24, 16, torch.float16, second=True, mood="far", seed=5),
    # The limits: a large block, and the inputs of a model.
    Spec(70, 2, 2, 72, 130, 64, torch.float16, second=True, seed=6),
    Spec(2, 2, 4, 2048, 16, 16, seed=7),
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
    weights = 0.1 + torch.rand(spec.tokens, spec.top_k, generator=rng) if spec.second else None
    listed, of_blocks, padded = align(ids, spec.block, spec.experts)
    inputs: dict[str, Any] = {
        "x": rows_of_wider(x.to(spec.dtype), float("nan")),
        "w": _place(w.to(spec.dtype), spec.apart),
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
    about = {"ids": ids, "far": spec.mood == "far"}
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
        x = 200 * (1 + 0.1 * x)
        x[:, spec.inputs // 2 :] *= -1
        w = 4 + w
    return x, w


def _place(w: torch.Tensor, stride: int) -> torch.Tensor:
    """The same experts, `stride` elements from each other where the system gives so much address space, for
    it is no more than that. 0: without gaps."""
    if stride:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        with suppress(OSError):
            memory = mmap.mmap(-1, len(w) * stride * w.element_size(), flags=flags)
            view = torch.frombuffer(memory, dtype=w.dtype)
            return view.as_strided(w.shape, (stride, *w.stride()[1:])).copy_(w)
    return guarded(w)


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
    if case.about["far"] and not got.isfinite().all():
        return (
            "sums on their way pass 65,504, the most that float16 holds, and never come back: accumulate in "
            "float32"
        )
    for words, wrong in MISTAKES:
        expected, tolerance = answer(case.inputs, case.about["ids"], **wrong)
        near = (got.double() - expected).abs() <= 4 * tolerance
        tells = (expected - case.expected).abs() > 8 * case.tolerance
        if bool(near.all()) and bool(tells.any()):
            return words
    return nearly(case, got)


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
