"""The server's answers beside those of vLLM's own server, recorded on the same checkpoint.

`server_parity/vllm-0.22.1.jsonl` was written by `scripts/record_server.py`. Every difference must be
meant: `server_parity/differences.toml` says which are, and why; a row that fits none is an error too.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

for package in (
    "fastapi",
    "uvicorn",
    "prometheus_client",
    "prometheus_fastapi_instrumentator",
    "jinja2",
    "httpx",
):
    pytest.importorskip(package)

from mini_vllm import EngineConfig  # noqa: E402
from mini_vllm.engine.async_llm import AsyncLLM  # noqa: E402
from mini_vllm.entrypoints.openai.app import build_app  # noqa: E402
from mini_vllm.entrypoints.openai.settings import ServerSettings  # noqa: E402
from tests.engine.helpers.server.server_compare import (  # noqa: E402
    differences,
    page_section,
    recorded,
    rows,
    section,
)
from tests.engine.helpers.server.server_play import SERVERS, play, possible, requests  # noqa: E402


def answers_here() -> list[dict[str, Any]]:
    """The answers of the miniature's server, one application a way to start it, over one engine."""
    config = EngineConfig(max_num_seqs=64, scheduling_policy="priority")
    llm = AsyncLLM(config=config)
    patch = pytest.MonkeyPatch()
    try:
        apps = {}
        for name, options in SERVERS.items():
            options = dict(options)
            patch.setenv("VLLM_SERVER_DEV_MODE", str(int(options.pop("dev", False))))
            settings = ServerSettings(served_model_names=("tiny-llama",), **options)
            apps[name] = build_app(llm, settings)
        return asyncio.run(play(apps, possible()))
    finally:
        patch.undo()
        llm.shutdown()


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """By request: every difference, as `NAME: PATH: theirs | ours`."""
    theirs = {answer["name"]: answer for answer in recorded()}
    ours = {answer["name"]: answer for answer in answers_here()}
    sampled = {case["name"]: case.get("sampled", False) for case in requests()}
    return {
        name: [f"{name}: {line}" for line in differences(theirs[name], ours[name], sampled[name])]
        for name in theirs
        if name in ours
    }


def test_every_request_was_recorded() -> None:
    names = [case["name"] for case in requests()]
    assert [answer["name"] for answer in recorded()] == names
    assert len(set(names)) == len(names) >= 60


def test_what_differs_from_vllms_server_is_in_the_table(found: dict[str, list[str]]) -> None:
    table = rows()
    unknown = [
        line
        for lines in found.values()
        for line in lines
        if not any(row.where.match(line) for row in table)
    ]
    assert not unknown, "not in differences.toml:\n" + "\n".join(unknown)


def test_every_row_of_the_table_still_differs(found: dict[str, list[str]]) -> None:
    lines = [line for some in found.values() for line in some]
    idle = [row.where.pattern for row in rows() if not any(map(row.where.match, lines))]
    assert not idle, f"nothing differs there any more: {idle}"


def test_the_page_shows_the_table() -> None:
    assert page_section() == section(), "run: python -m tests.engine.helpers.server.server_compare"
