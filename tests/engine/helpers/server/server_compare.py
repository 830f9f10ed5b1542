"""Where two answers to one request differ: `server_parity/differences.toml` names what may.

An answer is what `server_play.play` returns. What no two runs share (ids, times) is left out; floats
may differ by 1e-3; the events of a stream may be cut in other places.
"""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.engine.helpers.server.server_play import ANSWERS, FOLDER

PAGE = next(p for p in FOLDER.parents if (p / "pyproject.toml").is_file()) / (
    "phase-01-architecture/CHEATSHEET.md"
)
_HEADING = "## The server beside vLLM's"
_DIFFERENCES = FOLDER / "differences.toml"
_VOLATILE = {"created", "root"}
_ID = re.compile(r"(?<=-)[0-9a-f]{16,32}\b")


@dataclass(frozen=True)
class Row:
    """One kind of difference that is meant: which paths of which answers, and why.

    `where` is matched against `NAME: PATH`, whole, as a regular expression.
    """

    where: re.Pattern[str]
    vllm: str
    here: str
    because: str


def rows() -> list[Row]:
    """The table of differences that are known and meant."""
    table = tomllib.loads(_DIFFERENCES.read_text(encoding="utf-8"))["difference"]
    return [Row(re.compile(r["where"]), r["vllm"], r["here"], r["because"]) for r in table]


def section() -> str:
    """The table as it stands on the page, heading and all, with what was recorded when."""
    facts = json.loads(ANSWERS.read_text(encoding="utf-8").partition("\n")[0])
    count = len(recorded())
    lines = [
        f"{_HEADING}\n",
        f"{count} requests went to vLLM {facts['vllm']}'s own server ({facts['date']}, CPU) and go to the",
        "miniature's in each test run. Status, shape, texts and numbers are equal, but:\n",
        "| vLLM | here | because |",
        "| --- | --- | --- |",
        *(f"| {row.vllm} | {row.here} | {row.because} |" for row in rows()),
    ]
    return "\n".join(lines) + "\n"


def page_section() -> str:
    """The same part of the page, as it is."""
    _, heading, rest = PAGE.read_text(encoding="utf-8").partition(_HEADING)
    return heading + rest.partition("\n\nNext: ")[0] + "\n" if heading else ""


def recorded() -> list[dict[str, Any]]:
    """vLLM's answers; the file's first line, with date and versions, is left out."""
    lines = ANSWERS.read_text(encoding="utf-8").splitlines()[1:]
    return [json.loads(line) for line in lines]


def differences(theirs: dict[str, Any], ours: dict[str, Any], sampled: bool = False) -> list[str]:
    """Every difference as `PATH: theirs | ours`.

    Args:
        sampled: the texts are random: only their types are compared.
    """
    if theirs["status"] != ours["status"]:  # the bodies have nothing in common then
        ends = [f"{a['status']} {_short(_body(a))}" for a in (theirs, ours)]
        return [f"status: {ends[0]} | {ends[1]}"]
    return list(_compare("", _normal(theirs), _normal(ours), sampled))


def _body(answer: dict[str, Any]) -> Any:
    error = answer.get("json", {}).get("error") if isinstance(answer.get("json"), dict) else None
    return error["message"] if isinstance(error, dict) else answer.get("json", answer.get("text"))


def _normal(answer: dict[str, Any]) -> dict[str, Any]:
    if "events" not in answer:
        return answer
    return {**answer, "events": _joined(answer["events"])}


def _joined(events: list[dict[str, Any]]) -> list[Any]:
    """A stream by choice: the keys of its first event, and all its events put together.

    How many tokens an event carries depends on who was faster, the engine or the reader.
    """

    def key(event: dict[str, Any]) -> tuple[Any, ...]:
        choices = event.get("choices") or []
        return tuple(choice["index"] for choice in choices) or (-1,)

    joined = []
    for _, group in itertools.groupby(sorted(events, key=key), key):
        run = list(group)
        joined.append({"first": _keys(run[0]), "all": _sum(run)})
    return joined


def _keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _keys(inner) for name, inner in value.items()} or None
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_keys(value[0])]
    return None


def _sum(values: list[Any]) -> Any:
    """One value for a stream's: texts and lists joined, of anything else the last that is given."""
    given = [value for value in values if value is not None]
    last = given[-1] if given else None
    if isinstance(last, dict):
        names = dict.fromkeys(name for value in given for name in value)
        return {name: _sum([value[name] for value in given if name in value]) for name in names}
    if isinstance(last, list):
        if last and isinstance(last[0], dict) and "index" in last[0]:
            return [_sum([value[0] for value in given])]
        return [one for value in given for one in value]
    if isinstance(last, str) and len(set(given)) > 1:
        return "".join(given)
    return last


def _compare(path: str, theirs: Any, ours: Any, sampled: bool) -> Iterator[str]:
    name = path.rpartition(".")[2]
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in theirs.keys() | ours.keys():
            inner = f"{path}.{key}" if path else key
            if key not in ours:
                yield f"{inner}: {_short(theirs[key])} | is missing"
            elif key not in theirs:
                yield f"{inner}: is missing | {_short(ours[key])}"
            else:
                yield from _compare(inner, theirs[key], ours[key], sampled)
    elif isinstance(theirs, list) and isinstance(ours, list):
        if len(theirs) != len(ours):
            yield f"{path}: {len(theirs)} entries | {len(ours)} entries"
        for place, (a, b) in enumerate(zip(theirs, ours, strict=False)):
            yield from _compare(f"{path}[{place}]", a, b, sampled)
    elif type(theirs) is not type(ours) and not _numbers(theirs, ours):
        yield f"{path}: {_short(theirs)} | {_short(ours)}"
    elif name in _VOLATILE or (sampled and name in ("text", "content")):
        return
    elif isinstance(theirs, str):
        if _ID.sub("ID", theirs) != _ID.sub("ID", ours):
            yield f"{path}: {_short(theirs)} | {_short(ours)}"
    elif isinstance(theirs, float):
        if abs(theirs - ours) > 1e-3:
            yield f"{path}: {theirs} | {ours}"
    elif theirs != ours:
        yield f"{path}: {_short(theirs)} | {_short(ours)}"


def _numbers(a: Any, b: Any) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in (a, b))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 300 else text[:297] + "..."


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    old = page_section()
    new = section()
    text = text.replace(old, new) if old else text.replace("## Commands", f"{new}\n## Commands")
    PAGE.write_text(text, encoding="utf-8")
