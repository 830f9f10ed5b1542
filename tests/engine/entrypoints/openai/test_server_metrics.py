"""`/metrics` beside a plain vLLM server's, in both formats; pages of other origins; the start line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

for package in (
    "fastapi",
    "uvicorn",
    "prometheus_client",
    "prometheus_fastapi_instrumentator",
    "jinja2",
):
    pytest.importorskip(package)

from mini_vllm.config.engine import EngineConfig  # noqa: E402
from mini_vllm.entrypoints.cli.serve import describe_kv_cache  # noqa: E402
from mini_vllm.entrypoints.openai.__main__ import main  # noqa: E402
from tests.engine.helpers.server.server_helpers import (  # noqa: E402
    Answer,
    ServerHere,
    serve_app,
    serve_here,
)

CAPTURE = Path(__file__).resolve().parents[4] / "tracks" / "captures" / "plain.metrics"
"""What a plain `vllm serve` of 0.22.1 showed on the same checkpoint."""
OPEN_METRICS = "application/openmetrics-text"


def kinds(text: str) -> dict[str, str]:
    """The type of each metric."""
    return dict(re.findall(r"(?m)^# TYPE (\S+) (\S+)$", text))


def labels(text: str) -> dict[str, set[str]]:
    """Names of the labels of each sample, but for those that tell settings."""
    found: dict[str, set[str]] = {}
    for name, inside in re.findall(r"(?m)^([a-z_:]+)(?:\{(.*)\})? \S+$", text):
        if not name.endswith("_info"):
            found.setdefault(name, set()).update(re.findall(r'(\w+)="', inside))
    return found


@pytest.fixture(scope="module")
def plain() -> Iterator[ServerHere]:
    """A server without flags, for tests that count nothing from zero."""
    with serve_here() as server:
        yield server


def test_every_name_of_a_plain_vllm_server(plain: ServerHere) -> None:
    theirs = CAPTURE.read_text(encoding="utf-8")
    plain.complete(prompt="x", max_tokens=2)
    plain.complete(prompt="x", max_tokens=0)
    ours = plain.send("/metrics").body.decode()
    assert kinds(theirs).items() <= kinds(ours).items()
    assert {n: k for n, k in labels(theirs).items() if labels(ours).get(n) != k} == {}
    assert len(kinds(theirs)) > 70
    assert set(kinds(ours)) - set(kinds(theirs)) == set(), "and no other"


def test_waiting_requests_by_reason_and_the_engines_state(plain: ServerHere) -> None:
    sample = plain.metrics()
    assert sample['vllm:num_requests_waiting_by_reason{reason="capacity"}'] == 0
    assert sample['vllm:num_requests_waiting_by_reason{reason="deferred"}'] == 0
    assert sample['vllm:engine_sleep_state{sleep_state="awake"}'] == 1
    assert sample['vllm:engine_sleep_state{sleep_state="discard_all"}'] == 0


def test_http_requests_are_counted_as_vllm_counts_them() -> None:
    """By handler and class of status; those that only look are not, and neither are keys that are wrong."""
    with serve_here(api_key="secret", allowed_origins=("*",)) as server:
        key = {"Authorization": "Bearer secret"}
        for body in (
            {"prompt": "x", "max_tokens": 1},
            {"prompt": ""},
            {"prompt": "x", "stream": True},
        ):
            server.send("/v1/completions", body, headers=key)
        server.send("/v1/completions", {"prompt": "x"})
        server.send("/v1/models/nothing", headers=key)
        server.send("/no/such/path")
        for path in ("/health", "/ping", "/version", "/metrics"):
            server.send(path)
        sample = server.metrics()
    counted = {k: v for k, v in sample.items() if k.startswith("http_requests_total{")}
    assert counted == {
        'http_requests_total{handler="/v1/completions",method="POST",status="2xx"}': 2,
        'http_requests_total{handler="/v1/completions",method="POST",status="4xx"}': 1,
        'http_requests_total{handler="/v1/models/{name:path}",method="GET",status="4xx"}': 1,
        'http_requests_total{handler="none",method="GET",status="4xx"}': 1,
    }
    assert sample["http_request_duration_highr_seconds_count"] == 5
    assert sample['http_request_size_bytes_count{handler="/v1/completions"}'] == 3


@pytest.mark.parametrize(
    "accept",
    [
        OPEN_METRICS,
        f"{OPEN_METRICS};version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1",
        f"{OPEN_METRICS};version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;q=0.4",
    ],
)
def test_open_metrics_when_asked_for(accept: str, plain: ServerHere) -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    before = plain.metrics()["vllm:generation_tokens_total"]
    plain.complete(prompt="x", max_tokens=3)
    answer = plain.send("/metrics", headers={"Accept": accept})
    text_format = plain.send("/metrics")
    assert answer.headers["content-type"].startswith(
        f"{OPEN_METRICS}; version=1.0.0; charset=utf-8"
    )
    text = answer.body.decode()
    assert text.endswith("# EOF\n")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    total = {s.name: s.value for s in families["vllm:generation_tokens"].samples}
    assert total["vllm:generation_tokens_total"] == before + 3
    assert '\nvllm:num_requests_running{engine="0"' in text
    assert families["vllm:time_to_first_token_seconds"].type == "histogram"
    assert text_format.headers["content-type"].startswith("text/plain; version=")
    assert "# EOF" not in text_format.body.decode()


@pytest.mark.parametrize(
    "accept", ["", "*/*", "text/html", f"{OPEN_METRICS};version=x", "a" * 4000, ";,;"]
)
def test_any_other_wish_gets_the_text_format(accept: str, plain: ServerHere) -> None:
    answer = plain.send("/metrics", headers={"Accept": accept})
    assert answer.status == 200
    assert b"vllm:num_requests_running" in answer.body


# -- pages ----------------------------------------------------------------------------------------

PAGE = "http://localhost:3000"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


def preflight(server: ServerHere, path: str = "/v1/chat/completions", **more: str) -> Any:
    return server.send(path, method="OPTIONS", headers={**PREFLIGHT, **more})


def test_without_the_flag_no_page_may_use_the_server(plain: ServerHere) -> None:
    answer = preflight(plain)
    assert answer.status == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]
    answer = plain.send("/v1/models", headers={"Origin": PAGE})
    assert "access-control-allow-origin" not in answer.headers


def test_a_page_that_is_named_may() -> None:
    with serve_here(api_key="secret", allowed_origins=(PAGE,)) as server:
        answer = preflight(server)  # a browser sends no key with it
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert answer.headers["access-control-allow-headers"] == "authorization,content-type"
        assert "access-control-allow-credentials" not in answer.headers
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "stream": True}
        headers = {"Origin": PAGE, "Authorization": "Bearer secret"}
        answer = server.send("/v1/chat/completions", body, headers=headers)
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == PAGE
        for path, bad, status in (
            ("/v1/models", None, 401),
            ("/tokenize", {}, 400),
            ("/none", {}, 404),
        ):
            answer = server.send(path, bad, headers={"Origin": PAGE})
            assert answer.status == status
            assert answer.headers["access-control-allow-origin"] == PAGE, (
                "or the page cannot read why"
            )
        assert preflight(server, Origin="http://other").status == 400
        answer = server.send("/health", headers={"Origin": "http://other"})
        assert "access-control-allow-origin" not in answer.headers


def test_any_page_and_what_else_vllm_has_flags_for() -> None:
    with serve_here(allowed_origins=("*",)) as server:
        assert preflight(server).headers["access-control-allow-origin"] == "*"
    with serve_here(
        allowed_origins=(PAGE,),
        allowed_methods=("GET",),
        allowed_headers=("x-mine",),
        allow_credentials=True,
    ) as server:
        assert preflight(server).status == 400
        answer = server.send("/v1/models", headers={"Origin": PAGE})
        assert answer.headers["access-control-allow-credentials"] == "true"


def test_the_flags_reach_the_server_and_it_says_what_its_cache_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command in this process; `tests/authors/test_server_process.py` starts it in one of its own."""
    answers: list[Answer] = []

    def serve(app: Any, llm: Any, sock: Any, *, started: Callable[[], None], **rest: Any) -> int:
        with serve_app(app, llm, sock) as server:
            started()
            answers.append(server.send("/version", headers={"Origin": PAGE}))
        return 0

    monkeypatch.setattr("mini_vllm.entrypoints.openai.run.serve", serve)
    flags = ("--allowed-origins", f'["{PAGE}"]', "--allow-credentials", "--num-gpu-blocks", "64")
    assert main(["--port", "0", *flags]) == 0
    (answer,) = answers
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["access-control-allow-credentials"] == "true"
    _, line = capsys.readouterr().out.splitlines()
    assert line == "mini-vllm: KV cache: 2.0 MiB, 64 blocks of 16 tokens; paged in as they are used"


@pytest.mark.parametrize("dtype", ["auto", "fp8"])
def test_the_caches_size_is_that_of_its_arrays(dtype: str) -> None:
    with serve_here(EngineConfig(num_gpu_blocks=32, kv_cache_dtype=dtype)) as server:
        core = server.engine.engine_core
        caches: list[Any] = core.model_runner.kv_caches
        said = float(re.findall(r"([\d.]+) MiB", describe_kv_cache(server.llm))[0])
    size = sum(getattr(cache, "data", cache).nbytes for cache in caches)
    assert said == pytest.approx(size / 2**20, abs=0.06)
