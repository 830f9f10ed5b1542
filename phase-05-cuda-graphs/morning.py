"""The shipped model under graphs: how its steps run, and two faults, to show results only.

Lou, Kim, Max and Nia ask the shipped engine. The pages import this module by its name: start Python in this
folder.

    python phase-05-cuda-graphs/morning.py          a morning's steps, with their modes and launches
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.attention import AttentionMetadata
from mini_vllm.cudagraph import (
    BatchDescriptor,
    CudagraphDispatcher,
    CUDAGraphMode,
    Graph,
    GraphPool,
    GraphRunner,
    Kernel,
    Launch,
    LaunchCounter,
    build_program,
)
from mini_vllm.cudagraph.graph import Values
from mini_vllm.engine.parts import DEFAULT_PARTS, EngineParts
from mini_vllm.engine.step_record import StepRecord
from mini_vllm.outputs import CUDAGraphStat
from mini_vllm.worker.forward import Ints
from mini_vllm.worker.graph_forward import NumpyGraphForward

SIZES = [1, 2, 4, 8, 16, 32]
"""Capture sizes of our own for the shipped engine, few enough to look at."""
PROMPTS = {
    "lou": "The KV cache",
    "kim": "A block table leads from a request",
    "max": "The scheduler decides",
    "nia": "A kernel reads",
}


def engine(
    mode: str = "FULL_AND_PIECEWISE",
    forward: type[NumpyGraphForward] = NumpyGraphForward,
    parts: EngineParts = DEFAULT_PARTS,
    **settings: Any,
) -> LLMEngine:
    """The shipped engine under a graph mode; what runs its model as graphs may have a fault."""
    settings = {"max_num_seqs": 8, "cudagraph_capture_sizes": SIZES, **settings}
    with patch("mini_vllm.worker.graph_forward.NumpyGraphForward", forward):
        return LLMEngine(config=EngineConfig(cudagraph_mode=mode, **settings), parts=parts)


def stat(of: LLMEngine) -> CUDAGraphStat:
    """How the engine's last step ran."""
    ran = of.engine_core.model_runner.forward.stat
    assert ran is not None
    return ran


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def program() -> list[Kernel]:
    """The shipped model as the kernels of a pass."""
    return build_program(engine().model, block_size=16)


def launched(mode: str) -> tuple[int, int]:
    """Launches of two steps under a mode of the configuration: Kim's prompt, and her next token."""
    under = engine(mode)
    under.add_request("kim", PROMPTS["lou"], greedy(4))
    counts = []
    for _ in range(2):
        under.step()
        counts.append(stat(under).launches or 0)
    prompt, decode = counts
    return prompt, decode


def morning() -> list[tuple[str, CUDAGraphStat]]:
    """Kim comes before step 1, Lou before step 4, and Max, with a longer prompt, before step 7.

    Returns:
        for each step who was in it, as name and rows, and how it ran.
    """
    under = engine()
    long = "Attention reads the keys and values of all tokens before it, and so on"
    comes = {1: ("kim", "The KV cache"), 4: ("lou", long[:19]), 7: ("max", long)}
    records: list[StepRecord] = []
    under.engine_core.step_observers.append(records.append)
    seen = []
    for step in range(1, 10):
        if step in comes:
            name, prompt = comes[step]
            under.add_request(name, prompt, greedy(20))
        under.step()
        rows = records[-1].scheduler_output.num_scheduled_tokens
        seen.append((", ".join(f"{name} {count}" for name, count in rows.items()), stat(under)))
    return seen


def show_morning() -> None:
    """Print the morning's steps, one a line."""
    print("step  rows                   sum  mode       runs as  launches")
    for number, (rows, ran) in enumerate(morning(), 1):
        counts = f"{ran.num_unpadded_tokens:3}  {ran.runtime_mode:11}{ran.num_padded_tokens:7}"
        print(f"{number:4}  {rows:22} {counts}{ran.launches:10}")


def first(number: int, keys: np.ndarray) -> np.ndarray:
    """A stand-in for attention over the first `number` keys: their sum, and each of them is 1."""
    return np.array([keys[:number].sum()])


def attended(count_in: str) -> list[int]:
    """How many keys two replays look at, where a third and then a fifth of them has been added.

    Args:
        count_in: "Python" or "a buffer": where the kernel finds how many there are.
    """
    keys, length, seen = np.ones(8), np.array([3]), np.zeros(1)
    number = int(length[0])  # known to the host, and given to the kernel as it is now
    launch = {
        "Python": Launch("attend", partial(first, number), (keys,), seen),
        "a buffer": Launch("attend", lambda k, n: first(n[0], k), (keys, length), seen),
    }[count_in]
    counter, graph = LaunchCounter(), Graph()
    with counter.capture(graph):
        counter.launch(launch)
    counts = []
    for now in (3, 5):
        length[:] = now
        counter.replay(graph)
        counts.append(int(seen[0]))
    return counts


# --- what the captures of a start take ---


@dataclass(frozen=True)
class Capture:
    """One graph, or one size in pieces, in the order of the captures.

    Attributes:
        mode: PIECEWISE or FULL.
        rows: its capture size.
        needs: bytes of the arrays that its kernels write.
        pool: bytes that the graphs' pool has handed out when it is done.
    """

    mode: str
    rows: int
    needs: int
    pool: int


class NotesCaptures(NumpyGraphForward):
    """Notes what the pool holds after each capture."""

    def capture_model(self) -> None:
        self.captures: list[Capture] = []
        super().capture_model()

    def _run(self, values: Values, mode: CUDAGraphMode, desc: BatchDescriptor) -> None:
        super()._run(values, mode, desc)
        if self.counter.capturing_enabled:
            widths = {k.output: k.width for k in self.full.kernels if k.output is not None}
            needs = 4 * desc.num_tokens * sum(widths.values())
            self.captures.append(Capture(str(mode), desc.num_tokens, needs, self.pool.nbytes))


