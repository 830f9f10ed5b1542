"""Recorded scheduler workloads: the format, and one loop that drives any scheduler through one.

A trace is a workload (a config and requests with their arrival steps) plus, for each step, what the
scheduler decided. `course.parity.record` writes traces with vLLM's own classes, `course.parity` replays
them through `mini_vllm`. Both use `Run`, so that neither can drive its scheduler differently.

One JSON object a line:

    seed, config, requests, steps, outputs, final, preemptions

`config` may say `enable_chunked_prefill` and `scheduler_reserve_full_isl`; both default to true. It may
name `kv_cache_groups`; then `blocks` has a list of tables for each request, one a group. It may have a
`speculative_config`; then a step says what was drafted, too (`drafted`, `verified`).
Sampling is a pure function of a request's index and its length, so every engine sees equal tokens.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from mini_vllm.utils.untrusted import decode, gunzip, parse_json, read_bytes, shorten_repr

EOS = 2
GROUP_TYPES = ("full", "sliding_window", "chunked_local")
_MASK = 0xFFFFFFFF


class TraceError(ValueError):
    """A file that is no trace, with the place and the rule it breaks."""


class Group(TypedDict):
    """A KV cache group. `size` is the window's or the chunk's, in tokens; 0 with full attention.

    `block_size` is the config's where it is not there; otherwise a multiple of it.
    """

    type: Literal["full", "sliding_window", "chunked_local"]
    size: int
    block_size: NotRequired[int]


class Speculation(TypedDict):
    """Who drafts, and how many tokens a request and step."""

    method: Literal["ngram", "draft_model", "eagle"]
    num_speculative_tokens: int


class Config(TypedDict):
    """The engine's settings of a workload. `num_blocks` counts the null block."""

    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int
    enable_prefix_caching: bool
    max_model_len: int
    policy: str
    enable_chunked_prefill: NotRequired[bool]
    scheduler_reserve_full_isl: NotRequired[bool]
    kv_cache_groups: NotRequired[list[Group]]
    speculative_config: NotRequired[Speculation]


class Arrival(TypedDict):
    """One request: it arrives just before `step` is scheduled, and is aborted before `abort`."""

    id: str
    step: int
    prompt: list[int]
    max_tokens: int
    ignore_eos: bool
    priority: int
    abort: int | None
    stop_token_ids: NotRequired[list[int]]


class Decision(TypedDict):
    """What one step decided.

    `scheduled` is in scheduling order. `blocks` is read right after `schedule()`; `running`,
    `finished` and `free` after the sampled tokens have been taken in.

    With speculation only: `drafts`, those among the scheduled tokens; `computed`, what the scheduled
    requests that live on have computed in the end; and what the step was answered: `sampled`, how many
    tokens came of it, and `proposed`, how many are drafted for the next.
    """

    scheduled: dict[str, int]
    preempted: list[str]
    blocks: dict[str, Any]
    running: list[str]
    finished: dict[str, str]
    free: int
    drafts: NotRequired[dict[str, list[int]]]
    computed: NotRequired[dict[str, int]]
    sampled: NotRequired[dict[str, int]]
    proposed: NotRequired[dict[str, int]]


class Workload(TypedDict):
    """What is to be done, without what was decided.

    Before each step in `resets` the prefix cache is emptied and who runs starts anew. Asynchronous
    scheduling leaves them out: with drafts in flight vLLM goes wrong there.
    """

    seed: int
    config: Config
    requests: list[Arrival]
    resets: NotRequired[list[int]]


class Trace(Workload):
    """A workload with every decision that a scheduler took on it."""

    steps: list[Decision]
    outputs: dict[str, list[int]]
    final: dict[str, str]
    preemptions: dict[str, int]


Kinds = dict[str, tuple[type, ...]]
_TRACE: Kinds = {
    "seed": (int,),
    "config": (dict,),
    "requests": (list,),
    "steps": (list,),
    "outputs": (dict,),
    "final": (dict,),
    "preemptions": (dict,),
}
_CONFIG: Kinds = {
    "block_size": (int,),
    "num_blocks": (int,),
    "max_num_seqs": (int,),
    "max_num_batched_tokens": (int,),
    "long_prefill_token_threshold": (int,),
    "enable_prefix_caching": (bool,),
    "max_model_len": (int,),
    "policy": (str,),
}
_ARRIVAL: Kinds = {
    "id": (str,),
    "step": (int,),
    "prompt": (list,),
    "max_tokens": (int,),
    "ignore_eos": (bool,),
    "priority": (int,),
    "abort": (int, type(None)),
}
_DECISION: Kinds = {
    "scheduled": (dict,),
    "preempted": (list,),
    "blocks": (dict,),
    "running": (list,),
    "finished": (dict,),
    "free": (int,),
}
_DRAFTS: Kinds = dict.fromkeys(("drafts", "computed", "sampled", "proposed"), (dict,))
_SPECULATION: Kinds = {"method": (str,), "num_speculative_tokens": (int,)}


def _mixed(h: int) -> int:
    h &= _MASK
    h ^= h >> 15
    h = h * 2246822519 & _MASK
    return h ^ h >> 13


