"""Ada, Bo and Cy on nine blocks of four tokens, on vLLM's scheduler and on `mini_vllm`'s.

    python phase-02-paged-attention/both_pools.py                all scenes
    python phase-02-paged-attention/both_pools.py steps twice    some

Both schedulers run with the KV cache manager that belongs to them, and without a model: the tokens
come from `World.sample`. What both say alike is printed once. Needs vLLM 0.22.1; its CPU build will
do. The pages run `mini_vllm`'s half alone: `scene("steps")`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from course.parity.decisions import mini_parts
from course.parity.traces import Config, Parts

ADA = list(range(20, 30))
BO = [*ADA[:8], 30, 31]
CY = list(range(40, 48))
PROMPTS = {"ada": ADA, "bo": BO, "cy": CY}
CONFIG: Config = {
    "block_size": 4,
    "num_blocks": 10,  # block 0 is the null block: nine can be given out
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "long_prefill_token_threshold": 0,
    "enable_prefix_caching": True,
    "max_model_len": 32,
    "policy": "fcfs",
}
Say = Callable[[str], None]


class World:
    """One scheduler with its KV cache manager, and requests by name.

    Args:
        parts: the scheduler, and how its requests and results are made.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.scheduler: Any = parts.scheduler
        self.manager: Any = parts.scheduler.kv_cache_manager
        self.pool: Any = self.manager.block_pool
        self.requests: dict[str, Any] = {}

    def ask(
        self, name: str, prompt: Sequence[int], max_tokens: int = 9, salt: str | None = None
    ) -> Any:
        """Add a request; returns it, as the engine's own class."""
        request = self.parts.make_request(
            {
                "id": name,
                "step": 0,
                "prompt": list(prompt),
                "max_tokens": max_tokens,
                "ignore_eos": True,
                "priority": 0,
                "abort": None,
            },
            len(self.requests),
        )
        if salt is not None:  # in an engine the request comes with it
            request.cache_salt = salt
            request.block_hashes.clear()
            request.update_block_hashes()
        self.requests[name] = request
        self.scheduler.add_request(request)
        return request

    def sample(self, request: Any) -> int:
        """The next token: by how many there are, so equal texts go on as equal texts."""
        return 50 + int(request.num_tokens) % 7

    def schedule(self) -> Any:
        return self.scheduler.schedule()

    def update(self, scheduler_output: Any) -> None:
        """Give a scheduled step its result: a token for whoever has caught up by then."""
        sampled = []
        for name in scheduler_output.num_scheduled_tokens:
            request = self.requests[name]
            caught_up = request.num_computed_tokens >= request.num_tokens
            sampled.append([self.sample(request)] if caught_up else [])
        output = self.parts.make_output(list(scheduler_output.num_scheduled_tokens), sampled)
        self.scheduler.update_from_output(scheduler_output, output)

    def step(self) -> dict[str, int]:
        """Schedule a step and give it its result. Returns how many tokens it computes for whom."""
        scheduler_output = self.schedule()
        self.update(scheduler_output)
        return dict(scheduler_output.num_scheduled_tokens)

    def end(self, name: str) -> None:
        self.scheduler.finish_requests(name, self.parts.aborted)

    def table(self, name: str) -> list[int]:
        return self.parts.block_ids(name)

    def free(self) -> list[int]:
        """Ids of the free queue, the next to be given away first."""
        return [block.block_id for block in self.pool.free_block_queue.get_all_free_blocks()]

    def counts(self) -> dict[int, int]:
        """Block id -> references, of blocks in use."""
        return {b.block_id: b.ref_cnt for b in self.pool.blocks[1:] if b.ref_cnt}

    def hashed(self) -> list[int]:
        """Ids of the blocks that carry a hash, so that a prompt can find them."""
        return [block.block_id for block in self.pool.blocks if block.block_hash is not None]


def ids(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers)) or "-"


def counts(world: World, say: Say) -> None:
    """References of Ada's blocks while Bo shares two of them, and after she has left."""
    for name in ("ada", "bo"):
        world.ask(name, PROMPTS[name])
    world.step()
    say(f"ada {ids(world.table('ada'))}, bo {ids(world.table('bo'))}")
    say(f"references {world.counts()}")
    world.end("ada")
    say(f"ada ends: {world.counts()}")


