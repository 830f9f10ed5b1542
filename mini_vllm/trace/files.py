"""A trace as a file: text, data to be read again, a page, or Chrome's format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mini_vllm.trace.text import to_text
from mini_vllm.trace.types import StepTrace, Trace

FORMATS = (".txt", ".json", ".html", ".trace.json.gz")


def check_trace_path(path: Path) -> None:
    """Find out before the run whether the trace can be written after it.

    Raises ValueError unless `path` ends in a form that `write_trace` knows and lies in a folder.
    """
    if path.name in FORMATS or not path.name.endswith(FORMATS):
        raise ValueError(
            f"cannot tell the trace's form from {str(path)!r}: end it in .txt or .json or .html"
        )
    if path.is_dir() or not path.parent.is_dir():
        where = f"{path} is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise ValueError(f"cannot write the trace: {where}")


def to_chrome_trace(steps: list[StepTrace]) -> dict[str, Any]:
    """See `mini_vllm.trace.chrome.to_chrome_trace`."""
    from mini_vllm.trace import chrome

    return chrome.to_chrome_trace(steps)


def write_trace(trace: Trace, path: Path) -> None:
    """Write the trace in the form that the path's ending names.

    `.txt` to read, `.html` to step through, `.trace.json` and `.trace.json.gz` to read in again,
    any other `.json` for Perfetto.
    """
    check_trace_path(path)
    path.write_bytes(trace_bytes(trace, path))


def trace_bytes(trace: Trace, path: Path) -> bytes:
    """What `write_trace` writes there."""
    if path.suffix == ".txt":
        return to_text(trace.steps).encode()
    if path.suffix == ".html":
        from mini_vllm.trace.page import to_html

        return to_html(trace).encode()
    if path.name.endswith((".trace.json", ".gz")):
        from mini_vllm.trace.data import dumps, to_data, zipped

        text = dumps(to_data(trace))
        return zipped(text) if path.suffix == ".gz" else text.encode()
    return json.dumps(to_chrome_trace(trace.steps)).encode()
