"""Given: what a run of vLLM leaves behind. Worth reading, nothing to write.

`play` takes an engine through the rounds of a run and returns a record of plain numbers. It reaches into
the scheduler, so the engine core must live in the process (`VLLM_ENABLE_V1_MULTIPROCESSING=0`), and
scheduling must be synchronous (`async_scheduling=False`; a CPU's default, not a GPU's).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any


def plain(request_id: str) -> str:
    """The id that the user gave: without the eight hexadecimal digits that vLLM appends."""
    return re.sub(r"-[0-9a-f]{8}$", "", request_id)


class Watch:
    """What one scheduler decides, step by step: who is let in, who waits, and the counters at that moment.

    The wrappers sit on this one scheduler and on its KV cache manager. They change nothing.
    """

    def __init__(self, scheduler: Any, budget: int) -> None:
        self.scheduler = scheduler
        self.manager = scheduler.kv_cache_manager
        self.budget = budget
        self.spent = 0
        self.preempted = False
        self.moments: list[list[Any]] = []
        self.granted: dict[str, int] = {}
        self.lookups: dict[str, int] = {}
        self.queries = self.hits = 0
        self.allocate = self.manager.allocate_slots
        self.look_up = self.manager.get_computed_blocks
        self.preempt = scheduler._preempt_request
        self.manager.allocate_slots = self.watched_allocate
        self.manager.get_computed_blocks = self.watched_look_up
        scheduler._preempt_request = self.watched_preempt

    def watched_preempt(self, *args: Any, **kwargs: Any) -> Any:
        self.preempted = True
        return self.preempt(*args, **kwargs)

    def watched_look_up(self, request: Any) -> Any:
        name = plain(request.request_id)
        self.lookups[name] = self.lookups.get(name, 0) + 1
        blocks, num_hits = self.look_up(request)
        self.queries += request.num_tokens
        self.hits += num_hits
        return blocks, num_hits

    def watched_allocate(self, request: Any, num_new_tokens: int, *args: Any, **kwargs: Any) -> Any:
        at_the_door = "full_sequence_must_fit" in kwargs  # a running request asks without it
        moment = self.moment(request, True, 0) if at_the_door else None
        blocks = self.allocate(request, num_new_tokens, *args, **kwargs)
        if blocks is None:
            return None
        if moment:
            self.moments.append(moment)
        self.spent += num_new_tokens
        name = plain(request.request_id)
        self.granted[name] = self.granted.get(name, 0) + len(blocks.get_block_ids()[0])
        return blocks

    def moment(self, request: Any, admitted: bool, ahead: int) -> list[Any]:
        """The request, whether it is let in, and the counters as they stand: CHANGING in predictions.py."""
        (hits,), _ = self.manager.coordinator.find_longest_cache_hit(
            request.block_hashes, request.num_tokens - 1
        )
        free = sum(block.ref_cnt == 0 for block in hits)
        return [
            plain(request.request_id), int(admitted), int(self.preempted), self.budget - self.spent,
            len(self.scheduler.running), ahead, request.num_tokens, len(hits), free,
            self.manager.block_pool.get_num_free_blocks(),
        ]  # fmt: skip

    def step(self, engine: Any) -> tuple[list[Any], list[list[Any]], dict[str, int]]:
        """One step of the engine: its outputs, its moments, and the blocks granted to each request."""
        self.spent, self.preempted, self.moments, self.granted = 0, False, [], {}
        schedule = self.scheduler.schedule

        def watched_schedule() -> Any:
            output = schedule()
            # Nothing changes between the moment at which the head is refused and the end of schedule().
            self.moments += [
                self.moment(request, False, ahead)
                for ahead, request in enumerate(self.scheduler.waiting)
            ]
            return output

        self.scheduler.schedule = watched_schedule
        try:
            outputs = engine.step()
        finally:
            self.scheduler.schedule = schedule
        return outputs, self.moments, self.granted


def play(
    engine: Any,
    watch: Watch,
    rounds: Iterable[Any],
    steps: int,
    sampling_params: Callable[..., Any],
) -> list[dict[str, Any]]:
    """Take `engine` through the rounds of a run; a record for each round.

    Greedy, with `ignore_eos`: how many tokens a request makes does not depend on which.
    """
    records = []
    for number, asks in enumerate(rounds):
        watch.lookups = {}
        record: dict[str, Any] = {"steps": [], "cached": {}}
        done = 0
        while done < steps:
            for ask in asks:
                if ask.after == done:
                    prompt = [token for token, count in ask.prompt for _ in range(count)]
                    params = sampling_params(
                        temperature=0, max_tokens=ask.max_tokens, ignore_eos=True
                    )
                    engine.add_request(ask.name, {"prompt_token_ids": prompt}, params)
            if not engine.has_unfinished_requests() and all(ask.after <= done for ask in asks):
                break
            outputs, moments, granted = watch.step(engine)
            record["steps"].append({"moments": moments, "granted": granted})
            for output in outputs:
                record["cached"][plain(output.request_id)] = output.num_cached_tokens
            done += 1
        record["unfinished"] = sorted(plain(request_id) for request_id in watch.scheduler.requests)
        record["lookups"] = watch.lookups
        records.append({"round": number, **record})
    return records
