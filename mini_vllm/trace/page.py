"""A trace as one page to step through: no server, no library, no network request.

The page holds the trace as data (`data.py`), gzipped and in base64, and the script and style of
`assets/`. Its policy lets exactly these two run, by their hashes, and lets nothing be fetched. What
came from outside, such as prompts, is in the data alone, where no markup can stand, and the script
puts it into the page as text.
"""

from __future__ import annotations

import base64
import hashlib
import html
from functools import cache
from pathlib import Path
from typing import Any

from mini_vllm.trace.data import dumps, loads, to_data, zipped
from mini_vllm.trace.types import Trace

ASSETS = Path(__file__).parent / "assets"
_DATA = '<script type="application/gzip;base64" id="trace-data">'


SCRIPTS = (
    "data.js", "blocks.js", "draw.js", "timeline.js", "overview.js", "pool.js", "events.js",
    "legend.js", "details.js", "build.js", "viewer.js",
)  # fmt: skip
STYLES = ("viewer.css",)


@cache
def asset(names: tuple[str, ...]) -> tuple[str, str]:
    """The files' text, and the hash by which the page's policy knows it."""
    text = "\n" + "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in names)
    digest = hashlib.sha256(text.encode()).digest()
    return text, f"'sha256-{base64.b64encode(digest).decode()}'"


def to_html(trace: Trace, step: int | None = None, request: str | None = None) -> str:
    """The page.

    Args:
        step: where it opens, by its number; default: at the first.
        request: the request that is selected.
    """
    data = to_data(trace)
    data["view"] = {"step": step, "request": request}
    title = html.escape(trace.title or "A trace of mini-vllm")
    says = "This page draws a trace with a script of its own. Let it run to see something."
    packed = base64.b64encode(zipped(dumps(data))).decode()
    body = f"<noscript>{says}</noscript>\n{_DATA}{packed}</script>"
    return document(title, body, SCRIPTS, STYLES)


def document(
    title: str,
    body: str,
    scripts: tuple[str, ...],
    styles: tuple[str, ...],
    in_frames: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()),
) -> str:
    """A page that loads nothing and runs no script but ours.

    Args:
        title, body: as HTML.
        scripts, styles: assets.
        in_frames: those of the pages in its frames, which its policy binds as well as their own.
    """
    script, style = asset(scripts)[0], asset(styles)[0]
    own_scripts, own_styles = (
        " ".join(asset(names)[1] for names in (mine, framed) if names)
        for mine, framed in zip((scripts, styles), in_frames, strict=True)
    )
    policy = (
        f"default-src 'none'; script-src {own_scripts}; style-src {own_styles}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
<script>{script}</script>
</body>
</html>
"""


def data_of_page(text: str) -> Any:
    """The data that a page of ours holds; None if there is none. Raises ValueError if it is broken."""
    _, found, rest = text.partition(_DATA)
    data, ended, _ = rest.partition("</script>")
    if not found or not ended:
        return None
    try:
        packed = base64.b64decode(data, validate=True)
    except ValueError as error:
        raise ValueError(f"broken base64: {error}") from error
    return loads(packed)
