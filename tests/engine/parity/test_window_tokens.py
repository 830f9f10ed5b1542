"""Tokens of models with sliding windows equal real vLLM's, and so do the groups that their layers form."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mini_vllm.core.kv_cache_groups import get_kv_cache_groups
from mini_vllm.core.kv_cache_interface import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from tests.engine.helpers.real_vllm.vllm_helpers import ROOT, output_of

SHORT = """
import sys
from course.parity.tokens import report, run_comparison
folder, prompts, alone, pool = sys.argv[1], *map(int, sys.argv[2:])
found = run_comparison(folder, prompts, alone, 40, pool=pool)
print(report(found))
assert all(one.equal for one in found)
assert found[2].preemptions[0] or "mistral" in folder
assert found[0].cached_tokens
"""
# Enough for the longest request, which vLLM asks for, and little more.
POOLS = {"mistral": 12, "gemma3": 53}


@pytest.mark.vllm
@pytest.mark.parametrize("kind", POOLS)
def test_tokens_of_windows_equal_vllms(kind: str, tmp_path: Path) -> None:
    """With chunked prefill, prefix caching, and a pool too small for all."""
    folder = tmp_path / kind
    output_of(ROOT / "tests/engine/helpers/models/window_models.py", kind, folder)
    said = output_of("-c", SHORT, folder, 40, 5, POOLS[kind])
    assert said.splitlines()[-1] == "equal", said


@pytest.mark.vllm
def test_layers_form_the_groups_that_vllm_forms() -> None:
    import torch
    from vllm.v1.core.kv_cache_utils import _get_kv_cache_groups_uniform_page_size
    from vllm.v1.kv_cache_interface import FullAttentionSpec as TheirFull
    from vllm.v1.kv_cache_interface import SlidingWindowSpec as TheirWindow

    sizes = {"block_size": 16, "num_kv_heads": 2, "head_size": 8, "dtype": torch.float32}
    rng = random.Random(0)
    for _ in range(300):
        windows = rng.choices([None, 64, 128], [3, 3, rng.choice([0, 1])], k=rng.randint(2, 30))
        ours: dict[str, KVCacheSpec] = {
            f"{i}": FullAttentionSpec(16, 2, 8)
            if w is None
            else SlidingWindowSpec(16, 2, 8, sliding_window=w)
            for i, w in enumerate(windows)
        }
        theirs = {
            f"{i}": TheirFull(**sizes) if w is None else TheirWindow(**sizes, sliding_window=w)
            for i, w in enumerate(windows)
        }
        mine = get_kv_cache_groups(ours)
        real = _get_kv_cache_groups_uniform_page_size(theirs)
        assert [g.layer_names for g in mine] == [g.layer_names for g in real], windows
        for one, other in zip(mine, real, strict=True):
            assert one.kv_cache_spec.page_size_bytes == other.kv_cache_spec.page_size_bytes
            if isinstance(one.kv_cache_spec, SlidingWindowSpec):
                for budget, most in ((96, 1024), (2048, 512), (1, 40)):
                    ask = "max_admission_blocks_per_request"
                    cap = getattr(one.kv_cache_spec, ask)(budget, most)
                    assert cap == getattr(other.kv_cache_spec, ask)(budget, most)
