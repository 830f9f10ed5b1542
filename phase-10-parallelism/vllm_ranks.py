"""What vLLM's own code says of groups, back ends, a rank that fails, steps in flight, and waves.

    python phase-10-parallelism/vllm_ranks.py           all topics
    python phase-10-parallelism/vllm_ranks.py groups    one

Needs vLLM 0.22.1; its CPU build will do. The topics are vLLM's functions, with devices and other processes
pretended. `failure` is the whole engine on the shipped Llama, two ranks.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from course.learner.labs import load_module

PHASES = Path(__file__).resolve().parents[1]
CHECKPOINT = PHASES / "mini_vllm" / "checkpoints" / "tiny-llama"
topics = load_module(PHASES / "phase-05-cuda-graphs/vllm_topics.py", "vllm_topics_for_phase_10")
Say = Callable[[str], None]


def groups(say: Say) -> None:
    """Which groups `initialize_model_parallel` makes of 16 ranks of a mixture of experts."""
    import torch
    import vllm.config
    from vllm.distributed import parallel_state as state

    asked: dict[str, list[list[int]]] = {}

    def note(group_ranks: list[list[int]], *_: Any, **settings: Any) -> Any:
        asked[settings["group_name"]] = group_ranks
        return SimpleNamespace(rank_in_group=0)

    parallel = SimpleNamespace(data_parallel_size=2, enable_elastic_ep=False, enable_eplb=False)
    config = SimpleNamespace(parallel_config=parallel, model_config=SimpleNamespace(is_moe=True))
    world = SimpleNamespace(local_rank=0, device_group=None)
    with (
        patch.object(torch.distributed, "is_initialized", lambda: True),
        patch.object(torch.distributed, "get_world_size", lambda: 16),
        patch.object(torch.distributed, "get_rank", lambda: 0),
        patch.object(vllm.config, "get_current_vllm_config", lambda: config),
        patch.object(state, "get_world_group", lambda: world),
        patch.object(state, "init_model_parallel_group", note),
    ):
        state.initialize_model_parallel(4, 2, 1, 2, backend="gloo")
    say("16 ranks: data 2 x pipeline 2 x tensor 4, decode context 2")
    for name in ("tp", "dcp", "pp", "dp", "ep"):
        shown = [" ".join(map(str, of_group)) for of_group in asked[name]]
        more = " | ..." if len(shown) > 4 else ""
        say(f"{name:4}{len(shown)} of {len(asked[name][0])}: {' | '.join(shown[:4])}{more}")


def backends(say: Say) -> None:
    """Which back end `CudaCommunicator.all_reduce` takes for Noor's sums, on eight H100."""
    import torch
    from vllm.distributed.device_communicators import all_reduce_utils as utils
    from vllm.distributed.device_communicators.cuda_communicator import CudaCommunicator
    from vllm.distributed.device_communicators.custom_all_reduce import CustomAllreduce
    from vllm.distributed.device_communicators.symm_mem import SymmMemCommunicator

    taken: list[str] = []

    def taking(name: str) -> Callable[[Any], Any]:
        def take(tensor: Any) -> Any:
            taken.append(name)
            return tensor

        return take

    custom: Any = CustomAllreduce.__new__(CustomAllreduce)
    custom.disabled, custom._ptr, custom.world_size, custom.fully_connected = False, 0, 8, True
    custom.custom_all_reduce = taking("custom")
    symmetric: Any = SymmMemCommunicator.__new__(SymmMemCommunicator)
    symmetric.disabled, symmetric.dtype = False, torch.bfloat16
    symmetric.max_size = utils.SYMM_MEM_ALL_REDUCE_MAX_SIZES["9.0"][8]
    symmetric.all_reduce = taking("torch symmetric memory")
    both: Any = CudaCommunicator.__new__(CudaCommunicator)
    both.pynccl_comm = SimpleNamespace(world_size=8, disabled=False, all_reduce=taking("PyNccl"))
    both.qr_comm = both.fi_ar_comm = None
    both.ca_comm = custom
    say("all-reduce of tokens x 8192 bf16, 8 ranks, compute capability 9.0")
    say("tokens     bytes  as shipped             without symmetric memory")
    for tokens in (1, 15, 16, 511, 512, 4096, 8192):
        tensor = torch.empty(tokens, 8192, dtype=torch.bfloat16, device="meta")
        for symm_mem in (symmetric, None):
            both.symm_mem_comm = symm_mem
            custom.max_size = min(
                8 << 20, utils.CUSTOM_ALL_REDUCE_MAX_SIZES["9.0"][8] if symm_mem else 8 << 20
            )
            both.all_reduce(tensor)
        shipped, without = taken[-2:]
        say(f"{tokens:6}{tensor.nbytes:10}  {shipped:22} {without}")
    custom.disabled = True  # so that nothing is freed that was never there


def in_flight(say: Say) -> None:
    """Two requests, the second a turn later, and room for two steps in flight: who is in which step."""
    from vllm.v1.engine.core import EngineCore

    from course.parity.record import vllm_parts

    config: Any = {
        "block_size": 16, "num_blocks": 20, "max_num_seqs": 4, "max_num_batched_tokens": 64,
        "long_prefill_token_threshold": 0, "enable_prefix_caching": False, "max_model_len": 64,
        "policy": "fcfs",
    }  # fmt: skip
    for is_async in (False, True):
        parts = vllm_parts(config, async_scheduling=is_async)
        steps = _play(parts, EngineCore.step_with_batch_queue)
        say(f"{type(parts.scheduler).__name__:15}{'  '.join(steps)}")


