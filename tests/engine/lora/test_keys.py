"""No two tenants share a block: random names, versions, salts and prompts on the pool, without a model."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_utils import KVCacheBlock, get_request_block_hasher
from mini_vllm.lora.lora_model import LoRAModel
from mini_vllm.lora.request import LoadedLoRARequest
from tests.engine.helpers.thorough import either

BLOCK_SIZE, NUM_BLOCKS = 2, 384
PIECES = ("a", "\0", "ÿ", "aa", "\x01")
NAMES = ("a", "aa", "ÿ", "a\0a", "\x01")
VERSIONS = tuple(LoRAModel(1, {}, bytes([byte]) * 32) for byte in (0, 1, 97, 255))
SALTS = (None, None, "a", "aa", "ÿ", "a" * 32, "a\0a", "a" + "a" * 32, "ÿa" + "ÿ" + "a" * 32)
HASHER = get_request_block_hasher(BLOCK_SIZE)


class Pool:
    """A small pool, and for each block what its K and V were computed from: adapter, weights, salt, tokens.

    A step is a request that comes, one that goes or an adapter that is loaded again: to other weights, or
    back to those that it had. Requests under way keep their weights.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.pool = BlockPool(NUM_BLOCKS)
        self.holds: list[Any] = [None] * NUM_BLOCKS
        self.loaded = dict.fromkeys(NAMES, VERSIONS[0])
        self.running: list[list[KVCacheBlock]] = []
        self.num_hits = self.num_shared = self.num_evicted = 0

    def step(self) -> None:
        choice = self.rng.random()
        if choice < 0.02:
            self.loaded[self.rng.choice(NAMES)] = self.rng.choice(VERSIONS)
        elif choice < 0.5 and self.running:
            self.end()
        else:
            self.begin()

    def end(self) -> None:
        blocks = self.running.pop(self.rng.randrange(len(self.running)))
        self.pool.free_blocks(reversed(blocks))

    def begin(self) -> None:
        rng = self.rng
        name = rng.choice((None, *NAMES))
        lora = None
        if name is not None:
            lora = LoadedLoRARequest(name, 1, "p", model=self.loaded[name])
        salt = rng.choice(SALTS)
        tokens = rng.choices((1, 2), k=BLOCK_SIZE * rng.randint(1, 3))
        request: Any = SimpleNamespace(
            all_token_ids=tokens, num_tokens=len(tokens), block_hashes=[], cache_salt=salt,
            lora_request=lora,
        )  # fmt: skip
        request.block_hashes = HASHER(request)
        owner = (name, lora and lora.version, salt)
        blocks: list[KVCacheBlock] = []
        for i, block_hash in enumerate(request.block_hashes):
            block = self.pool.get_cached_block(block_hash)
            if block is None:
                break
            due = (*owner, tuple(tokens[: (i + 1) * BLOCK_SIZE]))
            self.num_hits += 1
            self.num_shared += self.holds[block.block_id] != due
            blocks.append(block)
        num_cached = len(blocks)
        num_new = len(request.block_hashes) - num_cached
        while self.pool.get_num_free_blocks() < len(request.block_hashes):
            self.end()
        self.pool.touch(blocks)
        new = self.pool.get_new_blocks(num_new)
        for i, block in enumerate(new, num_cached + 1):
            self.num_evicted += self.holds[block.block_id] is not None
            self.holds[block.block_id] = (*owner, tuple(tokens[: i * BLOCK_SIZE]))
        blocks += new
        self.pool.cache_full_blocks(request, blocks, num_cached, len(blocks))
        self.running.append(blocks)


def test_no_two_tenants_share_a_block() -> None:
    """Names, weights, salts and tokens of the same few bytes, reloads and evictions."""
    pool = Pool(0)
    steps = either(20_000, 1_000_000)
    for _ in range(steps):
        pool.step()
    pool.pool.check_invariants()
    assert pool.num_shared == 0
    assert pool.num_hits > steps // 10
    assert pool.num_evicted > steps // 10


def test_the_fuzz_finds_the_sharing_of_vllms_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its key is the name, so a reload reads old blocks, and a salt can be an adapter's name."""
    monkeypatch.setattr(
        LoadedLoRARequest, "hash_key", property(lambda self: self.lora_name.encode())
    )
    pool = Pool(0)
    for _ in range(20_000):
        pool.step()
    assert pool.num_shared > 1_000


def test_keys_of_different_tenants_are_different() -> None:
    """Names, versions and salts that are made of the same few bytes, in one block each."""
    rng = random.Random(0)
    of_key: dict[bytes, tuple[Any, ...]] = {}
    for _ in range(20_000):
        name = "".join(rng.choices(PIECES, k=rng.randint(1, 3)))
        model = rng.choice(VERSIONS)
        salt = rng.choice([None, *("".join(rng.choices(PIECES, k=n)) for n in (1, 2, 34))])
        lora = LoadedLoRARequest(name, 1, "p", model=model) if rng.random() < 0.7 else None
        who = (salt, *((name, model.version) if lora else ()))
        request: Any = SimpleNamespace(
            all_token_ids=[1, 2], num_tokens=2, block_hashes=[], cache_salt=salt, lora_request=lora
        )
        (key,) = HASHER(request)
        assert of_key.setdefault(key, who) == who
