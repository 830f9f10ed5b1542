"""The command on systems that nobody here has: Windows without what Unix has, and its pipes and ports."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mini_vllm.compress.save import check_new_folder
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.entrypoints.cli import errors
from mini_vllm.entrypoints.cli.chat import import_readline
from tests.engine.helpers.other_systems import LIKE_WINDOWS, ROOT, run_like_windows
from tests.engine.helpers.patience import PATIENCE

COMMAND = ("-m", "mini_vllm.entrypoints.cli")
simulated = pytest.mark.skipif(sys.platform == "win32", reason="this is what it simulates")


@simulated
def test_generate_and_its_trace(tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    argv = ("generate", "The KV cache", "--max-tokens", "12", "--trace", str(page))
    ran = run_like_windows(*COMMAND, *argv)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.strip()
    assert page.read_text(encoding="utf-8").rstrip().endswith("</html>")


@simulated
def test_sweep(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    argv = ("sweep", "--set", "num-prompts=3,4", "--output-len", "5", "--json", str(file))
    ran = run_like_windows(*COMMAND, *argv)
    assert ran.returncode == 0, ran.stderr
    assert [line.split()[0] for line in ran.stdout.splitlines()] == ["num_prompts", "3", "4"]
    assert len(file.read_bytes().splitlines()) == 2


@simulated
def test_chat() -> None:
    pytest.importorskip("jinja2")
    ran = run_like_windows(
        *COMMAND, "chat", "--model", str(DEFAULT_MODEL), "--max-tokens", "4",
        text="What is a block?\n/help\n",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "tokens; the first after" in ran.stderr
    assert "/quit" in ran.stdout


def test_a_talk_without_readline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "readline", None)
    import_readline()
    assert sys.modules["readline"] is None


@simulated
def test_serve() -> None:
    """It serves until Ctrl-C, without uvloop and without a limit of open files to raise."""
    for package in (
        "fastapi",
        "uvicorn",
        "httptools",
        "prometheus_client",
        "prometheus_fastapi_instrumentator",
        "jinja2",
    ):
        pytest.importorskip(package)
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # or a child may be deaf to it
    try:
        server = subprocess.Popen(
            [sys.executable, *COMMAND, "serve", "--port", "0"], cwd=ROOT, env=os.environ | LIKE_WINDOWS,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="cp1252",
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGINT, before)
    with server:
        try:
            assert server.stdout is not None
            first = server.stdout.readline()
            server.send_signal(signal.SIGINT)
            _, said = server.communicate(timeout=PATIENCE)
        finally:
            server.kill()
    assert "serving 'tiny-llama' on http://127.0.0.1:" in first, said
    assert (server.returncode, said) == (0, "")


def test_a_port_in_use_is_refused_on_windows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """SO_REUSEADDR is harmless on Unix; on Windows two servers with it share a port."""
    for package in ("fastapi", "uvicorn", "httptools", "prometheus_client"):
        pytest.importorskip(package)
    from mini_vllm.entrypoints.openai.run import bind

    for system, shares in (("posix", True), ("nt", False)):
        monkeypatch.setattr(os, "name", system)
        with bind("127.0.0.1", 0) as sock:
            assert bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)) is shares, system


def test_a_limit_of_open_files_that_cannot_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS says that there is no limit, and refuses all the same."""
    resource = pytest.importorskip("resource")
    for package in ("fastapi", "uvicorn", "httptools", "prometheus_client"):
        pytest.importorskip(package)
    from mini_vllm.entrypoints.openai.run import raise_open_files_limit

    def refuse(kind: int, limits: tuple[int, int]) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_open_files_limit(20000) == 256


def test_a_reader_who_has_seen_enough_on_windows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There a pipe that nobody reads makes the write an invalid argument; so is a file's odd name."""

    def write_to_nobody(out: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    def open_an_odd_name(out: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument", "what?.txt")

    assert errors.guarded(write_to_nobody) == 2
    monkeypatch.setattr(os, "name", "nt")
    capsys.readouterr()
    assert errors.guarded(write_to_nobody) == 0
    assert capsys.readouterr().err == ""
    assert errors.guarded(open_an_odd_name) == 2
    assert "what?.txt" in capsys.readouterr().err


def test_an_empty_folder_takes_a_quantised_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Python 3.12 a path of Windows cannot say whether it is a mount point."""

    def is_mount(path: Path) -> bool:
        raise NotImplementedError("Path.is_mount() is unsupported on this system")

    monkeypatch.setattr(Path, "is_mount", is_mount)
    check_new_folder(tmp_path)
