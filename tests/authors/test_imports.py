"""Which file may import which: the direction, and no circles.

Read from the source of `mini_vllm/`, `course/` and `benchmarks/`, without running it. Every import
counts: at the top, inside a function, under `TYPE_CHECKING`. What a type needs, a reader needs too.
"""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").is_file())
PACKAGES = ("mini_vllm", "course", "benchmarks")
ONLY_GPU = {"torch", "triton"}

# The rooms of `mini_vllm` from the top down. A room imports from those below it only, so whoever reads one
# needs what stands under it and nothing else. A new room takes its place here.
ROOMS = (
    "entrypoints", "trace", "engine", "executor", "gpu", "worker", "spec_decode", "sim", "compress",
    "tokenizer", "metrics", "cudagraph", "model_loader", "core", "distributed", "models", "sample", "layers",
    "attention", "config", "sampling_params", "outputs", "inputs", "utils", "version",
)  # fmt: skip

# Imports that break a rule and wait for their file to move: (importer, imported).
# A test below fails as soon as one of them is no longer needed here.
EXCUSED: set[tuple[str, str]] = set()

Graph = Mapping[str, set[str]]


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST, name: str, is_package: bool, known: set[str]) -> Iterator[str]:
    """Every module that the source imports. `from package import x` means the module x, if it is one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = name.split(".")[: len(name.split(".")) - node.level + is_package]
                base = ".".join([*up, *([base] if base else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner in known else base


def read_imports(root: Path, packages: Iterable[str] = PACKAGES) -> dict[str, set[str]]:
    """Every module of the packages, with all that it imports, inside them and outside."""
    paths = [path for package in packages for path in sorted((root / package).rglob("*.py"))]
    known = {module_name(path, root) for path in paths}
    graph = {}
    for path in paths:
        name = module_name(path, root)
        is_package = path.name == "__init__.py"
        graph[name] = set(imported(ast.parse(path.read_bytes()), name, is_package, known)) - {name}
    return graph


def way(graph: Graph, start: str, goal: str) -> list[str] | None:
    """The shortest chain of imports from `start` to `goal`, both ends in it; None if there is none."""
    before: dict[str, str] = {}
    queue = deque([start])
    while queue:
        module = queue.popleft()
        for other in sorted(graph.get(module, ())):
            if other == goal:
                chain = [goal, module]
                while chain[-1] != start:
                    chain.append(before[chain[-1]])
                return chain[::-1]
            if other in graph and other not in before and other != start:
                before[other] = module
                queue.append(other)
    return None


def circles(graph: Graph) -> list[list[str]]:
    """One shortest circle through each module that lies on one, each circle once."""
    found: dict[frozenset[str], list[str]] = {}
    for module in sorted(graph):
        circle = way(graph, module, module)
        if circle is not None:
            found.setdefault(frozenset(circle), circle)
    return list(found.values())


def room(module: str) -> str | None:
    """`mini_vllm`'s room that the module belongs to; None: another package, or `mini_vllm` itself.

    `mini_vllm` and `mini_vllm.__main__` belong to no room and may name any: nobody inside imports them.
    """
    parts = module.split(".")
    return parts[1] if parts[0] == "mini_vllm" and parts[1:2] not in ([], ["__main__"]) else None


def wrong_way(graph: Graph) -> list[tuple[str, str, str]]:
    """Imports against the direction: importer, imported, the rule."""
    wrong = []
    for module, targets in sorted(graph.items()):
        package, here = module.partition(".")[0], room(module)
        for target in sorted(targets):
            top, there = target.partition(".")[0], room(target)
            if package == "mini_vllm" and top in ("course", "benchmarks"):
                wrong.append((module, target, f"mini_vllm never imports {top}"))
            elif here is not None and target == "mini_vllm":
                wrong.append((module, target, "nobody inside imports the package itself"))
            elif here is not None and there is not None and here != there:
                if ROOMS.index(there) < ROOMS.index(here):
                    wrong.append((module, target, f"{there} stands above {here}"))
            elif package == "mini_vllm" and top in ONLY_GPU and here != "gpu":
                wrong.append((module, target, f"only mini_vllm/gpu/ imports {top}"))
    return wrong


def without(graph: Graph, edges: set[tuple[str, str]]) -> dict[str, set[str]]:
    return {m: {t for t in targets if (m, t) not in edges} for m, targets in graph.items()}


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    return read_imports(ROOT)


def test_no_two_files_import_each_other(graph: Graph) -> None:
    found = circles(without(graph, EXCUSED))
    assert not found, "imports in a circle:\n" + "\n".join(" -> ".join(c) for c in found)


def test_every_room_has_its_place(graph: Graph) -> None:
    """ROOMS names the folders and files of `mini_vllm`, no more and no less; so does its README."""
    there = {room(module) for module in graph} - {None}
    assert there == set(ROOMS)
    page = (ROOT / "mini_vllm" / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?m)^\| `([a-z_]+)(?:/|\.py`)", page))
    assert named == set(ROOMS)


def test_direction(graph: Graph) -> None:
    found = wrong_way(without(graph, EXCUSED))
    assert not found, "\n".join(f"{m} imports {t}: {rule}" for m, t, rule in found)


@pytest.mark.parametrize("edge", sorted(EXCUSED), ids=" -> ".join)
def test_excuse_is_still_needed(graph: Graph, edge: tuple[str, str]) -> None:
    module, target = edge
    alone = without(graph, EXCUSED - {edge})
    needed = target in alone.get(module, ()) and (
        way(alone, target, module) is not None
        or any((m, t) == edge for m, t, _ in wrong_way(alone))
    )
    assert needed, f"{module} -> {target} breaks no rule any more: delete it from EXCUSED"


def _repository(tmp_path: Path, files: dict[str, str]) -> dict[str, set[str]]:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_imports(tmp_path)


def test_a_circle_is_found_however_it_is_written(tmp_path: Path) -> None:
    found = circles(
        _repository(
            tmp_path,
            {
                "mini_vllm/__init__.py": "",
                "mini_vllm/a.py": "from typing import TYPE_CHECKING\n"
                "if TYPE_CHECKING:\n    from mini_vllm.b import B",
                "mini_vllm/b.py": "def f():\n    from mini_vllm import c",
                "mini_vllm/c.py": "from . import a",
                "mini_vllm/d.py": "import mini_vllm.a",
                "course/e.py": "from course.f import F",
                "course/f.py": "from .e import E",
                "benchmarks/g.py": "import benchmarks.g",
            },
        )
    )
    assert [sorted(set(circle)) for circle in found] == [
        ["course.e", "course.f"],
        ["mini_vllm.a", "mini_vllm.b", "mini_vllm.c"],
    ]


def test_the_wrong_direction_is_found(tmp_path: Path) -> None:
    found = wrong_way(
        _repository(
            tmp_path,
            {
                "mini_vllm/__init__.py": "",
                "mini_vllm/__main__.py": "from mini_vllm.entrypoints.cli import main",
                "mini_vllm/engine/llm_engine.py": "from mini_vllm.trace import Trace\nimport numpy",
                "mini_vllm/trace/__init__.py": "import mini_vllm.engine.llm_engine\nimport course.labs",
                "mini_vllm/entrypoints/cli/__init__.py": "from mini_vllm.trace import Trace",
                "mini_vllm/models/llama.py": "def f():\n    import torch.nn",
                "mini_vllm/gpu/llama.py": "import torch\nimport triton.language as tl",
                "mini_vllm/utils/surface.py": "from mini_vllm import LLM",
                "course/labs.py": "import torch, mini_vllm.engine.llm_engine",
            },
        )
    )
    assert [(module, target) for module, target, _ in found] == [
        ("mini_vllm.engine.llm_engine", "mini_vllm.trace"),
        ("mini_vllm.models.llama", "torch.nn"),
        ("mini_vllm.trace", "course.labs"),
        ("mini_vllm.utils.surface", "mini_vllm"),
    ]