class SmallestFirst(CudagraphDispatcher):
    """Hands out what to capture in the wrong order."""

    def get_capture_descs(self) -> list[tuple[CUDAGraphMode, list[BatchDescriptor]]]:
        return [(mode, descs[::-1]) for mode, descs in super().get_capture_descs()]


def captures(smallest_first: bool = False) -> list[Capture]:
    """The captures of the shipped engine's start."""
    chosen = SmallestFirst if smallest_first else CudagraphDispatcher
    under = engine(forward=NotesCaptures, parts=EngineParts(cudagraph_dispatcher=chosen))
    forward = under.engine_core.model_runner.forward
    assert isinstance(forward, NotesCaptures)
    return forward.captures


# --- two faults ---


class Rebinds(NumpyGraphForward):
    """Makes a new array for each step's tokens, where it should write into the one that was captured."""

    def run(
        self,
        input_ids: Ints,
        positions: Ints,
        attn_metadata: AttentionMetadata,
        aux_hidden_states: list[Any] | None = None,
    ) -> np.ndarray:
        self.buffers["input_ids"] = self.buffers["input_ids"].copy()
        return super().run(input_ids, positions, attn_metadata, aux_hidden_states)


class StaleSlots(NumpyGraphForward):
    """Leaves the slots of padded rows as the last step with so many rows had them."""

    def run(
        self,
        input_ids: Ints,
        positions: Ints,
        attn_metadata: AttentionMetadata,
        aux_hidden_states: list[Any] | None = None,
    ) -> np.ndarray:
        self.before = self.buffers["slot_mapping"].copy()
        self.num_tokens_unpadded = len(input_ids)
        return super().run(input_ids, positions, attn_metadata, aux_hidden_states)

    def _run(self, values: Values, mode: CUDAGraphMode, desc: BatchDescriptor) -> None:
        if not self.counter.capturing_enabled:  # at the start all slots are -1
            behind = slice(self.num_tokens_unpadded, desc.num_tokens)
            values["slot_mapping"][behind] = self.before[behind]
        super()._run(values, mode, desc)


def trusting(
    kernels: Sequence[Kernel],
    runtime_mode: CUDAGraphMode,
    counter: LaunchCounter,
    pool: GraphPool,
    check_addresses: bool = False,
) -> GraphRunner:
    """A graph runner that compares no addresses, whatever it is told: as on a GPU."""
    return GraphRunner(kernels, runtime_mode, counter, pool, check_addresses=False)


def kim_reads(forward: type[NumpyGraphForward] = NumpyGraphForward, checked: bool = False) -> str:
    """What Kim reads; with `checked`, addresses are compared before each replay."""
    parts = DEFAULT_PARTS if checked else EngineParts(graph_runner=trusting)
    under = engine(forward=forward, parts=parts)
    *_, last = under.stream("The KV cache", greedy(40))
    return last.outputs[0].text


def four_people(forward: type[NumpyGraphForward], num_gpu_blocks: int = 48) -> LLMEngine:
    """Lou, Kim, Max and Nia have asked. Nia leaves after six tokens, so that three run as four."""
    under = engine(
        forward=forward, block_size=4, num_gpu_blocks=num_gpu_blocks, enable_prefix_caching=False
    )
    for name, prompt in PROMPTS.items():
        under.add_request(name, prompt, greedy(6 if name == "nia" else 40))
    return under


@dataclass(frozen=True)
class StaleStep:
    """A step in which the row of padding writes into somebody's block.

    Attributes:
        slots: of the four rows, as the kernels find them; the fourth is padding.
        blocks: by name, the block table of each who decodes.
    """

    slots: list[int]
    blocks: dict[str, list[int]]


def stale_step() -> StaleStep:
    """The first step in which the slot that Nia left lies in a block of Lou's that is full already."""
    under = four_people(StaleSlots)
    runner = under.engine_core.model_runner
    rows, block_table = runner.input_batch.req_id_to_index, runner.input_batch.block_table[0]
    assert isinstance(runner.forward, NumpyGraphForward)
    while True:
        under.step()
        if "nia" in rows or stat(under).num_paddings != 1:
            continue
        slots = runner.forward.buffers["slot_mapping"][:4].tolist()
        tables = {
            name: block_table.table[row, : block_table.num_blocks_per_row[row]].tolist()
            for name, row in rows.items()
        }
        if slots[3] // 4 in tables["lou"][:-1]:
            return StaleStep(slots, tables)


def lou_reads(
    forward: type[NumpyGraphForward] = NumpyGraphForward, num_gpu_blocks: int = 48
) -> str:
    """What Lou reads while Kim, Max and, at first, Nia decode beside her."""
    under = four_people(forward, num_gpu_blocks)
    text = ""
    while under.has_unfinished_requests():
        for output in under.step():
            if output.request_id == "lou":
                text = output.outputs[0].text
    return text


def two_launches() -> tuple[LaunchCounter, Graph, np.ndarray, np.ndarray]:
    """A counter, a graph of two launches, its input x and its output z = 2 x + 1, replayed once."""
    counter, graph = LaunchCounter(), Graph()
    x, y, z = np.array([5.0]), np.zeros(1), np.zeros(1)
    with counter.capture(graph):
        counter.launch(Launch("double", lambda a: 2 * a, (x,), y))
        counter.launch(Launch("add one", lambda a: a + 1, (y,), z))
    counter.replay(graph)
    return counter, graph, x, z


if __name__ == "__main__":
    show_morning()
