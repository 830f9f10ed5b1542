"""What `course.parity` prints at a difference: the state before the step and both decisions.

The rule that decides is worked out in `course.parity.rules`.
"""

from __future__ import annotations

from textwrap import fill, wrap

from course.parity.rules import Moment, rule
from course.parity.traces import Decision, Trace

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
    expected: Decision | None,
    actual: Decision | None,
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
    if end:
        lines += [f"all {step} steps are equal, but in the end:", *(f"  {x}" for x in end[:8])]
        lines += [f"  and {len(end) - 8} more"] if len(end) > 8 else []
        return "\n".join(lines)
    what = "the scheduler raised" if error else f"the decisions differ in {', '.join(fields)}"
    lines.append(f"step {step}: {what}")
    if now is not None:
        lines += ["", "before the step, in vLLM", *_state(trace, now)]
    if error is not None:
        lines += ["", "raised", *(f"  {x}" for x in error.splitlines())]
    if expected is not None and actual is not None:
        lines += ["", "decided", *_side_by_side(expected, actual)]
        if now is not None:
            lines += ["", "the rule"]
            for text in rule(now, fields[0], expected, actual):
                lines += wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ")
    elif expected is not None:
        plan = " ".join(f"{i}:{n}" for i, n in expected["scheduled"].items()) or "nothing"
        lines += ["", f"vLLM scheduled {plan}"]
    return "\n".join(lines)


def _state(trace: Trace, now: Moment) -> list[str]:
    config, before = trace["config"], now.before
    lines = [
        f"  budget {config['max_num_batched_tokens']} tokens; {before.free} of "
        f"{config['num_blocks'] - 1} blocks free; {len(before.running)} of "
        f"{config['max_num_seqs']} sequence slots taken"
    ]
    news = [("arrived", now.arrived), ("aborted", now.aborted)]
    lines += [f"  just {what}: {' '.join(which)}" for what, which in news if which]
    by_priority = before.by_priority
    header = ("", "id", "computed/tokens", "prompt", "blocks") + (("priority",) * by_priority)
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
            rows.append(cells + ((str(r.info.priority),) * by_priority))
        if len(group) > most:
            rows.append(("", f"and {len(group) - most} more", *[""] * (len(header) - 2)))
        if not group:
            rows.append((kind, "none", *[""] * (len(header) - 2)))
    return lines + table(rows)


def _side_by_side(expected: Decision, actual: Decision) -> list[str]:
    """One row a scheduled request, in vLLM's order, then what else the decision holds."""
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
    for field in ("preempted", "running", "finished", "free"):
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
