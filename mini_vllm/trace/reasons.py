"""Why a step came out as it did, in words, worked out from what can be seen of it.

The scheduler keeps no reasons: it subtracts, compares and moves on
(`vllm/v1/core/sched/scheduler.py:329 Scheduler.schedule`). They are found again here by walking the
same rules over counters and block counts, beside the engine and after the step. So the words fit
any scheduler's steps, vLLM's recorded ones too, and cost nothing where nothing is recorded. A recorder
puts them into its trace; `course.parity` says them where two schedulers part.

Where a decision is not the one that vLLM's rules lead to, the reason says so: that happens with a
scheduler of one's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mini_vllm.config.scheduler import PIN
from mini_vllm.trace.types import RequestInfo, StepTrace
from mini_vllm.trace.words import (
    AGAIN,
    DECODE,
    DRAFTS,
    IN_FLIGHT,
    REST,
    Reason,
    against,
    are,
    count,
)


def _speculation(config: dict[str, Any]) -> dict[str, Any]:
    """`speculative_config` as a dictionary, whichever it is; empty without one."""
    spec = config.get("speculative_config") or {}
    return dict(spec) if isinstance(spec, Mapping) else dict(vars(spec))


def kind_of(num_computed: int, num_tokens: int, info: RequestInfo, most_computed: int) -> str:
    """What a request with these counters does in a step. `most_computed`: the most it ever had."""
    if num_computed < most_computed:
        return "recompute"
    decodes = num_tokens - num_computed == 1 and num_computed >= info.num_prompt_tokens
    return "decode" if decodes else "prefill"


@dataclass(slots=True)
class RequestState:
    """A living request, before the step."""

    info: RequestInfo
    num_tokens: int
    num_computed_tokens: int = 0
    most_computed: int = 0  # ever: below it a request computes again what it had
    table: list[int] = field(default_factory=list)
    num_output_placeholders: int = 0  # with asynchronous scheduling: tokens in flight
    num_drafts: int = 0  # with speculation: that the next step is to check
    num_planned_drafts: int = 0  # of those, what found room in the last step

    @property
    def priority_key(self) -> tuple[int, float]:
        """The larger, the less important under the policy `priority`."""
        return self.info.priority, self.info.arrival_time


@dataclass(slots=True)
class _Walk:
    """The running requests' part of a step, as the rules have it."""

    tokens: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, Reason] = field(default_factory=dict)
    victims: dict[str, Reason] = field(default_factory=dict)
    idle: dict[str, Reason] = field(default_factory=dict)
    end: Reason | None = None  # why those that the walk did not reach got nothing


