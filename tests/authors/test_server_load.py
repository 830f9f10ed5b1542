"""The load script of the server: a short soak, and the shape of what it measures."""

from __future__ import annotations

import random
import sys

import pytest

for package in (
    "fastapi",
    "uvicorn",
    "prometheus_client",
    "prometheus_fastapi_instrumentator",
    "jinja2",
):
    pytest.importorskip(package)

from benchmarks.generate import MODEL  # noqa: E402
from benchmarks.serve import measure  # noqa: E402
from benchmarks.serve_soak import resident_kib, run_soak  # noqa: E402
from mini_vllm.layers.quantization.kv_cache import page_size_bytes  # noqa: E402
from mini_vllm.model_loader.loader import load_model  # noqa: E402
from tests.engine.helpers.server.server_helpers import serve_there  # noqa: E402

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


def test_memory_grows_by_the_pool_and_no_more() -> None:
    """A block's memory is resident once it has been written, and the free queue takes each in turn."""
    blocks = 600
    page = page_size_bytes(load_model(MODEL).config, 16)
    rng = random.Random(0)
    with serve_there("--num-gpu-blocks", str(blocks)) as server:

        def ask(count: int) -> int:
            for _ in range(count):
                prompt = [1] + [rng.randint(40, 134) for _ in range(255)]
                assert server.complete(prompt=prompt, max_tokens=1).status == 200
            return resident_kib(server.process.pid) * 1024

        before = ask(5)  # code and buffers are in, and 80 blocks
        once_round = ask(40)
        later = ask(60)
        server.signal()
        assert server.wait() == 0
    pool = blocks * page
    grown, more = once_round - before, later - once_round
    assert 0.6 * pool < grown < 1.5 * pool
    assert more < 0.15 * pool


def test_every_way_computes_the_same_tokens() -> None:
    row = measure(str(MODEL), rounds=1, streams=4, input_len=8, output_len=8)
    assert row["streams"] == 4
    for name in ("engine", "AsyncLLM", "HTTP"):
        assert row[f"{name} tok/s"] > 0
    assert 1 <= row["tokens a chunk"] <= 8
    assert row["server CPU us/token"] > 0
