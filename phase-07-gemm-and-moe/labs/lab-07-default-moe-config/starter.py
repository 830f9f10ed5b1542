"""Lab 07-07: which tile sizes a step's experts are multiplied with. Your turn."""

from __future__ import annotations

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
    """Your answers to the six questions of the README, under its names: lists of whole numbers."""
    raise NotImplementedError


# ---- the file ------------------------------------------------------------------------------------


def local_shape(experts: Experts, ranks: Ranks, rank: int = 0) -> tuple[int, int]:
    """E and N of one GPU: how many experts its weights hold, and how many of the intermediate numbers.

    Without expert parallelism all GPUs share each expert, those of `--data-parallel-size` included: vLLM
    counts `tp * dp` GPUs for its experts. With it nothing is split, and each GPU holds some experts,
    as evenly as they can be; where some are left over, the first ranks have one more. On one GPU the two
    are the same.
    """
    raise NotImplementedError


def file_name(
    e: int, n: int, device: str, dtype: str | None = None, block_shape: Sequence[int] | None = None
) -> str:
    """The file that vLLM looks for, as in the README.

    Spaces of the device's name become underscores. A name that has H200 as one of its words, such as
    "NVIDIA H200 NVL", stands for `NVIDIA_H200`; GH200 is another word. `dtype` and `block_shape` are left out
    where they are None, `block_shape` also where one of its numbers is 0. No spaces between numbers.
    """
    raise NotImplementedError


def read_configs(name: str, folders: Sequence[Path]) -> dict[int, Config] | None:
    """The file's configurations by their number of tokens, from the first of the folders that has it.

    None where no folder has it. vLLM looks in `VLLM_TUNED_CONFIG_FOLDER` first, then in its own folder.
    A file is JSON: an object with numbers of tokens as keys, in the order of the file, and perhaps
    `triton_version`, which says with what it was tuned.
    """
    raise NotImplementedError


def nearest_config(configs: dict[int, Config], tokens: int) -> Config:
    """The configuration whose key is nearest to the step's tokens, by difference.

    Of two that are equally near the one that comes first in the file, which need not be the smaller.
    There is always one.
    """
    raise NotImplementedError


# ---- without a file ------------------------------------------------------------------------------


def default_config(tokens: int, e: int, dtype: str | None = None) -> Config:
    """What is used without a file, unquantised or in FP8 with one scale per tensor or row.

    | tokens   | BLOCK_SIZE_M | BLOCK_SIZE_N | BLOCK_SIZE_K | num_warps | num_stages |
    | up to 32 |           16 |           64 |          128 |         4 |          4 |
    | up to 64 |           32 |           64 |          128 |         4 |          3 |
    | up to 96 |           32 |          128 |           64 |         4 |          3 |
    | to 128   |           64 |          128 |           64 |         4 |          3 |
    | to 512   |           64 |          128 |           64 |         8 |          3 |
    | beyond   |          128 |          128 |           64 |         8 |          3 |

    In FP8 (`dtype="fp8_w8a8"`) BLOCK_SIZE_K is always 128: its numbers are half as wide. GROUP_SIZE_M is 16
    where there are more than 128 whole tokens per expert, else 1; vLLM divides the step's tokens by this
    GPU's experts, without top_k. SPLIT_K is 1. (On ROCm num_stages is 2.)
    """
    raise NotImplementedError


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
    """The configuration of a step.

    With `invariant` (VLLM_BATCH_INVARIANT=1) no file is looked for and `INVARIANT` is used. A file's
    configurations come next, and without one `blockwise_config` for FP8 weights with a block shape,
    else `default_config`.
    """
    raise NotImplementedError


# ---- what a tile size costs ----------------------------------------------------------------------


def blocks_per_expert(tokens: int, experts: Experts, block_m: int) -> int:
    """Blocks of `block_m` rows that each expert in use has, if all of them have equally many rows.

    That is how often each of its weights is asked for: every block needs all of them. A token has a row
    with each of its `top_k` experts. Rows are rounded up.
    """
    raise NotImplementedError


def rows_computed(tokens: int, experts: Experts, block_m: int) -> int:
    """Rows that are multiplied in a step, padding included: all blocks of all experts in use, all full.

    With few tokens fewer experts are in use: no more than there are pairs of token and expert.
    """
    raise NotImplementedError
