"""Which rule of vLLM's scheduler settles a field of a decision, in words and numbers.

The rules are worked out here from counters alone, apart from `mini_vllm`'s code: a second account
of the first, short enough to check against the source. Where this account of the running requests
comes to vLLM's decision, the report shows its arithmetic; where it does not, only the rule.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from course.parity.traces import Config, Decision


@dataclass(frozen=True)
class Row:
    """A living request before the step. `blocks` are the ids in its table."""

    request_id: str
    status: str
    num_prompt_tokens: int
    num_tokens: int
    num_computed_tokens: int
    blocks: tuple[int, ...]
    priority: int
    arrival_time: float


@dataclass(frozen=True)
class State:
    """A scheduler before a step, arrivals and aborts of that step done.

    `running` is in list order, `waiting` in the order that the scheduler itself keeps.
    """

    config: Config
    running: list[Row]
    waiting: list[Row]
    free: int
    arrived: list[str]  # just now
    aborted: list[str]  # just now
    gone: frozenset[str]  # all that were aborted by now

    def queue(self) -> list[Row]:
        """The waiting requests in the order in which vLLM would try them."""
        if self.config["policy"] == "priority":
            return sorted(self.waiting, key=lambda r: (r.priority, r.arrival_time, r.request_id))
        return self.waiting

    def find(self, request_id: str) -> Row | None:
        return next((r for r in self.running + self.waiting if r.request_id == request_id), None)


@dataclass
class Walk:
    """The running requests' part of a step, as the rules have it."""

    budget: int
    free: int
    scheduled: dict[str, int] = field(default_factory=dict)
    preempted: list[str] = field(default_factory=list)
    why: dict[str, str] = field(default_factory=dict)  # request id -> how its tokens came about
    events: list[str] = field(default_factory=list)


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def walk_running(state: State) -> Walk:
    """Go through the running list as `Scheduler.schedule` does, on counters alone."""
    config = state.config
    size, by_priority = config["block_size"], config["policy"] == "priority"
    walk = Walk(config["max_num_batched_tokens"], state.free)
    running = list(state.running)
    holders = Counter(block for r in running for block in r.blocks)
    taken: dict[str, int] = {}  # new blocks of this step
    at = 0
    while at < len(running) and walk.budget > 0:
        row = running[at]
        tokens, why = clamp(row.num_tokens - row.num_computed_tokens, config, walk.budget)
        need = cdiv(row.num_computed_tokens + tokens, size) - len(row.blocks)
        while need > walk.free:
            victim = max(running, key=lambda r: (r.priority, r.arrival_time)) if by_priority else (
                running[-1]
            )  # fmt: skip
            index = running.index(victim)
            running.pop(index)
            holders.subtract(victim.blocks)
            freed = sum(holders[block] == 0 for block in victim.blocks)
            freed += taken.pop(victim.request_id, 0)
            whom = "itself" if victim is row else victim.request_id
            walk.events.append(
                f"{row.request_id} needs {need} more block{'s' * (need > 1)} for tokens "
                f"{row.num_computed_tokens} to {row.num_computed_tokens + tokens - 1}, "
                f"{walk.free} free: it preempts {whom}, "
                + (
                    f"of the running the largest (priority, arrival) = ({victim.priority}, "
                    f"{victim.arrival_time:g})"
                    if by_priority
                    else "the last of the running list"
                )
                + f", which frees {freed}."
            )
            walk.free += freed
            walk.preempted.append(victim.request_id)
            if victim is row:
                return walk
            if victim.request_id in walk.scheduled:
                back = walk.scheduled.pop(victim.request_id)
                walk.budget += back
                walk.events.append(
                    f"{victim.request_id} had been scheduled in this step; its {back} tokens "
                    "go back to the budget."
                )
                at -= 1
        walk.scheduled[row.request_id] = tokens
        walk.why[row.request_id] = why
        taken[row.request_id] = need
        walk.free -= max(need, 0)
        walk.budget -= tokens
        at += 1
    return walk


