"""The tables of our lines and vLLM's: the repository's own hold, and each kind of fault names both sides.

The faults are planted in a page, a source file and a tree written here. `@` stands for vllm, so that
this file itself cites nothing that is wrong.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from course.cite.correspond import (
    Unresolved,
    app,
    check_correspondence,
    cited_pairs,
    fix_correspondence,
    my_place,
    render,
    tables,
    their_place,
)
from course.cite.correspondence import GROUPS
from course.cite.index import Index, Tree, find_tree
from course.cite.pair import Pair
from course.docs.pages import Page, pages, read_page
from course.learner.cli import main

INDEX = Index()
EVERY = pages()
OURS = '''\
"""A part."""


class Part:
    """It says grow(1) too.

    Source: `@/v1/request.py:239 Request.num_tokens`."""

    def run(self, n):
        """Not this: grow(n)."""
        self.grow(n)
        if n:
            self.again(n)
        self.again(n)

    def grow(self, n):
        """`@/v1/request.py:145 in Request.__init__`, and no `mini_vllm/part.py Part`."""
'''.replace("@", "vllm")
THEIRS = """\
class Request:
    def __init__(self):
        self.tokens = []

    def num_tokens(self):
        return len(self.tokens)
"""
DEFINED = Pair("a name", "mini_vllm/part.py Part.run", "vllm/v1/request.py Request.num_tokens")
STATEMENT = Pair(
    "a step", "mini_vllm/part.py Part.run", "`vllm/v1/request.py:145 in Request.__init__`",
    "self.grow(n)", "num_computed_tokens",
)  # fmt: skip
CITED = Pair("the part", "mini_vllm/part.py Part")
SMALL = {"small": (DEFINED, STATEMENT), "one": (DEFINED,), "cited": (CITED, DEFINED)}
TEXT = "# A page\n\n<!-- correspond: begin small -->\n<!-- correspond: end -->\n\nMore.\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "mini_vllm").mkdir()
    (tmp_path / "mini_vllm" / "part.py").write_text(OURS)
    return tmp_path


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    folder = tmp_path / "tree" / "vllm"
    (folder / "v1").mkdir(parents=True)
    (folder / "envs.py").write_text("")
    (folder / "v1" / "request.py").write_text(THEIRS)
    return Tree(folder.parent)


def page(root: Path, text: str = TEXT) -> Page:
    (root / "page.md").write_text(text)
    return read_page(root / "page.md", root)


def fixed(root: Path) -> Page:
    assert fix_correspondence(page(root), INDEX, SMALL, root) == ["page.md:3: small"]
    return read_page(root / "page.md", root)


def resolve(pair: Pair, root: Path) -> tuple[str, str]:
    return my_place(pair, root).text(), their_place(pair, INDEX).text()


def problems(chosen: Page, root: Path, source: Index | Tree = INDEX) -> str:
    return "\n".join(map(str, check_correspondence(chosen, source, SMALL, root)))


# --- the repository itself ---


def test_tables_of_the_repository() -> None:
    found = [p for chosen in EVERY for p in check_correspondence(chosen)]
    assert not found, "\n".join(map(str, found))


def test_every_group_is_shown_somewhere() -> None:
    shown = {name for chosen in EVERY for table in tables(chosen)[0] for name in table.names}
    assert set(GROUPS) <= shown, f"no page shows {sorted(set(GROUPS) - shown)}"


def test_every_statement_names_what_its_line_holds() -> None:
    pairs = [pair for group in GROUPS.values() for pair in group]
    assert len(pairs) > 60
    bare = [pair.what for pair in pairs if ":" in pair.theirs and not pair.word]
    assert not bare, f"a line of vLLM's without a word that stands on it: {bare}"


def test_no_pair_repeats_what_our_docstring_cites() -> None:
    """A row that writes it as well would have to be kept the same by hand."""
    pairs = [pair for group in GROUPS.values() for pair in group if pair.code is None]
    twice = []
    for pair in pairs:
        cited = cited_pairs(pair.mine.split(" ")[0])
        first = next((c for c in cited if c.mine == pair.mine and ":" not in c.theirs), None)
        twice += [pair.mine] if first is not None and first.theirs == pair.theirs else []
    assert not twice, f"leave vLLM's side out of these pairs, their docstrings say it: {twice}"


def test_the_pairs_hold_in_vllm_itself() -> None:
    tree = find_tree(release=INDEX.release)
    if tree is None:
        pytest.skip("no vLLM tree here")
    wrong = render((), tree, INDEX.release, "page.md")[1]
    assert not wrong, "\n".join(wrong)


def test_the_command_checks_the_repository(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["correspond", "check"]) == 0
    assert " 0 wrong" in capsys.readouterr().out


def test_an_unknown_page_is_refused() -> None:
    result = CliRunner().invoke(app, ["check", "no_such_page.md"])
    assert result.exit_code == 2


# --- either side ---


def test_a_symbol_stands_where_it_is_defined(root: Path) -> None:
    assert my_place(DEFINED, root).text() == "mini_vllm/part.py:9 Part.run"
    assert their_place(DEFINED, INDEX).text() == "vllm/v1/request.py:239 Request.num_tokens"


def test_a_statement_stands_where_its_code_does_and_docstrings_do_not_count(root: Path) -> None:
    assert resolve(STATEMENT, root) == (
        "mini_vllm/part.py:11 in Part.run: self.grow(n)",
        "vllm/v1/request.py:145 in Request.__init__",
    )


def test_code_may_run_over_lines(root: Path) -> None:
    pair = STATEMENT._replace(code="self.again(n)\nself.again(n)")
    assert my_place(pair, root).line == 13


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mine": "mini_vllm/part.py Part.walk"}, "mini_vllm/part.py does not define Part.walk"),
        ({"mine": "mini_vllm/gone.py Part.run"}, "no file mini_vllm/gone.py"),
        ({"code": "self.shrink(n)"}, "stands 0 times in Part.run, not once"),
        ({"code": "self.again(n)"}, "stands 2 times in Part.run, not once"),
        ({"code": "Not this"}, "stands 0 times in Part.run, not once"),
        ({"theirs": "@/v1/gone.py Request"}, "the index has no file @/v1/gone.py"),
        ({"theirs": "@/v1/request.py Request.gone"}, "no Request.gone in @/v1/request.py"),
        ({"theirs": "@/v1/request.py:239 in Request.gone"}, "no Request.gone in @/v1/request.py"),
        ({"theirs": "`@/v1/request.py:99999 in Request.__init__`"}, "line 99999 is not in it"),
        ({"theirs": "@/v1/request.py"}, "write PATH SYMBOL"),
    ],
)
def test_a_side_that_is_not_there_is_reported_with_both(
    root: Path, change: dict[str, str], message: str
) -> None:
    change = {key: value.replace("@", "vllm") for key, value in change.items()}
    pair = STATEMENT._replace(**change)
    with pytest.raises(Unresolved) as error:
        resolve(pair, root)
    text = str(error.value)
    assert message.replace("@", "vllm") in text
    assert f"{pair.mine} <-> {pair.theirs.strip('`')}" in text


def test_a_tree_must_have_the_word_on_the_line(root: Path, tree: Tree) -> None:
    place = "`@/v1/request.py:3 in Request.__init__`".replace("@", "vllm")
    pair = STATEMENT._replace(theirs=place, word="tokens")
    assert their_place(pair, tree).line == 3
    with pytest.raises(Unresolved, match=r"Part\.run <-> .*line 3 says nothing of token"):
        their_place(pair._replace(word="token"), tree)


def test_without_theirs_it_is_the_definition_that_our_docstring_cites(root: Path) -> None:
    theirs = "vllm/v1/request.py:239 Request.num_tokens"
    assert their_place(CITED, INDEX, root).text() == theirs
    rows, wrong = render(["cited"], INDEX, "0.22.1", "page.md", SMALL, root)
    assert not wrong
    assert f'"{theirs}")' in rows[2]


@pytest.mark.parametrize("name", ["Part.run", "Part.grow", "Part.bare"])
def test_a_docstring_without_a_source_is_refused_by_its_symbol(root: Path, name: str) -> None:
    """One that cites nothing, one that cites a line inside a symbol, and none at all."""
    (root / "mini_vllm" / "part.py").write_text(f"{OURS}\n    def bare(self):\n        pass\n")
    groups = {"cited": (CITED._replace(mine=f"mini_vllm/part.py {name}"), DEFINED)}
    rows, wrong = render(["cited"], INDEX, "0.22.1", "page.md", groups, root)
    cites_none = "its docstring cites no definition of vLLM's, nor does the pair"
    assert wrong == [f"mini_vllm/part.py {name}: {cites_none}"]
    assert len(rows) == 2 + 1


# --- tables ---


def test_a_table_is_written_and_then_holds(root: Path) -> None:
    written = fixed(root)
    assert problems(written, root) == ""
    rows = [line for line in written.lines if line.startswith("|")]
    mine = '[`Part.run`](mini_vllm/part.py "mini_vllm/part.py Part.run")'
    assert rows[2].startswith(f"| a name | {mine} | [`Request.num_tokens`](https://")
    place = '/vllm/v1/request.py#L239 "vllm/v1/request.py:239 Request.num_tokens") |'
    assert rows[2].endswith("/blob/v0.22.1" + place)
    mine = '[`Part.run`](mini_vllm/part.py "mini_vllm/part.py in Part.run: self.grow(n)")'
    assert rows[3].startswith(f"| a step | {mine} | [`Request.__init__`](https://")
    assert rows[3].endswith('#L145 "vllm/v1/request.py:145 in Request.__init__") 145 |')
    assert written.lines[-2:] == ["More.", ""]
    assert fix_correspondence(written, INDEX, SMALL, root) == []


def test_a_line_that_moved_changes_nothing(root: Path) -> None:
    written = fixed(root)
    (root / "mini_vllm" / "part.py").write_text("import os\n" + OURS)
    assert my_place(STATEMENT, root).line == 12
    assert problems(written, root) == ""
    assert fix_correspondence(written, INDEX, SMALL, root) == []


def test_another_symbol_of_ours_on_the_page_is_reported_and_mended(root: Path) -> None:
    fixed(root)
    old = (root / "page.md").read_text().replace("part.py Part.run", "part.py:9 Part.run")
    written = page(root, old)
    text = problems(written, root)
    assert "page.md:7: " in text
    assert "mini_vllm/part.py Part.run <-> vllm/v1/request.py:239 Request.num_tokens" in text
    assert "mini_vllm/part.py:9 Part.run" in text
    fix_correspondence(written, INDEX, SMALL, root)
    assert problems(read_page(root / "page.md", root), root) == ""


def test_a_wrong_line_of_theirs_on_the_page_is_reported(root: Path) -> None:
    fixed(root)
    wrong = (root / "page.md").read_text().replace("py:239 Request", "py:238 Request")
    text = problems(page(root, wrong), root)
    assert "Part.run <-> vllm/v1/request.py:239 Request.num_tokens" in text
    assert "the page says vllm/v1/request.py:238, it is vllm/v1/request.py:239" in text


def test_a_symbol_that_vanished_is_reported_and_its_table_left_alone(root: Path) -> None:
    written = fixed(root)
    (root / "mini_vllm" / "part.py").write_text(OURS.replace("def run", "def go"))
    text = problems(written, root)
    assert "mini_vllm/part.py Part.run <-> vllm/v1/request.py Request.num_tokens" in text
    assert "mini_vllm/part.py does not define Part.run" in text
    before = written.text
    assert fix_correspondence(written, INDEX, SMALL, root) == []
    assert (root / "page.md").read_text() == before


def test_a_symbol_that_vanished_from_their_tree_is_reported(root: Path, tree: Tree) -> None:
    file = tree.root / "vllm" / "v1" / "request.py"
    file.write_text(THEIRS.replace("num_tokens", "count"))
    text = problems(fixed(root), root, Tree(tree.root))
    assert "Part.run <-> vllm/v1/request.py Request.num_tokens" in text
    assert "vLLM has no Request.num_tokens in vllm/v1/request.py" in text


def test_a_row_too_few_and_a_row_too_many(root: Path) -> None:
    lines = fixed(root).text.split("\n")
    few = page(root, "\n".join(lines[:7] + lines[8:]))
    both = "in Part.run: self.grow(n) <-> vllm/v1/request.py:145 in Request.__init__"
    assert f"{both} is missing" in problems(few, root)
    many = page(root, "\n".join([*lines[:8], "| more | `x` | `y` |", *lines[8:]]))
    assert "page.md:9: correspond: no such row: | more |" in problems(many, root)


def test_an_empty_table_is_reported(root: Path) -> None:
    assert "is missing (`course correspond fix`)" in problems(page(root), root)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- correspond: begin small -->\n", "page.md:1: correspond: begins, never ends"),
        ("a\n\n<!-- correspond: end -->\n", "page.md:3: correspond: ends, and never began"),
        (
            "<!-- correspond: begin big -->\n<!-- correspond: end -->\n",
            "'big' is no group (small, one, cited) and no Python file of this repository",
        ),
    ],
)
def test_markers_that_make_no_table(root: Path, text: str, message: str) -> None:
    assert message in problems(page(root, text), root)


def test_markers_shown_as_code_are_no_table(root: Path) -> None:
    assert tables(page(root, "```text\n<!-- correspond: begin -->\n```\n")) == ([], [])


def test_without_a_name_come_all_groups(root: Path) -> None:
    assert len(render((), INDEX, "0.22.1", "page.md", SMALL, root)[0]) == 2 + 5


def test_what_docstrings_cite_becomes_rows(root: Path) -> None:
    pairs = list(cited_pairs("mini_vllm/part.py", root))
    assert [(p.what, p.mine, p.theirs) for p in pairs] == [
        ("`Part`", "mini_vllm/part.py Part", "vllm/v1/request.py Request.num_tokens"),
        (
            "`grow`",
            "mini_vllm/part.py Part.grow",
            "vllm/v1/request.py:145 in Request.__init__",
        ),
    ]
    rows, wrong = render(["mini_vllm/part.py"], INDEX, "0.22.1", "page.md", SMALL, root)
    assert not wrong
    assert len(rows) == 2 + 2
