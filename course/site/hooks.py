"""MkDocs' side of the site: hands it the pages of `course.site.pages`, their order and the terms.

MkDocs loads this file by its path (mkdocs.yml, `hooks`), so the repository need not be installed.
"""

from __future__ import annotations

import json
import logging
import posixpath
import re
import sys
from functools import cache
from html import escape, unescape
from pathlib import Path
from typing import Any

import markdown
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

_ROOT = str(Path(__file__).resolve().parents[2])
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

# Here, not where it is used: MkDocs takes the root off the path again when this file is loaded.
import mini_vllm  # noqa: E402, F401
from course.cite.own import own_line  # noqa: E402
from course.cite.text import own_place  # noqa: E402
from course.drift import cited  # noqa: E402
from course.drift.compare import recorded_releases  # noqa: E402
from course.learner.labs import load_course  # noqa: E402
from course.learner.tracks import as_json  # noqa: E402
from course.site.pages import read_site  # noqa: E402
from course.site.terms import TermsExtension, read_terms  # noqa: E402
from course.site.viewer import ViewerError, make_page  # noqa: E402

GLOSSARY = "GLOSSARY.md"
_TITLED = re.compile(r'(?P<link>href="[^":#]+)(?P<title>" title="(?P<place>[^"]+\.py [^"]+)")')
_CITED = re.compile(r'(?<= title=")(?P<text>(?:vllm|csrc)/[^":]+:\d+[^"]*)(?=")')
_RELATIVE = re.compile(r'href="(?P<path>[^":#]+)')
_log = logging.getLogger("mkdocs.course")


class _Progress:
    """Says each tenth of a build: MkDocs reads all pages and writes all pages, for a minute, in silence."""

    def __init__(self) -> None:
        self.steps = self.done = 0

    def begin(self, pages: int) -> None:
        self.steps, self.done = 2 * pages, 0

    def advance(self, what: str) -> None:
        before = 10 * self.done // self.steps
        self.done += 1
        if (tenths := 10 * self.done // self.steps) > before:
            _log.info(f"{tenths * 10:3} % of the site: {what}")


_progress = _Progress()
_fates = cache(cited.load)


def _root(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path).resolve().parent


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    glossary = _root(config) / GLOSSARY
    text = glossary.read_text(encoding="utf-8") if glossary.is_file() else ""
    config.markdown_extensions.append(TermsExtension(read_terms(text)))
    config.extra["pin"], *_, config.extra["newest"] = recorded_releases()
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    site = read_site(_root(config))
    for uri, viewers in site.viewers.items():
        try:
            files.append(File.generated(config, uri, content=make_page(*viewers)))
        except ViewerError as error:
            site.problems += (str(error),)
    for problem in site.problems:
        _log.warning(problem)
    for uri, text in site.pages.items():
        files.append(File.generated(config, uri, content=text))
    for uri, path in site.files.items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    config.nav = site.nav
    files.append(File.generated(config, "own/tracks.json", content=_tracks(config, files)))
    return files


def _tracks(config: MkDocsConfig, files: Files) -> str:
    """The tracks for `site.js`: pages as addresses from the site's root, what leads to a step as HTML."""
    tracks = json.loads(as_json(load_course(_root(config))))
    for track in tracks.values():
        folder = posixpath.dirname(track["page"])
        for step in track["steps"]:
            step["bridge"] = _as_html(step["bridge"], folder, files)
        for entry in (track, *track["steps"]):
            if (file := files.get_file_from_path(entry.pop("page"))) is not None:
                entry["url"] = "" if file.url in (".", "./") else file.url
    return json.dumps(tracks, ensure_ascii=False)


def _as_html(text: str, folder: str, files: Files) -> str:
    """Some Markdown of a page in `folder`, without its headings, links led from the site's root."""

    def lead(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match["path"]))
        file = files.get_file_from_path(path) or files.get_file_from_path(f"{path}.md")
        return f'href="{file.url}' if file is not None else match[0]

    return _RELATIVE.sub(lead, markdown.markdown(re.sub(r"(?m)^#.*$", "", text)))


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    _progress.begin(len(files.documentation_pages()))
    return nav


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    for extension in config.markdown_extensions:
        if isinstance(extension, TermsExtension):
            shows_a_file = "exclude" in page.meta.get("search", {})
            extension.active = page.file.src_uri != GLOSSARY and not shows_a_file
    return markdown


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A citation of this repository leads to its line, as of now, on the page that shows the file. One of
    vLLM's says in its title where that stands in the newest release, and whether it holds."""
    _progress.advance("pages read")
    root = _root(config)

    def lead(match: re.Match[str]) -> str:
        if (place := own_place(unescape(match["place"]), root)) is None:
            return match[0]
        try:
            line = own_line(root, place["path"], place["symbol"], place["code"])
        except ValueError as error:
            _log.warning(f"{page.file.src_uri}: {match['place']}: {error}")
            return match[0]
        return f"{match['link']}#__codelineno-0-{line}{match['title']}"

    release, fates = _fates()

    def tell(match: re.Match[str]) -> str:
        fate = fates.get(unescape(match["text"]))
        return (
            match[0]
            if fate is None
            else escape(f"{unescape(match[0])} ({cited.hint(fate, release)})")
        )

    return _CITED.sub(tell, _TITLED.sub(lead, html))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    _progress.advance("pages written")
    return output


def on_serve(server: Any, config: MkDocsConfig, builder: Any) -> Any:
    """Build again when a page, or a file that a page shows, is saved."""
    root = _root(config)
    for path in (*root.glob("*.md"), *root.glob("docs"), *root.glob("phase-*"), root / "mini_vllm"):
        server.watch(str(path))
    return server
