"""Clients that people use let the model call a tool of `mini-vllm serve`: the ticket is its arguments.

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
CLIENTS = {"langchain": 5, "pydantic_ai": 1}
"""How many tickets each prints."""
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


def tickets(command: list[str]) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [line for line in done.stdout.splitlines() if '"urgent":' in line]


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_gets_its_calls(server: ServerThere, name: str) -> None:
    script = SCRIPTS / f"tools_{name}.py"
    found = tickets([str(FOLDER / name / "bin" / "python"), str(script), server.url])
    assert len(found) == CLIENTS[name], found


def test_vercels_tools(server: ServerThere, tmp_path: Path) -> None:
    """Node looks for packages beside the script."""
    if shutil.which("node") is None:
        pytest.skip("no node")
    script = Path(shutil.copy(SCRIPTS / "tools_vercel.mjs", tmp_path))
    (tmp_path / "node_modules").symlink_to(FOLDER / "vercel" / "node_modules")
    assert len(tickets(["node", str(script), server.url])) == 2
