"""Prefill and decode of the numpy Llama on this CPU, beside what the roofline allows.

    python measure.py [--impl solution|starter|FILE] [--model smollm2] [--runs N] [--save measured.json]

First the CPU's two numbers, by two products of matrices; then a Llama of random weights, large
enough that no core's own cache holds it, or the model that is named; the prediction is `step_time` of the
lab. All on one core, and each number is the best of several calls. With `--runs` everything is measured so
many times, in turn, and the best is kept: for a machine that is busy with other work now and then. Takes
about a minute a run, and 1 GB of memory.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import hardware
import numpy as np

from benchmarks import machine
from mini_vllm.attention import AttentionMetadata
from mini_vllm.model_loader import LlamaConfig, expected_tensors, find_model, load_model
from mini_vllm.models.llama import LlamaForCausalLM

CONFIG = LlamaConfig(
    vocab_size=4096,
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=6,
    num_attention_heads=16,
    num_key_value_heads=4,
    head_dim=64,
    max_position_embeddings=1024,
    tie_word_embeddings=True,
)
CONTEXT = 64
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
PROMPTS = (64, 256, 1024)
BLOCK = 16


def random_llama() -> tuple[LlamaForCausalLM, int]:
    """The model and its number of parameters."""
    rng = np.random.default_rng(0)
    weights = {
        name: rng.standard_normal(shape, np.float32) * np.float32(0.02)
        for name, shape in expected_tensors(CONFIG).items()
    }
    return LlamaForCausalLM(CONFIG, weights), sum(w.size for w in weights.values())


def named_model(name: str) -> tuple[LlamaForCausalLM, int]:
    """The model and its number of parameters."""
    model = load_model(find_model(name))
    shapes = expected_tensors(model.config).values()
    return model, sum(math.prod(shape) for shape in shapes)


def step_seconds(model: LlamaForCausalLM, requests: int, new_tokens: int, context: int) -> float:
    """Seconds of one step: `requests` with `context` tokens each, the last `new_tokens` computed."""
    config = model.config
    blocks = -(-context // BLOCK)
    shape = model.attention.get_kv_cache_shape(
        requests * blocks, BLOCK, config.num_key_value_heads, config.head_dim
    )
    caches = [np.zeros(shape, np.float32) for _ in range(config.num_hidden_layers)]
    table = np.arange(requests * blocks, dtype=np.int32).reshape(requests, blocks)
    positions = np.tile(np.arange(context - new_tokens, context), requests)
    owner = np.repeat(np.arange(requests), new_tokens)
    slots = table[owner, positions // BLOCK].astype(np.int64) * BLOCK + positions % BLOCK
    starts = np.arange(requests + 1, dtype=np.int32) * new_tokens
    ids = np.random.default_rng(1).integers(0, config.vocab_size, len(positions))

    def step() -> None:
        metadata = AttentionMetadata(
            starts, np.full(requests, context, np.int32), table, slots, BLOCK
        )
        hidden = model.forward(ids, positions, caches, metadata)
        model.compute_logits(hidden[starts[1:] - 1])

    return hardware.best_time(step)


def main() -> None:
    parser = argparse.ArgumentParser(description="Prefill and decode on this CPU.")
    parser.add_argument("--impl", help="solution (default), starter or a file")
    parser.add_argument(
        "--model", help="a model to measure, say smollm2 (a Llama of random weights)"
    )
    parser.add_argument("--runs", type=int, default=1, help="measure so often, keep the best")
    parser.add_argument("--save", type=Path, help="write the numbers here, for plot.py")
    args = parser.parse_args()
    lab = hardware.load_lab(args.impl)

    llama, num_params = named_model(args.model) if args.model else random_llama()
    config = llama.config
    plan = [("decode", n, 1, CONTEXT) for n in BATCHES] + [("prefill", 1, n, n) for n in PROMPTS]
    flops = bandwidth = 0.0
    best = [float("inf")] * len(plan)
    for _ in range(max(1, args.runs)):
        flops = max(flops, hardware.measure_flops())
        bandwidth = max(bandwidth, hardware.measure_bandwidth())
        times = [step_seconds(llama, *sizes) for _, *sizes in plan]
        best = [min(pair) for pair in zip(best, times, strict=True)]
    cpu = lab.Device("this CPU, one core", flops, bandwidth)
    model = lab.Model(
        args.model or "random Llama", num_params, 4, config.num_hidden_layers,
        config.num_key_value_heads, config.head_dim, bytes_per_kv=4,
    )  # fmt: skip
    print(
        f"one core: {cpu.flops / 1e9:.0f} GFLOP/s and {cpu.bandwidth / 1e9:.1f} GB/s, "
        f"ridge at {lab.ridge_point(cpu):.1f} FLOP/byte"
    )
    print(
        f"{num_params / 1e6:.1f} million parameters in float32; memory-bound below "
        f"{lab.critical_batch_size(cpu, model)} tokens a step\n"
    )
    rows = []
    for (phase, requests, new_tokens, context), seconds in zip(plan, best, strict=True):
        tokens = requests * new_tokens
        kv_tokens = requests * context
        least = lab.step_time(cpu, model, tokens, kv_tokens)
        rows.append(
            {
                "step": phase,
                "tokens": tokens,
                "FLOP/byte": lab.arithmetic_intensity(model, tokens, kv_tokens),
                "ms": seconds * 1e3,
                "ms at least": least * 1e3,
                "tok/s": tokens / seconds,
                "tok/s at most": tokens / least,
                "reached": f"{least / seconds:.0%}",
            }
        )
    print(machine.table(rows))
    if args.save:
        content = {
            "machine": machine.describe(),
            "device": {"flops": cpu.flops, "bandwidth": cpu.bandwidth},
            "model": {"num_params": num_params, "bytes_per_param": 4},
            "rows": rows,
        }
        args.save.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    hardware.run(main)
