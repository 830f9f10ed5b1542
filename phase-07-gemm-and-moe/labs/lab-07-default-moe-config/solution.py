"""Lab 07-07: which tile sizes a step's experts are multiplied with. One way to do it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

Config = dict[str, int]


@dataclass(frozen=True)
class Experts:
    """Given: a layer's experts, from the model's `config.json`.

    Attributes:
        count: how many there are.
        intermediate: numbers between an expert's two products, before anything is split.
        top_k: how many a token goes to.
    """

    count: int
    intermediate: int
    top_k: int


@dataclass(frozen=True)
class Ranks:
    """Given: how a server is spread over GPUs: `--tensor-parallel-size`, `--data-parallel-size` and
    `--enable-expert-parallel`. Each of the `tp * dp` GPUs is a rank."""

    tp: int = 1
    dp: int = 1
    expert_parallel: bool = False


MIXTRAL = Experts(8, 14336, 2)


def predictions() -> dict[str, list[int]]:
    """Six guesses."""
    return {
        "E and N, two GPUs": [8, 7168],
        "E and N, two GPUs, expert parallel": [4, 14336],
        "key for 12 and for 8192 tokens": [8, 32],
        "rows computed for one token": [32, 128],
        "times the weights are asked for": [128, 16],
        "tokens per expert": [256, 128],
    }


# ---- the file ------------------------------------------------------------------------------------


def local_shape(experts: Experts, ranks: Ranks, rank: int = 0) -> tuple[int, int]:
    """Without expert parallelism every GPU has a slice of each expert, with it some whole experts."""
    size = ranks.tp * ranks.dp
    if not ranks.expert_parallel:
        return experts.count, experts.intermediate // size
    each, more = divmod(experts.count, size)
    return each + (rank < more), experts.intermediate


def file_name(
    e: int, n: int, device: str, dtype: str | None = None, block_shape: Sequence[int] | None = None
) -> str:
    """The parts that are left out leave no comma behind."""
    device = device.replace(" ", "_")
    if "H200" in device.split("_"):
        device = "NVIDIA_H200"
    name = f"E={e},N={n},device_name={device}"
    if dtype:
        name += f",dtype={dtype}"
    if block_shape and all(block_shape):
        name += f",block_shape=[{','.join(map(str, block_shape))}]"
    return name + ".json"


def read_configs(name: str, folders: Sequence[Path]) -> dict[int, Config] | None:
    """The first folder that has the file; nothing is merged."""
    for folder in folders:
        path = folder / name
        if path.is_file():
            found = json.loads(path.read_text("utf-8"))
            return {int(key): value for key, value in found.items() if key != "triton_version"}
    return None


def nearest_config(configs: dict[int, Config], tokens: int) -> Config:
    """`min` keeps the first of equals, and a dict the order of the file."""
    return configs[min(configs, key=lambda key: abs(key - tokens))]


# ---- without a file ------------------------------------------------------------------------------


def default_config(tokens: int, e: int, dtype: str | None = None) -> Config:
    """The ladder of the docstring."""
    block_m = next((rows for most, rows in ((32, 16), (96, 32), (512, 64)) if tokens <= most), 128)
    few = tokens <= 64
    return {
        "BLOCK_SIZE_M": block_m,
        "BLOCK_SIZE_N": 64 if few else 128,
        "BLOCK_SIZE_K": 128 if few or dtype == "fp8_w8a8" else 64,
        "GROUP_SIZE_M": 16 if tokens // e > 128 else 1,
        "SPLIT_K": 1,
        "num_warps": 4 if tokens <= 128 else 8,
        "num_stages": 4 if tokens <= 32 else 3,
    }


def blockwise_config(tokens: int, block_shape: Sequence[int]) -> Config:
    """Given: without a file, FP8 weights with a scale per block, such as DeepSeek's of 128 by 128."""
    return {
        "BLOCK_SIZE_M": 16 if tokens <= 64 else 64,
        "BLOCK_SIZE_N": block_shape[0],
        "BLOCK_SIZE_K": block_shape[1],
        "GROUP_SIZE_M": 1 if tokens <= 16 else 32,
        "SPLIT_K": 1,
        "num_warps": 4,
        "num_stages": 3,
    }


INVARIANT: Config = {  # given: the tiles of VLLM_BATCH_INVARIANT=1
    "BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8, "SPLIT_K": 1,
}  # fmt: skip


def choose(
    tokens: int,
    e: int,
    n: int,
    device: str,
    dtype: str | None = None,
    block_shape: Sequence[int] | None = None,
    folders: Sequence[Path] = (),
    invariant: bool = False,
) -> Config:
    """Invariant, then a file, then the default."""
    if invariant:
        return INVARIANT
    configs = read_configs(file_name(e, n, device, dtype, block_shape), folders)
    if configs:
        return nearest_config(configs, tokens)
    if dtype == "fp8_w8a8" and block_shape:
        return blockwise_config(tokens, block_shape)
    return default_config(tokens, e, dtype)


# ---- what a tile size costs ----------------------------------------------------------------------


def blocks_per_expert(tokens: int, experts: Experts, block_m: int) -> int:
    """Rows are rounded up, and blocks are."""
    rows = math.ceil(tokens * experts.top_k / experts.count)
    return math.ceil(rows / block_m)


def rows_computed(tokens: int, experts: Experts, block_m: int) -> int:
    """No more experts are in use than there are pairs."""
    in_use = min(experts.count, tokens * experts.top_k)
    return in_use * blocks_per_expert(tokens, experts, block_m) * block_m
