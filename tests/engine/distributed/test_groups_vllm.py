"""Which ranks belong together and who holds what: as vLLM says it of itself, for every size that is small."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from mini_vllm.distributed.parallel_state import get_place, get_pp_indices, make_group_ranks
from mini_vllm.model_loader.shards import get_experts_of_rank

LARGEST = 64


class Sizes(NamedTuple):
    """A world, and how it is split."""

    world_size: int
    tensor: int
    pipeline: int
    prefill_context: int
    decode_context: int
    data: int


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def all_sizes(largest: int) -> Iterator[Sizes]:
    """Each way to split a world of up to so many ranks. What data parallelism leaves of it is outside."""
    for world in range(1, largest + 1):
        for tensor in divisors(world):
            for pipeline in divisors(world // tensor):
                for prefill in divisors(world // tensor // pipeline):
                    for data in divisors(world // tensor // pipeline // prefill):
                        for decode in divisors(tensor):
                            yield Sizes(world, tensor, pipeline, prefill, decode, data)


class VllmGroups:
    """What vLLM would make process groups of; none is made."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        import torch
        import vllm.config
        from vllm.distributed import parallel_state

        self.asked: dict[str, Any] = {}
        self.world_size = 1
        self.parallel_state = parallel_state
        self.parallel = SimpleNamespace(
            data_parallel_size=1, enable_elastic_ep=False, enable_eplb=False
        )
        config = SimpleNamespace(parallel_config=self.parallel, model_config=SimpleNamespace())
        self.model = config.model_config
        world = SimpleNamespace(local_rank=0, device_group=None)
        patch.setattr(torch.distributed, "is_initialized", lambda: True)
        patch.setattr(torch.distributed, "get_world_size", lambda: self.world_size)
        patch.setattr(torch.distributed, "get_rank", lambda: 0)
        patch.setattr(vllm.config, "get_current_vllm_config", lambda: config)
        patch.setattr(parallel_state, "get_world_group", lambda: world)
        patch.setattr(parallel_state, "init_model_parallel_group", self.init_model_parallel_group)
        for name in self.NAMES:
            patch.setattr(parallel_state, name, None)

    NAMES = ("_TP", "_DCP", "_PCP", "_PP", "_DP", "_EP", "_EPLB")

    def init_model_parallel_group(self, group_ranks: Any, *_: Any, **settings: Any) -> Any:
        self.asked[settings["group_name"]] = group_ranks
        return SimpleNamespace(rank_in_group=0)

    def make(self, sizes: Sizes, is_moe: bool = True) -> dict[str, Any]:
        for name in self.NAMES:
            setattr(self.parallel_state, name, None)
        self.asked = {}
        self.world_size = sizes.world_size
        self.parallel.data_parallel_size = sizes.data
        self.model.is_moe = is_moe
        self.parallel_state.initialize_model_parallel(
            sizes.tensor,
            sizes.pipeline,
            sizes.prefill_context,
            sizes.decode_context,
            backend="gloo",
        )
        return self.asked


def our_groups(sizes: Sizes, is_moe: bool = True) -> dict[str, list[list[int]]]:
    return make_group_ranks(
        sizes.world_size,
        sizes.tensor,
        sizes.pipeline,
        sizes.prefill_context,
        sizes.decode_context,
        sizes.data,
        is_moe,
    )


@pytest.mark.vllm
def test_groups_equal_vllms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every combination of sizes up to 64 ranks, one that lets vLLM's world be a part of a larger one too."""
    vllms = VllmGroups(monkeypatch)
    tried = 0
    for sizes in all_sizes(LARGEST):
        ours, theirs = our_groups(sizes), vllms.make(sizes)
        assert ours == theirs, sizes
        tried += 1
    assert tried == 6656
    for sizes in all_sizes(8):
        assert our_groups(sizes, False) == vllms.make(sizes, False), sizes


def test_places_are_in_the_groups() -> None:
    """A rank's stage and its number there, where there is nothing else."""
    for tensor, pipeline in [(2, 4), (4, 2), (1, 3), (3, 1)]:
        world = tensor * pipeline
        groups = our_groups(Sizes(world, tensor, pipeline, 1, 1, 1))
        for rank in range(world):
            stage, number = get_place(rank, tensor)
            assert groups["tp"][stage][number] == groups["pp"][number][stage] == rank
        assert groups["ep"] == groups["tp"], "a rank's experts are shared out over its stage"


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        (Sizes(8, 3, 1, 1, 1, 1), "8 ranks are no multiple of 1 x 1 x 1 x 3"),
        (Sizes(8, 4, 1, 1, 3, 2), r"tensor_parallel_size \(4\) must be divisible by decode_"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: Sizes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        our_groups(sizes)


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
