"""A trace as data: one JSON object, compact, versioned, readable again without loss.

What a step has in common with what the rules lead one to expect is left out, so a step of a hundred
decodes takes a few bytes. Nothing is lost by that: where a step is not as expected, it says so.

    format, version     "mini-vllm-trace", 1
    title, about, source
    config              fields of EngineConfig by name
    requests            in order of arrival: id, prompt_tokens, max_tokens, priority, arrival,
                        prompt, prompt_ids, output_ids, text, and before: tokens it had sampled,
                        and computed, when the recording began
    pieces              token id -> how to print it
    cached              blocks that held cached content before the first step
    ended               requests aborted after the last step
    strings             reasons; the first three are those of a decode, a prefill, a recompute
    free, held, shared  columns, one number a step, when it was over: free blocks, free blocks that
                        hold cached content, blocks in more than one table
    ns                  columns: nanoseconds of schedule, execute, update; empty if all are 0
    steps               one object a step

Requests are named by their place in `requests`, from 0. The keys of a step, each with what its
absence means:

    n   its number                      one more than the step before, and 1 for the first
    a   how many requests arrived       none; they come in the order of `requests`
    x   those ended from outside        none
    p   those preempted                 none
    s   [request, tokens, ...]          a running request that is not named gets 1 token, one named
                                        with 0 gets none; those that were not running are admitted
    S   [request, tokens, ...]          in place of `s`, where the order is another: all of them
    c   [request, tokens, ...]          computed before the step: as many as after its last step,
                                        plus the prefix hit
    h   [request, tokens, ...]          prefix hits: none
    t   [[request, keep, block, ...]]   block tables: unchanged; else `keep` entries, then these
    k   [request, n, ...]               tokens sampled: 1 if it has caught up, else 0
    f   [[request, reason], ...]        finished: none
    r   the running list after it       those before, without victims and finished, then admitted
    w   the waiting queue after it      those before and the arrived; victims in front (`fcfs`), or
                                        sorted by priority, arrival, id; without those admitted
    e, b  blocks evicted, published     none
    y   [request, string, ...]          why it got its tokens: the first string, second or third
    z   [request, string, ...]          why it was preempted, or got nothing: no reason
    v   string                          why the head of the queue waits: no reason
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.trace.reasons import AGAIN, DECODE, REST, kind_of
from mini_vllm.trace.types import RequestInfo, RequestStep, StepTrace, Trace

FORMAT, VERSION = "mini-vllm-trace", 1
KINDS = ("decode", "prefill", "recompute")


class TraceDataError(ValueError):
    """Not a trace of ours, or one of a later version."""


@dataclass(slots=True)
class _Life:
    """A request on the way through the steps."""

    index: int
    info: RequestInfo
    num_tokens: int
    computed: int = 0
    most_computed: int = 0
    sampled: int = 0  # of `info.output_token_ids`
    table: list[int] = field(default_factory=list)


class _Run:
    """What both directions know before a step, and what they expect of it."""

    def __init__(self, requests: list[RequestInfo], config: dict[str, Any]) -> None:
        self.by_priority = config.get("scheduling_policy") == "priority"
        self.lives: list[_Life] = []
        self.at: dict[str, int] = {}  # id -> its latest life
        self.pending = iter(requests)
        self.running: list[int] = []
        self.waiting: list[int] = []

    def arrive(self, n: int) -> None:
        for _ in range(n):
            info = next(self.pending)
            life = _Life(len(self.lives), info, info.num_prompt_tokens + info.outputs_before)
            life.computed = life.most_computed = info.computed_before
            life.sampled = info.outputs_before
            self.lives.append(life)
            self.at[info.request_id] = life.index
            self.waiting.append(life.index)

    def abort(self, indices: list[int]) -> None:
        gone = set(indices)
        self.running = [i for i in self.running if i not in gone]
        self.waiting = [i for i in self.waiting if i not in gone]

    def preempt(self, indices: list[int]) -> None:
        gone = set(indices)
        self.waiting = [i for i in self.running if i in gone] + self.waiting
        self.running = [i for i in self.running if i not in gone]
        for i in indices:
            self.lives[i].computed, self.lives[i].table = 0, []

    def expected(self, scheduled: list[int], finished: set[int]) -> tuple[list[int], list[int]]:
        """The running list and the queue after a step."""
        known = set(self.running)
        running = self.running + [i for i in scheduled if i not in known]
        admitted = set(scheduled)
        waiting = [i for i in self.waiting if i not in admitted]
        if self.by_priority:
            info = [life.info for life in self.lives]
            waiting.sort(key=lambda i: (info[i].priority, info[i].arrival_time, info[i].request_id))
        return [i for i in running if i not in finished], waiting

    def advance(self, part: RequestStep) -> None:
        life = self.lives[self.at[part.request_id]]
        life.table = part.block_ids
        life.computed = part.num_computed_tokens + part.num_scheduled_tokens
        life.most_computed = max(life.most_computed, life.computed)
        life.num_tokens += len(part.new_token_ids)
        life.sampled += len(part.new_token_ids)


class _Strings:
    def __init__(self) -> None:
        self.all = [DECODE, REST, AGAIN]
        self._at = {text: i for i, text in enumerate(self.all)}

    def add(self, text: str) -> int:
        if text not in self._at:
            self._at[text] = len(self.all)
            self.all.append(text)
        return self._at[text]


# -- writing --------------------------------------------------------------------------------------


def to_data(trace: Trace) -> dict[str, Any]:
    """The trace as one JSON object; see the module's docstring."""
    run, strings = _Run(trace.requests, trace.config), _Strings()
    steps = []
    number = 0
    for step in trace.steps:
        number += 1
        coded = _coded(step, run, strings)
        if step.index != number:
            coded["n"] = number = step.index
        steps.append(coded)
    times = [(s.schedule_time, s.execute_time, s.update_time) for s in trace.steps]
    columns = [[round(1e9 * t) for t in column] for column in zip(*times, strict=True)]
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": trace.title,
        "about": trace.about,
        "source": trace.source,
        "config": trace.config,
        "requests": [
            {
                "id": info.request_id,
                "prompt_tokens": info.num_prompt_tokens,
                "max_tokens": info.max_tokens,
                "priority": info.priority,
                "arrival": info.arrival_time,
                "prompt": info.prompt,
                "prompt_ids": info.prompt_token_ids,
                "output_ids": info.output_token_ids,
                "text": info.text,
                "before": [info.outputs_before, info.computed_before],
            }
            for info in trace.requests
        ],
        "pieces": {str(token_id): piece for token_id, piece in trace.pieces.items()},
        "cached": trace.cached_at_start,
        "ended": [run.at[request_id] for request_id in trace.aborted_at_end],
        "strings": strings.all,
        "free": [step.free_blocks for step in trace.steps],
        "held": [step.cached_blocks for step in trace.steps],
        "shared": [step.shared_blocks for step in trace.steps],
        "ns": columns if any(map(any, columns)) else [],
        "steps": steps,
    }


