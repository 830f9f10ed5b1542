"""The server as a process: metrics, signals, a dead engine, flags that are wrong."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.engine.helpers.patience import PATIENCE

for package in (
    "fastapi",
    "uvicorn",
    "prometheus_client",
    "prometheus_fastapi_instrumentator",
    "jinja2",
):
    pytest.importorskip(package)

from mini_vllm import LLM, EngineConfig, SamplingParams  # noqa: E402
from mini_vllm.engine.async_llm import AsyncLLM  # noqa: E402
from mini_vllm.engine.step_record import StepRecord  # noqa: E402
from tests.engine.helpers.server.server_helpers import (  # noqa: E402
    ServerThere,
    open_request,
    serve_here,
    serve_there,
)

PROMPT = "The KV cache"
no_signals = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows sends no SIGINT or SIGTERM to a process"
)


# -- metrics --------------------------------------------------------------------------------------


def test_the_metrics_count_what_happened() -> None:
    with serve_here() as server:
        prompt = "x" * 40
        for _ in range(2):
            server.complete(prompt=prompt, max_tokens=5, ignore_eos=True)
        server.complete(prompt=PROMPT, max_tokens=4, n=2, temperature=1, stream=True, stop="\u2603")
        sample = server.metrics()
        wanted = {
            "vllm:num_requests_running": 0,
            "vllm:num_requests_waiting": 0,
            "vllm:kv_cache_usage_perc": 0,
            "vllm:num_preemptions_total": 0,
            "vllm:prompt_tokens_total": 2 * 41 + 2 * 13,
            "vllm:prompt_tokens_cached_total": 32,
            "vllm:prefix_cache_queries_total": 2 * 41 + 2 * 13,
            "vllm:prefix_cache_hits_total": 32,
            'vllm:prompt_tokens_by_source_total{source="local_cache_hit"}': 32,
            "vllm:generation_tokens_total": 2 * 5 + 2 * 4,
            'vllm:request_success_total{finished_reason="length"}': 4,
            "vllm:time_to_first_token_seconds_count": 4,
            "vllm:inter_token_latency_seconds_count": 2 * 4 + 2 * 3,
            "vllm:e2e_request_latency_seconds_count": 4,
            "vllm:request_prompt_tokens_sum": 2 * 41 + 2 * 13,
            "vllm:request_generation_tokens_sum": 18,
            "vllm:request_params_n_sum": 1 + 1 + 2,
            'vllm:request_generation_tokens_bucket{le="2.0"}': 0,
            'vllm:request_generation_tokens_bucket{le="5.0"}': 4,
            'vllm:request_generation_tokens_bucket{le="+Inf"}': 4,
        }
        assert {name: sample.get(name) for name in wanted} == wanted
        assert (
            sample["vllm:e2e_request_latency_seconds_sum"]
            >= (sample["vllm:request_inference_time_seconds_sum"])
        )
        info = next(name for name in sample if name.startswith("vllm:cache_config_info"))
        assert 'block_size="16"' in info


def test_drafts_are_counted_and_two_parameters_refused_beside_them() -> None:
    """The counters by position add up; a line in the log is made of the same counts."""
    spec = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
    with serve_here(EngineConfig(speculative_config=spec)) as server:
        server.complete(prompt="a a a a a a", max_tokens=20, ignore_eos=True)
        sample = server.metrics()
        accepted = sample["vllm:spec_decode_num_accepted_tokens_total"]
        drafted = sample["vllm:spec_decode_num_draft_tokens_total"]
        by_position = [
            sample[f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}}']
            for place in range(3)
        ]
        assert sum(by_position) == accepted <= drafted
        assert sample["vllm:spec_decode_num_drafts_total"] > 0
        assert sample["vllm:generation_tokens_total"] == 20
        for name, value in (("min_p", 0.1), ("logit_bias", {"9": 1})):
            answer = server.complete(prompt="a", max_tokens=1, temperature=1, **{name: value})
            assert answer.status == 400
            assert "not supported with speculative decoding" in answer.error["message"]


def test_the_metrics_are_valid_and_show_the_load() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    with serve_here(EngineConfig(max_num_seqs=1)) as server:
        body = {"prompt": PROMPT, "max_tokens": 900, "ignore_eos": True, "stream": True}
        socks = [open_request(server, body) for _ in range(3)]
        scheduler = server.engine.engine_core.scheduler
        server.wait_until(lambda: len(scheduler.waiting) == 2, "two wait")
        sample = server.metrics()
        assert sample["vllm:num_requests_running"] == 1
        assert sample["vllm:num_requests_waiting"] == 2
        assert 0 < sample["vllm:kv_cache_usage_perc"] < 1
        for sock in socks:
            sock.close()
        server.wait_idle()
        text = server.send("/metrics").body.decode()
        families = {family.name: family for family in text_string_to_metric_families(text)}
        histogram = families["vllm:time_to_first_token_seconds"]
        assert histogram.type == "histogram"
        bounds = [s.labels["le"] for s in histogram.samples if s.name.endswith("_bucket")]
        assert bounds[:3] == ["0.001", "0.005", "0.01"]
        assert bounds[-2:] == ["2560.0", "+Inf"]
        assert families["vllm:prompt_tokens"].type == "counter"


def test_preemptions_are_counted_and_change_nothing() -> None:
    offline = LLM()
    prompts = ["a" * 60, "b" * 60, "c" * 60]
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    wanted = [o.outputs[0].text for o in offline.generate(prompts, params, use_tqdm=False)]
    with serve_here(EngineConfig(num_gpu_blocks=14, enable_prefix_caching=False)) as server:
        answer = server.complete(prompt=prompts, max_tokens=60, ignore_eos=True)
        assert [choice["text"] for choice in answer.json["choices"]] == wanted
        assert server.metrics()["vllm:num_preemptions_total"] > 0
        server.wait_idle()


# -- the engine dies ------------------------------------------------------------------------------


def test_a_dead_engine_is_told_and_not_hung_on() -> None:
    def die(record: StepRecord) -> None:
        if record.index == 300:
            raise RuntimeError("planted")

    llm = AsyncLLM(stats=die)
    with serve_here(llm=llm) as server:
        body = {"prompt": PROMPT, "max_tokens": 900, "ignore_eos": True, "stream": True}
        last = server.complete(**body).events[-1]
        assert last["error"]["code"] == 500
        assert "planted" in last["error"]["message"]
        assert server.send("/health").status == 503
        answer = server.complete(prompt=PROMPT)
        assert answer.status == 500
        assert answer.error["type"] == "InternalServerError"


# -- the process ----------------------------------------------------------------------------------


def wait_until_refused(server: ServerThere) -> None:
    """Wait until the server takes no connection more."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE).close()
        except OSError:
            return
        time.sleep(0.01)
    pytest.fail("the server still takes connections")


