"""Lab 03-07: the engines that a test of the incident has to tell apart, good and bad.

The schedulers are `mini_vllm`'s, mended or not; the worker, and what was asked in the incident, are in
`worker.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from course.fuzz.engines import Mini
from course.fuzz.world import Job, Settings, World
from course.learner.labs import load_module
from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.core.sched.upstream_scheduler import UpstreamScheduler

HERE = Path(__file__).resolve().parent
_worker = load_module(HERE / "worker.py", "lab_03_07_worker")
DAYS, SETTINGS = _worker.DAYS, _worker.SETTINGS
lines, requests, Worker = _worker.lines, _worker.requests, _worker.Worker
MOST_STEPS = 3000
MAX_MODEL_LEN = 64


# -- an engine -------------------------------------------------------------------------------------


class Engine:
    """A scheduler and a worker; as it stands here, with the pin's behaviour."""

    scheduler_class: Any = UpstreamScheduler
    manager_class: Any = KVCacheManager

    def __init__(self, num_gpu_blocks: int, block_size: int, chunk: int) -> None:
        settings = Settings(
            block_size,
            num_gpu_blocks,
            MAX_MODEL_LEN,
            long_prefill_token_threshold=chunk,
            policy="priority",
        )
        self.driver = self.make_driver(World(settings, ()))
        self.worker = Worker(num_gpu_blocks, block_size)
        self.outputs: dict[str, list[int]] = {}
        self.finished: set[str] = set()
        self.found: dict[str, list[int]] = {}
        self.preempted: list[str] = []
        self._steps = 0

    def make_driver(self, world: World) -> Any:
        return Mini(world, self.scheduler_class, self.manager_class)

    def add_request(
        self,
        request_id: str,
        prompt: Sequence[int],
        max_tokens: int,
        priority: int = 0,
        salt: int = 0,
    ) -> None:
        if request_id in self.outputs:
            raise ValueError(f"request id {request_id!r} is already in use")
        job = Job(tuple(prompt), max_tokens, priority=priority, salt=salt)
        self.driver.add(request_id, job, float(len(self.outputs)))
        self.outputs[request_id], self.found[request_id] = [], []

    def step(self) -> dict[str, tuple[int, int]]:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise RuntimeError(
                f"your test has asked for step {self._steps} of one engine: bound the number of steps"
            )
        if not self.driver.scheduler.has_unfinished_requests():
            return {}
        output, plan = self.driver.schedule()
        self.preempted += sorted(plan.preempted)
        for entry in plan.entries:
            if entry.whole_table:
                self.found[entry.request_id].append(entry.start)
        given = self.driver.update(output, plan, self.worker.execute(plan))
        for request_id, tokens in given.items():
            self.outputs[request_id] += tokens
        for request_id, request in self.driver.requests.items():
            if request.is_finished():
                self.finished.add(request_id)
        return {e.request_id: (e.start, e.start + e.num_tokens) for e in plan.entries}


MakeEngine = Callable[[int, int, int], Engine]


def engine_with(scheduler_class: Any) -> MakeEngine:
    """Engines over another scheduler, a learner's for instance."""

    def make(num_gpu_blocks: int, block_size: int, chunk: int) -> Engine:
        engine_class = type("Yours", (Engine,), {"scheduler_class": scheduler_class})
        made: Engine = engine_class(num_gpu_blocks, block_size, chunk)
        return made

    return make


