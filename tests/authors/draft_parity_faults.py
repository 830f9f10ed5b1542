"""Schedulers with one mistake about drafts each, and what `course.parity` has to say about it."""

from __future__ import annotations

from typing import Any

from mini_vllm.config.engine import EngineConfig
from mini_vllm.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_vllm.core.request import Request
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.output import DraftTokenIds, SchedulerOutput
from mini_vllm.core.sched.scheduler import Scheduler


class LookaheadForNgram(Scheduler):
    """Takes lookahead for the slots of the drafts themselves."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.num_lookahead_tokens = self.num_spec_tokens


class NoLookahead(Scheduler):
    """Leaves the drafter no room for its own KV."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.num_lookahead_tokens = 0


class _Manager(KVCacheManager):
    def __init__(self, c: EngineConfig, **kwargs: Any) -> None:
        assert c.num_gpu_blocks is not None
        assert c.max_model_len is not None
        spec = c.speculation
        use_eagle = spec is not None and spec.use_eagle()
        super().__init__(
            c.num_gpu_blocks,
            c.block_size,
            c.max_model_len,
            c.enable_prefix_caching,
            **{"use_eagle": use_eagle, **kwargs},
        )
        self.lookahead = spec.num_lookahead_tokens if spec is not None else 0


class _AheadAtOnce(_Manager):
    def allocate_slots(
        self, request: Request, num_new_tokens: int, *args: Any, **kwargs: Any
    ) -> KVCacheBlocks | None:
        kwargs["num_lookahead_tokens"] = self.lookahead
        return super().allocate_slots(request, num_new_tokens, *args, **kwargs)


class LookaheadAtAdmission(Scheduler):
    """Gives a request that has computed nothing its lookahead, too."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, _AheadAtOnce(config))


class NothingGivenUp(Scheduler):
    """Takes all that the prefix cache has, as if no EAGLE head needed hidden states."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, _Manager(config, use_eagle=False))


class _PublishesDrafts(_Manager):
    def allocate_slots(
        self, request: Request, num_new_tokens: int, *args: Any, **kwargs: Any
    ) -> KVCacheBlocks | None:
        num_tokens_after_step = request.num_computed_tokens + num_new_tokens
        known, num_hashes = len(request.all_token_ids), len(request.block_hashes)
        blocks = super().allocate_slots(request, num_new_tokens, *args, **kwargs)
        if blocks is not None and num_tokens_after_step > known:
            request.all_token_ids.extend(request.spec_token_ids)
            request.num_tokens = len(request.all_token_ids)
            request.update_block_hashes()
            self.cache_blocks(request, min(num_tokens_after_step, request.num_tokens))
            del request.all_token_ids[known:], request.block_hashes[num_hashes:]
            request.num_tokens = known
        return blocks


class PublishesDrafts(Scheduler):
    """Publishes blocks with drafts in them, before anybody knows whether they hold."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, _PublishesDrafts(config))


class NothingTakenBack(Scheduler):
    """Counts rejected drafts as computed."""

    def _take_back_rejected(
        self, request: Request, num_draft_tokens: int, num_accepted: int
    ) -> None:
        pass


class VictimsKeepTheirDrafts(AsyncScheduler):
    """Preempts a request, and not its drafts. (With synchronous scheduling nobody sees it: whoever is
    admitted is told of new drafts before it is asked for them.)"""

    def _preempt_request(self, request: Request) -> None:
        drafts = request.spec_token_ids
        super()._preempt_request(request)
        request.spec_token_ids = drafts


class WholeBudget(Scheduler):
    """Forgets that a draft model has a row a request."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.max_num_scheduled_tokens = config.token_budget


class RecordsAllDrafts(Scheduler):
    """Cuts the tokens of the step, and not the drafts that it records."""

    def _schedule_drafts(self, step: Any, request: Request, num_new_tokens: int) -> None:
        drafts = request.spec_token_ids
        super()._schedule_drafts(step, request, num_new_tokens)
        if request.request_id in step.scheduled_spec_decode_tokens:
            step.scheduled_spec_decode_tokens[request.request_id] = drafts


