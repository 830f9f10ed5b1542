"""What a release gives new parameters to, of what `course/parity/record.py` calls.

A parameter that the recorder does not give has its default, and that may mean something else than the pin
did, so each is to be looked at before the release's outcomes are believed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from course.cite.index import find_tree
from course.drift.record import fetch
from mini_vllm.core.sched.releases import PIN

CALLED = {
    "vllm/v1/core/sched/scheduler.py": ("Scheduler",),
    "vllm/v1/core/sched/async_scheduler.py": ("AsyncScheduler",),
    "vllm/v1/core/kv_cache_utils.py": ("get_request_block_hasher", "init_none_hash"),
    "vllm/v1/kv_cache_interface.py": (
        "KVCacheConfig", "KVCacheGroupSpec", "FullAttentionSpec", "SlidingWindowSpec",
        "ChunkedLocalAttentionSpec",
    ),
    "vllm/v1/request.py": ("Request",),
    "vllm/v1/outputs.py": ("ModelRunnerOutput", "DraftTokenIds"),
}  # fmt: skip
"""By file: functions, and classes that are made."""


def parameters(source: str, name: str) -> dict[str, str] | None:
    """Of a function, or of a class that is made: each parameter, and its default as it is written; "" without
    one. None if the source does not define it."""
    defined = {
        node.name: node
        for node in ast.parse(source).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    if name not in defined:
        return None
    found: dict[str, str] = {}
    for key, default in _parameters(defined[name], defined):
        found[key] = "" if default is None else ast.unparse(default)
    return found


def _parameters(
    node: ast.FunctionDef | ast.ClassDef, defined: dict[str, ast.FunctionDef | ast.ClassDef]
) -> Iterator[tuple[str, ast.expr | None]]:
    if isinstance(node, ast.FunctionDef):
        given = node.args
        places = [*given.posonlyargs, *given.args]
        without = [None] * (len(places) - len(given.defaults))
        yield from zip((p.arg for p in places), [*without, *given.defaults], strict=True)
        yield from zip((k.arg for k in given.kwonlyargs), given.kw_defaults, strict=True)
        return
    for base in node.bases:  # those of other files are left out
        if isinstance(base, ast.Name) and base.id in defined:
            yield from _parameters(defined[base.id], defined)
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            yield from _parameters(part, defined)
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            yield part.target.id, part.value


def pin_tree() -> Path:
    """The folder with the pin's `vllm`: the reader's own, or else fetched."""
    tree = find_tree(release=PIN)
    return tree.root if tree is not None else fetch(PIN)


def changed_parameters(before: Path, now: Path) -> list[str]:
    """A line for each function or class of `CALLED` whose parameters another release has changed.

    Args:
        before, now: the folders that hold `vllm`.
    """
    lines = []
    for path, names in CALLED.items():
        for name in names:
            one, other = (_read(tree / path, name) for tree in (before, now))
            if one is None or other is None:
                lines += [f"{name} is not in {path} any more"] if one is not None else []
                continue
            came = [f"new {key}{_is(other[key])}" for key in other if key not in one]
            went = [f"{key} is gone" for key in one if key not in other]
            others = [
                f"{key}{_is(other[key])}, was{_is(one[key]) or ' without a default'}"
                for key in one
                if key in other and one[key] != other[key]
            ]
            if news := [*came, *went, *others]:
                lines.append(f"{name}: {'; '.join(news)}")
    return lines


def _is(default: str) -> str:
    return f" = {default}" if default else ""


def _read(path: Path, name: str) -> dict[str, str] | None:
    return parameters(path.read_text(encoding="utf-8"), name) if path.is_file() else None
