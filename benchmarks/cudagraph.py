"""A decode step with and without CUDA graphs: launches, time, and what the graphs cost at the start.

    python -m benchmarks.cudagraph [--save]           on a GPU; --attention torch where there is no Triton
    python -m benchmarks.cudagraph --dry-run          without: small models, graphs of the stand-in

Two models: the shipped one, and one with random weights in the shape of Llama-3.2-1B (16 bits). Three ways
to run: eager, in pieces with attention outside (PIECEWISE), and whole (FULL_DECODE_ONLY). All three take
the same forward pass, `TorchGraphForward`, and the same decode steps of 1, 8 and 64 requests with some 128
tokens each.

    launches    calls of the CUDA runtime that start a kernel or a graph, in one step, by torch's profiler
    copies      calls that start a copy or fill memory
    step us     median of the forward pass, from numpy arrays to hidden states, with a wait after each
    device us   of that the time that kernels were running, by the profiler
    capture s, capture MiB, graphs    what the start took, for the ladder of that many requests
    error       largest difference of the hidden states to the eager ones

The first step of every row is not counted. Launches of the attention kernels are in it, logits and
sampling are not. The dry run goes through the same code, and counts what the stand-in knows: how many kernels
its graphs hold. It times nothing, because a stand-in's time says nothing of a GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks import machine
from mini_vllm.attention import AttentionMetadata
from mini_vllm.config.engine import DEFAULT_MODEL, EngineConfig
from mini_vllm.config.model import LlamaConfig
from mini_vllm.core.kv_cache_groups import get_kv_cache_config
from mini_vllm.model_loader import load_config, load_weights
from mini_vllm.model_loader.loader import expected_tensors

BATCHES = (1, 8, 64)
CONTEXT = 128
BLOCK_SIZE = 16
MODES = ("NONE", "PIECEWISE", "FULL_DECODE_ONLY")
LLAMA_1B = LlamaConfig(
    vocab_size=128_256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
    num_attention_heads=32, num_key_value_heads=8, head_dim=64, rope_theta=500_000.0,
    max_position_embeddings=8192, tie_word_embeddings=True,
)  # fmt: skip
SMALL = LlamaConfig(
    vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=512,
)  # fmt: skip
KERNELS = ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchCooperativeKernel")
GRAPHS = ("cudaGraphLaunch",)
COPIES = ("cudaMemcpyAsync", "cudaMemsetAsync")


class RandomWeights(Mapping[str, Any]):
    """Weights by name, made when they are asked for, so that one at a time is on the host."""

    def __init__(self, config: LlamaConfig) -> None:
        self.shapes = expected_tensors(config)

    def __getitem__(self, name: str) -> np.ndarray:
        shape = self.shapes[name]
        if name.endswith("norm.weight"):
            return np.ones(shape, np.float32)
        seed = sorted(self.shapes).index(name)
        drawn = np.random.default_rng(seed).standard_normal(shape, np.float32)
        drawn *= 0.02
        return drawn

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def make_model(name: str, attention: str, device: str, dry: bool) -> Any:
    """The shipped Llama, or the random one: Llama-3.2-1B's shape in 16 bits, in a dry run a small one."""
    import torch

    from mini_vllm.attention.registry import get_backend
    from mini_vllm.gpu.llama import LlamaForCausalLM

    backend = get_backend(attention).get_attention_cls()()
    if name == "shipped":
        config, weights = load_config(DEFAULT_MODEL), load_weights(DEFAULT_MODEL)
        return LlamaForCausalLM(config, weights, backend, device=device)
    config = SMALL if dry else LLAMA_1B
    dtype = torch.float32 if dry else torch.bfloat16
    return LlamaForCausalLM(config, RandomWeights(config), backend, dtype=dtype, device=device)


