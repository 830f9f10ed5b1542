"""Every step as data: recorded, explained, written as text, JSON, a page or for Perfetto.

`recorder.py` first; `types.py` says what a trace holds.
"""

from mini_vllm.trace.recorder import (
    TraceRecorder,
    check_trace_path,
    to_chrome_trace,
    to_text,
    write_trace,
)
from mini_vllm.trace.types import RequestInfo, RequestStep, StepTrace, Trace

__all__ = [
    "RequestInfo",
    "RequestStep",
    "StepTrace",
    "Trace",
    "TraceRecorder",
    "check_trace_path",
    "to_chrome_trace",
    "to_text",
    "write_trace",
]