def _play(parts: Any, step: Callable[[Any], Any]) -> list[str]:
    """Who is in each schedule, `-` for an empty one."""
    scheduler, steps, results = parts.scheduler, [], []

    def execute_model(plan: Any, non_block: bool) -> _Later:
        names = list(plan.num_scheduled_tokens)
        steps.append("+".join(names) or "-")
        results.append(parts.make_output(names, [[9]] * len(names)))
        return _Later(None if names else results[-1])

    core: Any = SimpleNamespace(
        scheduler=scheduler, batch_queue=deque(maxlen=2), batch_queue_size=2,
        is_ec_consumer=True, is_pooling_model=False, use_spec_decode=False,
        log_error_detail=lambda plan: nullcontext(),
        log_iteration_details=lambda plan: nullcontext(),
        _process_aborts_queue=lambda: None,
        model_executor=SimpleNamespace(
            execute_model=execute_model, sample_tokens=lambda *_, **__: _Later(results[-1])
        ),
    )  # fmt: skip
    for turn in range(12):
        if turn < 2:
            request: Any = {
                "id": ("ada", "bo")[turn], "prompt": [5, 6, 7], "max_tokens": 4,
                "ignore_eos": True, "priority": 0,
            }  # fmt: skip
            scheduler.add_request(parts.make_request(request, turn))
        if scheduler.has_requests() or core.batch_queue:
            step(core)
    return steps


class _Later(Future):  # type: ignore[type-arg]
    """A result that is there when it is asked for, as `FutureWrapper`'s."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self._value = value

    def done(self) -> bool:
        return False

    def result(self, timeout: float | None = None) -> Any:
        return self._value


def wave(say: Say) -> None:
    """Two engines of a mixture of experts in `DPEngineCoreProc.run_busy_loop`: what each step was."""
    from vllm.config import ParallelConfig
    from vllm.v1.engine.core import DPEngineCoreProc

    tokens = (40, 5)
    barrier, flags = threading.Barrier(2), [False, False]

    def sync(group: int, has_unfinished: bool, pending_pause: bool) -> tuple[bool, bool]:
        flags[group] = has_unfinished
        barrier.wait()
        any_left = any(flags)
        barrier.wait()
        syncs[group] += 1
        return any_left, False

    steps: list[Counter[str]] = [Counter(), Counter()]
    syncs: Counter[int] = Counter()

    def run(rank: int) -> None:
        left = [tokens[rank]]

        def step() -> bool:
            if not left[0]:
                return False
            left[0] -= 1
            steps[rank]["real"] += 1
            return True

        core: Any = DPEngineCoreProc.__new__(DPEngineCoreProc)
        core.scheduler = SimpleNamespace(has_unfinished_requests=lambda: left[0] > 0)
        core.step_counter = core.current_wave = 0
        core.dp_rank = core.dp_group = rank
        core.engines_running, core.has_coordinator = True, True
        core.pending_pause = core.ignore_start_dp_wave = core.publish_dp_lb_stats = False
        core.eep_scaling_state, core.output_queue = None, queue.Queue()
        core._handle_shutdown = lambda: core.current_wave == 0
        core._process_input_queue = lambda: None
        core._process_engine_step = step
        core.execute_dummy_batch = lambda: steps[rank].update(["dummy"])
        with suppress(SystemExit):
            core.run_busy_loop()

    with patch.object(ParallelConfig, "sync_dp_state", staticmethod(sync)):
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for rank in range(2):
        say(
            f"rank {rank}: {tokens[rank]} tokens to make, {steps[rank]['real']} steps with requests, "
            f"{steps[rank]['dummy']} dummy, {syncs[rank]} all-reduces to ask whether to stop"
        )


def _break(worker: Any) -> str:
    """In a rank: let its next step raise, if it is not the rank that answers."""

    def execute_model(*_: Any) -> None:
        raise ValueError("this rank has no more memory")

    if worker.rank == 1:
        worker.execute_model = execute_model
    return f"rank {worker.rank}"


def failure(say: Say) -> None:
    """A rank that does not answer raises in a step: how the engine hears of it."""
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCH_COMPILE_DISABLE": "1",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "20", "VLLM_LOGGING_LEVEL": "CRITICAL",
    }  # fmt: skip
    cores = sorted(os.sched_getaffinity(0))
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"{cores[0]}|{cores[-1]}"
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(CHECKPOINT), dtype="float32", enforce_eager=True, max_model_len=256,
        tensor_parallel_size=2, distributed_executor_backend="mp",
    )  # fmt: skip
    llm.collective_rpc(_break)
    start = time.monotonic()
    try:
        llm.generate(["Why "], SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
    except Exception as error:
        seconds = time.monotonic() - start
        say(f"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=20: {type(error).__name__} after {seconds:.0f} s")
        say(f"  {error}")


TOPICS = {
    "groups": groups,
    "backends": backends,
    "failure": failure,
    "in_flight": in_flight,
    "wave": wave,
}

if __name__ == "__main__":
    os.environ |= {name: os.environ.get(name, value) for name, value in topics.ON_PAPER.items()}
    names = topics.wanted(TOPICS)
    if len(names) > 1:
        topics.each_apart(__file__, names)
    else:
        topics.tell(names[0], TOPICS[names[0]])
