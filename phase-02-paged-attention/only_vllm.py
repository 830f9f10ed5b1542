"""What the deep dive shows of vLLM alone: it has no counterpart in `mini_vllm`.

    python phase-02-paged-attention/only_vllm.py             all scenes
    python phase-02-paged-attention/only_vllm.py published   one

The scenes use vLLM's own classes, without a model but for the last two. Those load the shipped checkpoint
on a CPU, core and worker in this process. Needs vLLM 0.22.1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from both_pools import ADA, BO, CONFIG, Say, World, ids

from course.parity.record import vllm_parts
from course.parity.traces import Parts

SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the core in this process
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCH_COMPILE_DISABLE": "1",
}
LONG = list(range(10, 34))


def specs(*windows: int | None) -> list[Any]:
    """A KV cache spec for each group: full attention for None, else a sliding window."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    shape: Any = {"block_size": 4, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    return [
        FullAttentionSpec(**shape)
        if window is None
        else SlidingWindowSpec(**shape, sliding_window=window)
        for window in windows
    ]


def manager(*windows: int | None, **options: Any) -> Any:
    """vLLM's `KVCacheManager` over 20 blocks of 4, with a group for each of `windows`."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

    groups = [KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(specs(*windows))]
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


def managers(say: Say) -> None:
    """Which coordinator a model gets, and which manager each of its groups."""
    cases = {
        "full attention": manager(None),
        "the same, caching off": manager(None, enable_caching=False),
        "window of 8": manager(8),
        "full and window": manager(None, 8),
    }
    for name, made in cases.items():
        kinds = [type(one).__name__ for one in made.coordinator.single_type_managers]
        say(f"{name:22} {type(made.coordinator).__name__}: {', '.join(kinds)}")


def window(say: Say) -> None:
    """24 tokens in steps of 8, in a group with full attention and one with a window of 8."""
    request = World(vllm_parts(CONFIG)).ask("long", LONG)
    made = manager(None, 8)
    for _ in range(3):
        made.allocate_slots(request, 8)
        request.num_computed_tokens += 8
        full, sliding = made.get_block_ids("long")
        say(f"{request.num_computed_tokens:2} tokens: full {ids(full):20} window {ids(sliding)}")


def published(say: Say) -> None:
    """When Ada's third block gets its hash, which her answer fills, in either scheduler."""
    for name, parts in (("sync", vllm_parts(CONFIG)), ("async", with_async(vllm_parts(CONFIG)))):
        world = World(parts)
        ada = world.ask("ada", ADA, max_tokens=6)
        in_flight = 2 if name == "async" else 1
        plans: list[Any] = []
        for number in range(1, 5):
            plans.append(world.plan())
            say(_state(name, f"plan {number}", world, ada))
            if len(plans) == in_flight:
                taken = number - in_flight + 1
                plan = plans.pop(0)
                output = parts.make_output(["ada"], [[world.sample(ada)]])
                world.scheduler.update_from_output(plan, output)
                say(_state(name, f"result {taken}", world, ada))


def _state(name: str, what: str, world: World, request: Any) -> str:
    return (
        f"{name:5} {what:9} {request.num_computed_tokens} computed, {request.num_tokens} known, "
        f"with a hash {ids(world.hashed())}"
    )


def events(say: Say) -> None:
    """What a manager with KV events reports of Ada's blocks."""
    request = World(vllm_parts(CONFIG)).ask("ada", ADA)
    made = manager(None, enable_kv_cache_events=True)

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


def load(**settings: Any) -> Any:
    """Real vLLM on the shipped checkpoint, blocks of 16, core and worker in this process."""
    for variable, value in SETTINGS.items():
        os.environ.setdefault(variable, value)
    from vllm import LLM
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    from mini_vllm.config.engine import DEFAULT_MODEL

    return LLM(
        str(DEFAULT_MODEL),
        dtype="float32",
        enforce_eager=True,
        block_size=16,
        max_num_seqs=4,
        distributed_executor_backend=UniProcExecutor,
        **settings,
    )


def scheduler_of(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core.scheduler


def plans_of(llm: Any) -> list[dict[str, int]]:
    """A list that fills with the tokens that each plan computes, by the request's name."""
    scheduler, seen = scheduler_of(llm), []  # type: ignore[var-annotated]
    original = scheduler.schedule

    def schedule() -> Any:
        plan = original()
        seen.append(dict(plan.num_scheduled_tokens))
        return plan

    scheduler.schedule = schedule
    return seen


def tables_of(scheduler: Any, names: Iterable[str]) -> list[list[int]]:
    return [list(scheduler.kv_cache_manager.get_block_ids(name)[0]) for name in names]


def siblings(say: Say) -> None:
    """`n=2` on a prompt of 33 tokens, with prefix caching and without: plans, tables, answers."""
    from vllm import SamplingParams

    for caching in (True, False):
        llm = load(enable_prefix_caching=caching)
        seen = plans_of(llm)
        params = SamplingParams(n=2, seed=3, temperature=1.5, max_tokens=8, ignore_eos=True)
        engine = llm.llm_engine
        engine.add_request("0", {"prompt_token_ids": list(range(10, 43))}, params)
        engine.step()
        tables = tables_of(scheduler_of(llm), seen[0])
        answers: dict[int, list[int]] = {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                answers |= {one.index: list(one.token_ids) for one in output.outputs}
        say(
            f"caching {'on' if caching else 'off'}: computes {list(seen[0].values())}, tables {tables}"
        )
        say(f"  answers {answers[0]} and {answers[1]}")


def hang(say: Say) -> None:
    """Four blocks of 16 for a model length of 64. One prompt asks for them all, one grows into them."""
    from vllm import SamplingParams
    from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config

    llm = load(max_model_len=64, num_gpu_blocks_override=4)
    engine, scheduler = llm.llm_engine, scheduler_of(llm)
    promised = get_max_concurrency_for_kv_cache_config(
        engine.vllm_config, scheduler.kv_cache_config
    )
    say(f"accepted at start; concurrency promised: {promised:.2f}")
    for prompt in (50, 40):
        params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        engine.add_request(str(prompt), {"prompt_token_ids": list(range(10, 10 + prompt))}, params)
        steps = 300
        given = sum(len(engine.step()) for _ in range(steps))
        [request] = scheduler.requests.values()
        free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        say(
            f"prompt of {prompt}, {steps} steps: {request.status.name}, "
            f"{given} tokens, {free} blocks free"
        )
        engine.abort_request([str(prompt)])
        engine.step()


SCENES = {
    scene.__name__: scene for scene in (managers, window, published, slots, events, siblings, hang)
}


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
