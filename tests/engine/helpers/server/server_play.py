"""The requests of `server_parity/requests.jsonl`, sent to a server's application in this process.

vLLM's own server and the miniature's are called by the same code, so that what differs is theirs.
`python scripts/record_server.py` writes vLLM's answers down; `test_server_parity.py` compares.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.engine.helpers.patience import PATIENCE

FOLDER = Path(__file__).parent / "server_parity"
REQUESTS = FOLDER / "requests.jsonl"
ANSWERS = FOLDER / "vllm-0.22.1.jsonl"
SUITES = {
    "server": (REQUESTS, ANSWERS),
    "tools": (FOLDER / "tools.jsonl", FOLDER / "tools-vllm-0.22.1.jsonl"),
}
"""Requests and vLLM's answers, by what they are about."""
SERVERS: dict[str, dict[str, Any]] = {
    "default": {},
    "dev": {"dev": True},
    "key": {"api_key": "secret"},
    "details": {"enable_prompt_tokens_details": True},
    "tools": {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
}
"""How a server is started: `server` of a request names one; without it, `default`."""
HEADERS = ("content-type", "access-control-allow-origin", "access-control-allow-methods",
           "access-control-allow-headers", "www-authenticate", "allow")  # fmt: skip


def requests(path: Path = REQUESTS) -> list[dict[str, Any]]:
    """The requests: name, method, path, and `json` or `raw`, `headers`, `server`, `repeat`, and in `needs` a
    library without which the miniature cannot do it."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def possible() -> list[dict[str, Any]]:
    """The requests whose library is here."""
    return [case for case in requests() if "needs" not in case or find_spec(case["needs"])]


async def play(
    apps: Mapping[str, Any], cases: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """Send every request to the application of its server; the answers, as plain data.

    An answer: name, status, the headers of `HEADERS`, and `json`, `events` or `text`.
    """
    import httpx

    clients = {
        name: httpx.AsyncClient(
            transport=httpx.ASGITransport(app, raise_app_exceptions=False),
            base_url="http://test",
            timeout=PATIENCE,
        )
        for name, app in apps.items()
    }
    answers = []
    for case in cases if cases is not None else requests():
        client = clients[case.get("server", "default")]
        body = case.get("raw", json.dumps(case["json"]) if "json" in case else None)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        for _ in range(case.get("repeat", 1)):
            response = await client.request(
                case["method"],
                case["path"],
                content=body,
                headers=headers | case.get("headers", {}),
            )
        answers.append({"name": case["name"], **_plain(response)})
    for client in clients.values():
        await client.aclose()
    return answers


def _plain(response: Any) -> dict[str, Any]:
    headers = {name: response.headers[name] for name in HEADERS if name in response.headers}
    answer: dict[str, Any] = {"status": response.status_code, "headers": headers}
    kind = headers.get("content-type", "").split(";")[0]
    if kind == "application/json":
        answer["json"] = response.json()
    elif kind == "text/event-stream":
        parts = response.text.split("\n\n")
        assert parts[-2:] == ["data: [DONE]", ""], parts[-3:]
        answer["events"] = [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]
    else:
        answer["text"] = response.text
    return answer
