"""Chunks that are no whole number of blocks in vLLM: what its manager says, and its attention refuses."""

from __future__ import annotations

from typing import Any

import pytest

from mini_vllm.core.hybrid_kv_cache_manager import HybridKVCacheManager
from mini_vllm.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from mini_vllm.core.request import Request
from mini_vllm.sampling_params import SamplingParams

PROMPT = list(range(3, 13))
CHUNK, BLOCK = 8, 3


def found_by_vllm() -> tuple[Any, int]:
    """What vLLM's manager finds of PROMPT in an empty cache, if all layers attend to chunks."""
    import torch
    import vllm.v1.kv_cache_interface as interface
    from vllm.sampling_params import SamplingParams as TheirParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request as TheirRequest

    init_none_hash(sha256)
    spec = interface.ChunkedLocalAttentionSpec(
        block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32,
        attention_chunk_size=CHUNK,
    )  # fmt: skip
    group = interface.KVCacheGroupSpec(["layer"], spec)
    manager = KVCacheManager(
        interface.KVCacheConfig(40, [], [group]), max_model_len=64, hash_block_size=BLOCK
    )
    hasher = get_request_block_hasher(BLOCK, sha256)
    request = TheirRequest("a", PROMPT, TheirParams(), None, block_hasher=hasher)
    blocks, num_tokens = manager.get_computed_blocks(request)
    return blocks.get_block_ids(), num_tokens


@pytest.mark.vllm
def test_the_managers_count_two_blocks_of_an_empty_cache_as_found() -> None:
    group = KVCacheGroupSpec(
        ["layer"], ChunkedLocalAttentionSpec(BLOCK, attention_chunk_size=CHUNK)
    )
    manager = HybridKVCacheManager(KVCacheConfig(40, [group]), 64)
    request = Request("a", PROMPT, SamplingParams(), block_size=BLOCK)
    blocks, num_tokens = manager.get_computed_blocks(request)
    assert (blocks.get_block_ids(), num_tokens) == found_by_vllm() == (([0, 0],), 6), (
        "token 6 is in the first chunk, and should see tokens 0 to 5"
    )


@pytest.mark.vllm
def test_vllms_attention_refuses_such_chunks() -> None:
    import torch
    from vllm.v1.attention.backend import CommonAttentionMetadata
    from vllm.v1.attention.backends.utils import make_local_attention_virtual_batches

    def ints(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    metadata = CommonAttentionMetadata(
        query_start_loc=ints(0, 4), query_start_loc_cpu=ints(0, 4), seq_lens=ints(10), num_reqs=1,
        num_actual_tokens=4, max_query_len=4, max_seq_len=10, block_table_tensor=ints(*[0] * 8)[None],
        slot_mapping=torch.zeros(4, dtype=torch.int64),
    )  # fmt: skip
    with pytest.raises(AssertionError, match="attn_chunk_size 8 is not divisible by block_size 3"):
        make_local_attention_virtual_batches(CHUNK, metadata, BLOCK)
    make_local_attention_virtual_batches(CHUNK, metadata, 4)
