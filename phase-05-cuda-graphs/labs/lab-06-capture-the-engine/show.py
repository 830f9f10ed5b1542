"""Your runner on the shipped checkpoint: what it captured, and what one decode of Kim's takes.

    python phase-05-cuda-graphs/labs/lab-06-capture-the-engine/show.py [--impl FILE] [--device cpu|cuda]

On a CPU the stand-in says how many kernels a GPU would start for a graph. On a GPU the graphs are real and
do not tell; there the result alone is checked.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from course.learner.labs import load_module
from mini_vllm.attention import AttentionMetadata as HostMetadata

HERE = Path(__file__).resolve().parent


def main(argv: list[str] | None = None) -> int:
    """Capture, run one step whole and one in pieces, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--impl", type=Path, default=HERE / "solution.py")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args(argv)

    import torch

    from mini_vllm.config.engine import DEFAULT_MODEL
    from mini_vllm.gpu.llama import LlamaForCausalLM
    from mini_vllm.model_loader import load_config, load_weights

    model = LlamaForCausalLM(
        load_config(DEFAULT_MODEL), load_weights(DEFAULT_MODEL), device=args.device
    )
    heads, size = model.config.num_key_value_heads, model.config.head_dim
    shape = model.attention.get_kv_cache_shape(64, 16, heads, size)
    caches = [torch.zeros(shape, device=args.device) for _ in model.layers]
    lab = load_module(args.impl.resolve(), "lab_05_06_show")
    sizes = [1, 2, 4, 8, 16, 24, 32, 40]
    with torch.inference_mode():
        runner = lab.CaptureRunner(model, caches, sizes, 40, 256)
        runner.capture()
        kim = HostMetadata(
            query_start_loc=np.array([0, 1], np.int32),
            seq_lens=np.array([3], np.int32),
            block_table=np.array([[1]], np.int32),
            slot_mapping=np.array([18], np.int64),
            block_size=16,
        )
        step = np.array([65], np.int32), np.array([2]), kim
        whole, eager = runner.run(*step), runner.run_eagerly(*step)
    error = float((whole - eager).abs().max())
    graphs = len(runner.full.entries) + sum(len(piece.entries) for piece in runner.pieces)
    print(
        f"{graphs} graphs: {len(runner.pieces)} pieces and the whole model, for {len(sizes)} sizes"
    )
    if args.device == "cpu":
        full = runner.full.entries[1][0].num_kernels
        pieces = [piece.entries[1][0].num_kernels for piece in runner.pieces]
        print(f"the whole model of one token: {full} kernels, {sum(pieces)} of them in the pieces")
        print(f"pieces, by kernels: {pieces}")
    print(f"Kim's decode as a graph and without: largest difference {error:.1e}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
