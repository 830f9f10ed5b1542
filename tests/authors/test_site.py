"""The site: built strictly, complete, in order, silent towards the world; and read in a browser.

Skipped where MkDocs is missing (the extra `site`); the browser's part where Chromium, its driver or
selenium is.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from course.docs.pages import CODE, TEXT, pages
from course.learner.labs import load_course
from course.site.pages import read_site

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = "# Glossary\n\n**Slot.** A place.\n\n**KV cache.** What `x` keeps. [`v/a.py:1 A`](https://e.org)\n\n"
COPIED = ("mkdocs.yml", "pyproject.toml", "course", "mini_vllm/engine.py")


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text.replace("~~~", "```"), encoding="utf-8")
    return root


def small_course(root: Path) -> Path:
    """A repository with the site's machinery, a home page and one page of a phase."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
    home = "# Home\n\nSee [the guide](phase-00-a/00-guide.md).\n"
    files = {"README.md": home, "GLOSSARY.md": GLOSSARY, "phase-00-a/00-guide.md": "# Guide\n"}
    return written(root, files)


def site(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "course.site", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


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
        "phase-02-two/NOTES.md", "phase-02-two/labs/README.md",
    ]  # fmt: skip
    files = {"pyproject.toml": 'name = "mini-vllm"\n', **dict.fromkeys(names, "# X\n")}
    for lab in (10, 2):
        files[f"phase-02-two/labs/lab-{lab:02}-x/README.md"] = lab_readme(2, lab)
    made = read_site(written(tmp_path, files))
    assert made.order == [
        "README.md", "SETUP.md",
        "phase-02-two/00-guide.md", "phase-02-two/01-deep-dive.md", "phase-02-two/03-more.md",
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
        "pyproject.toml": 'name = "mini-vllm"\n', "README.md": text, "f.png": "",
        "src/a.py": 's = "```"\n', "src/README.md": "# Source\n", "notes/x.md": "# X\n\n## Part\n",
    }  # fmt: skip
    made = read_site(written(tmp_path, files))
    home = made.pages["README.md"]
    assert "[a](src/a.py.md), [b](data/index.md), [c](notes/x.md#part)" in home
    assert "[d](https://e.org/a.py), `[e](src/a.py)`, ![f](f.png), [g](src/README.md)" in home
    assert "[h](#here), [i](gone.py)" in home, "what is broken is left for the generator to report"
    assert "[r]: src/a.py.md" in home
    assert '````python\ns = "```"\n````' in made.pages["src/a.py.md"], (
        "a fence longer than any in it"
    )
    assert "[`raw.bin`](raw.bin)" in made.pages["data/index.md"]
    assert made.files.keys() == {"f.png", "data/raw.bin"}


def test_a_page_is_rewritten_for_the_site(tmp_path: Path) -> None:
    """Comments gone, sessions marked, details read, code untouched."""
    text = (
        "# Home\n\n<!-- output: run | now | here | 1 -->\n~~~text\n<details>\n~~~\n"
        "<!-- end output -->\n\n~~~python\n>>> 1\n1\n~~~\n\n~~~python\nx = 1\n~~~\n\n"
        "<details><summary>`A`</summary>\n\n*b*\n\n</details>\n"
    )
    files = {"pyproject.toml": 'name = "mini-vllm"\n', "README.md": text}
    home = read_site(written(tmp_path, files)).pages["README.md"]
    assert "<!--" not in home
    assert "```text\n<details>\n```" in home
    assert "```pycon\n>>> 1\n1\n```" in home
    assert "```python\nx = 1\n```" in home
    assert '<details markdown="1"><summary markdown="span">`A`</summary>' in home


