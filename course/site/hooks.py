"""MkDocs' side of the site: hands it the pages of `course.site.pages`, their order and the terms.

MkDocs loads this file by its path (mkdocs.yml, `hooks`), so the repository need not be installed.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = str(Path(__file__).resolve().parents[2])
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

# Here, not where it is used: MkDocs takes the root off the path again when this file is loaded.
import mini_vllm  # noqa: E402, F401
from course.learner.labs import load_course  # noqa: E402
from course.learner.tracks import as_json  # noqa: E402
from course.site.pages import read_site  # noqa: E402
from course.site.terms import TermsExtension, read_terms  # noqa: E402
from course.site.viewer import ViewerError, make_page  # noqa: E402

GLOSSARY = "GLOSSARY.md"
_OWN = re.compile(r'(?P<link>href="[^":#]+)" (?P<title>title="[\w./-]+:(?P<line>\d+)\b)')
_log = logging.getLogger("mkdocs.course")


def _root(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path).resolve().parent


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    glossary = _root(config) / GLOSSARY
    text = glossary.read_text(encoding="utf-8") if glossary.is_file() else ""
    config.markdown_extensions.append(TermsExtension(read_terms(text)))
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
    """The tracks for `site.js`, their pages as addresses from the site's root."""
    tracks = json.loads(as_json(load_course(_root(config))))
    for track in tracks.values():
        for entry in (track, *track["steps"]):
            if (file := files.get_file_from_path(entry.pop("page"))) is not None:
                entry["url"] = "" if file.url in (".", "./") else file.url
    return json.dumps(tracks, ensure_ascii=False)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    for extension in config.markdown_extensions:
        if isinstance(extension, TermsExtension):
            shows_a_file = "exclude" in page.meta.get("search", {})
            extension.active = page.file.src_uri != GLOSSARY and not shows_a_file
    return markdown


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A citation of this repository leads to its line on the page that shows the file."""
    return _OWN.sub(r'\g<link>#__codelineno-0-\g<line>" \g<title>', html)


def on_serve(server: Any, config: MkDocsConfig, builder: Any) -> Any:
    """Build again when a page, or a file that a page shows, is saved."""
    root = _root(config)
    for path in (*root.glob("*.md"), *root.glob("phase-*"), root / "mini_vllm"):
        server.watch(str(path))
    return server
