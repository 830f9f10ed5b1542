"""Phase 04: the examples in `mla.py` and `cascade.py`, and the rule for the cascade against vLLM's own."""

from __future__ import annotations

import doctest
import itertools
from pathlib import Path

import numpy as np
import pytest

from course.learner.labs import load_module

PHASE = Path(__file__).resolve().parents[2] / "phase-04-attention-backends"


@pytest.mark.parametrize("name", ["mla", "cascade"])
def test_the_examples_hold(name: str) -> None:
    module = load_module(PHASE / f"{name}.py", f"phase_04_{name}")
    failed, attempted = doctest.testmod(module)
    assert attempted
    assert failed == 0


@pytest.mark.vllm
def test_the_cascade_pays_where_vllm_says_so() -> None:
    """The rule on a grid: requests, prefixes, GPUs, heads, with and without prompts in the batch."""
    from vllm.v1.attention.backends.flash_attn import use_cascade_attention

    pays = load_module(PHASE / "cascade.py", "phase_04_cascade_rule").pays
    seen = set()
    for requests, prefix, sms, (heads, kv_heads), decode_only in itertools.product(
        (1, 7, 8, 9, 13, 14, 17, 64, 128, 129, 600),
        (0, 255, 256, 257, 4096, 100_000),
        (1, 40, 58, 108, 132, 148),
        ((32, 8), (32, 32), (64, 8), (128, 1), (512, 2)),
        (True, False),
    ):
        lens = np.ones(requests, dtype=np.int32)
        lens[0] += not decode_only
        theirs = use_cascade_attention(
            prefix, lens, heads, kv_heads, use_alibi=False, use_sliding_window=False,
            use_local_attention=False, num_sms=sms, dcp_world_size=1,
        )  # fmt: skip
        ours = pays(requests, prefix, sms, heads, kv_heads, decode_only=decode_only)
        assert ours == bool(theirs), (requests, prefix, sms, heads, kv_heads, decode_only)
        seen.add(ours)
    assert seen == {True, False}