def test_a_lab_shows_its_facts_and_hides_its_answer(tmp_path: Path) -> None:
    labs = "phase-00-a/labs"
    files = {
        "pyproject.toml": 'name = "mini-vllm"\n',
        f"{labs}/lab-01-x/README.md": lab_readme(0, 1),
        f"{labs}/lab-02-y/README.md": lab_readme(0, 2, '"00-01"'),
        f"{labs}/lab-02-y/starter.py": "s = 1\n",
        f"{labs}/lab-02-y/solution.py": "answer = 1\n",
        f"{labs}/lab-02-y/wrong/off.py": '"""One too many."""\nanswer = 2\n',
    }
    made = read_site(written(tmp_path, files))
    page = made.pages[f"{labs}/lab-02-y/README.md"]
    title, facts = [line for line in page.splitlines() if line][:2]
    assert title == "# Lab 00-02: L", "front matter is not shown"
    for fact in (">GPU-OPT<", ">7 minutes<", ">after [00-01](../lab-01-x/README.md)<"):
        assert fact in facts
    assert "[solution (spoiler)](solution.py.md)" in facts
    for name, code in (("solution.py", "answer = 1"), ("wrong/off.py", "answer = 2")):
        shown = made.pages[f"{labs}/lab-02-y/{name}.md"]
        assert "exclude: true" in shown
        warning, folded = shown.index("!!! warning"), shown.index("??? ")
        assert warning < folded < shown.index(f"    {code}"), "warned, then folded, then the code"
    assert (
        "[`off.py`](wrong/off.py.md): One too many."
        in made.pages[f"{labs}/lab-02-y/solution.py.md"]
    )


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


# -- the built site -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("mkdocs", "material", "typer"):
        pytest.importorskip(package, reason="the extra `site` is not installed")
    folder = tmp_path_factory.mktemp("site") / "out"
    done = site(ROOT, "build", str(folder))
    assert done.returncode == 0, f"the strict build fails:\n{done.stdout}{done.stderr}"
    return folder


class Html(HTMLParser):
    """A page's elements, ids, and its text inside and outside closed details."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.ids: set[str] = set()
        self.open_text: list[str] = []
        self.folded = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.elements.append((tag, values))
        self.ids |= {values[key] for key in ("id", "name") if key in values}
        self.folded += tag == "details" and "open" not in values

    def handle_endtag(self, tag: str) -> None:
        self.folded -= tag == "details" and self.folded > 0

    def handle_data(self, data: str) -> None:
        if not self.folded:
            self.open_text.append(data)

    def all(self, tag: str, key: str) -> list[str]:
        return [values[key] for name, values in self.elements if name == tag and key in values]

    def footer(self, which: str) -> str | None:
        """The address that "previous" or "next" leads to."""
        for tag, values in self.elements:
            if tag == "a" and f"md-footer__link--{which}" in values.get("class", ""):
                return values["href"]
        return None


@pytest.fixture(scope="module")
def html(built: Path) -> dict[str, Html]:
    """Address below the site's root -> page."""
    return {
        path.parent.relative_to(built).as_posix().removeprefix(".") + "/": Html(path.read_text())
        for path in sorted(built.rglob("index.html"))
    }


def address(uri: str) -> str:
    """Where a page of the repository stands on the site, as `html` names it."""
    folder = re.sub(r"(^|/)(README|index)\.md$", "", uri)
    return folder.removesuffix(".md") + "/"


def test_nothing_is_fetched_from_a_third_party(built: Path, html: dict[str, Html]) -> None:
    found = []
    for name, page in {**html, "404.html": Html((built / "404.html").read_text())}.items():
        for tag, key in (
            ("script", "src"), ("link", "href"), ("img", "src"), ("img", "srcset"),
            ("iframe", "src"), ("source", "src"), ("object", "data"), ("form", "action"),
        ):  # fmt: skip
            found += [f"{name}: <{tag} {key}={url}>" for url in page.all(tag, key) if "//" in url]
    for path in built.rglob("*.css"):
        css = path.read_text()
        found += [
            f"{path.name}: {m[0]}" for m in re.finditer(r"url\([\"']?(?:https?:)?//[^)]*", css)
        ]
        found += [f"{path.name}: {m[0]}" for m in re.finditer(r"@import[^;]*//[^;]*", css)]
    assert not found, "\n".join(found)


