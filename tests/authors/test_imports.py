"""Which file may import which: the contracts in `pyproject.toml`, which import-linter checks, and no circles.

Each contract is also tried on a copy with a wrong import in it, so that one that has lost its teeth is seen.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("importlinter")

ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").is_file())
SETTINGS: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES: list[str] = SETTINGS["tool"]["importlinter"]["root_packages"]
CONTRACTS = {each["id"]: each for each in SETTINGS["tool"]["importlinter"]["contracts"]}

LINT = "from importlinter.cli import lint_imports_command as run; run(['--no-cache'])"
# grimp reads the sources for import-linter. Its contract `acyclic_siblings` is about folders, not files.
FIND_CIRCLE = """
import graphlib, sys, grimp
graph = grimp.build_graph(*sys.argv[1:], cache_dir=None)
imports = {m: graph.find_modules_directly_imported_by(m) - {m} for m in graph.modules}
try:
    graphlib.TopologicalSorter(imports).prepare()
except graphlib.CycleError as found:
    sys.exit(" -> ".join(reversed(found.args[1])))
"""


def run_in(root: Path, code: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, which takes the packages from `root`."""
    env = os.environ | {"PYTHONPATH": str(root), "COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *argv],
        cwd=root, env=env, capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip


def test_contracts_hold() -> None:
    ran = run_in(ROOT, LINT)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"Contracts: {len(CONTRACTS)} kept, 0 broken." in ran.stdout


def test_no_two_files_import_each_other() -> None:
    ran = run_in(ROOT, FIND_CIRCLE, *PACKAGES)
    assert ran.returncode == 0, f"imports in a circle: {ran.stderr}"


def test_the_page_has_the_same_rooms() -> None:
    """They are all that `mini_vllm` has: the contract is exhaustive."""
    page = (ROOT / "mini_vllm" / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"(?m)^\| `([a-z_]+)(?:/|\.py`)", page)
    assert sorted(named) == sorted(CONTRACTS["rooms"]["layers"])


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages' Python files and the contracts."""
    copy = tmp_path_factory.mktemp("sources")
    shutil.copy(ROOT / "pyproject.toml", copy)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            (copy / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy / path.relative_to(ROOT))
    return copy


@pytest.mark.parametrize(
    ("module", "line", "broken", "said"),
    [
        ("mini_vllm/engine/llm_engine.py", "from mini_vllm.trace import Trace",
         {"rooms"}, "mini_vllm.engine.llm_engine -> mini_vllm.trace"),
        ("mini_vllm/attic/__init__.py", "", {"rooms"}, "attic"),
        ("mini_vllm/utils/surface.py", "def f():\n    from mini_vllm import LLM",
         {"itself", "rooms"}, "mini_vllm.utils.surface -> mini_vllm"),
        ("mini_vllm/trace/__init__.py",
         "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from course.learner.labs import Lab",
         {"course"}, "mini_vllm.trace -> course.learner.labs"),
        ("mini_vllm/utils/surface.py", "import benchmarks",
         {"course"}, "mini_vllm.utils.surface -> benchmarks"),
        ("mini_vllm/models/llama.py", "def f():\n    import torch.nn",
         {"gpu"}, "mini_vllm.models.llama -> torch"),
        ("mini_vllm/worker/gpu_input_batch.py", "import triton.language as tl",
         {"gpu"}, "mini_vllm.worker.gpu_input_batch -> triton"),
        ("mini_vllm/gpu/llama.py", "import torch, triton.language as tl", set(), ""),
        ("course/learner/labs.py", "import torch, mini_vllm.engine.llm_engine", set(), ""),
    ],
)  # fmt: skip
def test_the_wrong_direction_is_found(
    sources: Path, module: str, line: str, broken: set[str], said: str
) -> None:
    path = sources / module
    before = path.read_bytes() if path.exists() else None
    path.parent.mkdir(exist_ok=True)
    path.write_bytes((before or b"") + b"\n" + line.encode() + b"\n")
    try:
        ran = run_in(sources, LINT)
    finally:
        if before is None:
            shutil.rmtree(path.parent)
        else:
            path.write_bytes(before)
    found = {key for key, each in CONTRACTS.items() if f"{each['name']} BROKEN" in ran.stdout}
    assert found == broken, ran.stdout + ran.stderr
    assert said in ran.stdout
    assert (ran.returncode == 0) == (not broken)


@pytest.mark.parametrize(
    ("files", "circle"),
    [
        (
            {
                "mini_vllm/a.py": "from typing import TYPE_CHECKING\n"
                "if TYPE_CHECKING:\n    from mini_vllm.b import B",
                "mini_vllm/b.py": "def f():\n    from mini_vllm import c",
                "mini_vllm/c.py": "from . import a",
                "mini_vllm/d.py": "import mini_vllm.a",
            },
            {"mini_vllm.a", "mini_vllm.b", "mini_vllm.c"},
        ),
        (
            {"course/e.py": "from course.f import F", "course/f.py": "from .e import E"},
            {"course.e", "course.f"},
        ),
        (
            {"course/__init__.py": "from course.e import E", "course/e.py": "import course"},
            {"course", "course.e"},
        ),
        ({"benchmarks/g.py": "import benchmarks.g"}, set()),
    ],
)
def test_a_circle_is_found_however_it_is_written(
    tmp_path: Path, files: dict[str, str], circle: set[str]
) -> None:
    for name, text in ({f"{package}/__init__.py": "" for package in PACKAGES} | files).items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    ran = run_in(tmp_path, FIND_CIRCLE, *PACKAGES)
    assert set(filter(None, ran.stderr.strip().split(" -> "))) == circle
    assert (ran.returncode == 0) == (not circle)