def _coded(step: StepTrace, run: _Run, strings: _Strings) -> dict[str, Any]:
    coded: dict[str, Any] = {}

    def say(key: str, value: Any) -> None:
        if value:
            coded[key] = value

    # The ids of `x` are those of lives that ended; of a new life under an old id, `a` comes after.
    aborted = [run.at[request_id] for request_id in step.aborted]
    run.abort(aborted)
    run.arrive(len(step.arrived))
    at, lives = run.at, run.lives
    preempted = [at[request_id] for request_id in step.preempted]
    say("a", len(step.arrived))
    say("x", aborted)
    say("p", preempted)
    order = [at[part.request_id] for part in step.scheduled]
    tokens = [part.num_scheduled_tokens for part in step.scheduled]
    run.preempt(preempted)
    amounts = dict(zip(order, tokens, strict=True))
    by_rule = [i for i in run.running if i in amounts]
    by_rule += [i for i in order if i not in set(run.running)]
    if order == by_rule:
        known = set(run.running)
        exceptions = [(i, amounts.get(i, 0)) for i in run.running if amounts.get(i, 0) != 1]
        exceptions += [(i, amounts[i]) for i in order if i not in known]
        say("s", [n for pair in exceptions for n in pair])
    else:
        coded["S"] = [n for pair in amounts.items() for n in pair]

    flat: dict[str, list[Any]] = {key: [] for key in "chkyz"}
    tables: list[list[int]] = []
    finished: list[list[Any]] = []
    for part in step.scheduled:
        life = lives[at[part.request_id]]
        i = life.index
        if part.num_computed_tokens != life.computed + part.num_cached_tokens:
            flat["c"] += [i, part.num_computed_tokens]
        if part.num_cached_tokens:
            flat["h"] += [i, part.num_cached_tokens]
        if part.block_ids is not life.table and part.block_ids != life.table:
            keep = _common(life.table, part.block_ids)
            tables.append([i, keep, *part.block_ids[keep:]])
        caught_up = part.num_computed_tokens + part.num_scheduled_tokens >= life.num_tokens
        if len(part.new_token_ids) != int(caught_up):
            flat["k"] += [i, len(part.new_token_ids)]
        usual = KINDS.index(
            kind_of(part.num_computed_tokens, life.num_tokens, life.info, life.most_computed)
        )
        if (why := strings.add(part.why)) != usual:
            flat["y"] += [i, why]
        if part.finish_reason is not None:
            finished.append([i, part.finish_reason])
        run.advance(part)
    for request_id, why_not in step.why.items():
        flat["z"] += [at[request_id], strings.add(why_not)]
    done: set[int] = {entry[0] for entry in finished}
    running, waiting = run.expected(order, done)
    run.running = [at[request_id] for request_id in step.running]
    run.waiting = [at[request_id] for request_id in step.waiting]
    say("t", tables)
    say("f", finished)
    for key, values in flat.items():
        say(key, values)
    if run.running != running:
        coded["r"] = run.running
    if run.waiting != waiting:
        coded["w"] = run.waiting
    say("e", step.evicted)
    say("b", step.published)
    if step.why_waiting:
        coded["v"] = strings.add(step.why_waiting)
    return coded