@no_signals
def test_sigterm_lets_requests_finish_and_takes_no_more() -> None:
    with serve_there() as server:
        body = {"prompt": PROMPT, "max_tokens": 1000, "ignore_eos": True, "temperature": 0}
        sock = open_request(server, {**body, "stream": True})
        received = sock.recv(64)
        server.signal(signal.SIGTERM)
        wait_until_refused(server)
        while b"[DONE]" not in received:
            part = sock.recv(65536)
            assert part, received[-300:]
            received += part
        assert b'"finish_reason":"length"' in received
        assert server.wait() == 0
        sock.close()


@no_signals
def test_the_second_signal_ends_it_at_once() -> None:
    with serve_there() as server:
        sock = open_request(server, {"prompt": PROMPT, "max_tokens": 1000, "ignore_eos": True})
        server.wait_until_running(1)
        server.signal(signal.SIGTERM)
        wait_until_refused(server)  # the first signal has been taken
        server.signal(signal.SIGTERM)
        # One that had waited for the request would end with 0.
        assert server.wait() == 128 + signal.SIGTERM
        sock.close()


@no_signals
def test_the_shutdown_timeout_ends_what_has_not_finished() -> None:
    with serve_there("--shutdown-timeout", "0.1", "--max-num-seqs", "1") as server:
        body = {"prompt": PROMPT, "max_tokens": 1000, "ignore_eos": True, "stream": True}
        socks = [open_request(server, body) for _ in range(20)]
        received = socks[0].recv(64)
        server.wait_until_waiting(19)  # a connection that was not accepted yet would only be reset
        server.signal(signal.SIGINT)
        assert server.wait() == 0
        while part := socks[0].recv(65536):
            received += part
        assert b"the server is shutting down" in received
        assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert socks[-1].recv(4096).startswith(b"HTTP/1.1 503"), "this one never ran"
        for sock in socks:
            sock.close()


def test_a_port_in_use_and_bad_flags_are_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for flags, part in (
            (["--port", port], "cannot listen on 127.0.0.1:" + port),
            (["--port", "70000"], "--port must be in [0, 65535], got 70000"),
            (["--model", str(tmp_path)], "config.json"),
            (["--chat-template", str(tmp_path / "none")], "is no file"),
            (["--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
        ):
            command = [sys.executable, "-m", "mini_vllm.entrypoints.openai", "--port", "0", *flags]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
            assert done.returncode == 2, flags
            assert part in done.stderr, (flags, done.stderr)
            assert "Traceback" not in done.stderr
