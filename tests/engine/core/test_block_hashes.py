"""What a block's hash depends on, and when it is made."""

from __future__ import annotations

from typing import Any

import pytest

import mini_vllm.core.request as request_module
from mini_vllm.core import kv_cache_utils
from mini_vllm.core.kv_cache_utils import (
    BlockHash,
    get_request_block_hasher,
    hash_block_tokens,
    init_none_hash,
)
from mini_vllm.core.request import Request
from mini_vllm.sampling_params import SamplingParams

# -- hashes ---------------------------------------------------------------------------------------


def request_of(prompt: list[int], block_size: int | None = 4, salt: str | None = None) -> Request:
    params = SamplingParams(max_tokens=8)
    return Request("r", prompt, params, block_size=block_size, cache_salt=salt)


def test_hash_is_32_bytes_and_depends_on_tokens_their_order_the_parent_and_the_keys() -> None:
    base = hash_block_tokens(None, [1, 2, 3])
    assert isinstance(base, bytes)
    assert len(base) == 32
    assert base == hash_block_tokens(None, [1, 2, 3])
    others = [
        hash_block_tokens(None, [1, 2, 4]),
        hash_block_tokens(None, [1, 3, 2]),
        hash_block_tokens(None, [1, 2, 3, 0]),
        hash_block_tokens(base, [1, 2, 3]),
        hash_block_tokens(None, [1, 2, 3], ("salt",)),
        hash_block_tokens(None, [1, 2, 3], ("salu",)),
        hash_block_tokens(None, [1, 2, 3], ("sa", "lt")),
    ]
    assert len({base, *others}) == 8


def test_hash_of_token_ids_does_not_depend_on_how_many_digits_they_have() -> None:
    assert hash_block_tokens(None, [1, 23]) != hash_block_tokens(None, [12, 3])
    assert hash_block_tokens(None, [256, 0]) != hash_block_tokens(None, [0, 1])


def test_hash_is_chained_an_early_difference_changes_every_later_block() -> None:
    one = request_of([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
    two = request_of([0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
    late = request_of([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0])
    assert not set(one.block_hashes) & set(two.block_hashes)
    assert one.block_hashes[:2] == late.block_hashes[:2]
    assert one.block_hashes[2] != late.block_hashes[2]


def test_hash_only_full_blocks_have_one() -> None:
    assert [len(request_of([1] * n).block_hashes) for n in (1, 3, 4, 5, 7, 8)] == [0, 0, 1, 1, 1, 2]


def test_hash_salt_keeps_every_block_apart_through_the_first() -> None:
    prompt = list(range(12))
    plain, x, y, again = (request_of(prompt, salt=s) for s in (None, "x", "y", "x"))
    assert x.block_hashes == again.block_hashes
    for other in (plain, y):
        assert not set(x.block_hashes) & set(other.block_hashes)


def test_hash_salt_is_given_to_the_first_block_only(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []

    def record(parent: Any, token_ids: Any, extra: Any = None) -> BlockHash:
        keys.append(extra)
        return hash_block_tokens(parent, token_ids, extra)

    monkeypatch.setattr(request_module, "hash_block_tokens", record)
    request_of(list(range(12)), salt="x")
    assert keys == [("x",), None, None]


def test_hash_each_full_block_is_hashed_once_in_its_life(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[list[int]] = []

    def record(parent: Any, token_ids: Any, extra: Any = None) -> BlockHash:
        hashed.append(list(token_ids))
        return hash_block_tokens(parent, token_ids, extra)

    monkeypatch.setattr(request_module, "hash_block_tokens", record)
    request = request_of(list(range(10)))
    assert hashed == [[0, 1, 2, 3], [4, 5, 6, 7]]
    for token in range(10, 23):
        request.append_output_token_ids(token)
        request.update_block_hashes()
    assert hashed == [list(range(i, i + 4)) for i in range(0, 20, 4)]
    assert request.block_hashes == request_of(list(range(23))).block_hashes


def test_hash_nothing_is_hashed_with_caching_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> BlockHash:
        raise AssertionError("hashed although caching is off")

    monkeypatch.setattr(request_module, "hash_block_tokens", never)
    request = request_of(list(range(10)), block_size=None)
    for token in range(8):
        request.append_output_token_ids(token)
    assert request.block_hashes == []


def test_hash_root_is_random_unless_the_hash_seed_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    root = kv_cache_utils._init_none_hash
    monkeypatch.setenv("PYTHONHASHSEED", "17")
    fixed = root()
    assert fixed == root()
    assert len(fixed) == 32
    for value in ("random", None):
        if value is None:
            monkeypatch.delenv("PYTHONHASHSEED")
        else:
            monkeypatch.setenv("PYTHONHASHSEED", value)
        assert root() != root()


# -- another hash ---------------------------------------------------------------------------------


def spell(parts: Any) -> bytes:
    """A hash that can be read: what it is given, written out."""
    return repr(parts).encode()


def test_a_hash_function_of_ones_own_gets_parent_tokens_and_keys() -> None:
    assert hash_block_tokens(BlockHash(b"p"), [1, 2], None, spell) == b"(b'p', (1, 2), None)"
    first = hash_block_tokens(None, [1, 2], ("salt",), spell)
    assert first == spell((kv_cache_utils.NONE_HASH, (1, 2), ("salt",)))


def test_a_request_is_hashed_by_the_hasher_that_it_is_given() -> None:
    hasher = get_request_block_hasher(2, spell)
    params = SamplingParams(max_tokens=8)
    request = Request("r", [1, 2, 3, 4, 5], params, block_size=2, block_hasher=hasher)
    first = spell((kv_cache_utils.NONE_HASH, (1, 2), None))
    assert request.block_hashes == [first, spell((first, (3, 4), None))]
    request.append_output_token_ids(6)
    assert request.block_hashes[2] == spell((request.block_hashes[1], (5, 6), None))


@pytest.mark.parametrize("salt", [None, "salt"])
def test_the_default_hasher_says_what_a_request_says_by_itself(salt: str | None) -> None:
    request = request_of(list(range(11)), salt=salt)
    fresh = request_of([0], salt=salt)
    fresh.all_token_ids, fresh.num_tokens = list(range(11)), 11
    assert get_request_block_hasher(4)(fresh) == request.block_hashes


def test_the_first_parent_can_come_from_that_hash_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache_utils, "NONE_HASH", kv_cache_utils.NONE_HASH)
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    init_none_hash(spell)
    assert kv_cache_utils.NONE_HASH == b"'7'"
    monkeypatch.delenv("PYTHONHASHSEED")
    init_none_hash(spell)
    drawn = kv_cache_utils.NONE_HASH
    init_none_hash(spell)
    assert len(drawn) == 32
    assert drawn != kv_cache_utils.NONE_HASH
