"""The index of citations, the trees that it is made from, and the command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cite_helpers import KERNEL, Small, real

from course.cite.index import Index, Tree, TreeError, cited, write_index
from course.cite.symbols import cpp_symbols, python_symbols

if TYPE_CHECKING:
    from click.testing import Result


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return Small(tmp_path)


def test_comments_and_blank_lines_change_no_hash() -> None:
    bare = python_symbols("def f(x):\n    return x\n")[0].digest
    assert python_symbols("def f(x):\n\n    # why\n    return x\n")[0].digest == bare
    assert python_symbols("def f(x):\n    return -x\n")[0].digest != bare


def test_a_class_changes_with_its_fields_and_its_methods() -> None:
    text = "class A:\n    x = 1\n\n    def f(self):\n        return 1\n"
    whole = python_symbols(text)[0].digest
    assert python_symbols(text.replace("return 1", "# why\n        return 1"))[0].digest == whole
    assert python_symbols(text.replace("return 1", "return 2"))[0].digest != whole
    assert python_symbols(text.replace("x = 1", "x = 2"))[0].digest != whole
    assert python_symbols(text.replace("def f", "def g"))[0].digest != whole


def test_symbols_of_cuda() -> None:
    found = {s.name: (s.line, s.last) for s in cpp_symbols(KERNEL)}
    assert found == {
        "DIVIDE": (2, 3), "paged_kernel": (8, 11), "Params": (13, 15), "Params::size": (14, 14),
    }  # fmt: skip


# --- index, trees and the command ---


PLACES = (
    "@/v1/request.py:14 Request.num_tokens", "@/v1/request.py:26 in Request.grow",
    "@/v1/request.py:20", "%/attention/kernel.cu:8 paged_kernel",
)  # fmt: skip


def cite_all(small: Small) -> None:
    for number, place in enumerate(PLACES):
        small.cite(place, f"page{number}.md")
    small.page("Look into `@/v1/core/` and `@/config/cache.py`.\n", "mention.md")


def test_the_index_holds_what_is_cited_and_answers_as_the_tree(small: Small) -> None:
    cite_all(small)
    index, tree = small.index, small.tree
    assert sorted(index.paths) == sorted(
        map(real, ("@/config/cache.py", "%/attention/kernel.cu", "@/v1/request.py"))
    )
    assert real("@/v1/core") in index.folders
    for path in index.paths:
        told, true = index.facts(path), tree.facts(path)
        assert told is not None
        assert true is not None
        assert told.length == true.length
        assert set(told.symbols) <= set(true.symbols)
    names = {s.name for path in index.paths for s in index.facts(path).symbols}  # type: ignore[union-attr]
    assert names == {"Request.num_tokens", "Request.grow", "Request.last", "paged_kernel"}
    for line in (20, 26):
        assert index.line_hash(real("@/v1/request.py"), line) == tree.line_hash(
            real("@/v1/request.py"), line
        )
    assert index.line_hash(real("@/v1/request.py"), 14) is None
    assert index.names == small.tree_names()


def test_the_index_depends_on_the_pages_and_the_tree_alone(small: Small, tmp_path: Path) -> None:
    cite_all(small)
    assert small.index.release == "1.0.0"
    once = small.index_file.read_text()
    facts = cited(small.found())
    for kept in (None, Index(small.index_file)):
        write_index(small.tree, "1.0.0", facts, tmp_path / "again.tsv", kept)
        assert (tmp_path / "again.tsv").read_text() == once
    for page in small.root.glob("page*.md"):
        page.unlink()
    assert "Request" not in small.index_text()


def test_an_index_from_a_wheel_keeps_what_the_wheel_lacks(small: Small, tmp_path: Path) -> None:
    cite_all(small)
    whole, facts = small.index, cited(small.found())
    once = small.index_file.read_text()
    for file in sorted((tmp_path / "tree/csrc").rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    (tmp_path / "tree/csrc").rmdir()
    again = tmp_path / "again.tsv"
    write_index(Tree(tmp_path / "tree"), "1.0.0", facts, again, kept=whole)
    assert again.read_text() == once


def test_the_marks_of_a_merge_are_passed_over_when_it_is_written_again(small: Small) -> None:
    cite_all(small)
    index = small.index
    text = small.index_file.read_text()
    small.index_file.write_text(f"<<<<<<< ours\n{text}=======\n{text}>>>>>>> theirs\n")
    with pytest.raises(TreeError, match=r"tsv:1 is no row.*course cite index"):
        Index(small.index_file)
    kept = Index(small.index_file, lenient=True)
    assert kept.names == index.names
    write_index(small.tree, "1.0.0", cited(small.found()), small.index_file, kept)
    assert small.index_file.read_text() == text


def test_what_is_no_tree_or_no_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TreeError, match="no vLLM tree"):
        Tree(tmp_path)
    with pytest.raises(TreeError, match="course cite index"):
        Index(tmp_path / "none.tsv")
    (tmp_path / "other.tsv").write_text("something else\n")
    with pytest.raises(TreeError, match="no row of a citation index"):
        Index(tmp_path / "other.tsv")


def test_an_installed_package_is_a_tree_too(small: Small) -> None:
    package = Tree(small.tree.root / "vllm")
    assert package.root == small.tree.root
    assert package.release == "1.0.0"


def cite(*words: str) -> Result:
    pytest.importorskip("typer")
    from typer.testing import CliRunner

    from course.cite.command import app

    return CliRunner().invoke(app, words)


def test_show_prints_the_lines_of_the_readers_tree(small: Small) -> None:
    tree = small.tree.root
    (tree / "vllm/_version.py").write_text(f"__version__ = version = '{Index().release}'\n")
    out = cite("show", "vllm/v1/request.py:" + "16", "--context", "1", "--tree", str(tree))
    assert out.exit_code == 0, out.stderr
    assert out.stdout.splitlines() == [
        "vllm/v1/request.py:" + "16  in Request.num_tokens (13-16)",
        "     15 |         # Counted each time.",
        ">    16 |         return len(self.tokens)",
        "     17 |",
    ]


def test_the_command_refuses_bad_arguments(small: Small, tmp_path: Path) -> None:
    for words, said in [
        (("show", "nonsense"), "write PATH:LINE"),
        (("check", "--tree", str(tmp_path / "nowhere")), "is no vLLM tree"),
        (("check", "--tree", str(small.tree.root)), "is vLLM 1.0.0, the pin is"),
        (("fix", "--release", "9.9.9"), "give its tree with --tree"),
    ]:
        out = cite(*words)
        assert out.exit_code == 2, (words, out.stdout)
        assert said in out.stderr, (words, out.stderr)
        assert isinstance(out.exception, SystemExit)


def test_drift_against_another_tree_names_what_is_gone(small: Small) -> None:
    out = cite("drift", str(small.tree.root))
    assert out.exit_code == 0, out.stderr
    assert "gone: " in out.stdout
    assert "the file is gone" in out.stdout
