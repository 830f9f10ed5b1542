"""This repository's lines stand nowhere: when the engine's move, no page and no index changes."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from course.cite.check import check, fix
from course.cite.correspond import check_correspondence, fix_correspondence, pair_symbols
from course.cite.index import Index, Tree, cited, find_tree, write_index
from course.cite.own import own_line
from course.cite.text import find_all
from course.docs.examples import check_sources, fix_sources
from course.docs.links import check_links
from course.docs.pages import ROOT, pages, repository_files

MOVED = "mini_vllm/core/sched/scheduler.py"
MORE = 20
PART = '''\
class Part:
    def run(self, n):
        """Not this: grow(n)."""
        self.grow(n)
        if n:
            self.again(n)
        self.again(n)


if Part:

    def twice():
        pass
else:

    def twice():
        pass
'''


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository, with twenty lines more at the top of each class of the scheduler's file."""
    root = tmp_path_factory.mktemp("moved") / "repository"
    for path in repository_files(ROOT):
        copy = root / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    file = root / MOVED
    lines = file.read_text(encoding="utf-8").split("\n")
    classes = [node for node in ast.parse("\n".join(lines)).body if isinstance(node, ast.ClassDef)]
    for node in reversed(classes):
        lines[node.body[0].lineno - 1 : node.body[0].lineno - 1] = ["    # one more"] * MORE
    file.write_text("\n".join(lines), encoding="utf-8")
    return root


def text_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in repository_files(root)}


def test_the_lines_have_moved(moved: Path) -> None:
    schedule = own_line(ROOT, MOVED, "Scheduler.schedule")
    assert own_line(moved, MOVED, "Scheduler.schedule") == schedule + MORE


def test_every_check_still_passes(moved: Path) -> None:
    index, every = Index(), pages(moved)
    found = find_all(moved, index.release)
    assert sum(c.path == MOVED for c in found.citations) > 50, "nothing cites the file that moved"
    problems = [*found.problems, *check(found, index, moved), *check_links(every, moved)]
    for page in every:
        problems += [*check_sources(page, moved), *check_correspondence(page, root=moved)]
    assert not problems, "\n".join(map(str, problems))


def test_there_is_nothing_to_fix(moved: Path) -> None:
    before, index = text_of(moved), Index()
    assert fix(find_all(moved, index.release), index, index, index.release, moved) == ([], [])
    for page in pages(moved):
        assert fix_sources(page, moved) == []
        assert fix_correspondence(page, root=moved) == []
    assert text_of(moved) == before


def test_the_index_stays_as_it_is(moved: Path, tmp_path: Path) -> None:
    """Whatever tree it is written from: this repository's lines are no part of it."""
    index = Index()
    tree = find_tree(ROOT, index.release) or Tree(_tree_of_nothing(tmp_path))
    for root in (ROOT, moved):
        facts = cited(find_all(root, index.release), pair_symbols())
        write_index(tree, index.release, facts, tmp_path / f"{root == moved}.tsv", kept=index)
    assert (tmp_path / "True.tsv").read_bytes() == (tmp_path / "False.tsv").read_bytes()


def test_sync_writes_again_what_is_generated_and_nothing_else(moved: Path) -> None:
    before = text_of(moved)
    for name, old in (
        ("phase-03-scheduler/01-deep-dive.md", "new_computed_blocks=new_computed_blocks,"),
        ("phase-03-scheduler/03-correspondence.md", "| slots in the batch |"),
        ("docs/CONFORMANCE.md", "| scheduler |"),
    ):
        text = (moved / name).read_text(encoding="utf-8")
        assert old in text
        (moved / name).write_text(text.replace(old, f"stale {old}"), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "course", "sync"], cwd=moved, capture_output=True,
        env=os.environ | {"PYTHONPATH": str(moved)}, encoding="utf-8", check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    after = text_of(moved)
    assert [name for name in before if before[name] != after[name]] == []


def _tree_of_nothing(folder: Path) -> Path:
    (folder / "vllm").mkdir()
    (folder / "vllm" / "envs.py").write_text("")
    return folder


# --- looking a line up ---


@pytest.fixture
def part(tmp_path: Path) -> Path:
    (tmp_path / "part.py").write_text(PART)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "code", "line"),
    [
        ("Part", None, 1),
        ("Part.run", None, 2),
        ("Part.run", "grow(n)", 4),
        ("Part.run", "if n:", 5),
        ("Part.run", "self.again(n) self.again(n)", 6),
    ],
)
def test_a_line_is_that_of_the_symbol_or_of_the_code_in_it(
    part: Path, name: str, code: str | None, line: int
) -> None:
    assert own_line(part, "part.py", name, code) == line


@pytest.mark.parametrize(
    ("path", "name", "code", "said"),
    [
        ("gone.py", "Part", None, "this repository has no file gone.py"),
        ("../part.py", "Part", None, "this repository has no file ../part.py"),
        ("part.py", "run", None, "part.py does not define run; did you mean Part.run?"),
        ("part.py", "twice", None, "part.py defines twice 2 times"),
        ("part.py", "Part.run", "self.again(n)", "stands 2 times in Part.run, not once"),
        ("part.py", "Part.run", "Not this", "stands 0 times in Part.run, not once"),
    ],
)
def test_what_is_not_there_once_is_refused(
    part: Path, path: str, name: str, code: str | None, said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        own_line(part, path, name, code)
