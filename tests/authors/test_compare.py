"""`course compare`: what stands beside what, what is folded, and a page that is made without vLLM's text."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

import pytest
from compare_helpers import (
    AGAIN,
    CLASS,
    FILE,
    GROW,
    OTHER,
    OURS,
    OWN,
    RUN,
    THEIRS,
    line_of,
    match,
    readers_vllm,
    small_page,
)

from course.cite import compare_command
from course.cite.compare import (
    Match,
    Section,
    left_out,
    matches,
    mirrored,
    paired_files,
    same_names,
    sections,
    unknown_names,
)
from course.cite.compare_command import chosen, compare_page
from course.cite.compare_page import highlight
from course.cite.correspondence import GROUPS
from course.cite.index import Index, Tree
from course.cite.pair import Pair
from course.cite.source_file import SourceFile
from course.docs.pages import ROOT
from course.learner.cli import main

INDEX = Index()
Capsys = pytest.CaptureFixture[str]


def beside(*found: Match, read: bool = True) -> list[Section]:
    return sections(OWN, found, lambda path: OTHER if read else None)


def the(parts: list[Section], what: str) -> Section:
    """The section that begins with the match of this name."""
    return next(s for s in parts if any(m.what == what for m in s.matches))


def shown(section: Section) -> list[str]:
    return [OTHER.lines[line - 1].strip() for line in sorted(section.shown)]


# --- what stands beside what ---


def test_our_lines_come_all_once_and_in_order() -> None:
    for found in ((), (GROW,), (CLASS, RUN, GROW, AGAIN), (AGAIN, GROW, RUN)):
        lines = [line for section in beside(*found) for line in section.mine]
        assert lines == list(range(1, len(OWN.lines) + 1))


def test_a_section_begins_with_its_pair_on_both_sides() -> None:
    parts = beside(RUN, GROW, AGAIN)
    for pair in (RUN, GROW):
        section = the(parts, pair.what)
        assert (section.mine.start, section.theirs.start) == (pair.mine, pair.line)
        assert (section.why, section.path, section.symbol) == ("pair", FILE, "BasePart.run")
    assert the(parts, "grow").mine.stop == AGAIN.mine, "it ends where the next pair begins"
    last = the(parts, "again")
    assert last.theirs.start == AGAIN.line


def test_what_has_no_partner_is_folded_and_paired_statements_and_their_heads_are_not() -> None:
    parts = beside(RUN, GROW, AGAIN)
    run = the(parts, "`run`")
    assert shown(run) == ["def run(self, n):"], "docstring and what we leave out are folded"
    assert line_of(THEIRS, "count_roots") in run.theirs
    assert shown(the(parts, "grow")) == ["self.grow(n)", "while n and self.rest:", "if water:"]
    again = the(parts, "again")
    assert shown(again) == ["self.again(n)"], "five lines with nothing beside them are a fold"
    same = next(s for s in parts if s.why == "same")
    assert shown(same) == ["self.finish_this_part(n)", "return sugar"]


def test_lines_are_never_in_two_sections_of_an_excerpt() -> None:
    parts = beside(RUN, GROW, AGAIN)
    lines = [line for section in parts for line in section.theirs]
    assert len(lines) == len(set(lines))
    assert set(lines) == set(range(line_of(THEIRS, "def run"), line_of(THEIRS, "return sugar") + 1))


def test_a_pair_that_goes_back_up_begins_a_new_excerpt() -> None:
    late = match("late", "self.grow(n)", "self.store(sugar)")
    early = match("early", "self.again(n", "ready = n > 0")
    parts = beside(late, early)
    assert [s.why for s in parts if s.theirs] == ["lead", "pair", "lead", "pair"]
    for name, pair in (("late", late), ("early", early)):
        section = the(parts, name)
        lead = parts[parts.index(section) - 1]
        assert (lead.why, len(lead.mine), lead.theirs.stop) == ("lead", 0, pair.line)
        assert section.mine.start == pair.mine


def test_equal_lines_between_pairs_are_paired_and_trifles_are_not() -> None:
    same = [m for s in beside(RUN, GROW, AGAIN) for m in s.matches if m.equal]
    assert [OWN.lines[m.mine - 1].strip() for m in same] == ["self.finish_this_part(n)"]
    assert not [m for s in beside(GROW) for m in s.matches if m.equal], "nothing after a last pair"


def test_pairs_of_one_statement_are_one_section() -> None:
    one = match("one", "while n and (", "while n and self.rest")
    two = match("two", "            self.rest", "if water:")
    section = the(beside(GROW, one, two), "one")
    assert [m.what for m in section.matches] == ["one", "two"]
    assert section.mine.start == line_of(OURS, "while n and (")
    assert {one.line, two.line} <= section.shown


def test_a_function_that_is_paired_as_a_whole_is_open_but_for_its_docstring() -> None:
    section = the(beside(RUN), "`run`")
    open_lines = shown(section)
    assert "water = self.drink(leaves, roots)" in open_lines
    assert "with a" not in open_lines
    text = "def f(n):\n" + "".join(f"    n = step_{i}(n)\n" for i in range(100))
    own, other = SourceFile("def f(n):\n    return n\n"), SourceFile(text)
    [lead, part] = sections(own, [Match("f", 1, FILE, "f", 1)], lambda path: other)
    assert lead.why == "lead"
    assert 2 <= len(part.shown) < 10, "of a long one, about as much as ours has"
    assert len(part.theirs) == 101


def test_without_a_tree_sections_have_pairs_and_no_lines() -> None:
    parts = beside(RUN, GROW, read=False)
    assert [m for s in parts for m in s.matches] == [RUN, GROW]
    assert not any(s.theirs or s.shown for s in parts)


def test_functions_of_the_same_name_are_paired_also_in_a_class_that_has_another() -> None:
    for known in ([CLASS], [CLASS, GROW], [GROW]):
        found = same_names(OWN, known, [FILE], lambda path: OTHER)
        assert [m.symbol for m in found] == ["BasePart.run", "BasePart.alone", "helper"]
    assert same_names(OWN, [CLASS, RUN], [FILE], lambda path: OTHER)[0].symbol == "BasePart.alone"
    assert same_names(OWN, [CLASS], [FILE], lambda path: None) == []


def test_the_rest_of_their_class_stands_after_ours() -> None:
    parts = beside(CLASS, RUN)
    at = next(n for n, s in enumerate(parts) if s.why == "rest")
    assert [s.name for s in parts[at].rest] == ["BasePart.count_leaves", "BasePart.alone"]
    assert parts[at + 1].mine.start == line_of(OURS, "return self.rest") + 1
    assert the(parts, "`Part`").theirs.stop <= line_of(THEIRS, "def run"), "the class, no methods"


def test_what_a_fold_is_said_to_hold() -> None:
    lines = range(line_of(THEIRS, "ready = n"), line_of(THEIRS, "water = self"))
    assert unknown_names(OTHER, lines, OWN)[:2] == ["ready", "leaves"]
    assert "photosynthesis" not in unknown_names(OTHER, lines, OWN)
    text = small_page()
    assert "not in ours: leaves, ready" in text
    assert "1 more function of BasePart, not in this file of ours" in text


def test_what_ours_leaves_out_is_read_from_its_docstring() -> None:
    assert left_out(OURS) == "leaves and roots."
    assert left_out('"""No word of it."""\n') == left_out("x = 1\n") == ""
    assert "KV connectors" in left_out((ROOT / "mini_vllm/core/sched/scheduler.py").read_text())


# --- the pairs ---


def test_pairs_come_from_the_groups_and_the_docstrings_once(tmp_path: Path) -> None:
    (tmp_path / "mini_vllm").mkdir()
    source = (
        '"""As in `@/part.py`."""\ndef run(n):\n    """Source: `@/part.py:9 BasePart.run`."""\n'
    )
    (tmp_path / "mini_vllm" / "part.py").write_text(source.replace("@", "vllm") + "    go(n)\n")
    tree = tmp_path / "theirs" / "vllm"
    tree.mkdir(parents=True)
    (tree / "envs.py").touch()
    (tree / "part.py").write_text(THEIRS)
    run = Pair("in words", "mini_vllm/part.py run", "vllm/part.py BasePart.run")
    gone = Pair("gone", "mini_vllm/part.py run", "vllm/part.py BasePart.fly")
    other = Pair("not here", "mini_vllm/whole.py run", "vllm/part.py BasePart.run")
    groups = {"some": (run, gone, other)}
    found, wrong = matches("mini_vllm/part.py", Tree(tree), groups, tmp_path)
    assert found == [Match("in words", 2, "vllm/part.py", "BasePart.run", 9)]
    assert wrong == [
        "mini_vllm/part.py run <-> vllm/part.py BasePart.fly: vLLM has no BasePart.fly in vllm/part.py"
    ]
    assert mirrored("mini_vllm/part.py", tmp_path) == ["vllm/part.py"]


def test_every_pair_of_the_repository_is_on_a_page() -> None:
    assert {p.mine.split(" ")[0] for pairs in GROUPS.values() for p in pairs} <= set(paired_files())
    for name in paired_files():
        found, wrong = matches(name, INDEX)
        assert not wrong
        own = SourceFile((ROOT / name).read_text())
        parts = sections(own, found, lambda path: None)
        assert [line for s in parts for line in s.mine] == list(range(1, len(own.lines) + 1))
        assert {m for s in parts for m in s.matches} == set(found), name


def test_pairs_in_the_readers_tree_stand_level() -> None:
    """Each begins its section with its own statement on either side, and what it names is open."""
    tree = readers_vllm()

    @cache
    def read(path: str) -> SourceFile | None:
        lines = tree.lines(path)
        return SourceFile("\n".join(lines)) if lines is not None else None

    for name in (
        "mini_vllm/core/sched/scheduler.py",
        "mini_vllm/engine/llm_engine.py",
        "mini_vllm/worker/model_runner.py",
    ):
        own = SourceFile((ROOT / name).read_text())
        found, wrong = matches(name, tree)
        assert not wrong
        assert len(found) >= 10
        parts = sections(own, found, read)
        assert [line for s in parts for line in s.mine] == list(range(1, len(own.lines) + 1))
        assert {m for s in parts for m in s.matches if not m.equal} == set(found)
        for section in (s for s in parts if s.matches):
            theirs, first = read(section.path), section.matches[0]
            assert theirs is not None
            assert section.theirs.start in theirs.statement(first.line)
            assert all(m.line in section.shown for m in section.matches)
            assert any(m.equal for m in section.matches) == (section.why == "same")


# --- the page ---


def test_the_links_only_page_has_no_line_of_vllms() -> None:
    names = paired_files()[:16]
    html, count, wrong = compare_page(names, None, INDEX)
    assert not wrong
    assert count > 100
    rights = re.findall(r'<div class="pane theirs".*?</section>', html, re.DOTALL)
    assert len(rights) == len(names)
    for right in rights:
        assert "<code>" not in right
        assert 'class="fold"' not in right
        text = re.sub(r"<[^>]+>", " ", right)
        assert not re.search(r"\b(def|import|self\.|return) ", text)
    link = f'href="https://github.com/vllm-project/vllm/blob/v{INDEX.release}/vllm/v1/core/sched/'
    assert link in rights[names.index("mini_vllm/core/sched/scheduler.py")]


def test_the_page_fetches_nothing_and_runs_nothing_but_its_own() -> None:
    html = small_page(title="<img src=x onerror=alert(1)>")
    assert "<img" not in html
    policy = re.search(r'Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    for tag in ("script", "style"):
        text = re.search(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        assert text is not None
        digest = base64.b64encode(hashlib.sha256(text[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy[1]
    assert re.findall(r'(?:src|<link[^>]*href)="(?!data:)', html) == []


def test_code_is_text_on_the_page() -> None:
    text = 'x = "<b>" & y  # <i>\ns = """a\n\n</script>"""'
    lines = highlight(text)
    assert len(lines) == 4
    assert re.sub(r"<[^>]*>", "", "\n".join(lines)) == (
        text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    )


# --- the command ---


def test_a_file_is_found_by_name_and_by_path() -> None:
    wanted = ["mini_vllm/core/sched/scheduler.py"]
    for name in (
        "scheduler.py",
        "mini_vllm/core/sched/scheduler.py",
        "./mini_vllm/core/sched/scheduler.py",
    ):
        assert chosen(name) == wanted
    assert chosen("paged.py") == chosen("attention/paged.py") == ["mini_vllm/attention/paged.py"]
    assert chosen(None) == paired_files()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nobody.py", "mini_vllm has no file nobody.py"),
        ("blas.py", "mini_vllm/utils/blas.py names no counterpart in vLLM"),
        ("__main__.py", "__main__.py may be any of mini_vllm/entrypoints/cli/__main__.py, "),
        ("../pyproject.toml", "mini_vllm has no file"),
    ],
)
def test_a_file_that_is_none(name: str, message: str, capsys: Capsys) -> None:
    assert main(["compare", name, "--links", "--no-open"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


def small_tree(folder: Path, version: str) -> Path:
    (folder / "vllm").mkdir(parents=True)
    (folder / "vllm" / "envs.py").touch()
    (folder / "vllm" / "_version.py").write_text(f"__version__ = version = '{version}'\n")
    return folder


def test_what_a_tree_lacks_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.setattr(compare_command, "find_tree", lambda root, release: None)
    newer = small_tree(tmp_path / "newer", "0.23.0")
    for options, message in (
        ([], "no vLLM source here: scripts/get_upstream.sh fetches it (UPSTREAM_PIN.md"),
        (["--tree", str(tmp_path)], "is no vLLM tree"),
        (["--tree", str(newer)], "is vLLM 0.23.0, the pin is 0.22.1"),
        (["--links", "-o", str(tmp_path / "none" / "page.html")], "No such file or directory"),
    ):
        assert main(["compare", "scheduler.py", "--no-open", *options]) == 2
        said = capsys.readouterr()
        [line] = said.err.splitlines()
        assert message in line
        assert said.out == ""


def test_a_page_is_written_and_not_opened_unless_somebody_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(compare_command.webbrowser, "open", opened.append)
    target = tmp_path / "page.html"
    for seen, options in ((False, []), (True, ["--no-open"]), (True, [])):
        monkeypatch.setattr("sys.stdout.isatty", lambda seen=seen: seen, raising=False)
        assert main(["compare", "scheduler.py", "--links", "-o", str(target), *options]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[-1].startswith(f"{target}: 1 file, ")
    assert said.err == ""
    assert "mini_vllm/core/sched/scheduler.py beside vLLM 0.22.1" in target.read_text()
    assert opened == [target.as_uri()]


def test_pairs_that_the_tree_lacks_are_left_out_and_named(tmp_path: Path, capsys: Capsys) -> None:
    tree = small_tree(tmp_path / "tree", "0.22.1")
    target = tmp_path / "page.html"
    command = [
        "compare",
        "core/sched/output.py",
        "--tree",
        str(tree),
        "-o",
        str(target),
        "--no-open",
    ]
    assert main(command) == 0
    said = capsys.readouterr().err.splitlines()
    assert said
    assert all(line.startswith("course compare: left out: mini_vllm/") for line in said)
