"""Kim alone at night, the others in the morning: what the pages of this phase compute, to show results only.

On paper the model is Llama-3.2-1B in 16 bits, or Llama-3-8B for contrast, and the card an H100 SXM, whose
figures are those of phase 00, lab 04. What a launch costs is taken from what others have measured. What is
run stands in `morning.py`.

The pages import this module by its name: start Python in this folder.

    python phase-05-cuda-graphs/night.py          Kim's step on paper
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mini_vllm.cudagraph import (
    BatchDescriptor,
    CudagraphDispatcher,
    CUDAGraphMode,
    cudagraph_capture_sizes,
)

ROOT = Path(__file__).resolve().parents[1]
SHEETS: dict[str, dict[str, Any]] = {
    sheet["name"]: sheet
    for folder in ROOT.glob("phase-00-*/labs/lab-04-*")
    for sheet in json.loads((folder / "gpus.json").read_text("utf-8"))
}
GIB = 1024**3

COMPILED = 260 / 80
"""Microseconds a launch from compiled code: 80 kernels in 260 (manual of CUDA.jl, "Graphs")."""
DRIVER = 6.0
"""The upper of "4 to 6" microseconds that a launch from C++ took on an RTX 5070 Ti (pegainfer, part 3)."""
PYTHON = 20.0
"""An assumption: microseconds from a line of Python, through torch, to the launch. No GPU could be asked."""


@dataclass(frozen=True)
class Card:
    """A GPU at its best: `flops` operations a second in 16 bits, dense, and `bandwidth` bytes a second."""

    name: str
    flops: float
    bandwidth: float


def card(name: str) -> Card:
    """A card from the data sheets of phase 00, where a figure "with sparsity" is halved."""
    sheet = SHEETS[name]
    dense = sheet["printed_tflops"] / (2 if sheet["with_sparsity"] else 1)
    return Card(name, dense * 1e12, sheet["bandwidth_gb_s"] * 1e9)


H100 = card("H100 SXM")


@dataclass(frozen=True)
class Model:
    """A dense Llama in 16 bits.

    Attributes:
        weights: how many numbers it has.
        layers, hidden, mlp: its shape.
        heads, kv_heads, head_size: of its attention.
        vocabulary: rows of the last matrix.
    """

    name: str
    weights: int
    layers: int
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int

    @property
    def token_bytes(self) -> int:
        """What the KV cache keeps of a token, in all layers."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_size

    @property
    def matrices(self) -> dict[str, int]:
        """Bytes of a layer's matrices, by the kernel that multiplies with them."""
        q, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        shapes = {
            "qkv_proj": (self.hidden, q + 2 * kv),
            "o_proj": (q, self.hidden),
            "gate_up_proj": (self.hidden, 2 * self.mlp),
            "down_proj": (self.mlp, self.hidden),
        }
        return {name: 2 * rows * columns for name, (rows, columns) in shapes.items()}


LLAMA_1B = Model("Llama-3.2-1B", 1_235_814_400, 16, 2048, 8192, 32, 8, 64, 128_256)
LLAMA_8B = Model("Llama-3-8B", 8_030_261_248, 32, 4096, 14336, 32, 8, 128, 128_256)

LAYER = (
    "input_layernorm", "qkv_proj", "rotary_emb", "kv_cache_update", "attention", "o_proj", "add",
    "post_attention_layernorm", "gate_up_proj", "silu_and_mul", "down_proj", "add",
)  # fmt: skip
"""The kernels of a layer, in the order of `mini_vllm/cudagraph/program.py`."""


def kernels(model: Model = LLAMA_1B) -> int:
    """Launches of a pass one by one: those of all layers, the embedding and the angles of the positions
    before them, and a norm behind.

    Without the logits and the sampling, which stand outside of every graph.
    """
    return model.layers * len(LAYER) + 3


def launches(mode: str, model: Model = LLAMA_1B) -> int:
    """Launches of a pass under a runtime mode: NONE, PIECEWISE or FULL."""
    if mode == "FULL":
        return 1
    if (
        mode == "PIECEWISE"
    ):  # a piece before, between and behind; KV write and attention of each layer
        return model.layers + 1 + 2 * model.layers
    return kernels(model)


def card_ms(model: Model = LLAMA_1B, rows: int = 1, context: int = 0) -> float:
    """Milliseconds that the card needs on paper: what it reads or what it computes, whichever is longer.

    Args:
        rows: of the step, one for each person who decodes.
        context: tokens in the cache that each row attends to.
    """
    moved = 2 * model.weights + rows * context * model.token_bytes
    return 1e3 * max(moved / H100.bandwidth, 2 * model.weights * rows / H100.flops)


def host_ms(microseconds: float, model: Model = LLAMA_1B, mode: str = "NONE") -> float:
    """Milliseconds in which the host starts a pass, at so much a launch."""
    return launches(mode, model) * microseconds / 1e3


