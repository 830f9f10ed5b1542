"""Given: Noor's Llama-3-70B on eight GPUs, by your functions: a line for each rank.

python show.py [solution | starter]
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
LAYERS, HIDDEN, INNER, VOCAB, KV_HEADS, HEAD_DIM = 80, 8192, 28672, 128_256, 8, 128
KV = KV_HEADS * HEAD_DIM


def shapes() -> dict[str, tuple[int, ...]]:
    """Llama-3-70B's tensors."""
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCAB, HIDDEN),
    }
    for layer in range(LAYERS):
        found |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "self_attn.q_proj": (HIDDEN, HIDDEN),
                "self_attn.k_proj": (KV, HIDDEN),
                "self_attn.v_proj": (KV, HIDDEN),
                "self_attn.o_proj": (HIDDEN, HIDDEN),
                "mlp.gate_proj": (INNER, HIDDEN),
                "mlp.up_proj": (INNER, HIDDEN),
                "mlp.down_proj": (HIDDEN, INNER),
                "input_layernorm": (HIDDEN,),
                "post_attention_layernorm": (HIDDEN,),
            }.items()
        }
    return found


@dataclass(frozen=True)
class Held:
    """What a rank has: its layers, its KV heads, and the gigabytes of its weights in bf16."""

    layers: list[int]
    kv_heads: range
    gigabytes: float


def look_up(lab: ModuleType, sizes: Any, rank: int) -> Held:
    model = lab.Model(LAYERS, KV_HEADS, HEAD_DIM, VOCAB)
    boxes = {name: lab.holds(name, shape, model, sizes, rank) for name, shape in shapes().items()}
    held = {name: box for name, box in boxes.items() if box is not None}
    layers = sorted({int(name.split(".")[2]) for name in held if ".layers." in name})
    keys = held[f"model.layers.{layers[0]}.self_attn.k_proj.weight"][0]
    numbers = sum(math.prod(len(part) for part in box) for box in held.values())
    heads = range(keys.start // HEAD_DIM, keys.stop // HEAD_DIM)
    return Held(layers, heads, 2 * numbers / 1e9)


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_10_05_{which}")
    sizes = lab.Sizes(8, tp=2, pp=4)
    print("rank  in the log      layers  KV heads     GB")
    for rank in range(sizes.world):
        held = look_up(lab, sizes, rank)
        layers, heads = held.layers, held.kv_heads
        print(
            f"{rank:4}  {lab.worker_name(sizes, rank, False):15}{f'{layers[0]}-{layers[-1]}':>7}"
            f"{f'{heads[0]}-{heads[-1]}':>10}{held.gigabytes:7.2f}"
        )
    sizes = lab.Sizes(6, pp=6)
    stages = [look_up(lab, sizes, rank) for rank in range(sizes.world)]
    print("six stages, layers:", *(f"{len(held.layers):5}" for held in stages))
    print("            GB:    ", *(f"{held.gigabytes:.2f}" for held in stages))


if __name__ == "__main__":
    main(*sys.argv[1:2])
