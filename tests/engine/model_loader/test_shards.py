"""A model split over ranks gives the whole one's logits, whatever its family, in as few calls as it can."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.config.moe import MoeConfig
from mini_vllm.model_loader import load_config, load_model
from mini_vllm.model_loader.shards import check_tensor_parallel, get_rank_config
from tests.engine.helpers.models.model_helpers import whole
from tests.engine.helpers.models.published_configs import PUBLISHED, write_tiny
from tests.engine.helpers.ranks import split_logits
from tests.engine.helpers.thorough import either

TOKENS = [3 + i * 7 % 250 for i in range(24)]
NAMES = either(
    ["Llama-3.1-8B", "gemma-2-2b", "Phi-4-mini", "Qwen2.5-7B-Instruct, long", "Qwen3-30B-A3B",
     "Mixtral-8x7B", "Qwen1.5-MoE-A2.7B", "gemma-3-1b-it"],
    list(PUBLISHED),
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_split_model_gives_the_whole_one_s_logits(name: str, tmp_path: Path) -> None:
    folder = write_tiny(PUBLISHED[name], tmp_path / "model")
    model = load_model(folder)
    expected = whole(model, TOKENS)
    tried = 0
    for size in (2, 4):
        for expert_parallel in (False, True):
            if expert_parallel and not isinstance(model.config, MoeConfig):
                continue
            try:
                check_tensor_parallel(model.config, size, expert_parallel)
            except ValueError:
                continue
            tried += 1
            ranks = split_logits(folder, TOKENS, size, expert_parallel)
            for logits, ledger in ranks:
                np.testing.assert_array_equal(logits, ranks[0][0])
                np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=2e-4)
                # The embedding, and the two halves of each layer.
                assert ledger.count("all_reduce") == 2 * len(model.layers) + 1
                assert ledger.count("all_gather") == 1
    assert tried


def test_ranks_beyond_the_kv_heads_share_them() -> None:
    config = load_config(DEFAULT_MODEL)
    assert (config.num_attention_heads, config.num_key_value_heads) == (4, 2)
    assert get_rank_config(config, 4).num_key_value_heads == 1


@pytest.mark.parametrize(
    ("size", "says"),
    [
        (3, r"num_attention_heads \(4\) must be divisible by tensor_parallel_size \(3\)"),
        (8, r"num_attention_heads \(4\) must be divisible by tensor_parallel_size \(8\)"),
    ],
)
def test_what_cannot_be_split_is_refused_by_name(size: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_tensor_parallel(load_config(DEFAULT_MODEL), size)