def test_next_and_previous_walk_the_course(html: dict[str, Html]) -> None:
    course = load_course(ROOT)
    expected = ["/", "SETUP/"]
    for phase in course.phases:
        name = phase.folder.name
        inside = ["00-guide", "01-deep-dive", "02-mini-build"]
        inside += ["labs", *(f"labs/{lab.folder.name}" for lab in phase.labs)]
        inside += ["EXERCISES", "INTERVIEW", "CHEATSHEET"]
        there = [
            p
            for p in inside
            if any((phase.folder / q).is_file() for q in (f"{p}.md", f"{p}/README.md"))
        ]
        expected += [f"{name}/{p}/" for p in there]
    walked, at = [], "/"
    while True:
        walked.append(at)
        onward = html[at].footer("next")
        if onward is None or len(walked) > len(html):
            break
        ahead = urljoin(f"/{at}".replace("//", "/"), onward).removeprefix("/") or "/"
        back = html[ahead].footer("prev")
        assert back is not None, f"{ahead} has no way back to {at}"
        assert (urljoin(f"/{ahead}", back).removeprefix("/") or "/") == at
        at = ahead
    assert walked[: len(expected)] == expected
    assert walked == [address(uri) for uri in read_site(ROOT).order]
    for page in ("GLOSSARY/", "UPSTREAM_PIN/", "CONTRIBUTING/"):
        assert page in walked


def test_every_link_inside_the_site_leads_somewhere(built: Path, html: dict[str, Html]) -> None:
    broken = []
    for name, page in html.items():
        for url in (*page.all("a", "href"), *page.all("img", "src"), *page.all("script", "src")):
            there = urlsplit(urljoin(f"http://site/{name.removeprefix('/')}", url))
            if there.netloc != "site":
                continue
            path = unquote(there.path).removeprefix("/")
            anchor = unquote(there.fragment)
            file = built / path / "index.html" if path.endswith("/") or not path else built / path
            page_there = html.get(path or "/")
            if not file.is_file():
                broken.append(f"{name}: {url}")
            elif (
                anchor
                and page_there
                and not anchor.startswith("__")
                and anchor not in page_there.ids
            ):
                broken.append(f"{name}: {url}: no such heading")
    assert not broken, "\n".join(broken)


def test_no_solution_in_the_search_index(built: Path) -> None:
    index = json.loads((built / "search" / "search_index.json").read_text())
    places = [entry["location"].partition("#")[0] for entry in index["docs"]]
    shown = [place for place in places if re.search(r"\.(py|json|sh|txt)/$", place)]
    assert not shown, f"files in the index: {sorted(set(shown))}"
    assert {address(uri) for uri in read_site(ROOT).order} == {place or "/" for place in places}


def test_no_front_matter_and_no_comment_is_shown(built: Path) -> None:
    for lab in load_course(ROOT).labs:
        folder = built / lab.folder.relative_to(ROOT)
        text = (folder / "index.html").read_text()
        assert f"{lab.minutes} minutes" in text
        assert f">{lab.tag}<" in text
        assert "prerequisites:" not in text
        assert "<!-- output" not in text
        assert "&lt;!--" not in text


def test_the_solution_is_one_click_away_behind_a_warning(html: dict[str, Html]) -> None:
    labs = load_course(ROOT).labs
    assert labs, "no labs"
    for lab in labs:
        folder = lab.folder.relative_to(ROOT).as_posix()
        assert "solution.py/" in html[f"{folder}/"].all("a", "href"), folder
        for path in (lab.solution, *lab.wrong):
            page = html[f"{path.relative_to(ROOT).as_posix()}/"]
            assert ("div", {"class": "admonition warning"}) in page.elements
            code = max(path.read_text(encoding="utf-8").splitlines(), key=len).strip()
            assert code not in "".join(page.open_text), f"{path} is shown without being asked for"


# -- the command ----------------------------------------------------------------------------------


def test_a_broken_link_fails_the_build(built: Path, tmp_path: Path) -> None:
    root = small_course(tmp_path / "repo")
    written(root, {"phase-00-a/00-guide.md": "# Guide\n\n[gone](gone.md)\n"})
    done = site(root, "build", str(tmp_path / "out"))
    assert done.returncode == 1
    assert "'gone.md'" in done.stderr + done.stdout


