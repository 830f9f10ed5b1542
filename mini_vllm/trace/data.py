"""A trace as data: plain JSON, one object a step, versioned, read again without loss.

The keys are the fields of `types.py` by their names: those of `Trace`, before them `format` and
`version`; `requests` holds a `RequestInfo` each, `steps` a `StepTrace` each, whose `scheduled` holds
a `RequestStep` each. In a file every step is a line of its own. Nothing has to be worked out to read
it, the reasons stand in it as words. It is long and repeats itself, so it is meant for gzip:
`.trace.json.gz`, and the page, hold the same text zipped.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from mini_vllm.trace.types import Trace
from mini_vllm.utils.untrusted import gunzip, parse_json, shorten_repr

FORMAT, VERSION = "mini-vllm-trace", 6
KINDS = ("prefill", "decode", "recompute")
MOST_BLOCKS = 1 << 24  # that a page can draw
_CONFIG = {
    "block_size": int, "num_gpu_blocks": int, "max_num_seqs": int, "max_num_batched_tokens": int,
    "long_prefill_token_threshold": int, "scheduling_policy": str, "enable_prefix_caching": bool,
}  # fmt: skip


class TraceDataError(ValueError):
    """Not a trace of ours, or one of another version, or one that does not hold together."""


# -- writing --------------------------------------------------------------------------------------


def to_data(trace: Trace) -> dict[str, Any]:
    """The trace as one JSON object; it shares lists with the trace."""
    data = {"format": FORMAT, "version": VERSION} | _plain(trace)
    data["requests"] = [_plain(info) for info in trace.requests]
    data["pieces"] = {str(token_id): piece for token_id, piece in trace.pieces.items()}
    data["steps"] = [
        _plain(step) | {"scheduled": [_plain(part) for part in step.scheduled]}
        for step in trace.steps
    ]
    return data


def _plain(item: Any) -> dict[str, Any]:
    return {name: getattr(item, name) for name in item.__slots__}


def dumps(data: dict[str, Any]) -> str:
    """The text of `to_data`'s object, a line a key and a line a step. ASCII, without NaN."""

    def text(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)

    rows = [f"{text(key)}:{text(value)}" for key, value in data.items() if key != "steps"]
    steps = ",\n".join(map(text, data["steps"]))
    return "{" + ",\n".join(rows) + f',\n"steps":[\n{steps}\n]}}\n'


def zipped(text: str) -> bytes:
    """The text, gzipped: equal for equal text, for no time stands in it."""
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)


# -- reading --------------------------------------------------------------------------------------


def loads(raw: bytes) -> Any:
    """The value of a JSON file, gzipped or not. Raises ValueError where it holds none, or too much."""
    return parse_json(gunzip(raw) if raw[:2] == b"\x1f\x8b" else raw)