class Explainer:
    """Follows a run step by step and finds the words.

    Args:
        config: fields of `EngineConfig` by name, `num_gpu_blocks`, `max_model_len` and
            `max_num_batched_tokens` given.
        cached: blocks that hold cached content when the run begins.

    Attributes:
        states: the living requests, by id.
        running: ids of those that run, in order.
        waiting: ids of the others, as the last step left them, then the newly arrived.
    """

    def __init__(self, config: dict[str, Any], cached: list[int] | None = None) -> None:
        self.block_size: int = config["block_size"]
        self.usable: int = config["num_gpu_blocks"] - 1
        self.budget: int = config["max_num_batched_tokens"]
        self.threshold: int = config["long_prefill_token_threshold"]
        # These are the pin's rules. Who decides as a later release breaks them, and not vLLM's.
        later = config.get("rules", PIN) != PIN
        self._against = partial(against, whose=f"vLLM {PIN}" if later else "vLLM")
        self.max_num_seqs: int = config["max_num_seqs"]
        self.max_model_len: int = config["max_model_len"]
        self.by_priority = config["scheduling_policy"] == "priority"
        self.chunked: bool = config["enable_chunked_prefill"]
        self.whole_must_fit: bool = config["scheduler_reserve_full_isl"]
        self.plans_ahead: bool = config.get("async_scheduling", False)
        spec = _speculation(config)
        self.num_spec_tokens = spec["num_speculative_tokens"] if spec else 0
        self.num_lookahead_tokens = self.num_spec_tokens if spec.get("method") != "ngram" else 0
        self.use_eagle = spec.get("method") in ("eagle", "eagle3")
        self.by_draft_model = spec.get("method") == "draft_model"
        if self.by_draft_model:
            self.budget -= self.max_num_seqs  # whose first pass has a row more for each request
        self.states: dict[str, RequestState] = {}
        self.running: list[str] = []
        self.waiting: list[str] = []
        self.refs: dict[int, int] = {}  # block id -> tables that hold it
        self.cached = set(cached or ())  # free or in use

    @property
    def free(self) -> int:
        """Blocks that no request holds."""
        return self.usable - len(self.refs)

    def queue(self) -> list[str]:
        """The waiting requests in the order in which vLLM would try them."""
        if not self.by_priority:
            return list(self.waiting)
        return sorted(self.waiting, key=lambda r: (*self.states[r].priority_key, r))

    # -- requests come and go ---------------------------------------------------------------------

    def arrived(self, info: RequestInfo) -> None:
        self.states[info.request_id] = RequestState(info, info.num_prompt_tokens)
        self.waiting.append(info.request_id)

    def found(self, request_id: str, table: list[int], is_running: bool) -> None:
        """The request was there when the recording began."""
        state = self.states[request_id]
        state.num_tokens += state.info.outputs_before
        state.num_computed_tokens = state.most_computed = state.info.computed_before
        self._hold(state, table)
        self.waiting.remove(request_id)
        (self.running if is_running else self.waiting).append(request_id)

    def left(self, request_id: str) -> None:
        """The request has ended, for whatever reason."""
        self._hold(self.states.pop(request_id), [])
        for group in (self.running, self.waiting):
            if request_id in group:
                group.remove(request_id)

    def drafted(self, request_id: str, num_drafts: int) -> None:
        """So many drafts are there for the next step."""
        self.states[request_id].num_drafts = num_drafts

    def reset_running(self) -> None:
        """The running requests have lost their blocks, to compute everything anew, and the prefix cache is
        empty (`reset_prefix_cache`)."""
        for request_id in self.running:
            self._start_anew(self.states[request_id])
        self.waiting = self.running + self.waiting
        self.running = []
        self.cached.clear()

    def _start_anew(self, state: RequestState) -> None:
        self._hold(state, [])
        state.num_computed_tokens = state.num_drafts = 0

    def _hold(self, state: RequestState, table: list[int]) -> None:
        """Give the request this table instead of the one it has."""
        before, refs = state.table, self.refs
        if table is before:
            return
        same = 0
        while same < len(before) and same < len(table) and before[same] == table[same]:
            same += 1
        for block in before[same:]:
            refs[block] -= 1
            if not refs[block]:
                del refs[block]
        for block in table[same:]:
            refs[block] = refs.get(block, 0) + 1
        state.table = table

    # -- one step ---------------------------------------------------------------------------------

    def explain(self, step: StepTrace, hits_of: Callable[[str], list[int]]) -> dict[str, Reason]:
        """Fill in the step's words and counts, and move on to the next.

        Args:
            step: one whose arrivals and aborts have been told already.
            hits_of: the blocks that a waiting request would find in the prefix cache.

        Returns the reason for each request that the step decided on, by id: those that got tokens,
        that were preempted, that run without tokens, and that wait.
        """
        states, before = self.states, list(self.running)
        skipped = set(step.skipped)
        queue = [request_id for request_id in self.queue() if request_id not in skipped]
        walk, reasons = self._walk_running(), dict[str, Reason]()
        num_running, left = len(before), self.budget
        for request_id in step.preempted:
            state = states[request_id]
            reasons[request_id] = walk.victims.get(request_id) or self._against(
                ", which would spare it"
            )
            self._start_anew(state)
            num_running -= 1
        for part in step.scheduled:
            state = states[part.request_id]
            placeholders = state.num_output_placeholders
            part.kind = kind_of(
                part.num_computed_tokens,
                state.num_tokens + placeholders,
                state.info,
                state.most_computed,
            )
            if part.request_id in before:
                expected = walk.tokens.get(part.request_id, 0)
                reason = walk.reasons.get(part.request_id, Reason("rest", ""))
            else:
                hits = part.block_ids[: part.num_cached_tokens // self.block_size]
                expected, reason = self._clamp(state, part.num_computed_tokens, left)
                room = self._room(state, step, left, num_running, hits)
                if (first := self._ahead(part.request_id, queue, step.arrived)) is not None:
                    reason = self._against(f": {first} is ahead of it")
                elif room.rule:
                    reason = self._against(f": {room.words}")
                else:
                    reason = reason._replace(room=room.words)
                if part.request_id in queue:
                    queue.remove(part.request_id)
                num_running += 1
            if part.num_scheduled_tokens != expected and reason.rule != "against":
                reason = self._against(f", which would give it {expected or 'none'}")
            reasons[part.request_id], part.why = reason, reason.words
            left -= part.num_scheduled_tokens
            self._hold(state, part.block_ids)
            state.num_computed_tokens = part.num_computed_tokens + part.num_scheduled_tokens
            state.most_computed = max(state.most_computed, state.num_computed_tokens)
            ahead = state.num_computed_tokens - state.num_tokens - placeholders
            state.num_planned_drafts = max(ahead, 0)
            state.num_drafts = 0
            if self.plans_ahead and ahead >= 0:
                state.num_output_placeholders += 1 + state.num_planned_drafts
                state.num_drafts = self.num_spec_tokens
        for request_id in before:
            if request_id not in reasons:
                idle = walk.idle.get(request_id) or walk.end
                reasons[request_id] = idle or self._against(": it would have its turn")
        got = {part.request_id for part in step.scheduled}
        why_skipped = {r: step.why[r] for r in step.skipped}
        step.why = {r: reason.words for r, reason in reasons.items() if r not in got} | why_skipped
        if step.waiting and step.waiting[0] not in skipped:
            head = step.waiting[0]
            reason = self._room(states[head], step, left, num_running, hits_of(head))
            if not reason.rule:
                reason = self._against(f": there is room to run it; {reason.words}")
            behind = Reason("queue", f"behind {head}, the head of the queue")
            step.why_waiting, step.why_behind = reason.words, behind.words
            reasons = dict.fromkeys(step.waiting, behind) | {head: reason} | reasons
        reasons |= {r: Reason("skipped", words) for r, words in why_skipped.items()}
        self._move_on(step)
        return reasons

    def _move_on(self, step: StepTrace) -> None:
        self.cached.difference_update(step.evicted)
        self.cached.update(step.published)
        step.blocks_in_use = len(self.refs)
        for part in step.scheduled:
            state = self.states[part.request_id]
            state.num_tokens += len(part.new_token_ids)
            if state.num_planned_drafts and not self.plans_ahead:
                num_rejected = state.num_planned_drafts + 1 - len(part.new_token_ids)
                self._take_back(state, num_rejected)
            if part.finish_reason is not None:
                self.left(part.request_id)
        self.running = list(step.running)
        self.waiting = [r for r in step.waiting if r not in step.skipped]
        step.cached_blocks = sum(block not in self.refs for block in self.cached)
        step.shared_blocks = sum(refs > 1 for refs in self.refs.values())

    def _take_back(self, state: RequestState, num_rejected: int) -> None:
        if state.num_computed_tokens:  # 0: preempted in between
            state.num_computed_tokens -= num_rejected
            state.most_computed = min(state.most_computed, state.num_computed_tokens)

    def taken_in(self, request_id: str, new_token_ids: list[int], num_rejected: int = 0) -> None:
        """With asynchronous scheduling: the result of a plan in flight came for this request."""
        state = self.states[request_id]
        self._take_back(state, num_rejected)
        state.num_output_placeholders -= num_rejected
        state.num_tokens += len(new_token_ids)
        state.num_output_placeholders -= len(new_token_ids)

    def _missing(self, state: RequestState) -> int:
        """The tokens that a running request misses, those in flight counted as if it had them, and
        drafts."""
        computed, placeholders = state.num_computed_tokens, state.num_output_placeholders
        missing = state.num_tokens + state.num_drafts + placeholders - computed
        most = state.info.num_prompt_tokens + state.info.max_tokens
        if placeholders and computed + 2 - placeholders >= most:
            return 0
        return min(missing, self.max_model_len - 1 - computed)

    def _clamp(
        self, state: RequestState, num_computed: int, left: int, missing: int | None = None
    ) -> tuple[int, Reason]:
        """The tokens that a request gets of those it misses, and why not more."""
        if missing is None:
            missing = state.num_tokens - num_computed
        tokens = missing
        num_tokens = state.num_tokens + state.num_output_placeholders
        if missing == 1 and num_tokens > state.info.num_prompt_tokens:
            reason = Reason("rest", DECODE)
        else:
            reason = Reason("rest", AGAIN if num_computed < state.most_computed else REST)
        num_drafts = num_computed + missing - num_tokens
        if num_drafts > 0:
            reason = Reason("drafts", DRAFTS + count(num_drafts, "draft"))
            if num_drafts < state.num_drafts:
                words = f"max_model_len {self.max_model_len} leaves room for no more"
                reason = Reason("end", f"{reason.words} of {state.num_drafts}: {words}")
        if 0 < self.threshold < tokens:
            tokens = self.threshold
            words = f"long_prefill_token_threshold allows {tokens} a step; {missing} were missing"
            reason = Reason("threshold", words)
        if left < tokens:
            tokens = left
            words = f"the token budget of {self.budget} has {tokens} left; {missing} were missing"
            reason = Reason("budget", words)
        return tokens, reason

    # -- the running requests ---------------------------------------------------------------------

    def _walk_running(self) -> _Walk:
        """Go through the running requests by vLLM's rules, on counters alone."""
        walk, states = _Walk(), self.states
        running, left, free = list(self.running), self.budget, self.free
        refs = self.refs  # replaced by a copy before the first change
        taken: dict[str, int] = {}
        at = 0
        while at < len(running):
            if not left:
                words = f"the token budget of {self.budget} is used up by those before it"
                walk.end = Reason("spent", words)
                break
            request_id = running[at]
            state = states[request_id]
            missing = self._missing(state)
            if not missing:
                walk.idle[request_id] = Reason("flight", IN_FLIGHT)
                at += 1
                continue
            tokens, reason = self._clamp(state, state.num_computed_tokens, left, missing)
            slots = state.num_computed_tokens + tokens + self.num_lookahead_tokens
            slots = min(slots, self.max_model_len)
            need = max(-(slots // -self.block_size) - len(state.table), 0)
            while need > free:
                victim, place = running[-1], "it is the last of the running list"
                if self.by_priority:
                    victim = max(running, key=lambda r: states[r].priority_key)
                    place = "of the running it has the largest (priority, arrival time)"
                running.remove(victim)
                walk.idle.pop(victim, None)
                refs = dict(refs)
                freed = taken.pop(victim, 0)
                for block in states[victim].table:
                    refs[block] -= 1
                    freed += refs[block] == 0
                whose = "it" if victim == request_id else request_id
                back = ""
                if victim in walk.tokens:
                    left += walk.tokens[victim]
                    back = f"; the {count(walk.tokens.pop(victim), 'token')} it had go back"
                    at -= 1
                words = f"{whose} needs {count(need, 'more block')} and {are(free)} free; {place}"
                walk.victims[victim] = Reason("victim", f"{words}, and frees {freed}{back}")
                free += freed
                if victim == request_id:
                    words = f"{request_id} preempted itself, which ends the running's part"
                    walk.end = Reason("ends", words)
                    return walk
            walk.tokens[request_id], walk.reasons[request_id] = tokens, reason
            taken[request_id] = need
            free -= need
            left -= tokens
            at += 1
        for request_id in running[:at]:
            if request_id not in walk.tokens and request_id not in walk.idle:
                words = "its turn is lost: a victim before it, in flight, left the running list"
                walk.idle[request_id] = Reason("lost", words)
        return walk

    # -- the waiting ones -------------------------------------------------------------------------

    def _ahead(self, request_id: str, queue: list[str], arrived: list[str]) -> str | None:
        """The request that should have been tried before this one. The order of those that arrived
        together is not known, unless their priorities tell."""
        if request_id not in queue or queue[0] == request_id:
            return None
        if not self.by_priority and queue[0] in arrived and request_id in arrived:
            return None
        return queue[0]

    def _room(
        self, state: RequestState, step: StepTrace, left: int, num_running: int, hits: list[int]
    ) -> Reason:
        """Why the request that is tried next is not admitted; without a rule: why it can be.

        Blocks are counted as it is tried: after all that was scheduled before it, before anything
        that finishes gives its blocks back."""
        if step.preempted:
            victims = ", ".join(step.preempted[:4])
            return Reason("preempted", f"nobody is admitted in a step that preempts ({victims})")
        if left <= 0:
            return Reason("spent", f"the token budget of {self.budget} is used up")
        slots = f"{num_running} run, and max_num_seqs is {self.max_num_seqs}"
        if num_running >= self.max_num_seqs:
            return Reason("slots", f"no sequence slot: {slots}")
        num_tokens = state.num_tokens
        missing = num_tokens - len(hits) * self.block_size
        if 0 < self.threshold < missing:
            missing = self.threshold
        if missing > left and not self.chunked:
            words = (
                f"its {missing} tokens must fit into one step, for chunked prefill is off, and "
                f"{are(left)} left of the budget of {self.budget}"
            )
            return Reason("chunks", words)
        whole = self.whole_must_fit
        fit = num_tokens if whole else len(hits) * self.block_size + min(missing, left)
        blocks = -(min(fit, self.max_model_len) // -self.block_size)
        in_use = sum(block in self.refs for block in hits)
        need = max(blocks - in_use, 0)
        what = f"it needs {count(need, 'free block')} for {count(fit, 'token')}"
        if in_use:
            what += f" ({count(in_use, 'more block')} would be a prefix hit that others hold)"
        what += f", and {are(self.free)} free"
        if need > self.free:
            return Reason("gate" if whole else "blocks", f"not enough free blocks: {what}")
        return Reason("", f"{what}; {slots}; {left} tokens are left of the budget")
