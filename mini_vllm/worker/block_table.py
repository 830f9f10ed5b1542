"""Block tables as arrays: which blocks hold a request's tokens, a row a request.

Mirrors `vllm/v1/worker/block_table.py`. The scheduler sends the blocks that a request gains; they are
appended here, and attention and slots are read from here. Left out: the copy on a device (`gpu/forward.py`
has it), kernel blocks smaller than the manager's, context parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mini_vllm.utils.memory import allocate_zeros


class BlockTable:
    """The table of one KV cache group (`vllm/v1/worker/block_table.py:18 BlockTable`).

    Args:
        block_size: tokens a block.
        max_num_reqs: rows.
        max_num_blocks_per_req: columns.

    Attributes:
        table: int32 `[max_num_reqs, max_num_blocks_per_req]`; past a row's blocks 0, the null block.
        num_blocks_per_row: blocks of each row.

    Raises MemoryError where there is no room.
    """

    def __init__(self, block_size: int, max_num_reqs: int, max_num_blocks_per_req: int) -> None:
        self.block_size = block_size
        self.table = allocate_zeros((max_num_reqs, max_num_blocks_per_req), np.int32)
        self.num_blocks_per_row = [0] * max_num_reqs

    def append_row(self, block_ids: Sequence[int], row: int) -> None:
        """Blocks that the request in this row has gained
        (`vllm/v1/worker/block_table.py:102 BlockTable.append_row`)."""
        start = self.num_blocks_per_row[row]
        self.num_blocks_per_row[row] = end = start + len(block_ids)
        self.table[row, start:end] = block_ids

    def clear_row(self, row: int) -> None:
        """The row is another request's from now on. A drafter may write past the blocks of a request that was
        just admitted, which has no slots kept for it yet: there it finds block 0."""
        self.table[row, : self.num_blocks_per_row[row]] = 0
        self.num_blocks_per_row[row] = 0

    def compute_slot_mapping(
        self, token_rows: NDArray[np.integer], positions: NDArray[np.integer]
    ) -> NDArray[np.int64]:
        """The slot of each token, int64 `[num_tokens]`: position p of a request goes to
        `table[p // block_size] * block_size + p % block_size`
        (`vllm/v1/worker/block_table.py:141 BlockTable.compute_slot_mapping`).

        Args:
            token_rows: `[num_tokens]`, each token's row.
            positions: `[num_tokens]`.
        """
        block_size = self.block_size
        block_numbers = self.table[token_rows, positions // block_size]
        slots: NDArray[np.int64] = (
            block_numbers.astype(np.int64) * block_size + positions % block_size
        )
        return slots


class MultiGroupBlockTable:
    """The tables of all KV cache groups, of which a plain model has one
    (`vllm/v1/worker/block_table.py:223 MultiGroupBlockTable`).

    The scheduler does not say when a block has fallen out of a window. Its number stays in the table, and
    the request that has it now writes to it; attention begins at the window's first block and never looks
    there.
    """

    def __init__(
        self, num_groups: int, block_size: int, max_num_reqs: int, max_num_blocks_per_req: int
    ) -> None:
        self.block_tables = [
            BlockTable(block_size, max_num_reqs, max_num_blocks_per_req) for _ in range(num_groups)
        ]

    def append_row(self, block_ids: Sequence[Sequence[int]], row: int) -> None:
        """`block_ids` has a list for each group."""
        for block_table, ids in zip(self.block_tables, block_ids, strict=True):
            block_table.append_row(ids, row)

    def clear_row(self, row: int) -> None:
        for block_table in self.block_tables:
            block_table.clear_row(row)

    def __getitem__(self, group_id: int) -> BlockTable:
        return self.block_tables[group_id]
