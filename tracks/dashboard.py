"""A minute of `/metrics` of `mini-vllm serve` under a load that changes, as vLLM's dashboard would read it.

    python tracks/dashboard.py

starts the server on the shipped checkpoint with 16 seats and sends it requests for a minute: 4 people, then
48, then 4 again. Once a second it reads `/metrics`, and writes what `PANELS` ask for to
`tracks/captures/dashboard.json`. `tracks/pictures.py` draws it. Needs the extra `serve`.
"""

from __future__ import annotations

import datetime
import http.client
import json
import math
import platform
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "captures"
CAPTURE = FOLDER / "dashboard.json"
SECONDS, CROWD = 60, (20, 40)  # the crowd comes and goes
FLAGS = ("--max-num-seqs", "16", "--port", "0")
PROMPT = "The scheduler of an engine decides at every step which requests run. "
WINDOW = 10  # seconds that a rate looks back
_SAMPLE = re.compile(r"(?m)^(vllm:\w+)\{(.*)\} (\S+)$")

HISTOGRAMS = (
    "e2e_request_latency_seconds", "inter_token_latency_seconds", "time_to_first_token_seconds",
)  # fmt: skip
PLAIN = (
    "prompt_tokens_total", "generation_tokens_total", "num_requests_running", "num_requests_waiting",
    "kv_cache_usage_perc",
)  # fmt: skip
PANELS: dict[str, tuple[str, dict[str, tuple[str, float | None]]]] = {
    "E2E request latency, ms": ("ms", {
        "P99": ("e2e_request_latency_seconds", 0.99), "P50": ("e2e_request_latency_seconds", 0.5)}),
    "Token throughput, per second": ("rate", {
        "generation": ("generation_tokens_total", None), "prompt": ("prompt_tokens_total", None)}),
    "Inter-token latency, ms": ("ms", {
        "P99": ("inter_token_latency_seconds", 0.99), "P50": ("inter_token_latency_seconds", 0.5)}),
    "Scheduler state, requests": ("gauge", {
        "running": ("num_requests_running", None), "waiting": ("num_requests_waiting", None)}),
    "Time to first token, ms": ("ms", {
        "P99": ("time_to_first_token_seconds", 0.99), "P50": ("time_to_first_token_seconds", 0.5)}),
    "Cache utilization, %": ("percent", {"used": ("kv_cache_usage_perc", None)}),
}  # fmt: skip
"""Panels of vLLM's `grafana.json`: the title, what is done with the metric, and per curve the metric and the
quantile."""


def read_metrics(text: str) -> dict[str, Any]:
    """What the panels need of one `/metrics`: a number each, and of a histogram its cumulative buckets."""
    found: dict[str, Any] = {name: [] for name in HISTOGRAMS}
    for name, labels, value in _SAMPLE.findall(text):
        short = name.removeprefix("vllm:")
        if short in PLAIN:
            found[short] = float(value)
        elif short.removesuffix("_bucket") in HISTOGRAMS and short.endswith("_bucket"):
            bound = re.search(r'le="([^"]+)"', labels)
            assert bound is not None
            found[short.removesuffix("_bucket")].append([float(bound[1]), float(value)])
    return found


def rate(before: float, after: float, seconds: float) -> float:
    """`rate()` of a counter between two of its samples."""
    return (after - before) / seconds


def histogram_quantile(quantile: float, buckets: list[tuple[float, float]]) -> float | None:
    """Prometheus' estimate from cumulative buckets (upper bound, count): linear within a bucket; in the last,
    which has no end, its beginning. None without observations."""
    total = buckets[-1][1]
    if not total:
        return None
    wanted, low, below = quantile * total, 0.0, 0.0
    for bound, count in buckets:
        if count >= wanted:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    return low


def curve(
    samples: list[dict[str, Any]], kind: str, metric: str, quantile: float | None
) -> list[Any]:
    """(second, value) of one curve; without a value there is no point."""
    points = []
    for place, now in enumerate(samples):
        if kind in ("gauge", "percent"):
            points.append((now["t"], now[metric] * (100 if kind == "percent" else 1)))
            continue
        before = samples[max(place - WINDOW, 0)]
        seconds = now["t"] - before["t"]
        if not seconds:
            continue
        if quantile is None:
            points.append((now["t"], rate(before[metric], now[metric], seconds)))
            continue
        rates = [
            (math.inf if bound is None else bound, rate(b, a, seconds))
            for (_, b), (bound, a) in zip(before[metric], now[metric], strict=True)
        ]
        value = histogram_quantile(quantile, rates)
        if value is not None:
            points.append((now["t"], 1000 * value))
    return points


def main() -> None:
    command = [sys.executable, "-m", "mini_vllm.entrypoints.openai", *FLAGS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = re.search(r":(\d+)$", server.stdout.readline().strip())
        assert found is not None
        try:
            samples = watch(int(found[1]))
        finally:
            server.terminate()
    fact = f"{datetime.date.today()}, {platform.machine()}, Python {platform.python_version()}"
    lines = ",\n".join(json.dumps(sample) for sample in samples)
    shown = json.dumps({"command": "mini-vllm serve " + " ".join(FLAGS), "run": fact})
    CAPTURE.write_text(f"[{shown},\n{lines}]\n", encoding="utf-8")


def watch(port: int) -> list[dict[str, Any]]:
    """Let people come and go for a minute, and read `/metrics` once a second."""
    start, over = time.monotonic(), threading.Event()

    def person(number: int, begin: float, end: float) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        over.wait(begin)
        turn = 0
        while not over.is_set() and time.monotonic() - start < end:
            turn += 1
            body = {
                "prompt": f"{PROMPT * (1 + (number + turn) % 3)}{number} {turn}", "max_tokens": 120,
                "ignore_eos": True, "temperature": 0.8,
            }  # fmt: skip
            fields = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), fields)
            connection.getresponse().read()
            over.wait(0.05)

    people = [(0.0, float(SECONDS))] * 4 + [(float(CROWD[0]), float(CROWD[1]))] * 44
    threads = [
        threading.Thread(target=person, args=(i, begin, end))
        for i, (begin, end) in enumerate(people)
    ]
    for thread in threads:
        thread.start()
    samples = []
    try:
        for second in range(SECONDS + 1):
            time.sleep(max(start + second - time.monotonic(), 0))
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", "/metrics")
            found = read_metrics(connection.getresponse().read().decode())
            for name in HISTOGRAMS:
                found[name] = [[None if math.isinf(b) else b, count] for b, count in found[name]]
            samples.append({"t": round(time.monotonic() - start, 2), **found})
    finally:
        over.set()
    for thread in threads:
        thread.join()
    return samples


if __name__ == "__main__":
    main()
