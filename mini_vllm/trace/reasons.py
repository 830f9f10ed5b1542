"""Why a step came out as it did, in words, worked out from what can be seen of it.

The scheduler keeps no reasons: it subtracts, compares and moves on
(`vllm/v1/core/sched/scheduler.py:329 Scheduler.schedule`). They are found again here by walking the
same rules over counters and block counts, beside the engine and after the step. So the words fit
any scheduler's steps, vLLM's recorded ones too, and cost nothing where nobody records.

Where a decision is not the one that vLLM's rules lead to, the reason says so: that happens with a
scheduler of one's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.trace.types import RequestInfo, StepTrace

DECODE = "one decode token"
REST = "the rest of its prompt"
AGAIN = "the rest of its tokens, computed again after a preemption"


def count(n: int, noun: str) -> str:
    """`1 block`, `2 blocks`."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def kind_of(num_computed: int, num_tokens: int, info: RequestInfo, most_computed: int) -> str:
    """What a request with these counters does in a step. `most_computed`: the most it ever had."""
    if num_computed < most_computed:
        return "recompute"
    decodes = num_tokens - num_computed == 1 and num_computed >= info.num_prompt_tokens
    return "decode" if decodes else "prefill"


@dataclass(slots=True)
class _State:
    """A living request, before the step."""

    info: RequestInfo
    order: int
    num_tokens: int
    num_computed_tokens: int = 0
    most_computed: int = 0  # ever: below it a request computes again what it had
    table: list[int] = field(default_factory=list)

    @property
    def rank(self) -> tuple[int, float, int]:
        """The larger, the less important under the policy `priority`."""
        return self.info.priority, self.info.arrival_time, self.order


@dataclass(slots=True)
class _Walk:
    """The running requests' part of a step, as the rules have it."""

    tokens: dict[str, int] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    why_preempted: dict[str, str] = field(default_factory=dict)
    after: str = ""  # why those that the walk did not reach got nothing


