"""A real engine fed in real time, every step timed: what the simulator is held against.

Engine core, front end and driver share one process and take turns, `VLLM_ENABLE_V1_MULTIPROCESSING=0`:
requests whose time has come are added, then the engine makes a step, and so on. So what a request
waits for is a step or another request being added, and nothing that depends on the operating system's
choice of process. vLLM and `mini_vllm` have the same `add_request` and `step`, and are driven alike.

Scheduling is synchronous. On a CPU vLLM 0.22.1 turns asynchronous scheduling off, whatever is asked for
(`vllm/platforms/cpu.py:135 in CpuPlatform.check_and_update_config`).

The clock is the wall's, or one that goes slower when the machine does (`benchmarks/steady.py`).
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from course.parity.traces import Config
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.sim import SimRequest, StepWork, TimedStep, work_of

Clock = Callable[[], float]
MAX_MODEL_LEN = 1024
CONFIG: Config = {
    "block_size": 16,
    # Too few for 64 requests of 300 tokens, so that the batch workload preempts.
    "num_blocks": 700,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 512,
    "long_prefill_token_threshold": 0,
    "enable_prefix_caching": True,
    "max_model_len": MAX_MODEL_LEN,
    "policy": "fcfs",
}
FIRST_ID, NUM_IDS = 40, 126
"""Ordinary ids of the shipped tokenizer."""


def real_ids(labels: Sequence[int]) -> list[int]:
    """Token ids for a simulated prompt: equal where the labels are, up to there; random otherwise."""
    numbers = np.asarray(labels, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    numbers += np.arange(len(labels), dtype=np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
    numbers ^= numbers >> np.uint64(31)
    numbers *= np.uint64(0x94D049BB133111EB)
    ids: list[int] = (FIRST_ID + (numbers >> np.uint64(33)) % np.uint64(NUM_IDS)).tolist()
    return ids


@dataclass
class Times:
    """What a run took: per request and per token, in seconds.

    `requests` has, by id, TTFT and TPOT of each.
    """

    requests: dict[str, tuple[float, float]] = field(default_factory=dict)
    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    duration: float = 0.0
    output_tokens: int = 0
    preemptions: int = 0

    def figures(self) -> dict[str, float]:
        """The figures that are compared, in milliseconds and tokens a second."""
        found = {}
        for name, values in (("ttft", self.ttft), ("itl", self.itl)):
            for p in (50, 99):
                found[f"p{p}_{name}_ms"] = 1e3 * float(np.percentile(values, p))
        found["output_throughput"] = self.output_tokens / self.duration
        found["num_preemptions"] = self.preemptions
        return found


class Engine:
    """A real engine, its steps timed.

    Attributes:
        steps, adds: what was timed since they were last emptied.
    """

    def __init__(
        self,
        engine: Any,
        core: Any,
        executors: Sequence[tuple[Any, str]],
        params: Callable[[int], Any],
        clock: Clock,
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.scheduler = core.scheduler
        self.steps: list[TimedStep] = []
        self.adds: list[float] = []
        self._work: StepWork | None = None
        self._device = 0.0
        self._params = params
        schedule = self.scheduler.schedule

        def noted(*args: Any) -> Any:
            plan = schedule(*args)
            self._work = work_of(plan, self.scheduler.requests)
            self._preempted += len(plan.preempted_req_ids or ())
            return plan

        self._preempted = 0
        self.scheduler.schedule = noted
        for owner, name in executors:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = self.clock()
            try:
                return call(*args, **kwargs)
            finally:
                self._device += self.clock() - start

        return timed

    def run(self, requests: Sequence[SimRequest]) -> Times:
        """Feed the requests at their times, wait for all, time everything."""
        prompts = [{"prompt_token_ids": real_ids(q.prompt)} for q in requests]
        self.engine.reset_prefix_cache()
        gc.collect()
        gc.freeze()
        found = Times()
        self._preempted = 0
        arrival = {q.request_id: q.arrival for q in requests}
        last: dict[str, float] = {}
        first: dict[str, float] = {}
        made: dict[str, int] = {}
        clock, engine = self.clock, self.engine
        tick = getattr(clock, "tick", None)
        following = 0
        begin = clock()
        while following < len(requests) or engine.has_unfinished_requests():
            if tick is not None:
                tick()
            while following < len(requests) and requests[following].arrival <= clock() - begin:
                q, start = requests[following], clock()
                engine.add_request(
                    q.request_id, prompts[following], self._params(q.max_tokens),
                    arrival_time=begin + q.arrival, priority=q.priority,
                )  # fmt: skip
                self.adds.append(clock() - start)
                following += 1
            if not engine.has_unfinished_requests():
                _wait_until(clock, begin + requests[following].arrival, tick)
                continue
            self._device = 0.0
            self._work = None
            start = clock()
            outputs = engine.step()
            now = clock()
            if self._work is not None:
                self.steps.append(TimedStep(self._work, now - start - self._device, self._device))
            now -= begin
            for output in outputs:
                name = output.request_id
                if name in last:
                    found.itl.append(now - last[name])
                else:
                    found.ttft.append(now - arrival[name])
                    first[name] = now
                last[name] = now
                made[name] = made.get(name, 0) + 1
            found.output_tokens += len(outputs)
            found.duration = now
        gc.unfreeze()
        for name, count in made.items():
            tpot = (last[name] - first[name]) / (count - 1) if count > 1 else 0.0
            found.requests[name] = (first[name] - arrival[name], tpot)
        found.preemptions = self._preempted
        return found


def _wait_until(clock: Clock, when: float, tick: Callable[[], None] | None) -> None:
    """Wait awake: after a sleep the core is slow, and a steady clock does not know yet."""
    while (now := clock()) < when:
        pause = min(when, now + 5e-3)
        while clock() < pause:
            pass
        if tick is not None:
            tick()


def mini_engine(clock: Clock) -> Engine:
    """`mini_vllm` on the shipped checkpoint, one thread."""
    from threadpoolctl import threadpool_limits

    from course.parity.decisions import engine_config
    from mini_vllm import LLMEngine, SamplingParams
    from mini_vllm.sampling_params import RequestOutputKind

    threadpool_limits(1)
    engine: Any = LLMEngine(DEFAULT_MODEL, engine_config(CONFIG))
    core = engine.engine_core
    engine.reset_prefix_cache = core.kv_cache_manager.reset_prefix_cache

    def params(max_tokens: int) -> Any:
        return SamplingParams(
            temperature=0,
            max_tokens=max_tokens,
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )

    executor = core.model_executor
    timed = [(executor, "execute_model"), (executor, "sample_tokens")]
    return Engine(engine, core, timed, params, clock)


def vllm_engine(clock: Clock, config: Config = CONFIG, **options: Any) -> Engine:
    """vLLM 0.22.1 on the CPU: eager, float32, one thread; `options` go to `LLM`."""
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1", "TORCH_COMPILE_DISABLE": "1", "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }  # fmt: skip
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    import vllm
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    llm: Any = vllm.LLM(
        str(DEFAULT_MODEL), dtype="float32", enforce_eager=True, block_size=config["block_size"],
        distributed_executor_backend=UniProcExecutor, max_model_len=config["max_model_len"],
        max_num_seqs=config["max_num_seqs"], num_gpu_blocks_override=config["num_blocks"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        scheduling_policy=config["policy"], **options,
    )  # fmt: skip
    core = llm.llm_engine.engine_core.engine_core
    if core.batch_queue is not None:
        raise RuntimeError("vLLM schedules asynchronously here, and this driver does not")

    def params(max_tokens: int) -> Any:
        return vllm.SamplingParams(
            temperature=0,
            max_tokens=max_tokens,
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )

    executor = core.model_executor
    timed = [(executor, "execute_model"), (executor, "sample_tokens")]
    return Engine(llm.llm_engine, core, timed, params, clock)
