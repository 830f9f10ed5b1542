"""A trace as lines to read, in a terminal or a file."""

from __future__ import annotations

from collections.abc import Iterator

from mini_vllm.trace.types import RequestStep, StepTrace
from mini_vllm.trace.words import DECODE, ENDS, REST


def to_text(steps: list[StepTrace]) -> str:
    """The trace as lines to read: one a step, one a request in it."""
    return "\n".join(_text_lines(steps)) + "\n"


def _text_lines(steps: list[StepTrace]) -> Iterator[str]:
    ended = set[str]()  # with asynchronous scheduling: by a token, and not gone yet
    for step in steps:
        total = sum(r.num_scheduled_tokens for r in step.scheduled)
        milliseconds = 1e3 * (step.schedule_time + step.execute_time + step.update_time)
        yield (
            f"step {step.index}: {total} tokens for {len(step.scheduled)} requests, "
            f"running {len(step.running)}, waiting {len(step.waiting)}, "
            f"free blocks {step.free_blocks}" + (f", {milliseconds:.2f} ms" if milliseconds else "")
        )
        for request_id in step.aborted:
            how = "its last token had come" if request_id in ended else "aborted, or its text held"
            how += "" if request_id in ended else " a stop string"
            yield f"  {request_id}: ended between the steps ({how})"
        for request_id in step.preempted:
            yield f"  {request_id}: preempted, its blocks are free, it will be recomputed"
            yield f"    because {step.reason(request_id)}"
        ended -= set(step.aborted)
        for r in step.scheduled:
            if r.why.endswith(ENDS):
                ended.add(r.request_id)
            first, last = r.num_computed_tokens, r.num_computed_tokens + r.num_scheduled_tokens
            notes = [f"tokens {first}..{last - 1}", f"blocks {_runs(r.block_ids)}"]
            if r.num_cached_tokens:
                notes.append(f"{r.num_cached_tokens} tokens from the prefix cache")
            if r.why not in (DECODE, REST):
                notes.append(r.why)
            if r.draft_token_ids:
                drafts = " ".join("?" if token < 0 else str(token) for token in r.draft_token_ids)
                notes.append(
                    f"drafted {drafts}: {r.num_accepted_tokens} accepted, {r.num_rejected_tokens} rejected"
                )
            if r.num_allowed_tokens:
                notes.append(_rule(r))
            if r.new_token_ids:
                notes.append("sampled " + " ".join(map(str, r.new_token_ids)))
            if r.finish_reason:
                notes.append(f"finished: {r.finish_reason}")
            yield f"  {r.request_id}: " + ", ".join(notes)
        if step.evicted:
            yield f"  evicted from the prefix cache: blocks {_runs(step.evicted)}"
        if step.waiting and step.why_waiting:
            yield f"  {step.waiting[0]}: waits, {step.why_waiting}"
        for request_id in step.skipped:
            yield f"  {request_id}: skipped, {step.reason(request_id)}"


def _rule(part: RequestStep) -> str:
    """`rule in state 4, allows 10, then 1 (forced)`."""
    allowed = ", then ".join(f"{n} (forced)" if n == 1 else str(n) for n in part.num_allowed_tokens)
    return f"rule {part.rule_state}, allows {allowed}"


def runs_of(block_ids: list[int]) -> list[list[int]]:
    """`[1, 2, 3, 7]` as `[[1, 3], [7, 7]]`."""
    parts: list[list[int]] = []
    for block_id in block_ids:
        if parts and block_id == parts[-1][1] + 1:
            parts[-1][1] = block_id
        else:
            parts.append([block_id, block_id])
    return parts


def _runs(block_ids: list[int]) -> str:
    """`[1, 2, 3, 7]` as `1-3,7`."""
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs_of(block_ids)) or "none"
