"""What `course.parity` prints at a difference: the state before the step and both decisions.

The rule that decides is worked out in `course.parity.rules`.
"""

from __future__ import annotations

from textwrap import fill, wrap
from typing import Any

from course.parity.rules import Moment, rule
from course.parity.traces import Trace, is_async

MAX_ROWS = 24
MAX_WAITING = 8
WIDTH = 98


def report(
    *,
    where: str,
    trace: Trace,
    step: int,
    fields: tuple[str, ...],
    now: Moment | None,
    expected: Any,
    actual: Any,
    error: str | None,
    end: tuple[str, ...],
    who: str,
) -> str:
    """The whole report, as text. Arguments as in `course.parity.Difference`; `now` is what vLLM's
    scheduler knew before the step, None where the recording cannot be followed so far, and `who`
    decided otherwise."""
    config = trace["config"]
    settings = ", ".join(f"{key}={value}" for key, value in config.items())
    settings = fill(settings, WIDTH, initial_indent="  ", subsequent_indent="  ")
    lines = [
        f"trace {where}, seed {trace['seed']}, {len(trace['requests'])} requests",
        settings,
        f"here: {who}",
    ]
    step_is = "call" if is_async(trace) else "step"
    if end:
        lines += [f"all {step} {step_is}s are equal, but in the end:", *(f"  {x}" for x in end[:8])]
        lines += [f"  and {len(end) - 8} more"] if len(end) > 8 else []
        return "\n".join(lines)
    what = "the scheduler raised" if error else f"the decisions differ in {', '.join(fields)}"
    lines.append(f"{step_is} {step}: {what}")
    if is_async(trace) and expected is not None:
        lines.append(f"  {_what(expected)}")
    if now is not None:
        lines += ["", f"before the {step_is}, in vLLM", *_state(trace, now)]
    if error is not None:
        lines += ["", "raised", *(f"  {x}" for x in error.splitlines())]
    if expected is not None and actual is not None:
        if fields != ("calls",):
            lines += ["", "decided", *_side_by_side(expected, actual)]
        else:
            lines += ["", f"here: {_what(actual)}"]
        if now is not None:
            lines += ["", "the rule"]
            for text in rule(now, fields[0], expected, actual):
                lines += wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ")
    elif expected is not None and "scheduled" in expected:
        plan = " ".join(f"{i}:{n}" for i, n in expected["scheduled"].items()) or "nothing"
        lines += ["", f"vLLM scheduled {plan}"]
    return "\n".join(lines)


def _what(call: Any) -> str:
    """A call of a trace of asynchronous scheduling, in words."""
    if call["call"] == "schedule":
        return f"schedule(), in turn {call['turn']}"
    return "update_from_output(), with the result of the oldest plan in flight"


def _state(trace: Trace, now: Moment) -> list[str]:
    config, before = trace["config"], now.before
    lines = [
        f"  budget {before.budget} tokens; {before.free} of "
        f"{config['num_blocks'] - 1} blocks free; {len(before.running)} of "
        f"{config['max_num_seqs']} sequence slots taken"
    ]
    news = [("arrived", now.arrived), ("aborted", now.aborted)]
    lines += [f"  just {what}: {' '.join(which)}" for what, which in news if which]
    by_priority, ahead = before.by_priority, before.plans_ahead
    header = ("", "id", "computed/tokens", "prompt", "blocks") + (("priority",) * by_priority)
    header += ("in flight",) * ahead + ("drafts",) * bool(before.num_spec_tokens)
    rows = [header]
    for kind, group, most in (
        ("running", before.running, MAX_ROWS),
        ("waiting", before.queue(), MAX_WAITING),
    ):
        for i, request_id in enumerate(group[:most]):
            r = before.states[request_id]
            label = kind if i == 0 else ""
            counters = f"{r.num_computed_tokens}/{r.num_tokens}"
            cells = (label, request_id, counters, str(r.info.num_prompt_tokens), ids(r.table))
            cells += (str(r.info.priority),) * by_priority
            cells += (str(r.num_output_placeholders),) * ahead
            rows.append(cells + (str(r.num_drafts),) * bool(before.num_spec_tokens))
        if len(group) > most:
            rows.append(("", f"and {len(group) - most} more", *[""] * (len(header) - 2)))
        if not group:
            rows.append((kind, "none", *[""] * (len(header) - 2)))
    return lines + table(rows)


def _side_by_side(expected: Any, actual: Any) -> list[str]:
    """One row a scheduled request, in vLLM's order, then what else the decision holds."""
    if "scheduled" not in expected:
        return _fields(expected, actual)
    here = list(actual["scheduled"])
    order = [*expected["scheduled"], *(i for i in here if i not in expected["scheduled"])]
    if list(expected["scheduled"]) != here and set(expected["scheduled"]) == set(here):
        orders = [("vLLM", " ".join(expected["scheduled"])), ("here", " ".join(here))]
        lines = ["  order", *(f"    {who}: {what}" for who, what in orders)]
    else:
        lines = []
    rows: list[tuple[str, ...]] = [("", "id", "vLLM", "here", "blocks in vLLM", "blocks here")]
    unlike = []
    for i in order:
        tokens = [str(d["scheduled"].get(i, "-")) for d in (expected, actual)]
        tables = expected["blocks"].get(i), actual["blocks"].get(i)
        differs = tokens[0] != tokens[1] or tables[0] != tables[1]
        unlike.append(differs)
        at = _first_unlike(*tables)
        cells = [ids(t, at) if t is not None else "-" for t in tables]
        rows.append((">" if differs else "", i, *tokens, *cells))
    if len(order) > MAX_ROWS:
        keep = [k for k, differs in enumerate(unlike) if differs][: MAX_ROWS // 2]
        near = sorted({j for k in keep for j in (k - 1, k, k + 1) if 0 <= j < len(order)})
        rows = [rows[0], *(rows[j + 1] for j in near)]
        lines.append(f"  {len(order) - len(near)} of {len(order)} rows left out")
    lines += table(rows) if order else ["  nothing scheduled in either"]
    return lines + _fields(expected, actual)


def _fields(expected: Any, actual: Any) -> list[str]:
    lines = []
    for field in ("drafts", "preempted", "placeholders", "computed", "running", "finished", "free"):
        if field not in expected:
            continue
        values = [_plain(dict(d)[field]) for d in (expected, actual)]
        if values[0] == values[1]:
            lines.append(f"  {field}: the same, {values[0]}")
        else:
            lines += [f"> {field}", f"    vLLM: {values[0]}", f"    here: {values[1]}"]
    return lines


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return str(value)


def _first_unlike(a: list[int] | None, b: list[int] | None) -> int | None:
    if not a or not b or a == b:
        return None
    shorter = min(len(a), len(b))
    return next((k for k in range(shorter) if a[k] != b[k]), shorter)


def ids(blocks: list[int] | tuple[int, ...], at: int | None = None) -> str:
    """Block ids, shortened to those about entry `at` (without one, to both ends)."""
    if not blocks:
        return "none"
    if len(blocks) <= 9:
        return " ".join(map(str, blocks))
    if at is None:
        return (
            f"{' '.join(map(str, blocks[:3]))} .. {' '.join(map(str, blocks[-3:]))} ({len(blocks)})"
        )
    low, high = max(at - 2, 0), min(at + 4, len(blocks))
    middle = " ".join(map(str, blocks[low:high]))
    return f"{'.. ' * (low > 0)}{middle}{' ..' * (high < len(blocks))} ({len(blocks)}, from {low})"


def table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    return [f"  {line}".rstrip() for line in lines]