def test_build_empties_no_folder_of_yours(built: Path, tmp_path: Path) -> None:
    import course.site.command
    from course.learner.labs import CourseError

    (tmp_path / "thesis.txt").write_text("3 years")
    with pytest.raises(CourseError, match="holds something that is no site of ours"):
        course.site.command.build(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "3 years"


def fetched(url: str, what: str, seconds: float) -> str:
    """The page once it holds `what`; the last state of it after `seconds`."""
    text, end = "", time.monotonic() + seconds
    while time.monotonic() < end and what not in text:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            pass
        time.sleep(0.1)
    return text


def test_serve_builds_again_when_a_page_is_saved(built: Path, tmp_path: Path) -> None:
    root = small_course(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "course.site", "serve", "--port", str(port)]
    # A session of its own, so that the end of it reaches MkDocs too.
    server = subprocess.Popen(
        command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port}/phase-00-a/00-guide/"
        assert "<h1" in fetched(url, "<h1", 20)
        time.sleep(0.5)
        written(root, {"phase-00-a/00-guide.md": "# Guide\n\nSaved just now.\n"})
        assert "Saved just now." in fetched(url, "Saved just now.", 15)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(10)


# -- in a browser ---------------------------------------------------------------------------------

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


class Browser:
    """Chromium on the built site, with what it fetched and what its console said."""

    def __init__(self, driver: Any, base: str) -> None:
        self.driver = driver
        self.base = base

    def size(self, width: int, height: int) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
        )

    def visit(self, page: str) -> None:
        self.driver.get(self.base + page.removeprefix("/"))

    def js(self, code: str) -> Any:
        return self.driver.execute_script(code)

    def wait(self, condition: str, seconds: float = 10) -> Any:
        """What the JavaScript expression gives once it is true."""
        end = time.monotonic() + seconds
        while not (value := self.js(f"return {condition}")):
            assert time.monotonic() < end, f"never came true: {condition}"
            time.sleep(0.05)
        return value

    def complaints(self) -> list[str]:
        """Console errors and warnings, and requests to anyone else, since the last call."""
        found = [f"console: {e['message']}" for e in self.driver.get_log("browser")]
        for entry in self.driver.get_log("performance"):
            event = json.loads(entry["message"])["message"]
            if event["method"] == "Network.requestWillBeSent":
                url = event["params"]["request"]["url"]
                ours = (self.base, "data:", "blob:", "chrome:")
                found += [] if url.startswith(ours) else [f"request: {url}"]
        return found


@pytest.fixture(scope="module")
def chromium(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    pytest.importorskip("selenium", reason="selenium is not installed")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    program, driver_program = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver_program is None:
        pytest.skip("no chromium and chromedriver on this machine")
    handler = functools.partial(Quiet, directory=str(built))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = webdriver.ChromeOptions()
    options.binary_location = program
    profile = tmp_path_factory.mktemp("chromium")
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_program))
    try:
        yield Browser(driver, f"http://127.0.0.1:{server.server_port}/")
    finally:
        driver.quit()
        server.shutdown()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """A desktop window in daylight; whatever a test does, nothing may be complained about."""
    chromium.size(1280, 900)
    chromium.visit("/")
    chromium.js("localStorage.clear()")
    chromium.complaints()
    yield chromium
    assert not (found := chromium.complaints()), "\n".join(found)


def pages_with(html: dict[str, Html], css: str) -> list[str]:
    return [n for n, p in html.items() if any(css in v.get("class", "") for _, v in p.elements)]


def test_home(browser: Browser) -> None:
    browser.visit("/")
    assert browser.js("return document.title") == "mini-vllm"
    assert browser.js("return document.querySelector('article h1').innerText").startswith(
        "mini-vllm"
    )
    assert browser.js("return document.querySelectorAll('.md-nav--primary a').length") > 10


def test_every_diagram_is_drawn(browser: Browser, html: dict[str, Html]) -> None:
    names = pages_with(html, "diagram")
    assert names, "no page has a diagram"
    for name in names:
        browser.visit(name)
        browser.wait("document.querySelectorAll('pre.diagram').length === 0")
        drawn = "[...document.querySelectorAll('div.diagram svg')]"
        assert browser.js(f"return {drawn}.length") > 0, name
        assert browser.js(f"return {drawn}.every(s => s.getBoundingClientRect().width > 50)"), name
        assert browser.js(f"return {drawn}.every(s => !s.querySelector('.error-icon'))"), name


