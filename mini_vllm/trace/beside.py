"""Two traces on one page: two viewers whose steps go together."""

from __future__ import annotations

import html

from mini_vllm.trace.page import SCRIPTS, STYLES, document, to_html
from mini_vllm.trace.types import Trace


def beside(
    title: str, traces: tuple[Trace, Trace], step: int | None = None, request: str | None = None
) -> str:
    """The page: each trace in a frame, and a script that leads both to the same step.

    Args:
        step: where both open, by its number; a run that is over by then shows its last one.
        request: the request that is selected in both.
    """
    pages = [(html.escape(t.title), html.escape(to_html(t, step, request))) for t in traces]
    frames = "\n".join(f'<iframe title="{name}" srcdoc="{page}"></iframe>' for name, page in pages)
    title = html.escape(title)
    body = f"<h1>{title}</h1>\n<main>\n{frames}\n</main>"
    return document(title, body, ("beside.js",), ("beside.css",), (SCRIPTS, STYLES))
