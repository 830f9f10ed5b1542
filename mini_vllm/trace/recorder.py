"""Every step as data: what was scheduled and why, what the pool looks like, how long it took.

vLLM has no such record; nearest are its per-step log line
(`vllm/v1/engine/core.py:399 EngineCore.log_iteration_details`) and its KV events. A `TraceRecorder`
observes the engine core and changes nothing in it; with none attached a step costs what it did.

A `Trace` can be written as text, in Chrome's trace format for Perfetto (`chrome.py`), as data
that can be read again (`data.py`), and as a page to step through (`page.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mini_vllm.core.hybrid_kv_cache_manager import HybridKVCacheManager
from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.output import (
    EngineCoreOutput,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
)
from mini_vllm.core.stats import PrefixCacheStats
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.engine.step_record import StepRecord
from mini_vllm.trace.files import check_trace_path, to_chrome_trace, write_trace
from mini_vllm.trace.reasons import Explainer
from mini_vllm.trace.rules import RuleRecorder, describe, why_skipped
from mini_vllm.trace.text import runs_of, to_text
from mini_vllm.trace.types import RequestInfo, RequestStep, StepTrace, Trace
from mini_vllm.trace.words import ENDS

__all__ = [
    "RequestInfo", "RequestStep", "StepTrace", "Trace", "TraceRecorder", "check_trace_path",
    "to_chrome_trace", "to_text", "write_trace",
]  # fmt: skip


@dataclass(slots=True)
class _Life:
    """What the recorder knows of a living request."""

    info: RequestInfo
    table: list[int] = field(default_factory=list)


class TraceRecorder:
    """Keeps a `StepTrace` a step, from now until `detach`.

    With asynchronous scheduling a step is taken down when it is planned, for what the scheduler knows
    then is what decides; its tokens are filled in when they come. So `running`, the blocks and the
    queue are those right after the plan, a request stays in them until its last token has come, and
    it leaves between two steps, as one does that is aborted; `why` of its last token says how it ended.

    Block tables are read when a step is over; a request that finished in it has given its blocks
    back by then, so its table is followed from the scheduler's outputs instead. A block's hash is
    kept when the block is freed, so the hashes can be read late.

    Args:
        engine: the engine to watch.
        title, about: the heading and the first lines of the page.

    Raises ValueError for a model with a sliding window.

    Attributes:
        steps: what was recorded so far.
        requests: those seen so far, in order of arrival.
    """

    def __init__(self, engine: LLMEngine, title: str = "", about: str = "") -> None:
        self.engine = engine
        self.core = engine.engine_core
        if isinstance(self.core.kv_cache_manager, HybridKVCacheManager):
            raise ValueError(
                "a trace shows one block table for each request, and this model, which attends to a sliding "
                "window, is not served so: it cannot be traced"
            )
        self.title, self.about = title, about
        self.steps: list[StepTrace] = []
        self.requests: list[RequestInfo] = []
        self._living: dict[str, _Life] = {}
        self._hashes = [block.block_hash for block in self._pool.blocks]
        self._cached = [i for i, block_hash in enumerate(self._hashes) if block_hash is not None]
        self._cached_hashes = self._short_hashes(self._cached)
        queue = self._free_queue()
        self._free_at_start = None if queue is None else runs_of(queue)
        self._places = self._places_in(queue or [])
        # None means a default here, which readers of a trace should not have to know.
        budget = self.core.config.token_budget
        self._config = asdict(self.core.config) | {"max_num_batched_tokens": budget}
        if self._config["speculative_config"] and self._config["speculative_config"]["model"]:
            spec = self._config["speculative_config"]
            self._config["speculative_config"] = spec | {"model": str(spec["model"])}
        self._rules = RuleRecorder(self.core)
        self._explainer = Explainer(self._config, self._cached)
        self._elapsed = 0.0
        self._join()
        # Those that are here before the first step arrive with it.
        self._before = [info.request_id for info in self.requests]
        self._planned: dict[int, StepTrace] = {}  # by the number of the plan; without its result
        queue_of_batches = self.core.batch_queue
        if queue_of_batches is None:
            self.core.step_observers.append(self._observe)
        else:
            self._num_plans = self.core.num_steps + len(queue_of_batches)
            queue_of_batches.plan_observers.append(self._observe_plan)
            self.core.step_observers.append(self._observe_result)

    def detach(self) -> None:
        self._rules.detach()
        if self.core.batch_queue is None:
            self.core.step_observers.remove(self._observe)
        else:
            self.core.batch_queue.plan_observers.remove(self._observe_plan)
            self.core.step_observers.remove(self._observe_result)

    @property
    def _requests(self) -> list[Request]:
        """Those that are alive."""
        scheduler = self.core.scheduler
        return [*scheduler.running, *scheduler.waiting, *self._skipped]

    @property
    def _skipped(self) -> Iterable[Request]:
        """Those that a rule at the gate keeps back; a scheduler of one's own may know no rules."""
        return getattr(self.core.scheduler, "skipped_waiting", ())

    @property
    def _pool(self) -> Any:
        return self.core.kv_cache_manager.block_pool

    @property
    def trace(self) -> Trace:
        """All that was recorded so far."""
        tokenizer = self.engine.tokenizer
        alive = {r.request_id for r in self._requests}
        alive.update(self._before)  # of those nothing has been recorded yet
        pieces: dict[int, str] = {}
        if tokenizer is not None:
            for info in self.requests:
                stream = tokenizer.stream(True, info.prompt_token_ids)
                info.texts = [stream.step(token_id) for token_id in info.output_token_ids]
                for token_id in (*info.prompt_token_ids, *info.output_token_ids):
                    if token_id not in pieces:
                        pieces[token_id] = tokenizer.id_to_piece(token_id)
        from mini_vllm.version import __version__

        return Trace(
            config=self._config,
            requests=self.requests,
            steps=self.steps,
            source=f"mini_vllm {__version__}",
            title=self.title,
            about=self.about,
            pieces=pieces,
            cached_at_start=self._cached,
            hashes_at_start=self._cached_hashes,
            free_at_start=self._free_at_start,
            aborted_at_end=[r for r in self._living if r not in alive],
            vocab_size=self._rules.vocab_size,
        )

    def table_of(self, request_id: str) -> list[int]:
        """The block table of a living request, as the last step left it."""
        return self._living[request_id].table

    # -- one step -----------------------------------------------------------------------------

    def _meet(self, requests: Sequence[Request | NewRequestData]) -> list[str]:
        """Take down the requests that are not known yet; their ids, in order of arrival."""
        states = self.engine.output_processor.request_states
        met: list[tuple[float, RequestInfo]] = []
        for request in requests:
            if isinstance(request, Request):
                request_id, arrival = request.request_id, request.arrival_time
                priority, max_tokens = request.priority, request.max_tokens
            else:  # it came and finished in one step: its Request is gone
                request_id, arrival, priority = request.req_id, 0.0, 0
                max_tokens = request.sampling_params.max_tokens or 0
            if request_id in self._living:
                continue
            state = states.get(request_id)
            info = RequestInfo(
                request_id=request_id,
                num_prompt_tokens=len(request.prompt_token_ids),
                max_tokens=max_tokens,
                priority=priority,
                arrival_time=arrival,
                prompt=state.prompt if state is not None else None,
                prompt_token_ids=list(request.prompt_token_ids),
                lora=request.lora_request.lora_name if request.lora_request else None,
                rule=describe(request),
            )
            self._living[request_id] = _Life(info)
            met.append((arrival, info))
        met.sort(key=lambda pair: pair[0])
        self.requests += [info for _, info in met]
        for _, info in met:
            self._explainer.arrived(info)
        return [info.request_id for _, info in met]

    def _join(self) -> None:
        """Take down the requests that are there when the recording begins, as they stand."""
        manager = self.core.kv_cache_manager
        self._meet(self._requests)
        for request in self._requests:
            life = self._living[request.request_id]
            life.info.output_token_ids = list(request.output_token_ids)
            life.info.outputs_before = len(request.output_token_ids)
            life.info.computed_before = request.num_computed_tokens
            placeholders = request.num_output_placeholders
            self._explainer.states[request.request_id].num_output_placeholders = placeholders
            life.table = life.info.blocks_before = manager.get_block_ids(request.request_id)[0]
            is_running = request.status is RequestStatus.RUNNING
            self._explainer.found(request.request_id, life.table, is_running)
        self._note_drafts()

    def _observe(self, record: StepRecord) -> None:
        times = (record.schedule_time, record.execute_time, record.update_time)
        sampled = record.model_runner_output
        self._take_down(record.index, record.scheduler_output, record.outputs, *times, sampled)
        self._rules.forget(record.scheduler_output)

    def _observe_plan(self, scheduler_output: SchedulerOutput, schedule_time: float) -> None:
        self._num_plans += 1
        step = self._take_down(self._num_plans, scheduler_output, [], schedule_time)
        self._planned[self._num_plans] = step

    def _observe_result(self, record: StepRecord) -> None:
        """Fill in what a plan has sampled, and how long it took."""
        step = self._planned.pop(record.index, None)  # None: from before the recording
        parts = {} if step is None else {part.request_id: part for part in step.scheduled}
        for output in record.outputs:
            request_id, ended = output.request_id, output.finish_reason
            self._living[request_id].info.output_token_ids.extend(output.new_token_ids)
            sampled = _sampled_by(request_id, record.model_runner_output)
            drafts = record.scheduler_output.scheduled_spec_decode_tokens.get(request_id, ())
            num_rejected = len(drafts) + 1 - len(sampled)
            self._explainer.taken_in(request_id, output.new_token_ids, num_rejected)
            if request_id in parts:
                self._rules.tell(parts[request_id], record.scheduler_output)
                parts[request_id].draft_token_ids = [*sampled[:-1], *[-1] * num_rejected]
                parts[request_id].num_accepted_tokens = len(sampled) - 1
                parts[request_id].new_token_ids = output.new_token_ids
                parts[request_id].why += f", {ended}{ENDS}" if ended else ""
        self._rules.forget(record.scheduler_output)
        if step is not None:
            step.execute_time, step.update_time = record.execute_time, record.update_time
            self._elapsed += record.execute_time + record.update_time

    def _take_down(
        self,
        index: int,
        output: SchedulerOutput,
        outputs: list[EngineCoreOutput],
        schedule_time: float,
        execute_time: float = 0.0,
        update_time: float = 0.0,
        sampled: ModelRunnerOutput | None = None,
    ) -> StepTrace:
        scheduler, living = self.core.scheduler, self._living
        aborted = [r for r in sorted(output.finished_req_ids) if r in living]
        for request_id in aborted:
            self._explainer.left(request_id)
            del living[request_id]
        unseen = set(self._before).intersection(aborted)  # they left before the first step
        self.requests = [info for info in self.requests if info.request_id not in unseen]
        aborted = [r for r in aborted if r not in unseen]
        arrived = [r for r in self._before if r not in unseen] + self._meet(
            [*self._requests, *output.scheduled_new_reqs]
        )
        self._before = []
        preempted = output.preempted_req_ids | output.reset_req_ids
        for request_id in preempted:
            living[request_id].table = []

        computed: dict[str, int] = {}
        hits: dict[str, int] = {}
        fresh: set[int] = set()  # blocks taken from the free queue in this step
        size = self.core.config.block_size
        for new in output.scheduled_new_reqs:
            living[new.req_id].table = table = list(new.block_ids[0])
            computed[new.req_id] = hits[new.req_id] = new.num_computed_tokens
            fresh.update(table[new.num_computed_tokens // size :])
        cached = output.scheduled_cached_reqs
        changes = zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True)
        for request_id, block_ids, num_computed in changes:
            computed[request_id] = num_computed
            known = 0
            if request_id in cached.resumed_req_ids:
                living[request_id].table = []
                hits[request_id] = num_computed
                known = num_computed // size
            if block_ids:
                living[request_id].table = living[request_id].table + block_ids[0]
                fresh.update(block_ids[0][known:])

        news = {o.request_id: o for o in outputs}
        scheduled = []
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            new_output = news.get(request_id)
            life = living[request_id]
            part = RequestStep(
                request_id,
                computed.get(request_id, 0),
                num_tokens,
                hits.get(request_id, 0),
                life.table,
                new_output.new_token_ids if new_output else [],
                new_output.finish_reason if new_output else None,
            )
            life.info.output_token_ids.extend(part.new_token_ids)
            part.draft_token_ids = list(output.scheduled_spec_decode_tokens.get(request_id, ()))
            if part.draft_token_ids and sampled is not None:
                part.num_accepted_tokens = len(_sampled_by(request_id, sampled)) - 1
            self._rules.tell(part, output)
            scheduled.append(part)
        evicted, published = self._hash_changes(fresh)
        given_back = {b for part in scheduled if part.finish_reason for b in part.block_ids}
        step = StepTrace(
            index=index,
            start=self._elapsed,
            schedule_time=schedule_time,
            execute_time=execute_time,
            update_time=update_time,
            scheduled=scheduled,
            preempted=sorted(preempted),
            running=[r.request_id for r in scheduler.running],
            waiting=[r.request_id for r in (*scheduler.waiting, *self._skipped)],
            free_blocks=self._pool.get_num_free_blocks(),
            kv_usage=self.core.kv_cache_manager.usage,
            arrived=arrived,
            aborted=aborted,
            evicted=evicted,
            published=published,
            hashes=self._short_hashes(published),
            freed=self._newly_free(given_back),
            skipped=[r.request_id for r in self._skipped],
            why={r.request_id: why_skipped(r) for r in self._skipped},
        )
        self._explainer.explain(step, self._hits_of)
        self._note_drafts()
        for part in scheduled:
            if part.finish_reason is not None:
                del living[part.request_id]
        self.steps.append(step)
        self._elapsed += schedule_time + execute_time + update_time
        return step

    def _note_drafts(self) -> None:
        """Tell the explainer how many drafts each request has for the next step to check."""
        if self.core.config.speculation is None:
            return
        for request in self.core.scheduler.requests.values():
            if request.request_id in self._explainer.states:
                self._explainer.drafted(request.request_id, len(request.spec_token_ids))

    def _hash_changes(self, fresh: set[int]) -> tuple[list[int], list[int]]:
        """The blocks whose cached content was dropped in this step, and those published in it."""
        before, after = self._hashes, [block.block_hash for block in self._pool.blocks]
        self._hashes = after
        changed = {i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}
        # A block can be taken, and published again under the hash it had: for the same content.
        again = {i for i in fresh if before[i] is not None and after[i] == before[i]}
        evicted = [i for i in changed | again if before[i] is not None]
        published = [i for i in changed | again if after[i] is not None]
        return sorted(evicted), sorted(published)

    def _short_hashes(self, blocks: list[int]) -> list[str]:
        """As many digits as tell blocks apart by eye."""
        return [self._hashes[block].hex()[:8] for block in blocks]

    def _free_queue(self) -> list[int] | None:
        """The free blocks, next to be given out first; None if a pool of one's own has no such list."""
        queue = getattr(self._pool, "free_block_queue", None)
        read = getattr(queue, "get_all_free_blocks", None)
        return None if read is None else [block.block_id for block in read()]

    def _places_in(self, queue: list[int]) -> list[int]:
        places = [-1] * len(self._hashes)
        for place, block in enumerate(queue):
            places[block] = place
        return places

    def _newly_free(self, given_back: set[int]) -> list[int]:
        """What came to the back of the free queue since it was last looked at, in order.

        The queue loses blocks anywhere and gains them at its back only. So those that stayed stand
        at the front, in the order they had; the first that breaks it came later, and all behind it.
        """
        if self._free_at_start is None:
            return []
        queue = self._free_queue() or []
        stayed, last = 0, -1
        for block in queue:
            place = self._places[block]
            if place <= last or block in given_back:
                break
            stayed, last = stayed + 1, place
        self._places = self._places_in(queue)
        return queue[stayed:]

    def _hits_of(self, request_id: str) -> list[int]:
        """The blocks that a waiting request would find cached. Looks, takes nothing, counts nowhere."""
        request = next(r for r in self.core.scheduler.waiting if r.request_id == request_id)
        manager = self.core.kv_cache_manager
        counted, manager.prefix_cache_stats = manager.prefix_cache_stats, PrefixCacheStats()
        hits = manager.get_computed_blocks(request)[0]
        manager.prefix_cache_stats = counted
        return hits.get_block_ids()[0]


def _sampled_by(request_id: str, output: ModelRunnerOutput) -> list[int]:
    return output.sampled_token_ids[output.req_id_to_index[request_id]]
