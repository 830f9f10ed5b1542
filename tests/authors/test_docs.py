"""Pages: the repository's own hold, and each kind of fault is caught.

Markdown fences are written with `~~~` turned into backticks, so that no tool reads them here.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from course.docs.examples import (
    check_examples,
    check_sources,
    fix_sources,
    has_examples,
    symbol_source,
)
from course.docs.links import anchors, check_links, github_slug, site_slug
from course.docs.output import check_outputs
from course.docs.pages import Page, pages, read_page
from course.docs.terms import check_terms, normal

EVERY = pages()
GLOSSARY = "# Glossary\n\n**Block.** A run of slots.\n\n**Step.** One turn.\n"


def page(root: Path, text: str, name: str = "page.md") -> Page:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text.replace("~~~", "```"))
    return read_page(file, root)


def said(problems: list) -> str:
    return "\n".join(map(str, problems))


# --- the repository itself ---


@pytest.mark.parametrize("chosen", [p for p in EVERY if has_examples(p)], ids=lambda p: p.name)
def test_examples_of_the_repository(chosen: Page) -> None:
    problems, ran = check_examples(chosen)
    assert not problems, said(problems)
    assert ran >= 0


def test_source_blocks_of_the_repository() -> None:
    problems = [p for chosen in EVERY for p in check_sources(chosen)]
    assert not problems, said(problems)


def test_output_blocks_of_the_repository() -> None:
    problems = [p for chosen in EVERY for p in check_outputs(chosen)]
    assert not problems, said(problems)


def test_links_of_the_repository() -> None:
    problems = check_links(EVERY)
    assert not problems, said(problems)


def test_terms_of_the_repository() -> None:
    problems = check_terms(EVERY)
    assert not problems, said(problems)


# --- reading a page ---


def test_a_page_is_cut_into_its_parts(tmp_path: Path) -> None:
    text = (
        "---\nlab: 1\n---\n# A\n\n    code\n\n<!-- note -->\n~~~python\nx\n~~~\n"
        "<!-- output: a -->\n~~~text\ny\n~~~\n<!-- end output -->\n- item\n\n    more of it\n"
    )
    read = page(tmp_path, text)
    assert read.kinds == [
        *["front"] * 3, "text", "text", "code", "text", "comment", *["code"] * 3,
        *["output"] * 5, *["text"] * 4,
    ]  # fmt: skip
    assert [f.body for f in read.fences] == [("x",)]


# --- doctests ---


def test_examples_share_a_namespace_in_order(tmp_path: Path) -> None:
    text = "~~~python\n>>> import numpy as np\n>>> x = np.arange(3)\n~~~\nthen\n\n"
    text += "~~~python\n>>> int(x.sum())\n3\n~~~\n"
    assert check_examples(page(tmp_path, text)) == ([], 3)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a\n\n~~~python\n>>> 1 + 1\n2\n>>> 2 * 3\n5\n~~~\n", 6, "Got:\n        6"),
        ("~~~python\n>>> 1 / 0\n~~~\n", 2, "raised ZeroDivisionError"),
        ("~~~python\n>>>1\n~~~\n", 1, "lacks blank"),
        ("~~~text\n>>> 1\n1\n~~~\n", 1, "call it ```python"),
        ("- a\n\n  ~~~python\n  >>> 1\n  2\n  ~~~\n", 4, "Got:\n        1"),
    ],
)
def test_a_failing_example_is_reported_at_its_line(
    tmp_path: Path, text: str, line: int, message: str
) -> None:
    [problem], _ = check_examples(page(tmp_path, text))
    assert (problem.path, problem.line) == ("page.md", line)
    assert message in problem.message


def test_an_example_that_needs_a_missing_package_is_not_run(tmp_path: Path) -> None:
    text = "<!-- needs: no_such_package_here -->\n~~~python\n>>> 1\n2\n~~~\n"
    assert check_examples(page(tmp_path, text)) == ([], 0)
    assert check_examples(page(tmp_path, text.replace("no_such_package_here", "numpy")))[0]


def test_an_example_imports_what_lies_beside_its_page(tmp_path: Path) -> None:
    (tmp_path / "beside_this_page.py").write_text("ANSWER = 42\n")
    before = list(sys.path)
    text = "~~~python\n>>> from beside_this_page import ANSWER\n>>> ANSWER\n42\n\n~~~\n"
    assert check_examples(page(tmp_path, text)) == ([], 2)
    assert sys.path == before
    assert check_examples(page(tmp_path / "elsewhere", text.replace("beside_this", "not_this")))[0]


# --- source blocks ---

CODE = (
    "import functools\n\n\nclass A:\n    @functools.cache\n    def f(self):\n\n        return 1\n"
    "\n\nLIMIT = 3\n"
)
BLOCK = (
    "<!-- source: code.py A.f -->\n~~~python\n@functools.cache\ndef f(self):\n\n    return 1\n~~~\n"
)


def test_an_equal_source_block_passes(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(CODE)
    assert check_sources(page(tmp_path, BLOCK), tmp_path) == []


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (BLOCK.replace("return 1", "return 2"), 6, "now reads '    return 1'"),
        (BLOCK.replace("    return 1\n", ""), 6, "now reads '    return 1'"),
        (BLOCK.replace("A.f", "A.g"), 1, "does not define A.g"),
        (BLOCK.replace("A.f", "f"), 1, "did you mean A.f?"),
        (BLOCK.replace("code.py", "cod.py"), 1, "no file cod.py"),
        (BLOCK.replace(" A.f", ""), 1, "write <!-- source: PATH SYMBOL | from"),
        (BLOCK.replace("A.f", "A.f | upto x"), 1, "write <!-- source: PATH SYMBOL | from"),
        (BLOCK.replace("A.f", "A.f | from retur | to retur"), 3, "now reads 'return 1'"),
        (BLOCK.replace("A.f", "A.f | from f"), 1, "'f' stands on 2 lines of code.py A.f"),
        (BLOCK.replace("A.f", "A.f | from retur | to def"), 1, "`to` stands before `from`"),
        (BLOCK.replace("A.f", "A.f | no docstring"), 1, "has no docstring"),
        ("<!-- source: code.py LIMIT -->\nwords\n", 1, "must follow"),
    ],
)
def test_a_drifted_source_block_is_caught(
    tmp_path: Path, text: str, line: int, message: str
) -> None:
    (tmp_path / "code.py").write_text(CODE)
    [problem] = check_sources(page(tmp_path, text), tmp_path)
    assert problem.line == line
    assert message in problem.message


def test_a_block_may_show_a_part(tmp_path: Path) -> None:
    """From one line to another, at the left margin again, without the docstring."""
    said = CODE.replace("    def f(self):\n", '    def f(self):\n        """It\n        says."""\n')
    (tmp_path / "code.py").write_text(said)
    assert symbol_source("code.py", "A.f", tmp_path, ("from return",)) == "return 1"
    shown = symbol_source("code.py", "A.f", tmp_path, ("from def f", "no docstring"))
    assert shown == "def f(self):\n\n    return 1"
    shown = symbol_source("code.py", "A.f", tmp_path, ("from cache", "to says"))
    assert shown.endswith('"""It\n    says."""')


@pytest.mark.parametrize(
    "text",
    [
        BLOCK.replace("return 1", "return 2"),
        "a\n\n<!-- source: code.py LIMIT -->\n\nwords\n" + BLOCK.replace("    return 1\n", ""),
        "- a\n\n  <!-- source: code.py A.f -->\n  ~~~python\n  old\n  ~~~\n",
    ],
)
def test_fix_writes_source_blocks(tmp_path: Path, text: str) -> None:
    (tmp_path / "code.py").write_text(CODE)
    drifted = page(tmp_path, text)
    assert fix_sources(drifted, tmp_path)
    again = read_page(drifted.path, tmp_path)
    assert check_sources(again, tmp_path) == []
    assert fix_sources(again, tmp_path) == []
    assert ("words" in text) == ("words" in again.text)


# --- links ---


def test_slugs() -> None:
    assert github_slug("Lab 00-01: The KV-cache `speedup`") == "lab-00-01-the-kv-cache-speedup"
    assert site_slug("Lab 00-01: The KV-cache `speedup`") == "lab-00-01-the-kv-cache-speedup"
    assert github_slug("A & B") == "a--b"
    assert site_slug("A & B") == "a-b"
    assert github_slug("`num_tokens`, *then*") == "num_tokens-then"


def test_equal_headings_get_numbers(tmp_path: Path) -> None:
    made = anchors(page(tmp_path, "# A\n## A\n```\n# not one\n```\n## B {#here}\n"))
    assert made.github == {"a", "a-1", "b-here"}
    assert made.site == {"a", "a_1", "here"}


@pytest.mark.parametrize(
    "link",
    [
        "[x](b.md)", "[x](b.md#one-two)", "[x](#top)", "![x](pic.png)", "[x](folder/)", "[x](b.md#own)",
        "[x][b]\n\n[b]: b.md", "[x](https://example.org/none)", "`[x](none.md)`", "[x](code.py)",
        '<img src="pic.png">', "[`a` b](b.md)", "[x\ny](b.md)", "a lone [, then" + " [x](b.md)" * 40,
    ],
)  # fmt: skip
def test_a_live_link_passes(tmp_path: Path, link: str) -> None:
    (tmp_path / "pic.png").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "code.py").write_text("a\nb\n")
    other = page(tmp_path, '## One, two\n\n<a id="own"></a>\n## A & B\n', "b.md")
    assert check_links([page(tmp_path, f"# Top\n\n{link}\n"), other], tmp_path) == []


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ("[x](none.md)", "no such file"),
        ("[x](c.md)", "did you mean folder/c.md?"),
        ("[x](b.md#three)", "b.md has no heading #three"),
        ("[x](#nowhere)", "page.md has no heading #nowhere"),
        ("[x](b.md#a--b)", "works on GitHub but not on the site"),
        ("[x](b.md#a-b)", "works on the site but not on GitHub"),
        ("[x](b.md#One-two)", "no heading"),
        ("[x](/b.md)", "relative"),
        ("[x](../../out.md)", "out of the repository"),
        ("[x]()", "nowhere"),
        ("![x](none.png)", "no such file"),
        ('<a href="none.md">x</a>', "no such file"),
        ("[x][none]", "no such reference"),
        ("[x][b]\n\n[b]: none.md", "no such file"),
        ("[x](code.py#L2)", "code.py has no anchors; lines move"),
        ("[`a` b](none.md)", "no such file"),
    ],
)
def test_a_dead_link_or_anchor_is_caught(tmp_path: Path, link: str, message: str) -> None:
    (tmp_path / "code.py").write_text("a\nb\n")
    others = [
        page(tmp_path, "## One two\n## A & B\n", "b.md"),
        page(tmp_path, "c\n", "folder/c.md"),
    ]
    [problem] = check_links([page(tmp_path, f"# Top\n\n{link}\n"), *others], tmp_path)
    assert problem.path == "page.md"
    assert message in problem.message


# --- captured output ---

HEAD = "python -m tool --x | 2026-01-31 | 2 cores of an Example CPU | Python 3.11.9, numpy 2.2.1"


def output(root: Path, head: str = HEAD, body: str = "~~~text\nit printed this\n~~~\n") -> str:
    (root / "tool.py").write_text("")
    (root / "run.sh").write_text("")
    (root / "pyproject.toml").write_text('[project.scripts]\nmini = "tool:main"\n')
    text = f"# A\n\n<!-- output: {head} -->\n{body}<!-- end output -->\n"
    return said(check_outputs(page(root, text), root))


@pytest.mark.parametrize(
    "command",
    ["python -m tool", "python tool.py a", "X=1 uv run mini a", ".venv/bin/mini a", "bash run.sh",
     "run.sh", 'mini "a | b" | head -3', "vllm serve x"],
)  # fmt: skip
def test_a_good_output_block_passes(tmp_path: Path, command: str) -> None:
    assert output(tmp_path, HEAD.replace("python -m tool --x", command)) == ""


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("python -m tool", "write <!-- output:"),
        (HEAD.replace("2026-01-31", "31 Jan 2026"), "is no date"),
        (HEAD.replace("2026-01-31", "2999-01-31"), "still to come"),
        (HEAD.replace("2 cores of an Example CPU", ""), "write <!-- output:"),
        (HEAD.replace("numpy 2.2.1", "numpy"), "'numpy' is no version"),
        (HEAD.replace("-m tool", "-m tools"), "no module tools"),
        (HEAD.replace("-m tool", "tools.py"), "no script of this repository"),
        (HEAD.replace("python -m tool", "maxi"), "no command that it installs"),
    ],
)
def test_a_bad_output_head_is_caught(tmp_path: Path, head: str, message: str) -> None:
    assert message in output(tmp_path, head)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "is empty"),
        ("\n", "is empty"),
        ("~~~text\n~~~\n", "is empty"),
        ("~~~text\n\n~~~\n", "is empty"),
        ("    indented\n", "in one ```text block"),
        ("~~~python\nx\n~~~\n", "call it ```text"),
    ],
)
def test_a_bad_output_body_is_caught(tmp_path: Path, body: str, message: str) -> None:
    assert message in output(tmp_path, body=body)


def test_output_blocks_must_begin_and_end(tmp_path: Path) -> None:
    output(tmp_path)
    text = f"<!-- output: {HEAD} -->\n```text\na\n```\n"
    assert "no <!-- end output -->" in said(check_outputs(page(tmp_path, text), tmp_path))
    assert "ends no block" in said(check_outputs(page(tmp_path, "<!-- end output -->\n"), tmp_path))


# --- terms ---


def terms(root: Path, glossary: str = GLOSSARY, **texts: str) -> str:
    made = [page(root, text, f"phase-00/{name}.md") for name, text in texts.items()]
    return said(check_terms([page(root, glossary, "GLOSSARY.md"), *made], root))


def test_terms_compare_in_the_singular_and_lower_case() -> None:
    assert normal("`Blocks`") == normal("block")
    assert normal("num_tokens") != normal("num_token")
    assert normal("Prefix caching class") == "prefix caching class"


def test_good_terms_pass(tmp_path: Path) -> None:
    text = "A **block** and the next **step**.\n\n**Run it.** So.\n\n| **total** | **12** |\n\n`**kwargs**`\n"
    assert terms(tmp_path, a=text, b="No bold here: 2**3 and 2**4.\n") == ""


@pytest.mark.parametrize(
    ("glossary", "texts", "message"),
    [
        (GLOSSARY + "\n**block.** Again.\n", {}, "stands here twice, first in line 3"),
        (GLOSSARY + "\n**Core.** Late.\n", {}, "out of alphabetical order"),
        (GLOSSARY, {"a": "A **wheel**.\n"}, "GLOSSARY.md has none"),
        (GLOSSARY, {"a": "A **block**.\n", "b": "Many **blocks**.\n"}, "in phase-00/a.md:1"),
        (GLOSSARY, {"a": "A **block**, a **block**.\n"}, "in phase-00/a.md:1"),
    ],
)
def test_bad_terms_are_caught(
    tmp_path: Path, glossary: str, texts: dict[str, str], message: str
) -> None:
    assert message in terms(tmp_path, glossary, **texts)