def test_every_formula_is_set(browser: Browser, html: dict[str, Html]) -> None:
    names = pages_with(html, "arithmatex")
    assert names, "no page has a formula"
    for name in names:
        browser.visit(name)
        some, done = "document.querySelectorAll('.arithmatex').length", ".arithmatex > .katex"
        display = f"{done.replace('> ', '> .katex-display > ')}"
        browser.wait(f"{some} === document.querySelectorAll('{done}, {display}').length")
        wrong = browser.js(
            "return [...document.querySelectorAll('.katex-error')].map(e => e.innerText)"
        )
        assert not wrong, f"{name}: {wrong}"


def test_a_lab_page(browser: Browser) -> None:
    lab = load_course(ROOT).labs[-1]
    browser.visit(f"{lab.folder.relative_to(ROOT).as_posix()}/")
    facts = browser.js("return document.querySelector('.lab-facts').innerText")
    for fact in (lab.tag, f"{lab.minutes} minutes", *lab.prerequisites, "starter.py"):
        assert fact in facts
    browser.js("document.querySelector('.lab-facts a[href*=solution]').click()")
    browser.wait("document.querySelector('article h1').innerText.startsWith('solution.py')")
    shown = "document.querySelector('article details pre').checkVisibility()"
    assert not browser.js(f"return {shown}"), "the answer stands open"
    browser.js("document.querySelector('article details summary').click()")
    browser.wait(shown)


def test_search_finds_a_term_and_no_solution(browser: Browser) -> None:
    from selenium.webdriver.common.by import By

    browser.driver.find_element(By.CSS_SELECTOR, ".md-search__input").send_keys("preemption")
    browser.wait("document.querySelectorAll('.md-search-result__link').length > 1")
    links = browser.js(
        "return [...document.querySelectorAll('.md-search-result__link')].map(a => a.pathname)"
    )
    assert "/GLOSSARY/" in links
    assert not [link for link in links if ".py/" in link]


def test_a_term_is_explained_under_the_pointer(browser: Browser) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    term = browser.driver.find_element(By.CSS_SELECTOR, "article abbr")
    title = term.get_attribute("title")
    assert title
    ActionChains(browser.driver).move_to_element(term).perform()
    browser.wait(f"document.querySelector('[role=tooltip]')?.innerText === {json.dumps(title)}")


def test_light_and_dark(browser: Browser, html: dict[str, Html]) -> None:
    """The switch turns the page, and its diagrams with it; the choice is kept."""
    browser.visit(pages_with(html, "diagram")[0])
    browser.wait("document.querySelectorAll('div.diagram svg').length > 0")
    scheme = "document.body.dataset.mdColorScheme"
    look = "getComputedStyle(document.body).backgroundColor"
    light, drawing = browser.js(f"return {look}"), "document.querySelector('div.diagram svg').id"
    before = browser.js(f"return {drawing}")
    assert browser.js(f"return {scheme}") == "default"
    browser.js(
        "[...document.querySelectorAll('form[data-md-component=palette] label')]"
        ".find(l => l.checkVisibility()).click()"
    )
    browser.wait(f"{scheme} === 'slate'")
    browser.wait(f"{look} !== {json.dumps(light)}")
    browser.wait(f"{drawing} !== {json.dumps(before)}")
    browser.visit("/")
    browser.wait(f"{scheme} === 'slate'")


def test_no_page_is_wider_than_a_phone(browser: Browser, html: dict[str, Html]) -> None:
    browser.size(390, 844)
    wide = []
    for uri in read_site(ROOT).order:
        browser.visit(address(uri))
        if address(uri) in pages_with(html, "diagram"):
            browser.wait("document.querySelectorAll('pre.diagram').length === 0")
        width = browser.js("return document.documentElement.scrollWidth")
        wide += [f"{uri}: {width} px"] if width > 390 else []
    assert not wide, "\n".join(wide)
    assert browser.js("return document.querySelector('label[for=__drawer]').checkVisibility()")
