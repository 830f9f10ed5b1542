"""Which of vLLM's rules settles a field of a decision, and what it comes to in this step.

The walk through the rules is the trace's own, `mini_vllm.trace.reasons`: it follows the recorded
decisions up to the step and says why each request got what it got. Here stands what the rules are
in general, and which request of the two decisions to speak of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from course.parity.async_traces import Call, Plan
from course.parity.traces import Decision, Trace, is_async
from mini_vllm.trace.golden import Recording
from mini_vllm.trace.golden_async import AsyncRecording
from mini_vllm.trace.reasons import Explainer
from mini_vllm.trace.words import Reason

UNKNOWN = Reason("against", "no reason is known")
BROKEN = (KeyError, IndexError, TypeError, AttributeError, ValueError)
RULES = {
    "rest": "Budget: running requests come first, in list order. Each gets the tokens it misses, cut "
    "by long_prefill_token_threshold and by what is left of the token budget.",
    "threshold": "Threshold: no request gets more than long_prefill_token_threshold tokens in a step.",
    "budget": "Budget: a request gets no more than those before it leave of max_num_batched_tokens. "
    "What it misses beyond that it gets in the next steps.",
    "spent": "Budget: those before have spent it; the turn of the others comes in a later step.",
    "flight": "In flight: tokens that are being sampled count as if the request had them. One whose "
    "last token, by max_tokens or max_model_len, is in flight gets nothing; the others keep theirs.",
    "lost": "Lost turn: a victim that had no tokens in this step stood before the running request "
    "whose turn it is. The list moves up by one and the place in it does not, so the next is passed "
    "over. vLLM does that with asynchronous scheduling, under priority.",
    "placeholders": "Placeholder: a plan that computes all that a request has, placeholders counted, "
    "leaves one more, and one for each draft in it; each sampled token that comes in takes one away, and so "
    "does each draft that was rejected, whether or not the request was preempted in between.",
    "calls": "Calls: a turn plans if there is anything to do or to tell the worker. It takes in the "
    "oldest result unless the plan has tokens and two plans are not in flight yet.",
    "drafts": "Drafts: a running request's drafts are tokens of the step, after its own and its "
    "placeholders. What finds no room, by threshold, budget or max_model_len, is cut off at the end and "
    "forgotten, and only what is scheduled is recorded. A victim's drafts are gone; a prompt in chunks has "
    "none.",
    "end": "Last position: no token is computed at position max_model_len - 1, drafts among them.",
    "rejected": "Rejected drafts are taken back from num_computed_tokens as a number when the result comes. "
    "Their blocks stay. From a request that was preempted in between nothing is taken.",
    "lookahead": "Lookahead: a drafter with a KV cache of its own, an EAGLE head or a draft model, gets "
    "num_speculative_tokens slots past the step's tokens, and n-gram none. At admission there is none, nor "
    "past max_model_len.",
    "given up": "EAGLE: of the blocks that a request hits it gives up the last, and computes it again, since "
    "the head needs the hidden state before each token.",
    "draft model": "A draft model takes one row a request of the budget: max_num_batched_tokens less "
    "max_num_seqs are there to schedule.",
    "victim": "Victim: a running request that finds too few free blocks preempts, until it fits, ",
    "ends": "Victim: a request that has preempted itself ends the running part of the step.",
    "preempted": "Admission: in a step that preempted somebody nobody is admitted.",
    "slots": "Slots: at most max_num_seqs requests run.",
    "chunks": "Chunking is off: a prompt is computed in one step or waits.",
    "gate": "Full-sequence gate: a waiting request is admitted only if all its present tokens fit, "
    "even if this step computes a chunk of them. Prefix hits in use by others need nothing; hits "
    "that are free leave the free queue, so they count.",
    "blocks": "Blocks: the full-sequence gate is off, so only the tokens of this step must fit.",
    "queue": "Queue: the first waiting request that does not fit ends admission; nobody overtakes.",
    "against": "This decision is not vLLM's by any rule that is known here.",
    "hit": "Hit length: a request that is admitted first takes what the prefix cache has, in whole "
    "blocks, and never its last token. Only the rest is computed.",
    "admission": "Admission: nobody was preempted in this step, and there is budget, a sequence slot "
    "and room for the request; so the head of the waiting queue is taken in, and then the next.",
    "abort": "Abort: an aborted request is finished at once, wherever it is. It leaves its queue or "
    "the running list, and its blocks are free before the next step is scheduled.",
    "order": "Order: the running list from its head, then admissions in the order of the queue.",
    "fcfs": "Queue: first come, first served; preempted requests go back to the front.",
    "priority": "Queue: the waiting request with the least (priority, arrival time) is tried first, "
    "preempted ones among them.",
    "stop": "Stop: checked after each appended token, in this order: EOS (unless ignore_eos), then "
    "max_tokens or max_model_len. Equality counts as reached.",
    "running": "Running list: victims and finished requests leave it, admitted ones join at the end, "
    "the others keep their order.",
    "free": "Free blocks: a block is free when no table holds it. Finished, aborted and preempted "
    "requests give all their blocks back at once; a shared one stays until its last holder is gone.",
    "length": "Table length: a request holds ceil((computed + scheduled) / block_size) blocks, no "
    "more, no fewer.",
    "null": "Block 0 is the null block: it stands for nothing and is never given out.",
    "grow": "Tables only grow: an entry never changes while the request holds it.",
    "first": "A hit is the block published first among those with the same chained hash, and "
    "publishing happens at allocation.",
    "blocks order": "Order of blocks: new ones come from the front of the free queue. A request's "
    "blocks join it at the back, the last block first, when nobody holds them any more; a hit takes "
    "its block out of the middle. Hits are taken out before new blocks are drawn.",
}


@dataclass
class Moment:
    """A step of a recording: what vLLM's scheduler knew before it, and why it decided so.

    Attributes:
        before: the counters, arrivals and aborts of this step done.
        reasons: by request id; empty where the recorded decision does not hold together.
        why_waiting: why the head of the queue was not admitted.
    """

    before: Explainer
    arrived: list[str]
    aborted: list[str]
    reasons: dict[str, Reason] = field(default_factory=dict)
    why_waiting: str = ""


def moment(trace: Trace, step: int) -> Moment:
    """Follow the recorded decisions up to a step, or call. Raises one of BROKEN where they cannot be."""
    if is_async(trace):
        return _moment_of_calls(trace, step)
    recording = Recording(trace)
    for at in range(step):
        recording.step(at, trace["steps"][at], *recording.begin(at))
    arrived, aborted = recording.begin(step)
    now = Moment(deepcopy(recording.explainer), arrived, aborted)
    _find_reasons(now, recording, step, trace["steps"][step])
    return now


def _moment_of_calls(trace: Trace, number: int) -> Moment:
    recording = AsyncRecording(trace)
    calls: list[Any] = list(trace["steps"][: number + 1])
    last, turn = calls.pop(), 0
    for call in calls:
        if call["call"] == "update":
            recording.update(call)
            continue
        for before in range(turn, call["turn"]):  # turns in which nothing was planned
            recording.begin(before)
        turn = call["turn"] + 1
        recording.step(call["turn"], call, *recording.begin(call["turn"]))
    if last["call"] == "update":
        return Moment(recording.explainer, [], [])
    news = [recording.begin(before) for before in range(turn, last["turn"] + 1)]
    arrived, aborted = ([i for each in news for i in each[k]] for k in (0, 1))
    now = Moment(deepcopy(recording.explainer), arrived, aborted)
    _find_reasons(now, recording, last["turn"], last)
    return now


def _find_reasons(now: Moment, recording: Recording, at: int, step: Any) -> None:
    with suppress(*BROKEN):  # a decision that no scheduler can take has no reason
        made = recording.step(at, step, now.arrived, now.aborted)
        now.why_waiting, now.reasons = made.why_waiting, recording.reasons


def rule(now: Moment, field: str, expected: Decision | Call, actual: Decision | Call) -> list[str]:
    """The rule that settles a field of the decision, as lines of text."""
    if field in ("running", "calls"):
        return [RULES[field]]
    settles: dict[str, Callable[[Moment, Any, Any], Iterator[str]]] = {
        "preempted": _preempted,
        "scheduled": _scheduled,
        "blocks": _blocks,
        "drafts": _drafts,
        "computed": _computed,
        "placeholders": _placeholders,
        "finished": _finished,
        "free": _free,
    }
    return list(settles[field](now, expected, actual))


def _victim(now: Moment) -> str:
    whom = (
        "the running request with the largest (priority, arrival time), scheduled or not."
        if now.before.by_priority
        else "the last of the running list."
    )
    return (
        f"{RULES['victim']}{whom} If that is the request itself, the running part of the step ends."
    )


def _preempted(now: Moment, expected: Decision, actual: Decision) -> Iterator[str]:
    yield _victim(now) + " Waiting requests never preempt."
    if not expected["preempted"]:
        yield "Here every running request finds its blocks free: no victim."
    yield from _victims(now)


def _victims(now: Moment) -> Iterator[str]:
    for request_id, reason in now.reasons.items():
        if reason.rule == "victim":
            yield f"{request_id}: {reason.words}."


def _scheduled(now: Moment, expected: Decision, actual: Decision) -> Iterator[str]:
    theirs, ours = list(expected["scheduled"].items()), list(actual["scheduled"].items())
    at = next(
        (k for k, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(len(ours), len(theirs)),
    )
    want = theirs[at][0] if at < len(theirs) else None
    got = ours[at][0] if at < len(ours) else None
    queue, subject = now.before.queue(), want or got or ""
    reason = now.reasons.get(subject, UNKNOWN)
    if got and got not in now.before.states:
        yield RULES["abort"]
        yield f"{got} was aborted."
    elif want and want == got:
        yield from _amount(now, want, expected["scheduled"][want], actual["scheduled"][want])
    elif want and got and want in actual["scheduled"]:
        yield RULES["order"]
        yield f"Place {at} is {want}'s."
    elif want and got in queue and want in queue and queue.index(want) < queue.index(got):
        yield RULES["priority" if now.before.by_priority else "fcfs"]
        ranks = [f"{r} {now.before.states[r].priority_key}" for r in (want, got)]
        yield f"By (priority, arrival time) {ranks[0]} is tried before {ranks[1]}."
    elif want and reason.room:
        yield RULES["admission"]
        yield f"{want}: {reason.room}."
    else:  # here somebody got tokens who gets none, or did not get those that are his
        yield RULES[reason.rule]
        yield f"{subject}: {reason.words}."
        if reason.rule == "queue":
            yield f"The head of the queue: {now.why_waiting}."
        if subject in now.before.running:
            yield from _victims(now)
    if now.before.by_draft_model and reason.rule in ("budget", "spent", "chunks"):
        yield RULES["draft model"]


def _drafts(now: Moment, expected: Any, actual: Any) -> Iterator[str]:
    ids = {**expected["drafts"], **actual["drafts"]}
    request_id = next(i for i in ids if expected["drafts"].get(i) != actual["drafts"].get(i))
    theirs, ours = (d["drafts"].get(request_id, []) for d in (expected, actual))
    yield RULES["drafts"]
    yield f"{request_id}: in vLLM {len(theirs)} {_plain(theirs)}, here {len(ours)} {_plain(ours)}."
    if (state := now.before.states.get(request_id)) is not None:
        yield (
            f"It had {state.num_drafts} drafts, and {expected['scheduled'].get(request_id, 0)} tokens are "
            f"scheduled; {now.reasons.get(request_id, UNKNOWN).words}."
        )


def _plain(tokens: list[int]) -> str:
    return f"({' '.join(map(str, tokens))})" if tokens else "drafts"


def _computed(now: Moment, expected: Any, actual: Any) -> Iterator[str]:
    theirs, ours = expected["computed"], actual["computed"]
    request_id = next(i for i in {**theirs, **ours} if theirs.get(i) != ours.get(i))
    yield RULES["rejected"]
    drafts = expected.get("drafts", {}).get(request_id)
    how = f", of {len(drafts)} drafts" if drafts else ""
    sampled = expected["sampled"].get(request_id, 0)
    yield (
        f"{request_id}: {sampled} tokens came{how}. Computed then: in vLLM {theirs.get(request_id)}, here "
        f"{ours.get(request_id)}."
    )


def _amount(now: Moment, request_id: str, theirs: int, ours: int) -> Iterator[str]:
    """Another number of tokens for the same request."""
    reason = now.reasons.get(request_id, UNKNOWN)
    if request_id in now.before.running or reason.rule != "rest":
        yield RULES[reason.rule]
        if now.before.num_spec_tokens and reason.rule != "drafts":
            yield RULES["drafts"]
        yield f"{request_id}: in vLLM {theirs}, here {ours}. Why {theirs}: {reason.words}."
        return
    num_tokens, size = now.before.states[request_id].num_tokens, now.before.block_size
    hit = num_tokens - theirs
    yield RULES["hit"]
    yield (
        f"{request_id} has {num_tokens} tokens, so at most {(num_tokens - 1) // size * size} can be "
        f"hits. vLLM finds {hit} ({hit // size} blocks of {size}) and computes {theirs}."
    )
    if now.before.use_eagle:
        yield RULES["given up"]


def _blocks(now: Moment, expected: Decision, actual: Decision) -> Iterator[str]:
    size, running = now.before.block_size, now.before.running
    request_id = next(i for i, t in expected["blocks"].items() if t != actual["blocks"].get(i))
    theirs, ours = expected["blocks"][request_id], actual["blocks"].get(request_id, [])
    tokens, state = expected["scheduled"][request_id], now.before.states.get(request_id)
    if len(theirs) != len(ours):
        hits = len(theirs) - -(tokens // -size)
        if request_id not in running and request_id in actual["scheduled"]:
            here = len(ours) - -(actual["scheduled"][request_id] // -size)
            if hits != here:
                same_tokens = tokens == actual["scheduled"][request_id]
                if now.before.num_lookahead_tokens and same_tokens:
                    yield RULES["lookahead"]
                which = " ".join(map(str, theirs[:hits])) or "none"
                yield RULES["hit"]
                yield (
                    f"{request_id} is admitted in this step. In vLLM {hits} of its blocks are hits "
                    f"({which}), here {here}."
                )
                if now.before.use_eagle:
                    yield RULES["given up"]
                return
        computed = state.num_computed_tokens if state and request_id in running else hits * size
        yield RULES["length"]
        if now.before.num_spec_tokens:
            yield RULES["lookahead"]
        ahead = now.before.num_lookahead_tokens if request_id in running else 0
        past = f" + {ahead}" if ahead else ""
        yield (
            f"{request_id}: ({computed} + {tokens}{past}) / {size} makes {len(theirs)}; this table has "
            f"{len(ours)}."
        )
        return
    at = next(k for k in range(len(theirs)) if theirs[k] != ours[k])
    yield f"Entry {at} of {request_id} is block {theirs[at]} in vLLM and {ours[at]} here."
    before = list(expected["blocks"])[: list(expected["blocks"]).index(request_id)]
    others = [r for r in running if theirs[at] in now.before.states[r].table]
    others += [i for i in before if theirs[at] in expected["blocks"][i]]
    if ours[at] == 0:
        yield RULES["null"]
    elif state is not None and at < len(state.table):
        yield RULES["grow"]
    elif others:
        yield f"It is a prefix hit that {others[0]} holds too. {RULES['first']}"
    else:
        yield RULES["blocks order"]


def _placeholders(now: Moment, expected: Plan, actual: Plan) -> Iterator[str]:
    theirs, ours = expected["placeholders"], actual["placeholders"]
    request_id = next(i for i in theirs if theirs[i] != ours.get(i))
    yield RULES["placeholders"]
    yield f"{request_id}: after the plan {theirs[request_id]} in vLLM, {ours.get(request_id)} here."
    if (state := now.before.states.get(request_id)) is not None:
        yield (
            f"Before it had {state.num_tokens} tokens, {state.num_output_placeholders} in flight and "
            f"{state.num_computed_tokens} computed; {expected['scheduled'][request_id]} are planned."
        )


def _finished(now: Moment, expected: Decision, actual: Decision) -> Iterator[str]:
    ids = {**expected["finished"], **actual["finished"]}
    request_id = next(i for i in ids if expected["finished"].get(i) != actual["finished"].get(i))
    ends = [d["finished"].get(request_id, "goes on") for d in (expected, actual)]
    yield RULES["stop"]
    yield f"{request_id}: vLLM {ends[0]}, here {ends[1]}."
    if (state := now.before.states.get(request_id)) is not None:
        outputs = state.num_tokens - state.info.num_prompt_tokens
        yield f"Before the step it had {outputs} output and {state.num_tokens} tokens in all."


def _free(now: Moment, expected: Any, actual: Any) -> Iterator[str]:
    yield RULES["free"]
    tables = {r: now.before.states[r].table for r in now.before.running}
    tables |= expected.get("blocks", {})
    for request_id in expected.get("finished", ()):
        if request_id not in tables:
            continue  # it had ended before
        others = {b for i in expected["running"] if i != request_id for b in tables.get(i, ())}
        mine = set(tables[request_id])
        yield (
            f"{request_id} finished: of its {len(mine)} blocks {len(mine - others)} are held by "
            "nobody else."
        )
