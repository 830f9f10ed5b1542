"""Clients that people use ask `mini-vllm serve` for the same ticket: in JSON, or by a call of a tool.

`bash scripts/install_clients.sh FOLDER` installs them, and `MINI_VLLM_CLIENTS=FOLDER` says where.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

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
if "MINI_VLLM_CLIENTS" not in os.environ:
    pytest.skip("MINI_VLLM_CLIENTS does not say where the clients are", allow_module_level=True)

from tests.engine.helpers.patience import PATIENCE  # noqa: E402
from tests.engine.helpers.server.server_helpers import ServerThere, serve_there  # noqa: E402

FOLDER = Path(os.environ["MINI_VLLM_CLIENTS"])
SCRIPTS = Path(__file__).parent / "clients"
# How many tickets each prints, in JSON and as arguments of calls. Where a mode only tells the model of the
# schema, the tiny one fails it.
CLIENTS = {
    "ask_openai": 5,
    "ask_instructor": 1,
    "ask_langchain": 4,
    "ask_llama_index": 1,
    "ask_litellm": 4,
    "ask_pydantic_ai": 1,
    "tools_langchain": 5,
    "tools_pydantic_ai": 1,
}
FLAGS = (
    "--structured-outputs-config",
    '{"backend": "native", "disable_any_whitespace": true}',  # blanks have no end
    "--enable-auto-tool-choice",
    "--tool-call-parser",
    "hermes",
)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThere]:
    with serve_there(*FLAGS) as running:
        yield running
        running.wait_idle()
        assert running.log == ""


def run(command: list[str]) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [line for line in done.stdout.splitlines() if '"urgent":' in line]


@pytest.mark.parametrize("script", CLIENTS)
def test_a_client_gets_its_tickets(server: ServerThere, script: str) -> None:
    python = FOLDER / script.partition("_")[2] / "bin" / "python"
    tickets = run([str(python), str(SCRIPTS / f"{script}.py"), server.url])
    assert len(tickets) == CLIENTS[script], tickets


@pytest.mark.parametrize(("script", "count"), [("ask_vercel.mjs", 3), ("tools_vercel.mjs", 2)])
def test_vercels_sdk(server: ServerThere, tmp_path: Path, script: str, count: int) -> None:
    """Node looks for packages beside the script."""
    if shutil.which("node") is None:
        pytest.skip("no node")
    copy = Path(shutil.copy(SCRIPTS / script, tmp_path))
    (tmp_path / "node_modules").symlink_to(FOLDER / "vercel" / "node_modules")
    assert len(run(["node", str(copy), server.url])) == count
