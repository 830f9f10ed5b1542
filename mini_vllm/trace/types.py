"""What a trace is made of. `recorder.py` records it, `data.py`, `page.py`, `chrome.py` write it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class RequestInfo:
    """What of a request does not change from step to step.

    Attributes:
        prompt: its text; None if token ids were given, or if it is not known.
        output_token_ids: all that it sampled.
        texts: what each of those added to its text, so that the text after any step can be shown;
            None without a tokenizer.
        outputs_before, computed_before: tokens it had sampled, and computed, when the recording
            began.
        blocks_before: its block table then.
        lora: the name of its adapter.
        rule: what its output must obey, in words; None: it is free.
    """

    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    priority: int = 0
    arrival_time: float = 0.0
    prompt: str | None = None
    prompt_token_ids: list[int] = field(default_factory=list)
    output_token_ids: list[int] = field(default_factory=list)
    texts: list[str] | None = None
    outputs_before: int = 0
    computed_before: int = 0
    blocks_before: list[int] = field(default_factory=list)
    lora: str | None = None
    rule: str | None = None


@dataclass(slots=True)
class RequestStep:
    """One request's part in one step.

    Attributes:
        num_computed_tokens: tokens in the cache before the step.
        num_scheduled_tokens: tokens computed in it.
        num_cached_tokens: of `num_computed_tokens`, those a prefix hit brought in this very step.
        block_ids: its block table. Steps share the list while it does not change: do not alter it.
        new_token_ids: what it sampled: nothing in mid-prompt, else one token, with drafts the accepted
            ones and one more.
        finish_reason: set in its last step.
        why: why it got this many tokens.
        kind: `prefill`, `decode`, or `recompute`: tokens it had computed before it was preempted.
        draft_token_ids: of the tokens computed, the last: drafts, which it only checked. With asynchronous
            scheduling only the worker knows the rejected ones: -1.
        num_accepted_tokens: how many of those, from the first on, were accepted.
        num_allowed_tokens: with a rule: how many tokens of the vocabulary it allowed, for each place at which
            the request sampled, its drafts' first. 1: the token was forced.
        rule_state: where its rule was before the step's tokens, in words.
    """

    request_id: str
    num_computed_tokens: int
    num_scheduled_tokens: int
    num_cached_tokens: int
    block_ids: list[int]
    new_token_ids: list[int]
    finish_reason: str | None
    why: str = ""
    kind: str = "prefill"
    draft_token_ids: list[int] = field(default_factory=list)
    num_accepted_tokens: int = 0
    num_allowed_tokens: list[int] = field(default_factory=list)
    rule_state: str = ""

    @property
    def num_rejected_tokens(self) -> int:
        return len(self.draft_token_ids) - self.num_accepted_tokens


@dataclass(slots=True)
class StepTrace:
    """One step. Times are seconds; `start` counts from the first step's beginning.

    Attributes:
        scheduled: in scheduling order: running requests first, then those admitted.
        preempted: ids, sorted.
        running, waiting: ids in order, when the step was over. Those that were skipped come last.
        arrived, aborted: ids of those that came, and that were ended from outside, since the last
            step. A request whose text holds a stop string is ended from outside too: only the
            front end sees text.
        evicted: blocks whose cached content was dropped to give them to a request.
        published: blocks that can be found by their hash from this step on.
        hashes: the first digits of those hashes, in the same order; empty where they are not known.
        freed: blocks that came to the back of the free queue since the last step, in the queue's
            order. The last of them are those of the requests that finished in this step.
        cached_blocks: free blocks that still hold cached content, when the step was over.
        shared_blocks: blocks in more than one table, at the same time.
        blocks_in_use: those that a request held while it ran.
        why_waiting: why the head of the queue was not admitted.
        why_behind: why the others in the queue were not.
        why: request id -> why it was preempted, or runs without getting a token, or was skipped.
        skipped: of those that wait, the ones that may be passed: what they wait for is not room.
    """

    index: int
    start: float
    schedule_time: float
    execute_time: float
    update_time: float
    scheduled: list[RequestStep]
    preempted: list[str]
    running: list[str]
    waiting: list[str]
    free_blocks: int
    kv_usage: float
    arrived: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    evicted: list[int] = field(default_factory=list)
    published: list[int] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    cached_blocks: int = 0
    shared_blocks: int = 0
    blocks_in_use: int = 0
    why_waiting: str = ""
    why_behind: str = ""
    why: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    def reason(self, request_id: str) -> str:
        """Why this request fared as it did; empty where nothing was decided on it."""
        for part in self.scheduled:
            if part.request_id == request_id:
                return part.why
        if request_id in self.why:
            return self.why[request_id]
        if request_id not in self.waiting:
            return ""
        return self.why_waiting if request_id == self.waiting[0] else self.why_behind


@dataclass(slots=True)
class Trace:
    """A recorded run.

    The state of the blocks is kept as changes, for a pool of thousands changes little in a step.
    How many references a block has follows from the tables: one from each table that it is in. So
    do its filled slots, from the tokens computed. The free queue in a step is the one before it,
    without the blocks that tables hold now, and with `freed` behind.

    Attributes:
        config: the fields of `EngineConfig` by name; at least those that `Explainer` reads.
        requests: in order of arrival. An id that was used twice stands here twice.
        source: whose decisions these are.
        pieces: token id -> how to print it.
        cached_at_start: blocks that held cached content before the first step.
        hashes_at_start: the first digits of their hashes; empty where they are not known.
        free_at_start: the free queue before the first step as runs, first and last block of each:
            `[[1, 4095]]`. None where it is not known.
        aborted_at_end: ids of those ended after the last step.
        vocab_size: tokens that a rule may allow; None where no request has one.
    """

    config: dict[str, Any]
    requests: list[RequestInfo]
    steps: list[StepTrace]
    source: str
    title: str = ""
    about: str = ""
    pieces: dict[int, str] = field(default_factory=dict)
    cached_at_start: list[int] = field(default_factory=list)
    hashes_at_start: list[str] = field(default_factory=list)
    free_at_start: list[list[int]] | None = None
    aborted_at_end: list[str] = field(default_factory=list)
    vocab_size: int | None = None
