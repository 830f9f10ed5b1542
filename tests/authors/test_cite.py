"""Citations: the repository's own are right, and each kind of wrong one is caught."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cite_helpers import Small, real

from course.cite.check import check, fix
from course.cite.correspond import pair_symbols
from course.cite.index import INDEX, NEW, Index, Tree, cited, find_tree, write_index
from course.cite.names import check_names, used_names
from course.cite.share import citation_share
from course.cite.text import SITE, find_all
from course.docs.pages import ROOT, Page, pages, read_page

PLACE = '"@/v1/request.py:6 Request"'


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return Small(tmp_path)


# --- the repository itself ---


def test_every_citation_of_the_repository_holds_by_the_index() -> None:
    index = Index()
    found = find_all(ROOT, index.release)
    assert len(found.citations) > 100, "the search for citations has gone blind"
    problems = [*found.problems, *check(found, index), *check_names(index.names)]
    assert not problems, "course cite check:\n" + "\n".join(map(str, problems))


def test_every_citation_of_the_repository_holds_in_the_readers_tree() -> None:
    index = Index()
    tree = find_tree(ROOT, index.release)
    if tree is None or tree.release not in (None, index.release):
        pytest.skip(f"no vLLM {index.release} tree on this machine")
    problems = check(find_all(ROOT, index.release), tree)
    assert not problems, "\n".join(map(str, problems))


def test_the_index_is_what_the_pages_and_the_tree_make_it(tmp_path: Path) -> None:
    """Written again it is the same, so after a merge one command mends it."""
    index = Index()
    tree = find_tree(ROOT, index.release)
    if tree is None or tree.release not in (None, index.release):
        pytest.skip(f"no vLLM {index.release} tree on this machine")
    names = (name for _, _, name in used_names())
    facts = cited(find_all(ROOT, index.release), pair_symbols(), names)
    write_index(tree, index.release, facts, tmp_path / "index.tsv", kept=index)
    wanted, there = (tmp_path / "index.tsv").read_text(), INDEX.read_text()
    unlike = sorted({*wanted.splitlines()} ^ {*there.splitlines()})
    assert wanted == there, f"run `course cite index`: {unlike[:5]}"


def test_the_index_holds_facts_and_no_source() -> None:
    """Every row is names, numbers and hashes: nothing in which a line of source could stand."""
    shape = re.compile(
        r"# .*|env\tVLLM_\w+|flag\t--[\w-]+|field\t\w+\t[\w ]+|folder\t[\w./-]+"
        r"|file\t[\w./-]+\t\d+|symbol\t[\w./-]+\t[\w.:~]+(\t\d+){3}\t[0-9a-f]{6}"
        r"|line\t[\w./-]+\t\d+\t[0-9a-f]{8}"
    )
    rows = INDEX.read_text(encoding="utf-8").splitlines()
    assert not [row for row in rows if not shape.fullmatch(row)][:5]
    assert sum(row.startswith("#") for row in rows) == 3
    assert INDEX.stat().st_size < 240_000, "it holds more than what is cited"


SHARES = {"00-": 0.10, "01-": 0.15}


@pytest.mark.parametrize(
    "page", [p for p in pages() if p.path.name[:3] in SHARES], ids=lambda page: page.name
)
def test_citations_do_not_drown_the_page(page: Page) -> None:
    share, limit = citation_share(page, Index().release), SHARES[page.path.name[:3]]
    assert share < limit, f"{share:.1%} of {page.name} is the text of citations"


def test_the_share_counts_what_a_reader_sees(small: Small) -> None:
    link = '[`abcde`](URL/x.py#L1 "@/v1/x.py:1 abcde")'.replace("URL", f"{SITE}/blob/v1.0.0/@")
    small.page(f"<!-- no -->\n# Title\n\nwords {link} and\n\n```text\ncode\n```\n")
    page = read_page(small.root / "page.md", small.root)
    assert citation_share(page, "1.0.0") == 5 / len("Titlewordsabcdeandcode")


# --- what is right ---


@pytest.mark.parametrize(
    "place",
    [
        "@/v1/request.py:6 Request",
        "@/v1/request.py:14 Request.num_tokens",
        "@/v1/request.py:7 Request.kind",
        "@/v1/request.py:10 Request.tokens",
        "@/v1/request.py:3 LIMIT",
        "@/v1/request.py:26 in Request.grow",
        "@/v1/request.py:13 in Request.num_tokens",
        "@/v1/request.py:14-16 Request.num_tokens",
        "@/v1/request.py:26",
        "%/attention/kernel.cu:8 paged_kernel",
        "%/attention/kernel.cu:14 Params::size",
        "%/attention/kernel.cu:2 DIVIDE",
    ],
)
def test_a_right_citation_passes(small: Small, place: str) -> None:
    small.cite(place)
    assert len(small.found().citations) == 1
    assert small.problems() == []


def test_python_is_read_in_docstrings_and_comments(small: Small) -> None:
    text = '"""Source: `@/v1/request.py:6 Request`."""\nx = 1  # @/v1/request.py:26\n'
    small.page(text, "course/mod.py")
    assert [c.text() for c in small.found().citations] == [
        real("@/v1/request.py:6 Request"),
        real("@/v1/request.py:26"),
    ]
    assert small.problems() == []


def test_captured_output_is_not_read(small: Small) -> None:
    small.page(
        "<!-- output: x -->\n```text\n@/v1/request.py:999 and queue.py:3\n```\n<!-- end output -->\n"
    )
    assert small.problems() == []


# --- planted faults: check ---


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("@/v1/request.py:15 Request.num_tokens", "Request.num_tokens is defined at line 14"),
        (
            "@/v1/request.py:999 Request.num_tokens",
            "27 lines; Request.num_tokens is defined at line 14",
        ),
        ("@/v1/request.py:14 Request.last", "line 14 is the definition of Request.num_tokens"),
        ("@/v1/request.py:14 Request.missing", "does not define Request.missing"),
        ("@/v1/request.py:14 num_tokens", "but Request.num_tokens at line 14"),
        ("@/v1/request.py:1 Queue", "Queue is defined at @/v1/core/queue.py:1"),
        ("@/v1/request.py:14 in Request.grow", "Request.grow covers lines 22 to 27"),
        ("@/v1/request.py:25", "line 25 is blank; Request.grow is defined at line 22"),
        ("@/v1/request.py:40", "27 lines"),
        ("@/v1/request.py:0", "27 lines"),
        ("@/v1/request.py:16-14", "27 lines"),
        ("@/v1/queue.py:1 Queue", "no such file; Queue is defined at @/v1/core/queue.py:1"),
        ("%/attention/kernel.cu:9 paged_kernel", "paged_kernel is defined at line 8"),
    ],
)
def test_a_wrong_citation_is_caught(small: Small, place: str, said: str) -> None:
    small.cite(place)
    [problem] = small.problems()
    assert problem.startswith(real(f"page.md:1: {place}:")), problem
    assert real(said) in problem, problem


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[`Request`](URL/@/v1/request.py#L7 'PLACE')", "its link leads elsewhere"),
        ("[`Request`](URL/@/v1/core/queue.py#L6 'PLACE')", "its link leads elsewhere"),
        ("[`Request`](page.md 'PLACE')", "its link leads elsewhere"),
        ("[`Request`](SITE/blob/v0.9.0/@/v1/request.py#L6 'PLACE')", "the pin is v1.0.0"),
        ("[the class](URL/@/v1/request.py#L6)", "the link's title must be"),
        ("[the class](URL/@/v1/request.py#L6 'PLACE')", "the link's text must be `Request`"),
        ("[`Queue`](URL/@/v1/request.py#L6 'PLACE')", "the link's text must be `Request`"),
        ("[`@/v1/request.py:6 Request`](URL/@/v1/request.py#L6)", "and the citation its title"),
        ("<a href='URL/@/v1/request.py#L6'>it</a>", "`course cite fix` links it"),
        ("`@/v1/request.py:6 Request`", "not linked (`course cite fix`"),
        ("@/v1/request.py:6", "set it in backticks"),
        (
            "[`@/v1/request.py:14 Request.num_tokens()`](URL/@/v1/request.py#L14)",
            "without parentheses",
        ),
        ("`request.py:14`", "name the whole path"),
        ("`@/v1/requests.py`", "did you mean @/v1/request.py?"),
        ("`@/v2/`", "no such file or folder"),
    ],
)
def test_a_breach_of_the_grammar_is_caught(small: Small, text: str, said: str) -> None:
    small.page("words\n\n" + text.replace("URL", "SITE/blob/v1.0.0").replace("'PLACE'", PLACE))
    file = small.root / "page.md"
    file.write_text(file.read_text().replace("SITE", SITE))
    problems = small.problems()
    assert problems, "nothing was said"
    assert problems[0].startswith("page.md:3: "), problems
    assert any(real(said) in p for p in problems), problems


def test_a_symbol_cut_off_by_a_line_break_is_caught(small: Small) -> None:
    small.page('"""Source: `@/v1/request.py:6\nRequest`."""\n', "course/mod.py")
    assert "close the backticks" in small.problems()[0]


def test_a_bare_file_name_in_a_docstring_is_caught_and_in_a_string_is_not(small: Small) -> None:
    small.page('"""See request.py:6."""\nx = "request.py:6"\n', "course/mod.py")
    [problem] = small.problems()
    assert problem.startswith("course/mod.py:1: request.py:6: name the whole path")


BODY = "def a():\n    first()\n    second()\n\n\ndef b():\n    pass\n"


@pytest.mark.parametrize(
    "text",
    [
        '[`b`](../course/mod.py "course/mod.py b")',
        '[`a`](../course/mod.py "course/mod.py in a: second()")',
        '[`b`](../tests/mod.py "tests/mod.py b")',
        "`tests/mod.py c`",  # outside of a package it may be a script and its argument
        "`course/mod.py`",
    ],
)
def test_a_citation_of_this_repository_names_a_symbol(small: Small, text: str) -> None:
    for name in ("course/mod.py", "tests/mod.py"):
        small.page(BODY, name)
    small.page(f"{text}\n", "phase/page.md")
    assert small.problems() == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[`c`](course/mod.py "course/mod.py c")', "course/mod.py does not define c"),
        ('[`b`](course/no.py "course/no.py b")', "this repository has no file course/no.py"),
        ('[`a`](course/mod.py "course/mod.py in a: third()")', "stands 0 times in a, not once"),
        ('[`b`](course/mod.py#L6 "course/mod.py b")', "leads elsewhere, to course/mod.py#L6"),
        ('[`b`](course/mod.py "course/mod.py a")', "the link's text must be `a`"),
        ('[`b`](course/mod.py#L6 "course/mod.py:6 b")', "lines of this repository move"),
        ('[`a`](course/mod.py#L3 "course/mod.py:3 in a")', "name the symbol alone"),
        ("`course/mod.py:2`", "name a symbol, as in `course/mod.py a`"),
        ("`course/mod.py b`", "not linked (`course cite fix`"),
    ],
)
def test_a_wrong_citation_of_this_repository_is_caught(small: Small, text: str, said: str) -> None:
    small.page(BODY, "course/mod.py")
    small.page(f"{text}\n")
    assert any(said in problem for problem in small.problems()), small.problems()


def test_a_citation_of_this_repository_in_python_is_checked_too(small: Small) -> None:
    small.page(BODY, "course/mod.py")
    small.page('"""See `course/mod.py b` and `course/mod.py c`."""\n', "tests/other.py")
    [problem] = small.problems()
    assert problem.startswith("tests/other.py:1: course/mod.py c: course/mod.py does not define c")


@pytest.mark.parametrize(
    ("text", "fixed"),
    [
        ("`course/mod.py b`", '[`b`](course/mod.py "course/mod.py b")'),
        (
            '`course/mod.py in a: go(x["y"] | 1 < 2)`',
            '[`a`](course/mod.py "course/mod.py in a: go(x&#91;&#34;y&#34;&#93; &#124; 1 &#60; 2)")',
        ),
        (
            '[`b`](course/mod.py#L5 "course/mod.py:5 b")',
            '[`b`](course/mod.py "course/mod.py b")',
        ),
        (
            '[`a`](course/mod.py#L2 "course/mod.py:2 in a")',
            '[`a`](course/mod.py "course/mod.py a")',
        ),
    ],
)
def test_fix_writes_the_link_without_a_line(small: Small, text: str, fixed: str) -> None:
    small.page(BODY.replace("first()", 'go(x["y"] | 1 < 2)'), "course/mod.py")
    small.page(f"{text}\n")
    _, looks = fix(small.found(), small.index, small.index, "1.0.0", small.root)
    assert looks == []
    assert small.text() == f"{fixed}\n"
    assert small.problems() == []


def test_fix_takes_the_line_out_of_a_docstring(small: Small) -> None:
    small.page(BODY, "course/mod.py")
    small.page('"""See `course/mod.py:5 b`."""\n', "course/other.py")
    fix(small.found(), small.index, small.index, "1.0.0", small.root)
    assert small.text("course/other.py") == '"""See `course/mod.py b`."""\n'


def test_fix_does_not_link_what_is_not_there(small: Small) -> None:
    small.page(BODY, "course/mod.py")
    small.page("`course/mod.py c`\n")
    edits, looks = fix(small.found(), small.index, small.index, "1.0.0", small.root)
    assert edits == []
    assert [(look.kind, look.message) for look in looks] == [
        ("vanished", "course/mod.py does not define c")
    ]


def test_a_tree_without_csrc_says_nothing_of_it(small: Small, tmp_path: Path) -> None:
    small.cite("%/attention/kernel.cu:99 paged_kernel")
    (tmp_path / "tree" / "csrc" / "attention" / "kernel.cu").unlink()
    for folder in ("attention", ""):
        (tmp_path / "tree" / "csrc" / folder).rmdir()
    assert check(small.found(), Tree(tmp_path / "tree"), small.root) == []


# --- what the index does not know ---


@pytest.mark.parametrize(
    ("before", "place"),
    [
        ("@/v1/request.py:6 Request", "@/v1/core/queue.py:1 Queue"),
        ("@/v1/request.py:6 Request", "@/v1/request.py:14 Request.num_tokens"),
        ("@/v1/request.py:6 Request", "@/v1/request.py:26"),
        ("@/v1/request.py:26 in Request.grow", "@/v1/request.py:27 in Request.grow"),
    ],
)
def test_a_new_citation_needs_a_tree_and_says_so(small: Small, before: str, place: str) -> None:
    small.cite(before)
    index = small.index
    small.cite(place)
    assert check(small.found(), small.tree, small.root) == []
    [problem] = check(small.found(), index, small.root)
    assert str(problem).startswith(f"page.md:1: {real(place)}: not in the index")
    assert NEW in str(problem)
    assert "\n" not in str(problem)
    assert check(small.found(), small.index, small.root) == [], "written again it knows it"


def test_a_new_path_needs_a_tree_and_says_so(small: Small) -> None:
    small.cite("@/v1/request.py:6 Request")
    index = small.index
    small.page("See `@/v1/core/` and `@/v1/core/queue.py`.\n", "more.md")
    problems = list(map(str, check(small.found(), index, small.root)))
    assert len(problems) == 2
    assert all("not in the index" in p and NEW in p for p in problems)
    assert check(small.found(), small.index, small.root) == []


def test_each_page_is_read_once(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check without a tree costs a look at each page, and at the index."""
    small.cite("@/v1/request.py:6 Request")
    small.cite("@/v1/request.py:14 Request.num_tokens", "two.md")
    index, read = small.index, list[str]()
    whole = Path.read_text

    def counted(path: Path, *args: str | None, **more: str | None) -> str:
        read.append(path.name)
        return whole(path, *args, **more)

    monkeypatch.setattr(Path, "read_text", counted)
    check(small.found(), index, small.root)
    assert sorted(read) == ["page.md", "two.md"]
