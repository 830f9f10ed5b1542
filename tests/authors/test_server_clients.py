"""Clients that people use make their JSON calls to `mini-vllm serve`: each asks for the same ticket.

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
# How many tickets each prints. Where a mode only tells the model of the schema, the tiny one fails it.
CLIENTS = {
    "openai": 5,
    "instructor": 1,
    "langchain": 4,
    "llama_index": 1,
    "litellm": 4,
    "pydantic_ai": 1,
}
CONFIG = '{"backend": "native", "disable_any_whitespace": true}'  # blanks have no end


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThere]:
    with serve_there("--structured-outputs-config", CONFIG) as running:
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


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_gets_its_tickets(server: ServerThere, name: str) -> None:
    script = SCRIPTS / f"ask_{name}.py"
    tickets = run([str(FOLDER / name / "bin" / "python"), str(script), server.url])
    assert len(tickets) == CLIENTS[name], tickets


def test_vercels_generate_object(server: ServerThere, tmp_path: Path) -> None:
    """Node looks for packages beside the script."""
    if shutil.which("node") is None:
        pytest.skip("no node")
    script = Path(shutil.copy(SCRIPTS / "ask_vercel.mjs", tmp_path))
    (tmp_path / "node_modules").symlink_to(FOLDER / "vercel" / "node_modules")
    assert len(run(["node", str(script), server.url])) == 3