def drafted(req_index: int, pos: int, most: int, vary: bool = False) -> list[int]:
    """What is drafted for the positions from `pos` on: `most` tokens, or with `vary` up to as many.

    A draft is right by chance, of a request's own: 0.2, 0.5, 0.8, 0.95 or always. Right or wrong, it is
    the same whenever this position is drafted."""
    if vary:
        most = _mixed(req_index * 40503 + pos * 2654435761 + 7) % (most + 1)
    chance = (20, 50, 80, 95, 100)[req_index % 5]
    tokens = []
    for at in range(pos, pos + most):
        right = _mixed(req_index * 97531 + at * 2654435761 + 99) % 100 < chance
        tokens.append(token(req_index, at) if right else 51)
    return tokens


def verified(req_index: int, pos: int, drafts: list[int]) -> list[int]:
    """The drafts from position `pos` on that are the tokens there, up to the first that is not, and the
    token after them."""
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == token(req_index, pos + accepted):
        accepted += 1
    return [token(req_index, at) for at in range(pos, pos + accepted + 1)]


def token(req_index: int, pos: int) -> int:
    """The token at position `pos` of the request with this index: EOS one time in 29."""
    h = _mixed(req_index * 2654435761 + pos * 40503 + 12345)
    return EOS if h % 29 == 0 else 3 + h % 48


@dataclass(frozen=True)
class Parts:
    """A scheduler, and what differs between `mini_vllm`'s classes and vLLM's around it."""

    scheduler: Any
    make_request: Callable[[Arrival, int], Any]
    block_ids: Callable[[str], Any]  # a request's table, or with `kv_cache_groups` a list of them
    make_output: Callable[[list[str], list[list[int]]], Any]
    aborted: Any  # RequestStatus.FINISHED_ABORTED
    make_drafts: Callable[[list[str], list[list[int]]], Any]  # a DraftTokenIds


class Run:
    """One workload going through one scheduler: call `arrive`, then `decide`, once a step.

    `live` has every request so far, finished ones too, by id.
    """

    def __init__(self, workload: Workload, parts: Parts) -> None:
        self.parts = parts
        self.step = 0
        self.live: dict[str, Any] = {}
        self.spec = workload["config"].get("speculative_config")
        self._index = {q["id"]: i for i, q in enumerate(workload["requests"])}
        self._resets = set(workload.get("resets", ()))
        self._pending = sorted(workload["requests"], key=lambda q: (q["step"], q["id"]))[::-1]
        self._aborts: dict[int, list[str]] = {}
        for q in workload["requests"]:
            if q["abort"] is not None:
                self._aborts.setdefault(q["abort"], []).append(q["id"])

    @property
    def done(self) -> bool:
        return not self._pending and not self.parts.scheduler.has_unfinished_requests()

    def arrive(self) -> None:
        """Add this step's requests, then abort those whose time has come and that still live."""
        scheduler = self.parts.scheduler
        while self._pending and self._pending[-1]["step"] <= self.step:
            q = self._pending.pop()
            request = self.parts.make_request(q, self._index[q["id"]])
            self.live[q["id"]] = request
            scheduler.add_request(request)
        for request_id in self._aborts.get(self.step, ()):
            request = self.live.get(request_id)
            if request is not None and not request.is_finished():
                scheduler.finish_requests(request_id, self.parts.aborted)
        if self.step in self._resets:
            scheduler.reset_prefix_cache(reset_running_requests=True)

    def decide(self) -> Decision:
        """Schedule a step, sample for the requests that have caught up, take the tokens in."""
        scheduler, live = self.parts.scheduler, self.live
        out = scheduler.schedule()
        scheduled = dict(out.num_scheduled_tokens)
        blocks = {request_id: self.parts.block_ids(request_id) for request_id in scheduled}
        drafts = {i: list(ids) for i, ids in out.scheduled_spec_decode_tokens.items()}
        sampled: list[list[int]] = []
        for request_id in scheduled:
            request = live[request_id]
            caught_up = request.num_computed_tokens >= request.num_tokens
            index, drafted = self._index[request_id], drafts.get(request_id, [])
            sampled.append(verified(index, request.num_tokens, drafted) if caught_up else [])
        num_sampled = {i: len(ids) for i, ids in zip(scheduled, sampled, strict=True)}
        scheduler.update_from_output(out, self.parts.make_output(list(scheduled), sampled))
        self.step += 1
        decision: Decision = {
            "scheduled": scheduled,
            "preempted": sorted(out.preempted_req_ids or ()),
            "blocks": blocks,
            "running": [request.request_id for request in scheduler.running],
            "finished": {i: live[i].status.name for i in scheduled if live[i].is_finished()},
            "free": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        }
        if self.spec is not None:
            computed = {
                i: live[i].num_computed_tokens for i in scheduled if i in scheduler.requests
            }
            decision |= {"drafts": drafts, "computed": computed, "sampled": num_sampled}
            decision["proposed"] = self._propose(list(scheduled), self.spec)
        return decision

    def _propose(self, ids: list[str], spec: Speculation) -> dict[str, int]:
        """Draft for all that were in the step, as a worker does: for prompts that go on, too, and for
        those that have ended with it."""
        vary, most = spec["method"] == "ngram", spec["num_speculative_tokens"]
        drafts = [drafted(self._index[i], self.live[i].num_tokens, most, vary) for i in ids]
        num_drafts = {i: len(tokens) for i, tokens in zip(ids, drafts, strict=True)}
        self.parts.scheduler.update_draft_token_ids(self.parts.make_drafts(ids, drafts))
        return num_drafts

    def outputs(self) -> dict[str, list[int]]:
        return {request_id: list(r.output_token_ids) for request_id, r in self.live.items()}

    def final(self) -> dict[str, str]:
        return {request_id: r.status.name for request_id, r in self.live.items()}

    def preemptions(self) -> dict[str, int]:
        return {request_id: r.num_preemptions for request_id, r in self.live.items()}