def queue(world: World, say: Say) -> None:
    """The free queue: who stands where, and a hit that leaves from the middle."""
    say(f"at the start           {ids(world.free())}")
    for name in PROMPTS:
        world.ask(name, PROMPTS[name])
    world.step()
    say(f"all three run          {ids(world.free())}")
    for name in ("ada", "bo", "cy"):
        world.end(name)
        say(f"{name} ends{' ' * (17 - len(name))} {ids(world.free())}")
    world.ask("ada again", ADA)
    say(f"ada again computes {world.step()['ada again']}   {ids(world.free())}")


def twice(world: World, say: Say) -> None:
    """Cy's prompt fills its blocks. His twin's shares one and computes the other anew."""
    names = ("cy", "twin")
    for name in names:
        world.ask(name, CY)
    done = world.step()
    tables = {name: world.table(name) for name in names}
    for name in names:
        say(f"{name:4} computes {done[name]}, table {ids(tables[name])}")
    last = [world.pool.blocks[table[-1]] for table in tables.values()]
    different = len({block.block_hash for block in last})
    say(f"blocks {ids([block.block_id for block in last])}, different hashes: {different}")
    for _ in range(4):
        world.step()
    say(f"4 steps on: cy {ids(world.table('cy'))}, twin {ids(world.table('twin'))}")


def hashes(world: World, say: Say) -> None:
    """How many of a prompt's tokens are found, by what its hashes have in common with Ada's."""
    world.ask("ada", ADA)
    world.step()
    tries = {
        "the same": (ADA, None),
        "other end": (BO, None),
        "other beginning": ([99, *ADA[1:]], None),
        "first 8 tokens": (ADA[:8], None),
        "a salt": (ADA, "blue"),
        "the salt again": (ADA, "blue"),
        "another salt": (ADA, "red"),
    }
    for name, (prompt, salt) in tries.items():
        request = world.ask(name, prompt, salt=salt)
        found = world.manager.get_computed_blocks(request)[1]
        world.step()
        world.end(name)
        say(f"{name:16} {found} of {len(prompt)} tokens found")


def steps(world: World, say: Say) -> None:
    """All three, step by step: tables, the free queue, and the blocks that a prompt can find."""
    wanted = {"ada": 4, "bo": 9, "cy": 3}
    for name, max_tokens in wanted.items():
        world.ask(name, PROMPTS[name], max_tokens)
    say("step computes   ada      bo         cy        free queue       with a hash")
    for number in range(1, 7):
        if number == 5:
            world.ask("ada", ADA, max_tokens=9)
        scheduler_output = world.schedule()
        cells = ids([scheduler_output.num_scheduled_tokens.get(name, 0) for name in wanted])
        tables = [ids(world.table(name)) for name in wanted]
        say(
            f"{number:4} {cells:10} {tables[0]:8} {tables[1]:10} {tables[2]:9} "
            f"{ids(world.free()):16} {ids(world.hashed())}"
        )
        world.update(scheduler_output)


SCENES = {scene.__name__: scene for scene in (counts, queue, twice, hashes, steps)}


def scene(name: str, parts: Parts | None = None) -> list[str]:
    """What one scene says; of `mini_vllm` unless other parts are given."""
    said: list[str] = []
    SCENES[name](World(parts or mini_parts(CONFIG)), said.append)
    return said


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in SCENES]
    if unknown:
        raise SystemExit(f"no scene {', '.join(unknown)}; there are {', '.join(SCENES)}")
    from course.parity.record import vllm_parts

    for name in names or SCENES:
        said = {"vLLM": scene(name, vllm_parts(CONFIG)), "mini_vllm": scene(name)}
        if said["vLLM"] == said["mini_vllm"]:
            said = {"vLLM and mini_vllm alike": said["vLLM"]}
        for who, lines in said.items():
            print(f"{name}, {who}", *lines, sep="\n  ")


if __name__ == "__main__":
    main(sys.argv[1:])