def clamp(missing: int, config: Config, budget: int) -> tuple[int, str]:
    """The tokens a request gets of those it misses, and the arithmetic in words."""
    threshold = config["long_prefill_token_threshold"]
    tokens, parts = missing, [f"{missing} not computed yet"]
    if 0 < threshold < tokens:
        tokens = threshold
        parts.append(f"long_prefill_token_threshold allows {threshold}")
    if budget < tokens:
        tokens = budget
        parts.append(f"{budget} left of the budget")
    return tokens, ", ".join(parts) + f": {tokens}"


def rule(state: State, name: str, expected: Decision, actual: Decision) -> list[str]:
    """The rule that settles field `name`, as lines of text."""
    lines = {
        "preempted": _preempted,
        "scheduled": _scheduled,
        "blocks": _blocks,
        "finished": _finished,
        "running": _running,
        "free": _free,
    }[name](state, expected, actual)
    return [line for line in lines if line]


def _preempted(state: State, expected: Decision, actual: Decision) -> list[str]:
    walk = walk_running(state)
    lines = [
        "Victim: a running request that finds too few free blocks preempts, until it fits, the "
        + (
            "running request with the largest (priority, arrival time), scheduled or not."
            if state.config["policy"] == "priority"
            else "last of the running list."
        ),
        "If that is the request itself, the running part of the step ends there. Waiting requests "
        "never preempt.",
    ]
    if sorted(walk.preempted) == expected["preempted"]:
        lines += walk.events or ["Here every running request finds its blocks free: no victim."]
    return lines


