"""Given: your lists beside those of vLLM's `moe_align_block_size` and `_prepare_expert_assignment`.

    python in_vllm.py [solution | starter]

Needs vLLM 0.22.1; `course grade` does not. vLLM's own code makes the room, decides about the list and calls
the kernel that fills it. That kernel is in the CUDA build: on a GPU it runs, elsewhere `play_kernel` below
plays it, thread by thread.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from course.learner.labs import load_module, need_vllm

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_07_03_support")


def play_kernel(
    topk_ids: Any,
    num_experts: int,
    block_size: int,
    sorted_ids: Any,
    expert_ids: Any,
    padded: Any,
    *_: Any,
) -> None:
    """What the CUDA kernel leaves in its three outputs. Thread t of n takes pairs t, t + n, t + 2n and so on,
    and the pairs of an expert come out thread by thread. A large batch has another kernel, whose order within
    an expert is left to chance; here it is the same."""
    flat = topk_ids.flatten().tolist()
    threads = max(num_experts, 32)
    sorted_ids.fill_(len(flat))
    expert_ids.fill_(-1)
    by_thread = sorted(range(len(flat)), key=lambda pair: (pair % threads, pair))
    used = 0
    for expert in range(num_experts):
        mine = [pair for pair in by_thread if flat[pair] == expert]
        for rank, pair in enumerate(mine):
            sorted_ids[used + rank] = pair
        blocks = -(-len(mine) // block_size)
        expert_ids[used // block_size : used // block_size + blocks] = expert
        used += blocks * block_size
    padded.fill_(used)


@contextmanager
def kernel(play: Any = play_kernel) -> Any:
    """vLLM's `moe_align_block_size` with a kernel that can run here, and the device for its tensors."""
    import torch
    from vllm import _custom_ops as ops

    if torch.cuda.is_available() and hasattr(torch.ops._moe_C, "moe_align_block_size"):
        yield "cuda"
        return
    theirs = ops.moe_align_block_size
    ops.moe_align_block_size = play
    try:
        yield "cpu"
    finally:
        ops.moe_align_block_size = theirs


def differs(lab: Any, ids: np.ndarray, block: int, experts: int, device: str) -> str:
    """What differs between the lab's `assign` and vLLM's, "" if nothing: the room, the rows, the experts of
    the blocks, and which pairs each expert gets. In which order it gets them does not count."""
    import torch
    from vllm.model_executor.layers.fused_moe.fused_moe import _prepare_expert_assignment as prepare

    given = torch.from_numpy(ids).to(device)
    theirs = prepare(given, {"BLOCK_SIZE_M": block}, *ids.shape, experts, None)
    listed, of_blocks, padded = (None if each is None else each.cpu().numpy() for each in theirs)
    mine, my_blocks, used = lab.assign(ids, block, experts)
    if used != int(padded[0]):
        return f"{int(padded[0])} rows are used, not {used}"
    if (mine is None) != (listed is None):
        return "one has a list"
    if my_blocks.tolist() != of_blocks.tolist():
        return f"blocks of experts {of_blocks.tolist()}, not {my_blocks.tolist()}"
    if mine is None:
        return ""
    if mine.shape != listed.shape:
        return f"room for {len(listed)}, not {len(mine)}"

    def by_expert(pairs: np.ndarray) -> list[tuple[int, int]]:
        return sorted(
            zip(np.repeat(of_blocks, block)[:used].tolist(), pairs[:used].tolist(), strict=True)
        )

    same = by_expert(mine) == by_expert(listed) and mine[used:].tolist() == listed[used:].tolist()
    return "" if same else f"pairs {listed.tolist()}, not {mine.tolist()}"


def compare(lab: Any, number: int = 2000) -> list[str]:
    """What differs, on so many random batches."""
    with kernel() as device:
        found = [
            differs(lab, ids, block, experts, device)
            for ids, block, experts in support.cases(number, seed=5)
        ]
    return [each for each in found if each]


def main(which: str = "starter") -> None:
    need_vllm()
    lab = load_module(HERE / f"{which}.py", f"lab_07_03_{which}")
    wrong = compare(lab)
    print(f"2,000 batches, {len(wrong)} with another assignment than vLLM's")
    if wrong:
        print(f"the first: {wrong[0]}")
    ids = np.array([[pair % 3 == 0] for pair in range(40)], np.int32)
    with kernel():
        import torch
        from vllm.model_executor.layers.fused_moe.moe_align_block_size import moe_align_block_size

        listed = moe_align_block_size(torch.from_numpy(ids), 16, 2)[0]
    print("40 tokens, expert 1 has every third:")
    print(f"  vLLM's order {listed[32:48].tolist()}")
    print(f"  yours        {np.asarray(lab.align(ids, 16, 2)[0])[32:48].tolist()}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
