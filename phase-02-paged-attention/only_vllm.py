"""What the deep dive shows of vLLM alone.

    python phase-02-paged-attention/only_vllm.py             all scenes
    python phase-02-paged-attention/only_vllm.py published   one

The scenes use vLLM's own classes, without a model. Needs vLLM 0.22.1.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from both_pools import ADA, BO, CONFIG, Say, World, ids

from course.parity.record import vllm_parts
from course.parity.traces import Parts

SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCH_COMPILE_DISABLE": "1",
}


def manager(**options: Any) -> Any:
    """vLLM's `KVCacheManager` over 20 blocks of 4, for one group of full attention."""
    import torch
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=1, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["layer.0"], spec)]
    config = KVCacheConfig(num_blocks=20, kv_cache_tensors=[], kv_cache_groups=groups)
    return KVCacheManager(config, max_model_len=32, hash_block_size=4, **options)


def with_async(parts: Parts) -> Parts:
    """The same parts with vLLM's `AsyncScheduler` in place of its `Scheduler`."""
    from dataclasses import replace

    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    plain: Any = parts.scheduler
    scheduler: Any = AsyncScheduler(
        vllm_config=plain.vllm_config,
        kv_cache_config=plain.kv_cache_config,
        structured_output_manager=plain.structured_output_manager,
        block_size=CONFIG["block_size"],
        log_stats=False,
    )
    tables = scheduler.kv_cache_manager
    return replace(
        parts, scheduler=scheduler, block_ids=lambda name: list(tables.get_block_ids(name)[0])
    )


def published(say: Say) -> None:
    """When Ada's third block gets its hash, which her answer fills, in either scheduler."""
    for name, parts in (("sync", vllm_parts(CONFIG)), ("async", with_async(vllm_parts(CONFIG)))):
        world = World(parts)
        ada = world.ask("ada", ADA, max_tokens=6)
        in_flight = 2 if name == "async" else 1
        in_progress: list[Any] = []
        for number in range(1, 5):
            in_progress.append(world.schedule())
            say(_state(name, f"schedule {number}", world, ada))
            if len(in_progress) == in_flight:
                taken = number - in_flight + 1
                scheduler_output = in_progress.pop(0)
                output = parts.make_output(["ada"], [[world.sample(ada)]])
                world.scheduler.update_from_output(scheduler_output, output)
                say(_state(name, f"result {taken}", world, ada))


def _state(name: str, what: str, world: World, request: Any) -> str:
    return (
        f"{name:5} {what:10} {request.num_computed_tokens} computed, {request.num_tokens} known, "
        f"with a hash {ids(world.hashed())}"
    )


def events(say: Say) -> None:
    """What a manager with KV events reports of Ada's blocks."""
    request = World(vllm_parts(CONFIG)).ask("ada", ADA)
    made = manager(enable_kv_cache_events=True)

    def report(when: str) -> None:
        said = [type(event).__name__ for event in made.take_events()]
        say(f"{when:16} {', '.join(said) or 'nothing'}")

    made.allocate_slots(request, len(ADA))
    report("blocks granted")
    made.free(request)
    report("ada ends")
    made.block_pool.get_new_blocks(19)
    report("all 19 taken")


def slots(say: Say) -> None:
    """Bo's table in the worker, and the slots of his last two tokens."""
    import torch
    import vllm.v1.worker.block_table as worker
    from vllm.utils.cpu_triton_utils import compute_slot_mapping_kernel

    worker._compute_slot_mapping_kernel = compute_slot_mapping_kernel  # as the CPU runner does
    cpu = torch.device("cpu")
    for block_size, kernel_size, given in ((4, 4, [1, 2, 4]), (32, 16, [1, 2])):
        table = worker.BlockTable(block_size, 1, 8, 16, False, cpu, kernel_size, 1)
        table.block_table.gpu, table.slot_mapping.gpu = (
            table.block_table.cpu,
            table.slot_mapping.cpu,
        )
        table.add_row(given, 0)
        row = table.block_table.np[0, : table.num_blocks_per_row[0]].tolist()
        positions = torch.arange(len(BO) - 2, len(BO), dtype=torch.int64)
        starts = torch.tensor([0, 2], dtype=torch.int32)
        table.compute_slot_mapping(1, starts, positions)
        found = table.slot_mapping.np[:2].tolist()
        say(f"blocks of {block_size}, kernel {kernel_size}: {given} becomes {row}, slots {found}")


SCENES = {scene.__name__: scene for scene in (published, events, slots)}


def scene(name: str) -> list[str]:
    said: list[str] = []
    SCENES[name](said.append)
    return said


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in SCENES]
    if unknown:
        raise SystemExit(f"no scene {', '.join(unknown)}; there are {', '.join(SCENES)}")
    for variable, value in SETTINGS.items():
        os.environ.setdefault(variable, value)
    for name in names or SCENES:
        print(f"{name}, vLLM", *scene(name), sep="\n  ")


if __name__ == "__main__":
    main(sys.argv[1:])
