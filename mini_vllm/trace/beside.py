"""Two traces on one page: two viewers whose steps go together."""

from __future__ import annotations

import html

from mini_vllm.trace.page import SCRIPTS, STYLES, asset, to_html
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
    (script, script_hash), (style, style_hash) = asset(("beside.js",)), asset(("beside.css",))
    # What stands in a frame is bound by this page's policy as well as by its own.
    policy = (
        f"default-src 'none'; script-src {script_hash} {asset(SCRIPTS)[1]}; "
        f"style-src {style_hash} {asset(STYLES)[1]}; img-src data:; base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{html.escape(title)}</title>
<style>{style}</style>
</head>
<body>
<h1>{html.escape(title)}</h1>
<main>
{frames}
</main>
<script>{script}</script>
</body>
</html>
"""