def _common(a: list[int], b: list[int]) -> int:
    """How many entries at the front are the same."""
    same = 0
    while same < len(a) and same < len(b) and a[same] == b[same]:
        same += 1
    return same


# -- reading --------------------------------------------------------------------------------------


def from_data(data: Any) -> Trace:
    """The trace that `to_data` wrote. Raises TraceDataError for anything else."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise TraceDataError(f"not a trace: its 'format' is not {FORMAT!r}")
    if data.get("version") != VERSION:
        raise TraceDataError(f"trace version {data.get('version')!r}; this reads {VERSION}")
    try:
        return _decoded(data)
    except (KeyError, IndexError, TypeError, AttributeError, StopIteration) as error:
        raise TraceDataError(f"a broken trace: {type(error).__name__}: {error}") from error


def _decoded(data: dict[str, Any]) -> Trace:
    requests = [
        RequestInfo(
            request_id=r["id"],
            num_prompt_tokens=r["prompt_tokens"],
            max_tokens=r["max_tokens"],
            priority=r["priority"],
            arrival_time=r["arrival"],
            prompt=r["prompt"],
            prompt_token_ids=r["prompt_ids"],
            output_token_ids=r["output_ids"],
            text=r["text"],
            outputs_before=r["before"][0],
            computed_before=r["before"][1],
        )
        for r in data["requests"]
    ]
    run, steps = _Run(requests, data["config"]), []
    usable, number, start = data["config"]["num_gpu_blocks"] - 1, 0, 0.0
    for at, coded in enumerate(data["steps"]):
        number = coded.get("n", number + 1)
        times = [column[at] / 1e9 for column in data["ns"]] or [0.0, 0.0, 0.0]
        step = _step(coded, run, data["strings"])
        step.index, step.start = number, start
        step.schedule_time, step.execute_time, step.update_time = times
        step.free_blocks = data["free"][at]
        step.cached_blocks, step.shared_blocks = data["held"][at], data["shared"][at]
        step.kv_usage = 1.0 - step.free_blocks / usable if usable else 0.0
        start += step.schedule_time + step.execute_time + step.update_time
        steps.append(step)
    return Trace(
        config=data["config"],
        requests=requests,
        steps=steps,
        source=data["source"],
        title=data["title"],
        about=data["about"],
        pieces={int(token_id): piece for token_id, piece in data["pieces"].items()},
        cached_at_start=data["cached"],
        aborted_at_end=[requests[i].request_id for i in data["ended"]],
    )


def _pairs(flat: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _step(coded: dict[str, Any], run: _Run, strings: list[str]) -> StepTrace:
    aborted = [run.lives[i].info.request_id for i in coded.get("x", ())]
    run.abort(coded.get("x", []))
    first = len(run.lives)
    run.arrive(coded.get("a", 0))
    lives = run.lives

    def name(i: int) -> str:
        return lives[i].info.request_id

    preempted = coded.get("p", [])
    run.preempt(preempted)
    if "S" in coded:
        amounts = dict(_pairs(coded["S"]))
    else:
        amounts = dict.fromkeys(run.running, 1) | dict(_pairs(coded.get("s", [])))
        amounts = {i: n for i, n in amounts.items() if n}
    computed, hits, sampled, why = (dict(_pairs(coded.get(key, []))) for key in "chky")
    tables = {entry[0]: entry[1:] for entry in coded.get("t", ())}
    finished = dict(coded.get("f", ()))
    scheduled = []
    for i, tokens in amounts.items():
        life = lives[i]
        before = computed.get(i, life.computed + hits.get(i, 0))
        keep = tables.get(i)
        table = life.table if keep is None else life.table[: keep[0]] + keep[1:]
        new = sampled.get(i, int(before + tokens >= life.num_tokens))
        kind = kind_of(before, life.num_tokens, life.info, life.most_computed)
        part = RequestStep(
            name(i),
            before,
            tokens,
            hits.get(i, 0),
            table,
            life.info.output_token_ids[life.sampled : life.sampled + new],
            finished.get(i),
            strings[why.get(i, KINDS.index(kind))],
            kind,
        )
        run.advance(part)
        scheduled.append(part)
    running, waiting = run.expected(list(amounts), set(finished))
    run.running, run.waiting = coded.get("r", running), coded.get("w", waiting)
    return StepTrace(
        index=0, start=0.0, schedule_time=0.0, execute_time=0.0, update_time=0.0,
        scheduled=scheduled,
        preempted=[name(i) for i in preempted],
        running=[name(i) for i in run.running],
        waiting=[name(i) for i in run.waiting],
        free_blocks=0, kv_usage=0.0,
        arrived=[name(i) for i in range(first, len(lives))],
        aborted=aborted,
        evicted=coded.get("e", []),
        published=coded.get("b", []),
        why_waiting=strings[coded["v"]] if "v" in coded else "",
        why={name(i): strings[text] for i, text in _pairs(coded.get("z", []))},
    )  # fmt: skip
