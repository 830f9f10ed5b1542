"""A thousand odd rules, posted beside a neighbour, with each backend; and dear ones.

Every answer is a 200, or a 400 that names field and rule. The neighbour's tokens are those that it has alone;
`/health` answers meanwhile, in the measure of `test_server_dear.py`.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest

for package in (
    "fastapi",
    "uvicorn",
    "httptools",
    "prometheus_client",
    "prometheus_fastapi_instrumentator",
    "jinja2",
):
    pytest.importorskip(package)
if sys.platform != "linux":
    pytest.skip("reads /proc", allow_module_level=True)

from tests.engine.helpers.patience import PATIENCE  # noqa: E402
from tests.engine.helpers.server.attack_helpers import Watch  # noqa: E402
from tests.engine.helpers.server.odd_rules import odd_rules  # noqa: E402
from tests.engine.helpers.server.server_helpers import ServerThere, serve_there  # noqa: E402

MOST_SECONDS = 0.5
COUNT = 1000
FIELDS = ("structured_outputs", "response_format")
TEXT = "/v1/completions"
NEIGHBOUR = {"prompt": "The KV cache", "max_tokens": 200, "ignore_eos": True, "temperature": 0}
NEEDS = {
    "native": (),
    "xgrammar": ("xgrammar",),
    "guidance": ("llguidance",),
    "auto": ("xgrammar", "llguidance"),
}


def backends(*libraries: str) -> pytest.MarkDecorator:
    """With our own backend and with these."""
    marked = [pytest.param(name, marks=pytest.mark.vllm) for name in libraries]
    return pytest.mark.parametrize("server", ["native", *marked], indirect=True)


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[ServerThere]:
    for library in NEEDS[request.param]:
        if find_spec(library) is None:
            pytest.skip(f"no {library}")
    with serve_there("--structured-outputs-config.backend", request.param) as running:
        # The time that a library takes to load is no rule's: one is compiled before anything is measured.
        rule = {"structured_outputs": {"regex": "[a-c]"}}
        assert running.complete(prompt="x", max_tokens=3, **rule).status == 200
        yield running
        running.signal()
        assert running.wait() == 0
        # xgrammar warns of what it reads otherwise than it is meant, and cannot be told not to.
        lines = [line for line in running.log.splitlines() if "/project/cpp/" not in line]
        assert not lines


class Neighbour:
    """A request that is made over and over meanwhile, and must be answered as ever."""

    def __init__(self, server: ServerThere) -> None:
        self.answers: set[str] = set()
        self._server = server
        self._stop = threading.Event()
        self._alone = self._ask()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _ask(self) -> str:
        answer = self._server.send(TEXT, NEIGHBOUR)
        assert answer.status == 200, answer.body
        return str(answer.json["choices"][0]["text"])

    def _run(self) -> None:
        while not self._stop.is_set():
            self.answers.add(self._ask())

    def close(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        assert self.answers == {self._alone}


def p99(waits: list[float]) -> float:
    return sorted(waits)[int(0.99 * len(waits))]


@backends("auto")  # which asks both libraries
def test_a_thousand_odd_rules(server: ServerThere) -> None:
    counts = {200: 0, 400: 0}
    watch, neighbour = Watch(server), Neighbour(server)
    try:
        for fields in odd_rules(COUNT):
            answer = server.send(TEXT, {"prompt": "x", "max_tokens": 4, "temperature": 0, **fields})
            assert answer.status in counts, (fields, answer.body)
            counts[answer.status] += 1
            if answer.status == 400:
                assert answer.error["param"] in FIELDS, (fields, answer.error)
                assert answer.error["message"].startswith(FIELDS), (fields, answer.error)
    finally:
        watch.close()
        neighbour.close()
    server.wait_idle()
    print(f"{counts}; /health p99 {p99(watch.waits):.2f} s, at most {max(watch.waits):.2f} s")
    assert min(counts.values()) >= COUNT // 10
    assert p99(watch.waits) < MOST_SECONDS


def nested(levels: int, width: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        others = {f"b{i}": {"type": "string"} for i in range(width)}
        schema = {"type": "object", "properties": {"a": schema, **others}, "required": ["a"]}
    return schema


def properties(count: int, value: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": value for i in range(count)}}


SLOW_PATTERN = {"type": "string", "pattern": "^(.{0,1000}x){10}$"}
# Within the limits, or past them; what each backend does is its affair, as long as no other request notices.
DEAR: dict[str, Callable[[], dict[str, Any]]] = {
    "31 objects in each other": lambda: {"json": nested(31, 0)},
    "31 objects of 50 properties": lambda: {"json": nested(31, 50)},
    "200 objects in each other": lambda: {"json": nested(200, 0)},
    "2,200 optional properties": lambda: {"json": properties(2200, {"type": "string"})},
    "4,000 properties of any kind": lambda: {"json": properties(4000, True)},
    "700 slow patterns": lambda: {"json": properties(700, SLOW_PATTERN)},
    "a text of a million": lambda: {
        "json": {"type": "string", "minLength": 10**6, "maxLength": 10**6}
    },
    "lists of 100,000 lists": lambda: {
        "json": {"type": "array", "maxItems": 10**5, "items": {"type": "array", "maxItems": 10**5}}
    },
    "6,000 choices": lambda: {"choice": [f"c{i}" for i in range(6000)]},
    "a million choices": lambda: {"choice": ["c"] * 900_000},
    "a regex that doubles": lambda: {"regex": "(a|b)*a(a|b){20}"},
    "a regex of a million": lambda: {"regex": "((a{1,100}){1,100}){1,100}"},
    "a regex of 60 KB": lambda: {"regex": "|".join(f"word{i}" for i in range(6000))},
    "a schema of 5 MB": lambda: {"json": properties(60_000, {"enum": ["x" * 60]})},
}


@pytest.mark.parametrize("name", DEAR)
@backends("xgrammar", "guidance")
def test_a_dear_rule(server: ServerThere, name: str) -> None:
    body = {"prompt": "x", "max_tokens": 4, "temperature": 0, "structured_outputs": DEAR[name]()}
    server.forget_peak()
    watch, neighbour = Watch(server), Neighbour(server)
    try:
        answer = server.send(TEXT, json.dumps(body).encode())
    finally:
        watch.close()
        neighbour.close()
    print(
        f"{name}: {answer.status}, /health p99 {p99(watch.waits):.2f} s, {server.peak_mib():.0f} MiB, "
        f"{answer.body[:120]!r}"
    )
    assert answer.status in (200, 400), answer.body[:300]
    if answer.status == 400 and "the request body may hold" not in answer.error["message"]:
        assert answer.error["param"] == "structured_outputs"
    assert p99(watch.waits) < MOST_SECONDS
    assert server.peak_mib() < 1500
