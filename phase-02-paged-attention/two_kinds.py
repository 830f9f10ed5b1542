"""Layers that see all tokens beside layers that see the last eight, as Gemma 3 mixes them, on one pool.

    python phase-02-paged-attention/two_kinds.py          on mini_vllm's scheduler
    python phase-02-paged-attention/two_kinds.py vllm     on vLLM's, which says the same (needs vLLM 0.22.1)

Two KV cache groups, twelve blocks of four tokens for both, eight tokens a step, and no model.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from both_pools import CONFIG, Say, World, ids

from course.parity.decisions import mini_parts
from course.parity.traces import Config, Group, Parts
from mini_vllm.core.kv_cache_coordinator import HybridKVCacheCoordinator
from mini_vllm.core.kv_cache_utils import BlockHash

FULL: Group = {"type": "full", "size": 0}
WINDOW: Group = {"type": "sliding_window", "size": 8}
LONG = list(range(100, 124))


def config(*groups: Group, num_blocks: int = 13, max_model_len: int = 64) -> Config:
    return {
        **CONFIG,
        "num_blocks": num_blocks,
        "max_num_batched_tokens": 8,
        "max_model_len": max_model_len,
        "kv_cache_groups": list(groups),
    }


TWO_KINDS = config(FULL, WINDOW)


def tables_of(world: World, name: str) -> list[list[int]]:
    """A table for each group."""
    return [list(table) for table in world.manager.get_block_ids(name)]


def after_a_stranger(parts: Parts, say: Say = lambda line: None) -> World:
    """A prompt of 24 tokens in three steps; it ends, and a stranger takes a block in each group and ends."""
    world = World(parts)
    world.ask("long", LONG, max_tokens=2)
    for _ in range(3):
        world.step()
        full, window = tables_of(world, "long")
        tokens = world.requests["long"].num_computed_tokens
        say(
            f"{tokens:2} tokens: full {ids(full):14} window {ids(window):14} free {ids(world.free())}"
        )
    world.end("long")
    world.ask("stranger", [1, 2, 3, 4], max_tokens=2)
    world.step()
    say(f"a stranger takes {ids([block for (block,) in tables_of(world, 'stranger')])}")
    world.end("stranger")
    return world


def found_by_full(world: World, request: Any) -> int:
    """How many tokens the group with full attention has of a prompt, from its beginning."""
    find = getattr(world.pool, "get_cached_blocks", None) or world.pool.get_cached_block
    blocks = (len(request.prompt_token_ids) - 1) // CONFIG["block_size"]
    hits = [find(block_hash, [0]) for block_hash in request.block_hashes[:blocks]]
    return (hits.index(None) if None in hits else len(hits)) * CONFIG["block_size"]


def two_kinds(parts: Parts, say: Say) -> None:
    """Tables while the prompt is computed; then what prompts find that begin with some of its tokens."""
    world = after_a_stranger(parts, say)
    for shared in (8, 12, 16, 24):
        request = world.ask(f"first {shared}", [*LONG[:shared], 1, 2], max_tokens=1)
        both = world.manager.get_computed_blocks(request)[1]
        say(f"its first {shared:2}: full has {found_by_full(world, request):2}, both have {both}")
        world.end(f"first {shared}")


class AsksFull(HybridKVCacheCoordinator):
    """What full attention finds is the hit, and the window's group brings what it still has of it."""

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> Any:
        full, _ = self.single_type_managers
        (hits,) = full.find_longest_cache_hit(
            block_hashes, max_cache_hit_length, [0], self.block_pool, full.kv_cache_spec
        )
        found = [self.block_pool.get_cached_blocks(h, [1]) for h in block_hashes[: len(hits)]]
        there = [self.block_pool.null_block if one is None else one[0] for one in found]
        return (hits, there), len(hits) * self.block_size


def asks_full() -> list[list[int]]:
    """Both tables of a prompt that shares 8 tokens, if full attention alone is asked."""
    world = after_a_stranger(mini_parts(TWO_KINDS))
    world.manager.coordinator.__class__ = AsksFull
    world.ask("first 8", [*LONG[:8], 1, 2], max_tokens=2)
    world.step()
    return tables_of(world, "first 8")


def held(kept: Group, num_tokens: int = 96) -> int:
    """Blocks in use after a prompt of so many tokens, if the layers with a window are `kept` like this."""
    world = World(mini_parts(config(FULL, kept, num_blocks=64, max_model_len=num_tokens + 9)))
    world.ask("long", range(num_tokens))
    for _ in range(num_tokens // 8):
        world.step()
    return len(world.counts())


def scene(parts: Parts | None = None) -> list[str]:
    said: list[str] = []
    two_kinds(parts or mini_parts(TWO_KINDS), said.append)
    return said


def main(names: list[str]) -> None:
    if names not in ([], ["vllm"]):
        raise SystemExit(f"only vllm can be asked for, got {' '.join(names)}")
    parts, who = None, "mini_vllm"
    if names:
        from course.parity.record import vllm_parts

        parts, who = vllm_parts(TWO_KINDS), "vLLM"
    print(who, *scene(parts), sep="\n  ")


if __name__ == "__main__":
    main(sys.argv[1:])