def from_data(data: Any) -> Trace:
    """The trace that `to_data` wrote. Raises TraceDataError for anything else."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise TraceDataError(f"not a trace: its 'format' is not {FORMAT!r}")
    if data.get("version") != VERSION:
        raise TraceDataError(
            f"trace version {shorten_repr(data.get('version'))}; this reads {VERSION}"
        )
    value = {key: data[key] for key in data if key not in ("format", "version", "view")}
    pieces = value.get("pieces")
    if isinstance(pieces, dict) and all(key.isdecimal() for key in pieces):
        value["pieces"] = {int(key): piece for key, piece in pieces.items()}
    trace: Trace = _made(Trace, value, "the trace")
    for at, problem in _problems(trace):
        raise TraceDataError(f"a broken trace: {at}: {problem}")
    return trace


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind)}


@cache
def _checks(kind: type) -> dict[str, tuple[Any, Callable[[Any], bool]]]:
    """For each field the class of its items, if they are dataclasses, and what is true of it."""
    checks = {}
    for name, hint in _hints(kind).items():
        item = get_args(hint)[0] if get_origin(hint) is list else None
        nested = is_dataclass(item)
        checks[name] = (item if nested else None, _is(list if nested else hint))
    return checks


def _is(hint: Any) -> Callable[[Any], bool]:
    args = get_args(hint)
    if hint is Any:
        return lambda value: True
    if hint is int:  # past 2**53 the page's numbers are no integers any more
        return lambda value: type(value) is int and -(2**53) < value < 2**53
    if hint is float:
        whole = _is(int)
        return lambda value: whole(value) or (type(value) is float and math.isfinite(value))
    if get_origin(hint) is UnionType:
        kinds = [_is(arg) for arg in args]
        return lambda value: any(kind(value) for kind in kinds)
    if get_origin(hint) is list:
        each = _is(args[0])
        return lambda value: type(value) is list and all(map(each, value))
    if get_origin(hint) is dict:
        key, of = _is(args[0]), _is(args[1])
        return lambda value: (
            type(value) is dict and all(map(key, value)) and all(map(of, value.values()))
        )
    return lambda value: type(value) is hint


def _made(kind: type, value: Any, where: str) -> Any:
    """An object of the class from its fields by name, each of the type that the class says."""
    checks = _checks(kind)
    if not isinstance(value, dict) or value.keys() != checks.keys():
        odd = sorted(value.keys() ^ checks.keys())[:1] if isinstance(value, dict) else []
        raise TraceDataError(f"a broken trace: {where} is no {kind.__name__}" + (
            f": {shorten_repr(odd[0])} is {'unknown' if odd[0] in value else 'missing'}" if odd else ""
        ))  # fmt: skip
    made = {}
    for name, (item, is_right) in checks.items():
        given = value[name]
        if not is_right(given):
            raise TraceDataError(f"a broken trace: {where}: {name} cannot be {shorten_repr(given)}")
        if item is not None:
            given = [_made(item, each, f"{name}[{at}]") for at, each in enumerate(given)]
        made[name] = given
    return kind(**made)


def _start_problems(trace: Trace, blocks: range) -> Iterator[tuple[str, str]]:
    """The same of what stood before the first step."""
    for info in trace.requests:
        if info.texts is not None and len(info.texts) != len(info.output_token_ids):
            yield (
                f"request {shorten_repr(info.request_id)}",
                "texts must be as many as output_token_ids",
            )
        if any(block not in blocks for block in info.blocks_before):
            yield "blocks_before", f"blocks are 0 to {len(blocks) - 1}"
    if any(block not in blocks for block in trace.cached_at_start):
        yield "cached_at_start", f"blocks are 0 to {len(blocks) - 1}"
    if len(trace.hashes_at_start) not in (0, len(trace.cached_at_start)):
        yield "hashes_at_start", "must be as many as cached_at_start"
    free = 0
    for run in trace.free_at_start or ():
        if len(run) != 2 or not 1 <= run[0] <= run[1] < len(blocks):
            yield "free_at_start", f"a run is a first and a last block, got {shorten_repr(run)}"
            return
        free += run[1] - run[0] + 1
    if free >= len(blocks):
        yield "free_at_start", "a block stands in it twice"


def _problems(trace: Trace) -> Iterator[tuple[str, str]]:
    """What does not hold together, and where: unknown names, blocks that are not there."""
    for key, kind in _CONFIG.items():
        if type(trace.config.get(key)) is not kind:
            yield (
                "config",
                f"{key} must be {kind.__name__}, got {shorten_repr(trace.config.get(key))}",
            )
            return
    if not 1 <= trace.config["num_gpu_blocks"] <= MOST_BLOCKS:
        yield "config", f"num_gpu_blocks must be 1 to {MOST_BLOCKS}"
        return
    blocks = range(trace.config["num_gpu_blocks"])
    yield from _start_problems(trace, blocks)
    names, known = [info.request_id for info in trace.requests], set[str]()
    came = 0
    for step in trace.steps:
        where = f"step {step.index}"
        if names[came : came + len(step.arrived)] != step.arrived:
            yield where, "its arrivals are not the next requests"
        came += len(step.arrived)
        if unknown := set(step.aborted) - known:
            yield where, f"no request {shorten_repr(min(unknown))} has arrived"
        known.update(step.arrived)
        used = {*step.preempted, *step.running, *step.waiting, *step.why, *step.skipped}
        used.update(part.request_id for part in step.scheduled)
        if unknown := used - known:
            yield where, f"no request {shorten_repr(min(unknown))} has arrived"
        for part in step.scheduled:
            if part.kind not in KINDS:
                yield (
                    where,
                    f"kind must be one of {', '.join(KINDS)}, got {shorten_repr(part.kind)}",
                )
            most = trace.vocab_size or 0
            if not all(0 <= allowed <= most for allowed in part.num_allowed_tokens):
                yield where, f"num_allowed_tokens must be 0 to vocab_size, which is {most}"
            drafts = len(part.draft_token_ids)
            if not 0 <= part.num_accepted_tokens <= drafts <= part.num_scheduled_tokens:
                yield (
                    where,
                    "num_accepted_tokens must be 0 to the drafts, and those 0 to the tokens",
                )
        held = {block for part in step.scheduled for block in part.block_ids}
        for block in held.union(step.evicted, step.published, step.freed):
            if block not in blocks:
                yield where, f"there is no block {block}"
        if len(step.hashes) not in (0, len(step.published)):
            yield where, "hashes must be as many as published"
    if unknown := set(trace.aborted_at_end) - known:
        yield "aborted_at_end", f"no request {shorten_repr(min(unknown))} has arrived"
