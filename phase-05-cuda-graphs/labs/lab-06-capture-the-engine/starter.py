"""Lab 05-06: the torch Llama under CUDA graphs. Your work: every NotImplementedError."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mini_vllm.attention import AttentionMetadata as HostMetadata
from mini_vllm.gpu.backend import AttentionMetadata, count_decodes
from mini_vllm.gpu.graph_standin import graphs_for
from mini_vllm.gpu.llama import LlamaForCausalLM
from mini_vllm.gpu.split_llama import SplitLlama

PAD_SLOT_ID = -1


def padded_size(sizes: Sequence[int], num_tokens: int) -> int | None:
    """The smallest of the rising `sizes` that has room for the tokens of a step; None if none has."""
    return next((size for size in sizes if size >= num_tokens), None)


def put(buffer: Tensor, values: np.ndarray, length: int, padding: int = 0) -> Tensor:
    """Copy `values` into the first rows of `buffer`, and `padding` into the rows after them, up to `length`.

    A row of `values` may be shorter than one of the buffer. Returns the buffer's first `length` rows.
    """
    rows = buffer[: len(values)]
    if values.ndim == 2:
        rows = rows[:, : values.shape[1]]
    rows.copy_(torch.from_numpy(np.ascontiguousarray(values)))
    buffer[len(values) : length] = padding
    return buffer[:length]


class Captured:
    """A function of tensors, captured once for each size and then replayed.

    Args:
        function: takes tensors and other arguments, returns a tensor or a tuple of tensors.
        graphs: `graphs_for(device)`, with `CUDAGraph()` and `graph(cuda_graph, pool=...)`.
        pool: the pool that all graphs of the model share.
    """

    def __init__(self, function: Callable[..., Any], graphs: Any, pool: Any) -> None:
        self.function = function
        self.graphs = graphs
        self.pool = pool
        self.entries: dict[int, tuple[Any, Any]] = {}  # size -> graph and output

    def capture(self, size: int, *args: Any) -> Any:
        """Record `function(*args)` as the graph of `size`.

        Anything that the function makes or loads when it first sees this size must exist before the capture
        begins. The call that makes it may read numbers that no replay has written yet.

        Returns the output. Its shapes and addresses are final; its numbers come with a replay.
        """
        raise NotImplementedError

    def replay(self, size: int) -> Any:
        """Run the graph of `size` on what its inputs hold now.

        Returns the output of that capture, with this replay's numbers. Valid until the next replay.
        """
        graph, output = self.entries[size]
        graph.replay()
        return output


class CaptureRunner:
    """Runs steps of a model, under graphs where there is one.

    Args:
        model: its `forward` takes ids, positions, caches and metadata; `model.attention` is its backend.
        kv_caches: one per layer, `[num_blocks, 2, block_size, num_kv_heads, head_size]`; they stay where
            they are.
        sizes: the capture sizes, rising: tokens of the steps to capture.
        max_num_seqs: most requests in a step.
        max_model_len: most tokens of a request.
    """

    def __init__(
        self,
        model: LlamaForCausalLM,
        kv_caches: list[Tensor],
        sizes: Sequence[int],
        max_num_seqs: int,
        max_model_len: int,
    ) -> None:
        self.model = model
        self.kv_caches = kv_caches
        self.sizes = list(sizes)
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        top, block_size = self.sizes[-1], kv_caches[0].shape[2]
        width = -(-max_model_len // block_size)

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=model.device)

        self.input_ids = zeros(top, dtype=torch.int32)
        self.positions = zeros(top, dtype=torch.int64)
        self.slot_mapping = zeros(top, dtype=torch.int64)
        self.query_start_loc = zeros(max_num_seqs + 1, dtype=torch.int32)
        self.seq_lens = zeros(max_num_seqs, dtype=torch.int32)
        self.block_table = zeros(max_num_seqs, width, dtype=torch.int32)

        graphs = graphs_for(model.device)
        pool = graphs.graph_pool_handle()
        self.full = Captured(model.forward, graphs, pool)
        self.pieces = [Captured(piece, graphs, pool) for piece in SplitLlama(model).pieces]

    def fill(
        self,
        size: int,
        num_reqs: int,
        input_ids: np.ndarray,
        positions: np.ndarray,
        metadata: HostMetadata,
    ) -> AttentionMetadata:
        """Put a step into the buffers, padded to `size` rows and `num_reqs` requests.

        Args:
            input_ids, positions: integers `[num_tokens]`, at most `size` of them.
            metadata: of the step, in numpy. Its table may have fewer columns than the buffer.

        Returns metadata whose tensors are the buffers' first `size` rows, or `num_reqs` requests
        (`query_start_loc` has one entry more), and whose numbers are the step's own. No padding
        request has tokens, and no padding row is written to a slot that is ever read.
        """
        raise NotImplementedError

    def capture(self) -> None:
        """Capture every graph there will ever be: pieces for every size, and the whole model for the sizes
        that a batch of decodes can have; in each the largest first, so that the others reuse its memory."""
        for size in reversed(self.sizes):
            self.capture_pieces(size)
        for size in reversed(self.sizes):
            if size <= self.max_num_seqs:
                self.capture_full(size)

    def capture_pieces(self, size: int) -> None:
        """Capture the pieces of one size on the first `size` rows of the buffers.

        The first piece takes ids and positions. Every piece but the last returns hidden states, cos, sin,
        query, key, value and room for attention's result. Every piece but the first takes hidden states,
        cos, sin and that room. Attention is in none of them, and is not called here.
        """
        first, *rest = self.pieces
        rows = first.capture(size, self.input_ids[:size], self.positions[:size])
        for piece in rest:
            hidden_states, cos, sin, _query, _key, _value, room = rows
            rows = piece.capture(size, hidden_states, cos, sin, room)

    def capture_full(self, size: int) -> None:
        """Capture `self.model.forward` for `size` requests of one token each.

        The warm-up runs on what is in the buffers, so they must hold no request's slot. What the host
        says (`num_decodes`, `max_query_len`, `max_seq_len`) is recorded, so it must be true of every replay.
        """
        raise NotImplementedError

    def replay_pieces(self, size: int, metadata: AttentionMetadata) -> Tensor:
        """Replay the pieces of `size`, with `self.model.attention.forward` between them.

        Args:
            metadata: from `fill`, for the step's own requests.

        Returns hidden states `[size, hidden_size]`, the last piece's.
        """
        first, *rest = self.pieces
        rows = first.replay(size)
        for piece, kv_cache in zip(rest, self.kv_caches, strict=True):
            query, key, value, room = rows[3:]
            self.model.attention.forward(query, key, value, kv_cache, metadata, room)
            rows = piece.replay(size)
        hidden_states: Tensor = rows[0]
        return hidden_states

    def run(self, input_ids: np.ndarray, positions: np.ndarray, metadata: HostMetadata) -> Tensor:
        """Hidden states `[num_tokens, hidden_size]` of a step, which belong to the caller.

        A step of decodes runs in the graph of the whole model, if its size has one. Any other step
        runs in pieces, and one with more tokens than the largest size runs in `run_eagerly`.
        """
        raise NotImplementedError

    def run_eagerly(
        self, input_ids: np.ndarray, positions: np.ndarray, metadata: HostMetadata
    ) -> Tensor:
        """Run a step without graphs or padding, on tensors of its own."""

        def tensor(values: np.ndarray) -> Tensor:
            return torch.as_tensor(values, device=self.model.device)

        on_device = AttentionMetadata(
            query_start_loc=tensor(metadata.query_start_loc),
            seq_lens=tensor(metadata.seq_lens),
            block_table=tensor(metadata.block_table),
            slot_mapping=tensor(metadata.slot_mapping),
            num_decodes=count_decodes(metadata.query_start_loc),
            max_query_len=metadata.max_query_len,
            max_seq_len=metadata.max_seq_len,
        )
        return self.model.forward(tensor(input_ids), tensor(positions), self.kv_caches, on_device)