class ChunksDraft(Scheduler):
    """Takes in what was drafted for a request that is in the middle of its prompt."""

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        for request in self.requests.values():
            request.is_prefill_chunk = False
        super().update_draft_token_ids(draft_token_ids)


class NoDrafts(Scheduler):
    """Takes no drafts in."""

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        pass


class DraftsPastTheEnd(Scheduler):
    """Lets drafts stand at positions that are never an input."""

    def schedule(self) -> SchedulerOutput:
        self.max_model_len += 4
        output = super().schedule()
        self.max_model_len -= 4
        return output


class NoPlaceholdersForDrafts(AsyncScheduler):
    """Leaves one placeholder a plan, whatever is in it."""

    def _leave_draft_placeholders(self, request: Request, scheduler_output: Any) -> None:
        before = request.num_output_placeholders
        super()._leave_draft_placeholders(request, scheduler_output)
        request.num_output_placeholders = before


class KeepsPlaceholders(AsyncScheduler):
    """Takes rejected drafts off the computed tokens, and not off the placeholders."""

    def _take_back_rejected(
        self, request: Request, num_draft_tokens: int, num_accepted: int
    ) -> None:
        before = request.num_output_placeholders
        super()._take_back_rejected(request, num_draft_tokens, num_accepted)
        request.num_output_placeholders = before


class TakesFromVictims(AsyncScheduler):
    """Takes the rejected drafts of a request that was preempted since then off its computed tokens."""

    def _take_back_rejected(
        self, request: Request, num_draft_tokens: int, num_accepted: int
    ) -> None:
        computed = request.num_computed_tokens
        super()._take_back_rejected(request, num_draft_tokens, num_accepted)
        request.num_computed_tokens = computed - (num_draft_tokens - num_accepted)


class CountsDraftsAsAccepted(AsyncScheduler):
    """Plans nothing more once the drafts in flight would reach `max_tokens`."""

    def _count_new_tokens(self, request: Request) -> int:
        most = request.num_prompt_tokens + request.max_tokens
        if request.num_output_placeholders and request.num_computed_tokens + 1 >= most:
            return 0
        return super()._count_new_tokens(request)


class PlansNoDrafts(AsyncScheduler):
    """Waits for drafts that nobody will bring."""

    def _leave_draft_placeholders(self, request: Request, scheduler_output: Any) -> None:
        super()._leave_draft_placeholders(request, scheduler_output)
        request.spec_token_ids = []


SYNC_FAULTS: dict[str, tuple[Any, str]] = {
    "lookahead for n-gram": (LookaheadForNgram, "Lookahead: a drafter with a KV cache of its own"),
    "no lookahead": (NoLookahead, "Lookahead: a drafter with a KV cache of its own"),
    "lookahead at admission": (LookaheadAtAdmission, "At admission there is none"),
    "nothing given up": (NothingGivenUp, "EAGLE: of the blocks that a request hits"),
    "publishes drafts": (PublishesDrafts, "Hit length: a request that is admitted"),
    "nothing taken back": (NothingTakenBack, "Rejected drafts are taken back"),
    "the whole budget": (WholeBudget, "A draft model takes one row a request of the budget"),
    "records all drafts": (RecordsAllDrafts, "only what is scheduled is recorded"),
    "chunks draft": (ChunksDraft, "a prompt in chunks has none"),
    "no drafts": (NoDrafts, "Drafts: a running request's drafts are tokens of the step"),
    "drafts past the end": (DraftsPastTheEnd, "Last position: no token is computed"),
}
ASYNC_FAULTS: dict[str, tuple[Any, str]] = {
    "no placeholders for drafts": (NoPlaceholdersForDrafts, "one for each draft in it"),
    "victims keep their drafts": (VictimsKeepTheirDrafts, "A victim's drafts are gone"),
    "keeps placeholders": (KeepsPlaceholders, "Drafts: a running request's drafts are tokens"),
    "takes from victims": (
        TakesFromVictims,
        "From a request that was preempted in between nothing",
    ),
    "counts drafts as accepted": (CountsDraftsAsAccepted, "Drafts: a running request's drafts"),
    "plans no drafts": (PlansNoDrafts, "Drafts: a running request's drafts are tokens of the step"),
}
