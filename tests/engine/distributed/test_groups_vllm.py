"""Which ranks belong together and who holds what: as vLLM says it of itself, for every size that is small."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mini_vllm.distributed.parallel_state import get_place, get_pp_indices
from mini_vllm.model_loader.shards import get_experts_of_rank

LARGEST = 64
SIZES = [(tp, pp) for tp in range(1, LARGEST + 1) for pp in range(1, LARGEST // tp + 1)]


def groups_of(tensor_size: int, stages: int) -> dict[str, list[list[int]]]:
    """By our places: those of one stage, and those with one number in their stages."""
    tensor: dict[int, list[int]] = {}
    pipeline: dict[int, list[int]] = {}
    for rank in range(tensor_size * stages):
        stage, number = get_place(rank, tensor_size)
        tensor.setdefault(stage, []).append(rank)
        pipeline.setdefault(number, []).append(rank)
    return {"tp": list(tensor.values()), "pp": list(pipeline.values())}


def vllm_groups(patch: pytest.MonkeyPatch, tensor_size: int, stages: int) -> dict[str, Any]:
    """What vLLM would make process groups of; none is made."""
    import torch
    import vllm.config
    from vllm.distributed import parallel_state

    asked: dict[str, Any] = {}

    def init_model_parallel_group(group_ranks: Any, *_: Any, **settings: Any) -> Any:
        asked[settings["group_name"]] = group_ranks
        return SimpleNamespace(rank_in_group=0)

    parallel = SimpleNamespace(data_parallel_size=1, enable_elastic_ep=False, enable_eplb=False)
    config = SimpleNamespace(parallel_config=parallel, model_config=None)
    world = SimpleNamespace(local_rank=0, device_group=None)
    with patch.context() as p:
        p.setattr(torch.distributed, "is_initialized", lambda: True)
        p.setattr(torch.distributed, "get_world_size", lambda: tensor_size * stages)
        p.setattr(torch.distributed, "get_rank", lambda: 0)
        p.setattr(vllm.config, "get_current_vllm_config", lambda: config)
        p.setattr(parallel_state, "get_world_group", lambda: world)
        p.setattr(parallel_state, "init_model_parallel_group", init_model_parallel_group)
        for name in ("_TP", "_DCP", "_PCP", "_PP", "_DP", "_EP", "_EPLB"):
            p.setattr(parallel_state, name, None)
        parallel_state.initialize_model_parallel(tensor_size, stages, backend="gloo")
    return asked


@pytest.mark.vllm
def test_groups_equal_vllms(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank's experts are shared out over its stage, so that group is no other."""
    for tensor_size, stages in SIZES:
        ours, theirs = groups_of(tensor_size, stages), vllm_groups(monkeypatch, tensor_size, stages)
        assert ours == {name: theirs[name] for name in ours}, (tensor_size, stages)
        assert theirs["ep"] == ours["tp"], (tensor_size, stages)


@pytest.mark.vllm
def test_layers_of_stages_equal_vllms() -> None:
    from vllm.distributed.utils import get_pp_indices as theirs

    for layers in range(1, 41):
        for size in range(1, min(8, layers) + 1):
            for rank in range(size):
                mine = get_pp_indices(layers, rank, size)
                assert (mine.start, mine.stop) == theirs(layers, rank, size), (layers, rank, size)


@pytest.mark.vllm
def test_experts_of_ranks_equal_vllms() -> None:
    from vllm.model_executor.layers.fused_moe.expert_map_manager import determine_expert_map

    for experts in range(1, 33):
        for size in range(2, 9):
            for rank in range(size):
                count, of_rank, _ = determine_expert_map(size, rank, experts)
                assert of_rank is not None
                held = [expert for expert, place in enumerate(of_rank.tolist()) if place >= 0]
                assert held == list(get_experts_of_rank(experts, rank, size))
                assert count == len(held)
