"""What the lab's tests and scripts share: sizes to try, and what vLLM's workers hold."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.distributed.parallel_state import make_group_ranks

TINY = Path(DEFAULT_MODEL)
RECORDED = Path(__file__).resolve().parent / "recorded.json"
KINDS = ("tp", "dcp", "pcp", "pp", "dp", "ep")


class Split(NamedTuple):
    """The fields of a learner's `Sizes`, but for `is_moe`."""

    world: int
    tp: int = 1
    pp: int = 1
    pcp: int = 1
    dcp: int = 1
    dp: int = 1


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def all_splits(largest: int) -> Iterator[Split]:
    """Each way to split a world of up to so many ranks. What the sizes leave of it are external copies."""
    for world in range(1, largest + 1):
        for tp in divisors(world):
            for pp in divisors(world // tp):
                for pcp in divisors(world // tp // pp):
                    for dp in divisors(world // tp // pp // pcp):
                        for dcp in divisors(tp):
                            yield Split(world, tp, pp, pcp, dcp, dp)


@cache
def some_splits() -> list[Split]:
    """All of up to 12 ranks, and a hundred larger ones, those of most kinds of parallelism first."""
    larger = [one for one in all_splits(64) if one.world > 12]
    random.Random(0).shuffle(larger)
    larger.sort(key=lambda one: -sum(size > 1 for size in one[1:]))
    return [*all_splits(12), *larger[:60], *larger[60::160]]


def vllms_groups(split: Split, is_moe: bool) -> dict[str, list[list[int]]]:
    """The engine's, which a test of the engine compares with vLLM's own for every split of up to 64 ranks."""
    return make_group_ranks(split.world, split.tp, split.pp, split.pcp, split.dcp, split.dp, is_moe)


def words(split: Split) -> str:
    """A split, without the sizes that are 1."""
    sizes = [f"{name} {size}" for name, size in split._asdict().items() if size > 1]
    return ", ".join(sizes) or "world 1"


@cache
def shapes(tied: bool) -> dict[str, tuple[int, ...]]:
    """The tensors of the checkpoint of which vLLM's workers were asked: the tiny Llama's, with biases."""
    config = json.loads((TINY / "config.json").read_text("utf-8"))
    hidden, inner, vocab = (config[f"{name}_size"] for name in ("hidden", "intermediate", "vocab"))
    heads = config["num_attention_heads"] * config["head_dim"]
    kv_heads = config["num_key_value_heads"] * config["head_dim"]
    linears = {
        "self_attn.q_proj": (heads, hidden),
        "self_attn.k_proj": (kv_heads, hidden),
        "self_attn.v_proj": (kv_heads, hidden),
        "self_attn.o_proj": (hidden, heads),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, shape in linears.items():
            found[f"{prefix}{name}.weight"] = shape
            found[f"{prefix}{name}.bias"] = shape[:1]
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{prefix}{name}.weight"] = (hidden,)
    found["model.norm.weight"] = (hidden,)
    return found if tied else found | {"lm_head.weight": (vocab, hidden)}


def recorded() -> list[dict[str, Any]]:
    """What vLLM's workers kept: `server`, and under `ranks` by tensor the first row and the one behind the
    last, and likewise for columns."""
    found = []
    for one in json.loads(RECORDED.read_text(encoding="utf-8"))["servers"]:
        ranks = [
            rank["outside"]
            | {
                f"model.layers.{n}.{name}": box
                for n in rank["layers"]
                for name, box in rank["each"].items()
            }
            for rank in one["ranks"]
        ]
        found.append({"server": one["server"], "ranks": ranks})
    return found