def _scheduled(state: State, expected: Decision, actual: Decision) -> list[str]:
    ours, theirs = list(actual["scheduled"].items()), list(expected["scheduled"].items())
    at = next(
        (k for k, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(len(ours), len(theirs)),
    )
    want = theirs[at] if at < len(theirs) else None
    got = ours[at] if at < len(ours) else None
    walk = walk_running(state)
    busy = {r.request_id for r in state.running}
    running = [(i, n) for i, n in theirs if i in busy]
    explained = running == list(walk.scheduled.items())
    left = state.config["max_num_batched_tokens"] - sum(n for _, n in theirs[:at])
    first = want or got
    assert first is not None
    if got and got[0] in state.gone:
        return [
            "Abort: an aborted request is finished at once, wherever it is. It leaves its queue or "
            "the running list, and its blocks are free before the next step is scheduled.",
            f"{got[0]} was aborted.",
        ]
    if want and got and want[0] != got[0] and want[0] in actual["scheduled"]:
        return [
            "Order: the running list from its head, then admissions in queue order"
            + (
                " (priority, then arrival time)."
                if state.config["policy"] == "priority"
                else " (first come, first served; preempted requests go to the front)."
            ),
            f"Place {at} is {want[0]}'s.",
        ]
    if first[0] in busy:
        lines = [
            "Budget: running requests come first, in list order. Each gets the tokens it misses, "
            "cut by long_prefill_token_threshold and by what is left of the token budget."
        ]
        if want and explained:
            lines.append(f"{want[0]}: {walk.why[want[0]]}.")
        elif got and got[0] not in expected["scheduled"] and left <= 0:
            lines.append(f"The budget is spent before {got[0]}; its turn comes in a later step.")
        if explained:
            lines += walk.events
        return lines
    admitted = [i for i, _ in theirs[:at] if i not in busy]
    held = {block for r in state.running for block in r.blocks}
    new = {block for i in admitted for block in expected["blocks"][i]} - held
    free = walk.free - len(new)
    places = {r.request_id: k for k, r in enumerate(state.queue())}
    if want and got and want[0] != got[0] and places.get(want[0], 0) < places.get(got[0], 0):
        return _overtaken(state, want[0], got[0])
    if want and (got is None or got[0] != want[0]):
        return _admitted(state, want, left, free, len(admitted))
    if want and got:
        return _chunk(state, want, left)
    assert got is not None
    return _refused(state, got[0], expected, left, free, len(admitted))


_HIT_LENGTH = (
    "Hit length: a request that is admitted first takes what the prefix cache has, in whole "
    "blocks, and never its last token. Only the rest is computed."
)


def _overtaken(state: State, first: str, second: str) -> list[str]:
    if state.config["policy"] != "priority":
        return [
            "Queue: first come, first served; preempted requests go back to the front.",
            f"{first} is ahead of {second}.",
        ]
    keys = {r.request_id: f"({r.priority}, {r.arrival_time:g})" for r in state.waiting}
    return [
        "Queue: the waiting request with the least (priority, arrival time) is tried first, "
        "preempted ones among them.",
        f"{first} has {keys[first]}, {second} has {keys[second]}.",
    ]


def _chunk(state: State, want: tuple[str, int], left: int) -> list[str]:
    request_id, tokens = want
    row = state.find(request_id)
    size, threshold = state.config["block_size"], state.config["long_prefill_token_threshold"]
    if tokens == left:
        return [
            "Budget: what the requests before it leave of max_num_batched_tokens. A prompt that "
            "misses more is cut there and goes on in the next step.",
            f"{request_id}: {left} of {state.config['max_num_batched_tokens']} tokens are left.",
        ]
    if tokens == threshold:
        return [
            "Threshold: no request gets more than long_prefill_token_threshold tokens in a step.",
            f"{request_id}: {threshold}.",
        ]
    lines = [_HIT_LENGTH]
    if row is None:
        return lines
    hit = row.num_tokens - tokens
    if not state.config["enable_prefix_caching"]:
        lines.append(f"Prefix caching is off, so {request_id} computes all {row.num_tokens}.")
    else:
        lines.append(
            f"{request_id} has {row.num_tokens} tokens, so at most "
            f"{(row.num_tokens - 1) // size * size} can be hits. vLLM finds {hit} "
            f"({hit // size} blocks of {size}) and computes {tokens}."
        )
    return lines


def _admitted(
    state: State, want: tuple[str, int], left: int, free: int, admitted: int
) -> list[str]:
    config, row = state.config, state.find(want[0])
    lines = [
        "Admission: nobody was preempted in this step, and there is budget, a sequence slot and "
        "room for the request; so the head of the waiting queue is taken in, and then the next."
    ]
    if row is not None:
        gate = config.get("scheduler_reserve_full_isl", True)
        lines.append(
            f"{want[0]}: {left} tokens of budget; {len(state.running) + admitted} of "
            f"{config['max_num_seqs']} slots taken; its {row.num_tokens} tokens fill "
            f"{cdiv(row.num_tokens, config['block_size'])} blocks, less prefix hits, and {free} "
            "are free."
            + ("" if gate else " The full-sequence gate is off: only this step's chunk must fit.")
        )
        if gate:
            lines.append(
                "Full-sequence gate: all its present tokens must fit, not just this step's chunk; "
                "hit blocks that are free count as needed, those in use do not."
            )
    return lines


def _refused(
    state: State, request_id: str, expected: Decision, left: int, free: int, admitted: int
) -> list[str]:
    config, row = state.config, state.find(request_id)
    taken = len(state.running) + admitted
    if expected["preempted"]:
        return [
            "Admission: in a step that preempted somebody nobody is admitted.",
            f"Preempted in this step: {' '.join(expected['preempted'])}.",
        ]
    if left <= 0:
        return ["Budget: it is spent by the requests before; nobody is admitted without budget."]
    if taken >= config["max_num_seqs"]:
        return [f"Slots: {taken} requests run, and max_num_seqs is {config['max_num_seqs']}."]
    head = next((r for r in state.queue() if r.request_id not in expected["scheduled"]), None)
    if head is not None and head.request_id != request_id:
        return [
            "Queue: the first waiting request that does not fit ends admission; nobody overtakes.",
            f"{head.request_id} is ahead of {request_id} and was not admitted.",
        ]
    if row is None:
        return [f"{request_id} is not among the living requests."]
    if not config.get("enable_chunked_prefill", True) and row.num_tokens > left:
        return [
            "Chunking is off: a prompt is computed in one step or waits.",
            f"{request_id} misses up to {row.num_tokens} tokens, the budget has {left} left.",
        ]
    blocks = cdiv(row.num_tokens, config["block_size"])
    return [
        "Full-sequence gate: a waiting request is admitted only if all its present tokens fit, "
        "even if this step computes a chunk of them.",
        f"{request_id}: {row.num_tokens} tokens are {blocks} blocks; {free} are free. Prefix hits "
        "in use by others need nothing; hits that are free leave the free queue, so they count.",
    ]


def _blocks(state: State, expected: Decision, actual: Decision) -> list[str]:
    size = state.config["block_size"]
    request_id = next(i for i, t in expected["blocks"].items() if t != actual["blocks"].get(i))
    theirs, ours = expected["blocks"][request_id], actual["blocks"].get(request_id, [])
    if len(theirs) != len(ours):
        row = state.find(request_id)
        if row in state.waiting and request_id in actual["scheduled"]:
            hits = [
                len(d["blocks"][request_id]) - cdiv(d["scheduled"][request_id], size)
                for d in (expected, actual)
            ]
            if hits[0] != hits[1]:
                return [
                    _HIT_LENGTH,
                    f"{request_id} is admitted in this step. In vLLM {hits[0]} of its blocks are "
                    f"hits ({' '.join(map(str, theirs[: hits[0]])) or 'none'}), here {hits[1]}.",
                ]
        lines = [
            "Table length: a request holds ceil((computed + scheduled) / block_size) blocks, "
            "no more, no fewer."
        ]
        if row is not None and row in state.running:
            tokens = expected["scheduled"][request_id]
            lines.append(
                f"{request_id}: ({row.num_computed_tokens} + {tokens}) / {size} makes "
                f"{cdiv(row.num_computed_tokens + tokens, size)}; this table has {len(ours)}."
            )
        else:
            lines.append(f"{request_id} has {len(theirs)} in vLLM; this table has {len(ours)}.")
        return lines
    at = next(k for k in range(len(theirs)) if theirs[k] != ours[k])
    first = f"Entry {at} of {request_id} is block {theirs[at]} in vLLM and {ours[at]} here."
    row = state.find(request_id)
    if ours[at] == 0:
        return [first, "Block 0 is the null block: it stands for nothing and is never given out."]
    if row is not None and at < len(row.blocks):
        return [first, "Tables only grow: an entry never changes while the request holds it."]
    others = [r.request_id for r in state.running if theirs[at] in r.blocks]
    others += [
        i
        for i in list(expected["blocks"])[: list(expected["blocks"]).index(request_id)]
        if theirs[at] in expected["blocks"][i] and i not in others
    ]
    if others:
        return [
            first,
            f"It is a prefix hit that {others[0]} holds too. A hit is the block published first "
            "among those with the same chained hash, and publishing happens at allocation.",
        ]
    return [
        first,
        "Order of blocks: new ones come from the front of the free queue. A request's blocks join "
        "it at the back, the last block first, when nobody holds them any more; a hit takes its "
        "block out of the middle. Hits are taken out before new blocks are drawn.",
    ]


def _finished(state: State, expected: Decision, actual: Decision) -> list[str]:
    ids = {**expected["finished"], **actual["finished"]}
    request_id = next(i for i in ids if expected["finished"].get(i) != actual["finished"].get(i))
    row = state.find(request_id)
    lines = [
        "Stop: checked after each appended token, in this order: EOS (unless ignore_eos), then "
        "max_tokens or max_model_len. Equality counts as reached.",
        f"{request_id}: vLLM {expected['finished'].get(request_id, 'goes on')}, here "
        f"{actual['finished'].get(request_id, 'goes on')}.",
    ]
    if row is not None:
        outputs = row.num_tokens - row.num_prompt_tokens
        lines.append(f"Before the step it had {outputs} output and {row.num_tokens} tokens in all.")
    return lines


def _running(state: State, expected: Decision, actual: Decision) -> list[str]:
    return [
        "Running list: victims and finished requests leave it, admitted ones join at the end, the "
        "others keep their order."
    ]


def _free(state: State, expected: Decision, actual: Decision) -> list[str]:
    lines = [
        "Free blocks: a block is free when no table holds it. Finished, aborted and preempted "
        "requests give all their blocks back at once; a shared one stays until its last holder is "
        "gone."
    ]
    tables = {r.request_id: r.blocks for r in state.running} | expected["blocks"]
    for request_id in expected["finished"]:
        others = {
            block for i in expected["running"] for block in tables.get(i, ()) if i != request_id
        }
        mine = set(tables[request_id])
        lines.append(
            f"{request_id} finished: of its {len(mine)} blocks {len(mine - others)} are held by "
            "nobody else."
        )
    return lines