class Explainer:
    """Follows a run step by step and fills in the words.

    Args:
        config: fields of `EngineConfig` by name, `num_gpu_blocks`, `max_model_len` and
            `max_num_batched_tokens` given.
        cached: blocks that hold cached content when the run begins.
    """

    def __init__(self, config: dict[str, Any], cached: list[int] | None = None) -> None:
        self.block_size: int = config["block_size"]
        self.usable: int = config["num_gpu_blocks"] - 1
        self.budget: int = config["max_num_batched_tokens"]
        self.threshold: int = config["long_prefill_token_threshold"]
        self.max_num_seqs: int = config["max_num_seqs"]
        self.max_model_len: int = config["max_model_len"]
        self.by_priority = config["scheduling_policy"] == "priority"
        self.chunked: bool = config["enable_chunked_prefill"]
        self.whole_must_fit: bool = config["scheduler_reserve_full_isl"]
        self.running: list[str] = []
        self.refs: dict[int, int] = {}  # block id -> tables that hold it
        self.cached = set(cached or ())  # free or in use
        self._states: dict[str, _State] = {}
        self._order = 0

    # -- requests come and go ---------------------------------------------------------------------

    def arrived(self, info: RequestInfo) -> None:
        self._states[info.request_id] = _State(info, self._order, info.num_prompt_tokens)
        self._order += 1

    def found(self, request_id: str, table: list[int], is_running: bool) -> None:
        """The request was there when the recording began."""
        state = self._states[request_id]
        state.num_tokens += state.info.outputs_before
        state.num_computed_tokens = state.most_computed = state.info.computed_before
        self._hold(state, table)
        if is_running:
            self.running.append(request_id)

    def left(self, request_id: str) -> None:
        """The request has ended, for whatever reason."""
        state = self._states.pop(request_id)
        self._hold(state, [])
        if request_id in self.running:
            self.running.remove(request_id)

    def _hold(self, state: _State, table: list[int]) -> None:
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

    def explain(self, step: StepTrace, hits_of: Callable[[str], list[int]]) -> None:
        """Fill in the step's words and counts, and move on to the next.

        Args:
            step: one whose arrivals and aborts have been told already.
            hits_of: the blocks that a waiting request would find in the prefix cache.
        """
        states, before = self._states, set(self.running)
        walk = self._walk_running()
        left = self.budget
        for part in step.scheduled:
            state = states[part.request_id]
            part.kind = kind_of(
                part.num_computed_tokens, state.num_tokens, state.info, state.most_computed
            )
            if part.request_id in before:
                expected = walk.tokens.get(part.request_id)
                part.why = walk.why.get(part.request_id, "")
            else:
                expected, part.why = self._clamp(state, part.num_computed_tokens, left)
            if part.num_scheduled_tokens != expected:
                would = "none" if expected is None else str(expected)
                part.why = f"not by vLLM's rules, which would give it {would}"
            left -= part.num_scheduled_tokens
        for request_id in step.preempted:
            step.why[request_id] = walk.why_preempted.get(
                request_id, "not by vLLM's rules, which would have spared it"
            )
        got = {part.request_id for part in step.scheduled}
        for request_id in self.running:
            if request_id not in got and request_id not in step.why:
                step.why[request_id] = walk.after or "not by vLLM's rules: it would have its turn"

        for request_id in step.preempted:
            state = states[request_id]
            self._hold(state, [])
            state.num_computed_tokens = 0
        for part in step.scheduled:
            state = states[part.request_id]
            self._hold(state, part.block_ids)
            state.num_computed_tokens = part.num_computed_tokens + part.num_scheduled_tokens
            state.most_computed = max(state.most_computed, state.num_computed_tokens)
        self.cached.difference_update(step.evicted)
        self.cached.update(step.published)
        if step.waiting:
            num_running = len(before.difference(step.preempted) | got)
            step.why_waiting = self._why_waiting(step, left, num_running, hits_of)

        for part in step.scheduled:
            states[part.request_id].num_tokens += len(part.new_token_ids)
            if part.finish_reason is not None:
                self.left(part.request_id)
        self.running = list(step.running)
        step.cached_blocks = sum(block not in self.refs for block in self.cached)
        step.shared_blocks = sum(refs > 1 for refs in self.refs.values())

    def _clamp(self, state: _State, num_computed: int, left: int) -> tuple[int, str]:
        """The tokens that a request gets of those it misses, and why not more."""
        tokens = missing = state.num_tokens - num_computed
        if missing == 1 and state.num_tokens > state.info.num_prompt_tokens:
            why = DECODE
        else:
            why = AGAIN if num_computed < state.most_computed else REST
        if 0 < self.threshold < tokens:
            tokens = self.threshold
            why = f"long_prefill_token_threshold allows {tokens} a step; {missing} were missing"
        if left < tokens:
            tokens = left
            why = f"the token budget of {self.budget} has {tokens} left; {missing} were missing"
        return tokens, why

    def _walk_running(self) -> _Walk:
        """Go through the running requests by vLLM's rules, on counters alone."""
        walk, states = _Walk(), self._states
        running, left, free = list(self.running), self.budget, self.usable - len(self.refs)
        refs = self.refs  # replaced by a copy before the first change
        taken: dict[str, int] = {}
        at = 0
        while at < len(running):
            if not left:
                walk.after = f"the token budget of {self.budget} is used up by those before it"
                break
            request_id = running[at]
            state = states[request_id]
            tokens, why = self._clamp(state, state.num_computed_tokens, left)
            slots = min(state.num_computed_tokens + tokens, self.max_model_len)
            need = max(-(slots // -self.block_size) - len(state.table), 0)
            while need > free:
                victim = (
                    max(running, key=lambda r: states[r].rank) if self.by_priority else running[-1]
                )
                walk.why_preempted[victim] = self._why_preempted(request_id, victim, need, free)
                place = running.index(victim)
                running.pop(place)
                refs = dict(refs)
                for block in states[victim].table:
                    refs[block] -= 1
                    free += refs[block] == 0
                free += taken.pop(victim, 0)
                if victim == request_id:
                    walk.after = f"{request_id} preempted itself, which ends the running's part"
                    return walk
                if victim in walk.tokens:
                    left += walk.tokens.pop(victim)
                    at -= 1
            walk.tokens[request_id], walk.why[request_id] = tokens, why
            taken[request_id] = need
            free -= need
            left -= tokens
            at += 1
        return walk

    def _why_preempted(self, request_id: str, victim: str, need: int, free: int) -> str:
        whose = "it" if victim == request_id else request_id
        rule = (
            "of the running it has the largest (priority, arrival)"
            if self.by_priority
            else "it is the last of the running list"
        )
        return f"{whose} needs {count(need, 'more block')} and {free} are free; {rule}"

    def _why_waiting(
        self, step: StepTrace, left: int, num_running: int, hits_of: Callable[[str], list[int]]
    ) -> str:
        """Why the head of the queue was not admitted. Blocks are counted as it was tried: after
        all that was scheduled, before anything that finished gave its blocks back."""
        head = step.waiting[0]
        if step.preempted:
            return f"nobody is admitted in a step that preempts ({', '.join(step.preempted[:4])})"
        if left <= 0:
            return f"the token budget of {self.budget} is used up"
        if num_running >= self.max_num_seqs:
            return f"no sequence slot: {num_running} run, and max_num_seqs is {self.max_num_seqs}"
        hits = hits_of(head)
        num_tokens = self._states[head].num_tokens
        missing = num_tokens - len(hits) * self.block_size
        if 0 < self.threshold < missing:
            missing = self.threshold
        if missing > left and not self.chunked:
            return (
                f"its {missing} tokens must fit into one step, for chunked prefill is off, and "
                f"{left} are left of the budget of {self.budget}"
            )
        fit = num_tokens if self.whole_must_fit else num_tokens - missing + min(missing, left)
        blocks = -(min(fit, self.max_model_len) // -self.block_size)
        in_use = sum(block in self.refs for block in hits)
        need, free = max(blocks - in_use, 0), self.usable - len(self.refs)
        what = f"{count(need, 'free block')} for {count(fit, 'token')}"
        if in_use:
            what += f" ({count(in_use, 'more block')} would be a prefix hit that others hold)"
        if need > free:
            return f"not enough free blocks: it needs {what}, and {free} are free"
        return f"not by vLLM's rules: it needs {what}, {free} are free, and there is room to run it"
