"""Lab 07-05: what its page says of vLLM's profiler.

pytest -m vllm tests/authors/test_lab_07_05_vllm.py
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.vllm


def test_the_flags_exist() -> None:
    """The fields that the page names, and their defaults; a profiler without a folder is refused."""
    from vllm.config import ProfilerConfig

    asked = ProfilerConfig(profiler="torch", torch_profiler_dir="/tmp/traces")
    assert asked.torch_profiler_with_stack
    assert not asked.torch_profiler_record_shapes
    with pytest.raises(ValueError, match="torch_profiler_dir"):
        ProfilerConfig(profiler="torch")


def test_the_variable_is_gone() -> None:
    """Which older texts set."""
    from vllm import envs

    assert not [name for name in envs.environment_variables if "TORCH_PROFILER" in name]


def test_one_token_of_eight_experts_needs_no_list() -> None:
    """The launch that is left out: four times the pairs are no more than the experts."""
    import torch
    from vllm.model_executor.layers.fused_moe.fused_moe import _prepare_expert_assignment

    ids = torch.tensor([[1, 5]], dtype=torch.int32)
    listed, blocks, _ = _prepare_expert_assignment(ids, {"BLOCK_SIZE_M": 16}, 1, 2, 8, None)
    assert listed is None
    assert blocks.tolist() == [1, 5]
