"""What the site's pages are, and which terms they explain: no generator needed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from site_helpers import GLOSSARY, ROOT, written

from course.docs.pages import CODE, TEXT, pages
from course.learner.labs import MISTAKES
from course.site.pages import read_site
from course.site.screenshots import SHOTS

# -- what the pages are: no generator needed ------------------------------------------------------


def lab_readme(phase: int, lab: int, needs: str = "") -> str:
    return (
        f"---\nphase: {phase}\nlab: {lab}\ntitle: L\ntag: GPU-OPT\nminutes: 7\n"
        f"prerequisites: [{needs}]\n---\n\n# Lab {phase:02}-{lab:02}: L\n\nText.\n"
    )


def test_order_is_made_from_what_is_there(tmp_path: Path) -> None:
    """Phases by number, however many; in one, the numbered pages, the labs, then the rest."""
    names = [
        "CONTRIBUTING.md", "GLOSSARY.md", "README.md", "SETUP.md",
        "phase-19-late/00-guide.md",
        "phase-02-two/00-guide.md", "phase-02-two/03-more.md", "phase-02-two/01-deep-dive.md",
        "phase-02-two/CHEATSHEET.md", "phase-02-two/EXERCISES.md", "phase-02-two/INTERVIEW.md",
        "phase-02-two/00-further.md", "phase-02-two/NOTES.md", "phase-02-two/labs/README.md",
    ]  # fmt: skip
    files = {"pyproject.toml": 'name = "mini-vllm-course"\n', **dict.fromkeys(names, "# X\n")}
    for lab in (10, 2):
        files[f"phase-02-two/labs/lab-{lab:02}-x/README.md"] = lab_readme(2, lab)
    made = read_site(written(tmp_path, files))
    assert made.order == [
        "README.md", "SETUP.md",
        "phase-02-two/00-guide.md", "phase-02-two/00-further.md",
        "phase-02-two/01-deep-dive.md", "phase-02-two/03-more.md",
        "phase-02-two/labs/README.md",
        "phase-02-two/labs/lab-02-x/README.md", "phase-02-two/labs/lab-10-x/README.md",
        "phase-02-two/EXERCISES.md", "phase-02-two/INTERVIEW.md", "phase-02-two/CHEATSHEET.md",
        "phase-02-two/NOTES.md",
        "phase-19-late/00-guide.md",
        "GLOSSARY.md", "CONTRIBUTING.md",
    ]  # fmt: skip
    assert set(made.order) <= made.pages.keys()


def test_links_to_files_lead_to_pages_that_show_them(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "raw.bin").write_bytes(b"\xff\xfe\x00")
    text = (
        "# Home\n\n[a](src/a.py#L3), [b](data), [c](notes/x.md#part), [d](https://e.org/a.py), "
        "`[e](src/a.py)`, ![f](f.png), [g](src), [h](#here), [i](gone.py)\n\n[r]: src/a.py\n"
    )
    files = {
        "pyproject.toml": 'name = "mini-vllm-course"\n', "README.md": text, "f.png": "",
        "src/a.py": 's = "```"\n', "src/README.md": "# Source\n", "notes/x.md": "# X\n\n## Part\n",
    }  # fmt: skip
    made = read_site(written(tmp_path, files))
    home = made.pages["README.md"]
    assert "[a](src/a.py.md), [b](data/index.md), [c](notes/x.md#part)" in home
    assert "[d](https://e.org/a.py), `[e](src/a.py)`, ![f](f.png), [g](src/README.md)" in home
    assert "[h](#here), [i](gone.py)" in home, "what is broken is left for the generator to report"
    assert "[r]: src/a.py.md" in home
    longer = '````python linenums="1"\ns = "```"\n````'
    assert longer in made.pages["src/a.py.md"], "a fence longer than any in it"
    assert "[`raw.bin`](raw.bin)" in made.pages["data/index.md"]
    assert made.files.keys() == {"f.png", "data/raw.bin"}


def test_a_page_is_rewritten_for_the_site(tmp_path: Path) -> None:
    """Comments gone, sessions marked, details read, code untouched."""
    text = (
        "# Home\n\n<!-- output: run | now | here | 1 -->\n~~~text\n<details>\n~~~\n"
        "<!-- end output -->\n\n~~~python\n>>> 1\n1\n~~~\n\n~~~python\nx = 1\n~~~\n\n"
        "<details><summary>`A`</summary>\n\n*b*\n\n</details>\n"
    )
    files = {"pyproject.toml": 'name = "mini-vllm-course"\n', "README.md": text}
    home = read_site(written(tmp_path, files)).pages["README.md"]
    assert "<!--" not in home
    assert "```text\n<details>\n```" in home
    assert "```pycon\n>>> 1\n1\n```" in home
    assert "```python\nx = 1\n```" in home
    assert '<details markdown="1"><summary markdown="span">`A`</summary>' in home


def test_a_screenshot_goes_where_its_run_is_live(tmp_path: Path) -> None:
    """With the sentence that leads to it; a picture of anything else, or of a run that is not live, stays."""
    picture, (scenario, *_) = next(iter(SHOTS.items()))
    folder = picture.partition("/")[0]
    shot = f"![The viewer.]({picture.removeprefix(folder + '/')})"
    live = f"<!-- viewer: {scenario.removeprefix(folder + '/')} -->"
    command = f"`mini-vllm trace {scenario} -o x.html` makes it."
    text = f"# Guide\n\n{{viewer}}\n\n{command} In a browser\nit looks so:\n\n{shot}\n\n![x](x.png)\n\nOn.\n"
    files = {
        "pyproject.toml": 'name = "mini-vllm-course"\n', picture: "", f"{folder}/x.png": "",
        scenario: '{"title": "T"}',
        f"{folder}/00-guide.md": text.format(viewer=live),
        f"{folder}/01-deep-dive.md": text.format(viewer=""),
    }  # fmt: skip
    made = read_site(written(tmp_path, files))
    assert made.problems == ()
    guide, dive = (made.pages[f"{folder}/{name}.md"] for name in ("00-guide", "01-deep-dive"))
    assert "<iframe" in guide
    assert f"{command}\n\n" in guide
    assert guide.endswith("\n\n![x](x.png)\n\nOn.\n")
    assert "viewer.png" not in guide
    assert "it looks so" not in guide
    assert f"it looks so:\n\n{shot}" in dive


def test_a_lab_shows_its_facts_and_hides_its_answer(tmp_path: Path) -> None:
    labs = "phase-00-a/labs"
    files = {
        "pyproject.toml": 'name = "mini-vllm-course"\n',
        f"{labs}/lab-01-x/README.md": lab_readme(0, 1),
        f"{labs}/lab-02-y/README.md": lab_readme(0, 2, '"00-01"'),
        f"{labs}/lab-02-y/starter.py": "s = 1\n",
        f"{labs}/lab-02-y/solution.py": "answer = 1\n",
        f"{labs}/lab-02-y/test_lab.py": "t = 1\n",
        f"{labs}/lab-02-y/test_lab_more.py": "t = 2\n",
        f"{labs}/lab-02-y/support.py": "u = 3\n",
        f"{labs}/lab-02-y/{MISTAKES}": (
            "[off]\nname = 'One too many.'\nhint = 'h'\ntest = 't'\nappend = 'answer = 2'\n"
        ),
    }
    made = read_site(written(tmp_path, files))
    page = made.pages[f"{labs}/lab-02-y/README.md"]
    title, facts = [line for line in page.splitlines() if line][:2]
    assert title == "# Lab 00-02: L", "front matter is not shown"
    for fact in (">GPU-OPT<", ">7 minutes<", ">after [00-01](../lab-01-x/README.md)<"):
        assert fact in facts
    assert "[solution (spoiler)](solution.py.md)" in facts
    for name, code in (
        ("test_lab.py", "t = 1"),
        ("test_lab_more.py", "t = 2"),
        ("support.py", "u = 3"),
    ):
        assert f"[{name}]({name}.md)" in facts, "every file of tests, and what they share"
        assert code in made.pages[f"{labs}/lab-02-y/{name}.md"]
    for name, code in (("solution.py", "answer = 1"), (MISTAKES, "append = ")):
        shown = made.pages[f"{labs}/lab-02-y/{name}.md"]
        assert "exclude: true" in shown
        warning, folded = shown.index("!!! warning"), shown.index("??? ")
        assert warning < folded < shown.index(f"    {code}"), "warned, then folded, then the code"
    solution = made.pages[f"{labs}/lab-02-y/solution.py.md"]
    assert "How, is in [`mistakes.toml`](proof/mistakes.toml.md).\n\n- One too many.\n" in solution


def test_pages_keep_to_lists_that_both_renderers_read() -> None:
    """GitHub takes a list right after a paragraph, and one nested by two blanks; the site does not."""
    item, wrong = re.compile(r"( *)(?:[-*+]|\d+[.)]) "), []
    for page in pages(ROOT):
        kinds = [*page.kinds]
        for at, line in enumerate(page.lines):
            match = item.match(line) if kinds[at] == TEXT else None
            if match is None:
                continue
            above = page.lines[at - 1] if at and kinds[at - 1] in (TEXT, CODE) else ""
            starts = above.strip() and not item.match(above) and not above.startswith(" ")
            if starts or len(match[1]) % 4:
                wrong.append(f"{page.name}:{at + 1}: {line[:60]}")
    assert not wrong, "leave a line free above a list, nest by four blanks:\n" + "\n".join(wrong)


def test_no_list_item_begins_on_the_line_below_its_marker() -> None:
    """GitHub takes a marker alone on its line for an item; the site shows it as text."""
    alone = re.compile(r" *(?:[-*+]|\d+[.)])\s*")
    wrong = [
        f"{page.name}:{at}"
        for page in pages(ROOT)
        for at, (line, kind) in enumerate(zip(page.lines, page.kinds, strict=True), 1)
        if kind == TEXT and alone.fullmatch(line)
    ]
    assert not wrong, "put the item's first words behind its marker:\n" + "\n".join(wrong)


# -- terms ----------------------------------------------------------------------------------------


def explained(text: str, glossary: str = GLOSSARY) -> str:
    markdown = pytest.importorskip("markdown")
    from course.site.terms import TermsExtension, read_terms

    return str(markdown.markdown(text, extensions=[TermsExtension(read_terms(glossary))]))


def test_terms_are_explained_where_they_are_used() -> None:
    html = explained("The slots of a KV cache, *each slot*.\n\n## A slot\n\nOne slot more.")
    slot = '<abbr title="A place.">'
    assert f"The {slot}slots</abbr> of a " in html
    assert '<abbr title="What x keeps.">KV cache</abbr>, <em>each slot</em>.' in html
    assert "<h2>A slot</h2>" in html
    assert f"One {slot}slot</abbr> more." in html, "again in a new section"


@pytest.mark.parametrize(
    "text",
    [
        "`slot`",
        "[a slot](x)",
        "**slot** and slot",
        "slot_mapping",
        "time-slot",
        "slotted",
        "kv cache",
    ],
)
def test_terms_are_left_alone(text: str) -> None:
    assert "<abbr" not in explained(text)


def test_see_entries_give_what_they_point_to() -> None:
    glossary = "**BPE.** See byte-pair encoding.\n\n**Byte-pair encoding.** Merging\npairs.\n"
    assert 'title="Byte-pair encoding. Merging pairs.">BPE<' in explained("By BPE.", glossary)
    assert "abbr" not in explained("A step.", "**Step.** One turn.\n"), "too common a word"