def decode_step(
    batch: int, step: int, vocab_size: int
) -> tuple[np.ndarray, np.ndarray, AttentionMetadata]:
    """Each of `batch` requests gets one token more, at position `CONTEXT + step`; blocks from 1 on."""
    blocks = -(-2 * CONTEXT // BLOCK_SIZE)
    table = 1 + np.arange(batch * blocks, dtype=np.int32).reshape(batch, blocks)
    position = CONTEXT + step
    slots = table[:, position // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + position % BLOCK_SIZE
    metadata = AttentionMetadata(
        query_start_loc=np.arange(batch + 1, dtype=np.int32),
        seq_lens=np.full(batch, position + 1, np.int32),
        block_table=table,
        slot_mapping=slots,
        block_size=BLOCK_SIZE,
    )
    ids = (np.arange(batch) * 31 + step * 7).astype(np.int32) % vocab_size
    return ids, np.full(batch, position), metadata


def make_forward(model: Any, mode: str, batch: int) -> tuple[Any, float, float]:
    """What runs the model, and seconds and MiB of making it less those of making it without graphs.

    The KV cache is allocated by then: what is measured is `GraphedLlama.capture`.
    """
    import torch

    from mini_vllm.gpu.cudagraph import TorchGraphForward

    blocks = -(-2 * CONTEXT // BLOCK_SIZE)
    num_gpu_blocks = 1 + batch * blocks
    config = EngineConfig(
        max_num_seqs=batch, max_model_len=2 * CONTEXT, num_gpu_blocks=num_gpu_blocks,
        max_num_batched_tokens=max(512, 2 * batch), attention="torch", cudagraph_mode=mode,
    )  # fmt: skip
    on_gpu = model.device.type == "cuda"

    class Timed(TorchGraphForward):
        """Notes what the capture takes."""

        def capture_model(self) -> None:
            if on_gpu:
                torch.cuda.empty_cache()
                torch.cuda.synchronize()
                free = torch.cuda.mem_get_info()[0]
            began = time.perf_counter()
            super().capture_model()
            self.seconds = time.perf_counter() - began
            self.bytes = free - torch.cuda.mem_get_info()[0] if on_gpu else 0

    forward = Timed(model, config, get_kv_cache_config(model.config, BLOCK_SIZE, num_gpu_blocks))
    return forward, forward.seconds, forward.bytes / 2**20


def run_step(forward: Any, batch: int, step: int) -> Any:
    """Hidden states of one decode step, `[batch, hidden_size]`; the host does not wait."""
    import torch

    with torch.inference_mode():
        hidden = forward.run(*decode_step(batch, step, forward.model.config.vocab_size))
        return hidden[:batch]


def count_launches(forward: Any, batch: int) -> dict[str, Any]:
    """One step under torch's profiler: calls that start something, and microseconds of kernels."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        run_step(forward, batch, 1)
        torch.cuda.synchronize()
    calls: Counter[str] = Counter()
    device = 0.0
    for event in profiler.events():
        on_device = event.device_type == torch.autograd.DeviceType.CUDA
        device += event.device_time if on_device else 0
        for kind, names in (("kernel", KERNELS), ("graph", GRAPHS), ("copy", COPIES)):
            calls[kind] += not on_device and event.name.startswith(names)
    return {
        "launches": calls["kernel"] + calls["graph"], "of graphs": calls["graph"],
        "copies": calls["copy"], "device us": device,
    }  # fmt: skip


def median_step(forward: Any, batch: int, rounds: int) -> float:
    """Microseconds of a step, waited for."""
    import torch

    times = []
    for i in range(rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        run_step(forward, batch, i % CONTEXT)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times[1:])


def recorded_kernels(forward: Any, batch: int) -> int | None:
    """Kernels in the stand-in's graphs that a step of `batch` decodes replays; None where there are none."""
    mode, key = forward.dispatcher.dispatch(batch, uniform_decode=True)
    wrappers = {"FULL": [forward.graphed.full], "PIECEWISE": forward.graphed.split.pieces}
    if str(mode) not in wrappers:
        return None
    return sum(wrapper.entries[key].cudagraph.num_kernels for wrapper in wrappers[str(mode)])


def measure(model: Any, name: str, batch: int, rounds: int) -> list[dict[str, Any]]:
    """The three ways, one row each."""
    timed = model.device.type == "cuda"
    rows, eager = [], None
    for mode in MODES:
        forward, seconds, mib = make_forward(model, mode, batch)
        steps = [run_step(forward, batch, step).float().clone() for step in range(3)]
        eager = steps if eager is None else eager
        error = max(float((a - b).abs().max()) for a, b in zip(steps, eager, strict=True))
        row: dict[str, Any] = {
            "model": name, "batch": batch, "mode": mode, "ran as": forward.stat.runtime_mode,
            "graphs": forward.num_graphs, "error": error,
        }  # fmt: skip
        if timed:
            row |= count_launches(forward, batch)
            row |= {"step us": median_step(forward, batch, rounds)}
            row |= {"capture s": seconds, "capture MiB": mib}
        else:
            row["kernels in graphs"] = recorded_kernels(forward, batch)
        rows.append(row)
        del forward
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--attention", choices=["torch", "triton"], help="triton, on a GPU")
    parser.add_argument(
        "--model", choices=["shipped", "random"], nargs="+", default=["shipped", "random"]
    )
    parser.add_argument("--batch", type=int, nargs="+", default=BATCHES)
    parser.add_argument(
        "--rounds", type=int, default=50, help="steps of which the median is taken (50)"
    )
    parser.add_argument("--dry-run", action="store_true", help="the same code without a GPU")
    parser.add_argument("--save", action="store_true", help="write results/cudagraph.json")
    args = parser.parse_args(argv)
    if args.dry_run:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        if args.attention == "triton":
            os.environ["TRITON_INTERPRET"] = "1"
    import torch

    if not args.dry_run and not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device; --dry-run needs none")
    device = "cpu" if args.dry_run else "cuda"
    attention = args.attention or ("torch" if args.dry_run else "triton")
    rows = []
    for name in args.model:
        model = make_model(name, attention, device, args.dry_run)
        for batch in args.batch:
            rows += measure(model, name, batch, args.rounds)
            print(machine.table(rows[-len(MODES) :]), flush=True)
        del model
    if args.save and machine.may_save(args.dry_run):
        command = "python -m benchmarks.cudagraph " + " ".join(argv or sys.argv[1:])
        more = {"gpu": machine.describe_gpu(), "attention": attention}
        print(machine.save("cudagraph", command.replace(" --save", "").strip(), rows, **more))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