def beyond_computed(scheduler: Any, request: Request) -> list[int]:
    """The victim's blocks that no step before this one has filled."""
    block_ids = scheduler.kv_cache_manager.get_block_ids(request.request_id)[0]
    return list(block_ids[request.num_computed_tokens // scheduler.config.block_size :])


# -- good ------------------------------------------------------------------------------------------


class UnPublishes(Engine):
    """`mini_vllm`'s own answer: the blocks that the withdrawn plan would have filled lose their hashes."""

    scheduler_class = Scheduler


class _AtEveryPreemption(UpstreamScheduler):
    def _preempt_request(self, request: Request) -> None:
        self.kv_cache_manager.evict_blocks(set(beyond_computed(self, request)))
        super()._preempt_request(request)


class UnPublishesAtEveryPreemption(Engine):
    """Whoever is preempted, served or not, keeps hashes only on what earlier steps computed."""

    scheduler_class = _AtEveryPreemption


class LatePool(BlockPool):
    """Keeps in mind what is to be published, until it is told to do it or to forget it."""

    def __init__(self, num_gpu_blocks: int, enable_caching: bool = True) -> None:
        super().__init__(num_gpu_blocks, enable_caching)
        self.due: dict[str, tuple[Any, ...]] = {}

    def cache_full_blocks(self, request: Request, blocks: Any, first: int, end: int) -> None:
        self.due[request.request_id] = (request, list(blocks), first, end)

    def publish(self, request_ids: Any) -> None:
        for request_id in request_ids:
            if request_id in self.due:
                super().cache_full_blocks(*self.due[request_id])
        self.due.clear()


class LateManager(KVCacheManager):
    def __init__(self, num_gpu_blocks: int, *rest: Any) -> None:
        super().__init__(num_gpu_blocks, *rest, block_pool=LatePool(num_gpu_blocks))


class _AfterThePlan(UpstreamScheduler):
    def schedule(self) -> Any:
        output = super().schedule()
        self.kv_cache_manager.block_pool.publish(output.num_scheduled_tokens)  # type: ignore[attr-defined]
        return output


class PublishesTheFinishedPlan(Engine):
    """Blocks are published at the end of `schedule()`, for whoever is still in the plan."""

    scheduler_class, manager_class = _AfterThePlan, LateManager


class _AfterTheStep(UpstreamScheduler):
    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        self.kv_cache_manager.block_pool.publish(scheduler_output.num_scheduled_tokens)  # type: ignore[attr-defined]
        return super().update_from_output(scheduler_output, model_runner_output)


class PublishesWhatIsComputed(Engine):
    """Blocks are published when the step that fills them is over. Nobody shares within a step."""

    scheduler_class, manager_class = _AfterTheStep, LateManager


class _ImportantFirst(Scheduler):
    def _schedule_running(self, step: Any) -> None:
        self.running.sort()
        super()._schedule_running(step)

    def _evict_uncomputed_blocks(self, request: Request) -> None:
        """Never needed: the least important is served last."""


class ServesTheImportantFirst(Engine):
    """The running list is served in the order of importance, so a victim has never been served yet."""

    scheduler_class = _ImportantFirst


class _SparesTheServed(UpstreamScheduler):
    def _schedule_running(self, step: Any) -> None:
        self._served = step.scheduled_running_reqs
        super()._schedule_running(step)

    def _pop_victim(self) -> Request:
        victim = max(request for request in self.running if request not in self._served)
        self.running.remove(victim)
        return victim


class SparesTheServed(Engine):
    """Who has been served in a step is no victim of that step, even if somebody important has to wait."""

    scheduler_class = _SparesTheServed


# -- bad -------------------------------------------------------------------------------------------


class _Everything(UpstreamScheduler):
    def _evict_uncomputed_blocks(self, request: Request) -> None:
        manager = self.kv_cache_manager
        manager.evict_blocks(set(manager.get_block_ids(request.request_id)[0]))


class UnPublishesEverything(Engine):
    """The victim's whole table loses its hashes, what earlier steps computed too. Right texts, no hits."""

    scheduler_class = _Everything


class _OneTooMany(UpstreamScheduler):
    def _evict_uncomputed_blocks(self, request: Request) -> None:
        manager = self.kv_cache_manager
        first = max(request.num_computed_tokens // self.config.block_size - 1, 0)
        manager.evict_blocks(set(manager.get_block_ids(request.request_id)[0][first:]))


class UnPublishesOneTooMany(Engine):
    """The last block that an earlier step filled loses its hash as well."""

    scheduler_class = _OneTooMany


class _TheFirst(UpstreamScheduler):
    def _evict_uncomputed_blocks(self, request: Request) -> None:
        self.kv_cache_manager.evict_blocks(set(beyond_computed(self, request)[:1]))


class UnPublishesTheFirst(Engine):
    """Only the first uncomputed block loses its hash. A lookup stops there, so what is behind it seems
    out of reach; but somebody else may have published a sound copy of that first block."""

    scheduler_class = _TheFirst


class _TheLast(UpstreamScheduler):
    def _evict_uncomputed_blocks(self, request: Request) -> None:
        self.kv_cache_manager.evict_blocks(set(beyond_computed(self, request)[-1:]))


class UnPublishesTheLast(Engine):
    """Only the last uncomputed block loses its hash."""

    scheduler_class = _TheLast


class _NewBlocks(UpstreamScheduler):
    def _evict_uncomputed_blocks(self, request: Request) -> None:
        manager = self.kv_cache_manager
        first = -(request.num_computed_tokens // -self.config.block_size)
        manager.evict_blocks(set(manager.get_block_ids(request.request_id)[0][first:]))


class UnPublishesNewBlocks(Engine):
    """The blocks that the step handed out lose their hashes; one that it had before, half filled, and that
    the step would have filled up, does not."""

    scheduler_class = _NewBlocks


class _EveryCopy(UpstreamScheduler):
    def _evict_uncomputed_blocks(self, request: Request) -> None:
        pool = self.kv_cache_manager.block_pool
        gone = {pool.blocks[i].block_hash for i in beyond_computed(self, request)} - {None}
        pool.evict_blocks({b.block_id for b in pool.blocks if b.block_hash in gone})


class UnPublishesEveryCopy(Engine):
    """Not only the victim's blocks lose the hash, but every block that has the same: also a sound copy
    that somebody else has computed."""

    scheduler_class = _EveryCopy


class _Shared(Scheduler):
    def _evict_uncomputed_blocks(self, request: Request) -> None:
        pool = self.kv_cache_manager.block_pool
        block_ids = self.kv_cache_manager.get_block_ids(request.request_id)[0]
        pool.evict_blocks({i for i in block_ids if pool.blocks[i].ref_cnt > 1})
        super()._evict_uncomputed_blocks(request)


class UnPublishesWhatIsShared(Engine):
    """Besides the uncomputed blocks those lose their hashes that the victim shares with others, though
    they were computed long ago."""

    scheduler_class = _Shared


class _ForgetsAll(UpstreamScheduler):
    def _evict_uncomputed_blocks(self, request: Request) -> None:
        pool = self.kv_cache_manager.block_pool
        pool.evict_blocks({block.block_id for block in pool.blocks})


class EmptiesTheCache(Engine):
    """The whole index is emptied, everybody's blocks. Right texts, no hits."""

    scheduler_class = _ForgetsAll


class _VictimKnows(UpstreamScheduler):
    """What a victim may find is noted when it goes, and looked up when it comes back."""

    def _evict_uncomputed_blocks(self, request: Request) -> None:
        limits = self.kv_cache_manager.limits  # type: ignore[attr-defined]
        limits[request.request_id] = request.num_computed_tokens // self.config.block_size


class _LimitedManager(KVCacheManager):
    def __init__(self, *rest: Any) -> None:
        super().__init__(*rest)
        self.limits: dict[str, int] = {}

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        found, _ = super().get_computed_blocks(request)
        sound = found.blocks[: self.limits.get(request.request_id, len(found.blocks))]
        return KVCacheBlocks(sound), len(sound) * self.block_size


class SparesTheVictimOnly(Engine):
    """The victim remembers how much of it was computed and takes no more; the hashes stay."""

    scheduler_class, manager_class = _VictimKnows, _LimitedManager


class ForgetsTheSalt(Engine):
    """The right blocks lose their hashes; but all hashes are made anew for it, without the salt."""

    scheduler_class = Scheduler

    def add_request(
        self,
        request_id: str,
        prompt: Sequence[int],
        max_tokens: int,
        priority: int = 0,
        salt: int = 0,
    ) -> None:
        super().add_request(request_id, prompt, max_tokens, priority, 0)


class TurnsCachingOff(Engine):
    """Under `priority` the prefix cache is off. Right texts, no hits."""

    scheduler_class = UpstreamScheduler

    def make_driver(self, world: World) -> Any:
        changed = world.with_settings(enable_prefix_caching=False)
        return Mini(changed, self.scheduler_class, self.manager_class)


class _Drops(UpstreamScheduler):
    def _evict_uncomputed_blocks(self, request: Request) -> None:
        self.lost = request

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        if (lost := self.__dict__.pop("lost", None)) is not None:
            self.finish_requests(lost.request_id, RequestStatus.FINISHED_ABORTED)
        return super().update_from_output(scheduler_output, model_runner_output)


class EndsTheVictim(Engine):
    """The victim is ended on the spot, with the tokens it has. It does not come back to read anything."""

    scheduler_class = _Drops


GOOD: tuple[MakeEngine, ...] = (
    UnPublishes,
    UnPublishesAtEveryPreemption,
    PublishesTheFinishedPlan,
    PublishesWhatIsComputed,
    ServesTheImportantFirst,
    SparesTheServed,
)
BAD: tuple[MakeEngine, ...] = (
    UnPublishesTheFirst,
    UnPublishesTheLast,
    UnPublishesNewBlocks,
    UnPublishesOneTooMany,
    UnPublishesEverything,
    UnPublishesEveryCopy,
    UnPublishesWhatIsShared,
    EmptiesTheCache,
    TurnsCachingOff,
    SparesTheVictimOnly,
    ForgetsTheSalt,
    EndsTheVictim,
)
