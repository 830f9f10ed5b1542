"""The load script of the server: a short soak, and the shape of what it measures."""

from __future__ import annotations

import sys

import pytest

for package in ("fastapi", "uvicorn", "prometheus_client", "jinja2"):
    pytest.importorskip(package)

from benchmarks.generate import MODEL  # noqa: E402
from benchmarks.serve import measure  # noqa: E402
from benchmarks.serve_soak import run_soak  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_a_short_soak_loses_nothing() -> None:
    row, _ = run_soak(str(MODEL), requests=300, streams=60)
    assert row["read to the end"] + row["left in the middle"] == 300
    assert row["left in the middle"] == row["told to leave"] == 101
    assert row["files left"] == 0
    assert row["lines in the log"] == row["tracebacks in the log"] == 0
    assert row["different from offline"] == 0
    assert row["requests left"] == 0
    assert row["KV usage at the end"] == 0.0
    assert row["exit status"] == 0


def test_every_way_computes_the_same_tokens() -> None:
    row = measure(str(MODEL), rounds=1, streams=4, input_len=8, output_len=8)
    assert row["streams"] == 4
    for name in ("engine", "AsyncLLM", "HTTP"):
        assert row[f"{name} tok/s"] > 0
    assert 1 <= row["tokens a chunk"] <= 8
    assert row["server CPU us/token"] > 0
