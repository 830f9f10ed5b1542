"""The site, built once, and a browser to read it: for the tests of the site."""

from __future__ import annotations

import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser_helpers import Tab, chromium_driver

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = (
    "# Glossary\n\n**Slot.** A place.\n\n"
    '**KV cache.** What `x` keeps. [`A`](https://e.org "v/a.py:1 A")\n\n'
)
COPIED = ("mkdocs.yml", "pyproject.toml", "course", "mini_vllm/engine/llm_engine.py")


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


def build_site(root: Path, folder: Path) -> Path:
    """The site of the course at `root`, in `folder`; the test is skipped where there is no MkDocs."""
    for package in ("mkdocs", "material", "typer"):
        pytest.importorskip(package, reason="the extra `site` is not installed")
    done = site(root, "build", str(folder))
    assert done.returncode == 0, f"the strict build fails:\n{done.stdout}{done.stderr}"
    return folder


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(ROOT, tmp_path_factory.mktemp("site") / "out")


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


@pytest.fixture(scope="session")
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


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


class Browser(Tab):
    """Chromium on the built site."""

    def __init__(self, driver: Any, base: str) -> None:
        super().__init__(driver, base)
        self.base = base

    def visit(self, page: str) -> None:
        """Go there. On a busy machine `get` may come back while the page before is still there."""
        url = self.base + page.removeprefix("/")
        self.driver.get(url)
        self.wait(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def draw(self) -> None:
        """Have the page's diagrams drawn: that waits until the first of them is near."""
        there = "document.querySelector('pre.diagram')"
        # Again and again: what loads above it may push it away.
        self.wait(f"({there}?.scrollIntoView(), {there} === null)")
        self.wait(
            "[...document.querySelectorAll('div.diagram')].every(d => d.querySelector('svg'))"
        )

    def fetched(self, name: str) -> bool:
        """Has the page asked for a file of this name?"""
        entries = "performance.getEntriesByType('resource')"
        return bool(
            self.js(f"return {entries}.some(e => e.name.endsWith({json.dumps('/' + name)}))")
        )


@pytest.fixture(scope="module")
def chromium(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    handler = functools.partial(Quiet, directory=str(built))
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with chromium_driver(tmp_path_factory.mktemp("chromium")) as driver:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield Browser(driver, f"http://127.0.0.1:{server.server_port}/")
        finally:
            server.shutdown()
            server.server_close()


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
