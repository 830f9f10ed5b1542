"""What the fuzz asks of an engine: a scheduler with its KV cache manager, and the requests it was given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from course.fuzz.memory import Entry, Plan, Wrong
from course.fuzz.world import Job, World, prefixes


class Leak(Wrong):
    """All requests have ended, and something is still held."""


class Engine(ABC):
    """A scheduler with its KV cache manager, and the requests it was given.

    Attributes:
        scheduler: the object under test.
        requests: every request that was added, by id; ended ones too.
        salts: request id -> salt.
        published: block id -> the prefixes that its hash stands for, with speculation.
    """

    def __init__(self, world: World, scheduler: Any) -> None:
        self.settings = world.settings
        self.scheduler = scheduler
        self.published: dict[int, list[int]] | None = None
        if world.speculation is not None and world.settings.enable_prefix_caching:
            self.published = {}
            self._watch_publishing(self.published)
        self.requests: dict[str, Any] = {}
        self.salts: dict[str, int] = {}

    # -- what differs between engines

    @abstractmethod
    def _request(self, request_id: str, job: Job, arrival_time: float) -> Any:
        """A request of the engine's own class."""

    @abstractmethod
    def _output(self, request_ids: list[str], sampled: list[list[int]]) -> Any:
        """What a worker sends back."""

    @abstractmethod
    def _drafts(self, request_ids: list[str], drafts: list[list[int]]) -> Any:
        """A `DraftTokenIds`."""

    @abstractmethod
    def _aborted(self) -> Any:
        """The status of a request that was aborted."""

    @abstractmethod
    def reset_prefix_cache(self, running: bool) -> None:
        """Forget the prefixes; with `running`, preempt who runs first."""

    # -- what does not

    def add(self, request_id: str, job: Job, arrival_time: float) -> None:
        request = self._request(request_id, job, arrival_time)
        self.requests[request_id], self.salts[request_id] = request, job.salt
        self.scheduler.add_request(request)

    def abort(self, request_ids: list[str]) -> None:
        self.scheduler.finish_requests(request_ids, self._aborted())

    @property
    def has_requests(self) -> bool:
        """Is there anything to schedule, or an end that no plan has told the worker of?"""
        return bool(
            self.scheduler.has_unfinished_requests()
            or getattr(self.scheduler, "finished_req_ids", ())
        )

    def schedule(self) -> tuple[Any, Plan]:
        """vLLM's own output, to be given back to `update`, and the same for the worker."""
        output = self.scheduler.schedule()
        entries, counts = [], output.num_scheduled_tokens
        for new in output.scheduled_new_reqs:
            # The V2 runner is told all tokens of a resumed request here, the V1 runner below.
            tokens = getattr(new, "prefill_token_ids", None) or new.prompt_token_ids
            block_ids, start = list(new.block_ids[0]), new.num_computed_tokens
            entries.append(
                Entry(new.req_id, list(tokens), block_ids, True, start, counts[new.req_id])
            )
        cached = output.scheduled_cached_reqs
        told = getattr(cached, "all_token_ids", {})
        for request_id, given, start in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            entries.append(
                Entry(
                    request_id,
                    told.get(request_id),
                    [] if given is None else list(given[0]),
                    request_id in cached.resumed_req_ids,
                    start,
                    counts[request_id],
                )
            )
        drafts = getattr(output, "scheduled_spec_decode_tokens", {})
        for entry in entries:
            entry.drafts = list(drafts.get(entry.request_id, ()))
        order = {request_id: i for i, request_id in enumerate(counts)}
        entries.sort(key=lambda entry: order[entry.request_id])
        return output, Plan(
            entries, set(output.finished_req_ids), set(output.preempted_req_ids or ())
        )

    def update(self, output: Any, plan: Plan, sampled: list[list[int]]) -> dict[str, list[int]]:
        """Tell the scheduler what a batch gave; what it passes on to the users."""
        request_ids = [entry.request_id for entry in plan.entries]
        given = self.scheduler.update_from_output(output, self._output(request_ids, sampled))
        return {one.request_id: list(one.new_token_ids) for one in self._news(given)}

    def _news(self, given: Any) -> list[Any]:
        return [one for outputs in given.values() for one in outputs.outputs]

    def propose(self, plan: Plan, drafts: list[list[int]]) -> None:
        """Tell the scheduler what was drafted after a batch."""
        given = self._drafts([entry.request_id for entry in plan.entries], drafts)
        self.scheduler.update_draft_token_ids(given)

    def _watch_publishing(self, published: dict[int, list[int]]) -> None:
        pool, size = self.pool, self.settings.block_size
        cache_full_blocks = pool.cache_full_blocks

        def noted(*args: Any, **kwargs: Any) -> None:
            names = ("request", "blocks", "num_cached_blocks", "num_full_blocks")
            given = dict(zip(names, args, strict=False)) | kwargs
            request, first, last = given["request"], given[names[2]], given[names[3]]
            cache_full_blocks(*args, **kwargs)
            tokens = list(request.all_token_ids)[: last * size]
            numbers = list(prefixes(tokens, self.salts[request.request_id]))
            for index in range(first, last):
                block_id = given["blocks"][index].block_id
                published[block_id] = numbers[index * size : (index + 1) * size]

        pool.cache_full_blocks = noted

    @property
    def pool(self) -> Any:
        return self.scheduler.kv_cache_manager.block_pool

    def check_drained(self) -> None:
        """Raise Leak unless nothing is held any more."""
        scheduler, pool = self.scheduler, self.pool
        left = sorted(scheduler.requests)
        if left or scheduler.running or len(scheduler.waiting):
            raise Leak(f"requests {left} are still known")
        free = pool.get_num_free_blocks()
        if free != self.settings.num_blocks - 1:
            raise Leak(f"{free} of {self.settings.num_blocks - 1} blocks are free")
        held = [b.block_id for b in pool.blocks if b.ref_cnt and not b.is_null]
        if held:
            raise Leak(f"blocks {held} have references")
        for name, kept in self._tables().items():
            if kept:
                raise Leak(f"{name} still holds {sorted(kept)}")

    def _tables(self) -> dict[str, Any]:
        managers = self.scheduler.kv_cache_manager.coordinator.single_type_managers
        names = ("req_to_blocks", "num_cached_block")
        return {name: getattr(m, name, {}) for m in managers for name in names}


# -- mini_vllm --------------------------------------------------------------------------------------