def read_traces(file: str) -> Iterator[tuple[str, Trace]]:
    """The traces of a `.jsonl` or `.jsonl.gz` file, or of standard input for `-`.

    Yields (where, trace) with `where` as `file:line`. Whether it is gzip the first bytes tell, not
    the name. Raises TraceError for a file that cannot be read or a line that is no trace.
    """
    name = "standard input" if file == "-" else file
    try:
        data = sys.stdin.buffer.read() if file == "-" else read_bytes(Path(file))
        text = decode(gunzip(data) if data[:2] == b"\x1f\x8b" else data)
    except (OSError, ValueError) as error:
        raise TraceError(f"{name}: cannot be read as a trace file: {error}") from error
    lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise TraceError(f"{name}: holds no trace; expected one JSON object a line")
    for number, line in lines:
        where = f"{name}:{number}"
        try:
            trace = parse_json(line)
        except ValueError as error:
            raise TraceError(f"{where}: {error}") from error
        _check(where, trace)
        yield where, trace


def _check(where: str, trace: Any) -> None:
    """Raise TraceError unless `trace` has the keys and the kinds of values of a trace."""

    def need(value: Any, kinds: Kinds, what: str) -> None:
        if not isinstance(value, dict):
            raise TraceError(f"{where}: {what} must be an object, got {type(value).__name__}")
        for key, kind in kinds.items():
            if key not in value:
                raise TraceError(f"{where}: {what} has no {key!r}")
            if not isinstance(value[key], kind):
                names = " or ".join(k.__name__ for k in kind if k is not type(None))
                raise TraceError(
                    f"{where}: {key!r} of {what} must be {names}: {shorten_repr(value[key])}"
                )

    need(trace, _TRACE, "trace")
    need(trace["config"], _CONFIG, "config")
    for i, group in enumerate(trace["config"].get("kv_cache_groups", ())):
        need(group, {"type": (str,), "size": (int,)}, f"group {i}")
        if group["type"] not in GROUP_TYPES:
            raise TraceError(
                f"{where}: group {i} is none of {', '.join(GROUP_TYPES)}: {shorten_repr(group)}"
            )
    sizes = [group.get("block_size", 0) for group in trace["config"].get("kv_cache_groups", ())]
    if any(sizes) and math.gcd(*sizes) != trace["config"]["block_size"]:
        raise TraceError(
            f"{where}: 'block_size' of the config must be the greatest common divisor of its groups': {sizes}"
        )
    for i, q in enumerate(trace["requests"]):
        need(q, _ARRIVAL, f"request {i}")
    with_drafts = "speculative_config" in trace["config"]
    if with_drafts:
        need(trace["config"]["speculative_config"], _SPECULATION, "speculative_config")
    if not is_async(trace):
        for i, step in enumerate(trace["steps"]):
            need(step, _DECISION | (_DRAFTS if with_drafts else {}), f"step {i}")
        return
    for i, call in enumerate(trace["steps"]):
        need(call, {"call": (str,)}, f"call {i}")
        if call["call"] not in _CALLS:
            raise TraceError(
                f"{where}: call {i} is neither schedule nor update: {shorten_repr(call)}"
            )
        kinds = _CALLS[call["call"]]
        need(call, kinds | (_CALL_DRAFTS[call["call"]] if with_drafts else {}), f"call {i}")


# What a trace of asynchronous scheduling has in the place of steps: see `course.parity.async_traces`.
_CALLS: dict[str, Kinds] = {
    "schedule": {
        "turn": (int,),
        "scheduled": (dict,),
        "preempted": (list,),
        "blocks": (dict,),
        "placeholders": (dict,),
        "running": (list,),
        "free": (int,),
    },
    "update": {"running": (list,), "finished": (dict,), "free": (int,)},
}


_CALL_DRAFTS: dict[str, Kinds] = {
    "schedule": {"drafts": (dict,)},
    "update": {"computed": (dict,), "sampled": (dict,)},
}


def is_async(trace: Any) -> bool:
    """Whether a trace is one of asynchronous scheduling."""
    steps = trace["steps"]
    return bool(steps) and isinstance(steps[0], dict) and "call" in steps[0]
