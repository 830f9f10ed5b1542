"""Graphs with one fault each, for the deep dive, to show what breaks without the part. All but for show.

The pages import this module by its name: start Python in this folder.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
from morning import engine, greedy, stat
from night import sizes

from mini_vllm.attention import AttentionMetadata
from mini_vllm.cudagraph import (
    BatchDescriptor,
    CUDAGraphMode,
    GraphPool,
    GraphRunner,
    Kernel,
    LaunchCounter,
    is_uniform_decode,
)
from mini_vllm.worker.forward import Ints
from mini_vllm.worker.graph_forward import NumpyGraphForward

WIDTHS = {"hidden_states": 2048, "qkv": 3072, "gate_up": 16384}
"""Some of the arrays of Llama-3.2-1B, with their columns."""

logging.getLogger("mini_vllm.cudagraph.modes").setLevel(
    logging.ERROR
)  # a warning is the page's text


def pool_mib(order: Iterable[int]) -> float:
    """MiB that the graphs' pool holds when sizes are captured in this order, in 32 bits."""
    pool = GraphPool()
    for rows in order:
        for name, width in WIDTHS.items():
            pool.empty(name, rows, width)
    return round(pool.nbytes / 1024**2, 1)


def keys_with_requests() -> int:
    """How many graphs there were if a piece had one for each number of people in its rows."""
    return sum(sizes())


class PadsFirst(NumpyGraphForward):
    """Asks whether the step is a uniform decode when it has its padding already."""

    def run(
        self,
        input_ids: Ints,
        positions: Ints,
        attn_metadata: AttentionMetadata,
        aux_hidden_states: list[Any] | None = None,
    ) -> np.ndarray:
        dispatch = self.dispatcher.dispatch

        def late(
            num_tokens: int, uniform_decode: bool = False
        ) -> tuple[CUDAGraphMode, BatchDescriptor]:
            _, key = dispatch(num_tokens, uniform_decode)
            md = attn_metadata
            uniform = is_uniform_decode(md.max_query_len, 1, key.num_tokens, len(md.seq_lens))
            return dispatch(num_tokens, uniform)

        self.dispatcher.dispatch = late  # type: ignore[method-assign,assignment]
        try:
            return super().run(input_ids, positions, attn_metadata, aux_hidden_states)
        finally:
            self.dispatcher.dispatch = dispatch  # type: ignore[method-assign]


def launches_of_three(forward: type[NumpyGraphForward] = NumpyGraphForward) -> tuple[str, int]:
    """The runtime mode of a step in which three people decode, and its launches."""
    under = engine(forward=forward)
    for name in ("lou", "kim", "max"):
        under.add_request(name, "The KV cache", greedy(4))
    for _ in range(2):
        under.step()
    return stat(under).runtime_mode, stat(under).launches or 0


def doubler() -> tuple[GraphRunner, np.ndarray]:
    """A graph of one kernel, which doubles a number, and the buffer that it reads."""
    kernel = Kernel("double", lambda a: 2 * a, ("x",), "y", width=1)
    runner = GraphRunner([kernel], CUDAGraphMode.FULL, LaunchCounter(), GraphPool())
    return runner, np.zeros((8, 1), np.float32)


def run(runner: GraphRunner, x: np.ndarray, rows: int) -> np.ndarray:
    """The graph's result for the first `rows` numbers of the buffer; captured if that is new."""
    values = {"x": x[:rows]}
    runner(values, CUDAGraphMode.FULL, BatchDescriptor(rows))
    return values["y"]
