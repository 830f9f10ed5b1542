"""What the exercises that change the engine measure: run it before the change, and after it.

python phase-04-attention-backends/changes_04.py {rescales,padding}
"""

from __future__ import annotations

import random
import sys

import numpy as np
from long_chat import says

from mini_vllm.attention import AttentionMetadata, PagedAttention, online
from mini_vllm.attention.tiled import make_plan


class Sixteens(online.OnlineAttention):
    """Sixteen keys a tile."""

    def __init__(self) -> None:
        super().__init__(tile=16)


def rescales() -> None:
    """Ida's answer on the shipped model: how often a row's old sums are multiplied, after its first tile."""
    seen, moved = 0, 0
    update = online.update

    def watched(state: online.State, scores: online.Array, value: online.Array) -> online.State:
        nonlocal seen, moved
        after = update(state, scores, value)
        before = np.isfinite(state.m)
        seen += int(before.sum())
        moved += int((after.m > state.m)[before].sum())
        return after

    online.update = watched
    text = says(Sixteens)
    online.update = update
    print(
        f"{moved:,} of {seen:,} updates rescale; the text is the same: {text == says(PagedAttention)}"
    )


def padding() -> None:
    """A step in which 64 requests decode, 16 to 2,000 tokens long: what is gathered, and what is needed."""
    draw = random.Random(0)
    lengths = [round(16 * 125 ** draw.random()) for _ in range(64)]
    width = -(-max(lengths) // 16)
    plan = make_plan(
        AttentionMetadata(
            query_start_loc=np.arange(65, dtype=np.int32),
            seq_lens=np.array(lengths, np.int32),
            block_table=np.zeros((64, width), np.int32),
            slot_mapping=np.arange(64),
            block_size=16,
        )
    )
    gathered = sum(tile.num_scores for tile in plan.decode_tiles)
    print(f"{len(plan.decode_tiles)} tiles gather {gathered:,} tokens for {sum(lengths):,}")


if __name__ == "__main__":
    {"rescales": rescales, "padding": padding}[sys.argv[1]]()