def tokens_a_second(
    microseconds: float, model: Model = LLAMA_1B, mode: str = "NONE", rows: int = 1
) -> int:
    """Whoever of the two is slower sets the pace."""
    return round(rows * 1e3 / max(card_ms(model, rows), host_ms(microseconds, model, mode)))


@dataclass(frozen=True)
class Span:
    """A kernel on the host's lane or the card's: microseconds from the step's beginning."""

    name: str
    begin: float
    end: float


def layer_lanes(
    microseconds: float, model: Model = LLAMA_1B, replayed: bool = False
) -> tuple[list[Span], list[Span]]:
    """One layer for one row, on the host and on the card: a kernel begins when it is launched and the
    one before it is done. Kernels without a matrix read next to nothing, and count as nothing.

    Args:
        microseconds: a launch.
        replayed: the whole layer in one launch.
    """
    host: list[Span] = []
    device: list[Span] = []
    launched = done = 0.0
    for place, name in enumerate(LAYER):
        if place == 0 or not replayed:
            host.append(Span(name, launched, launched + microseconds))
            launched += microseconds
        begin = max(launched, done)
        done = begin + 1e6 * model.matrices.get(name, 0) / H100.bandwidth
        device.append(Span(name, begin, done))
    return host, device


# --- capture sizes, and who decides ---


def sizes(max_num_seqs: int = 1024, max_num_batched_tokens: int = 8192, **named: Any) -> list[int]:
    """The sizes that are captured; by default those of a server on an H100."""
    return cudagraph_capture_sizes(max_num_seqs, max_num_batched_tokens, **named)


def dispatcher(mode: str = "FULL_AND_PIECEWISE", max_num_seqs: int = 1024) -> CudagraphDispatcher:
    """The table in which a step is looked up, for this mode of the configuration."""
    return CudagraphDispatcher(CUDAGraphMode[mode], sizes(max_num_seqs), max_num_seqs)


def runs_as(
    rows: int, uniform: bool = False, mode: str = "FULL_AND_PIECEWISE", cascade: bool = False
) -> tuple[str, int]:
    """Under which runtime mode a step runs, and as how many rows.

    Args:
        rows: of the step, without padding.
        uniform: one row for everybody.
        mode: what is configured.
        cascade: a step whose common prefix is read once, which is in no FULL graph.
    """
    invalid = frozenset({CUDAGraphMode.FULL}) if cascade else frozenset()
    found, key = dispatcher(mode).dispatch(rows, uniform_decode=uniform, invalid_modes=invalid)
    return found.name, key.num_tokens


def padded(rows: int) -> int:
    """Rows that a step of so many decodes runs as."""
    return runs_as(rows, uniform=True)[1]


def graphs(mode: str = "FULL_AND_PIECEWISE", max_num_seqs: int = 1024) -> dict[str, int]:
    """How many sizes a start captures, for each kind of graph."""
    descs: list[tuple[CUDAGraphMode, list[BatchDescriptor]]]
    descs = dispatcher(mode, max_num_seqs).get_capture_descs()
    return {kind.name: len(keys) for kind, keys in descs}


def simulate(people: int, mode: str, microseconds: float) -> dict[str, Any]:
    """What the simulator of phase 03 makes of people who all come at once, each with 400 tokens of prompt
    and 200 of answer, where a launch costs so much; with `device_busy_share`.
    """
    from mini_vllm import EngineConfig
    from mini_vllm.sim import (
        GraphTally,
        Lengths,
        ServingMetrics,
        Simulator,
        arrival_times,
        load_cost,
        mini_parts,
        random_requests,
        with_graphs,
        work_of,
    )

    config = EngineConfig(num_gpu_blocks=20_000, max_model_len=8192, cudagraph_mode=mode)
    cost = with_graphs(load_cost("h100-llama-3.2-1b"), config, microseconds / 1e6)
    parts, metrics, tally = mini_parts(config), ServingMetrics(), GraphTally(cost)
    simulator = Simulator(
        parts, cost, metrics, lambda out, now: tally.add(work_of(out, parts.scheduler.requests))
    )
    arrivals = arrival_times(people, float("inf"), 1.0, 0)
    simulator.run(random_requests(arrivals, Lengths.parse("400"), Lengths.parse("200")))
    return metrics.result(0) | tally.result()


if __name__ == "__main__":
    for model in (LLAMA_1B, LLAMA_8B):
        print(f"{model.name}: {card_ms(model):.2f} ms on the card, {kernels(model)} launches")
        for cost in (COMPILED, DRIVER, PYTHON):
            speed = tokens_a_second(cost, model)
            print(f"  {cost:5.2f} us each: {host_ms(cost, model):.2f} ms, {speed:,} tokens/s")
