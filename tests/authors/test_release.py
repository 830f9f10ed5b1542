"""What is handed out beside the repository: the wheel, and the container's image."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from course_helpers import ROOT

import mini_vllm
from tests.engine.helpers.patience import PATIENCE

DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built in this environment, from a copy of what the image's context holds."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("release")
    for name in ("mini_vllm", "course"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"], cwd=folder, check=True,
        capture_output=True,
    )  # fmt: skip
    [made] = (folder / "dist").glob("*.whl")
    assert made.name == f"mini_vllm_course-{mini_vllm.__version__}-py3-none-any.whl"
    return zipfile.ZipFile(made)


@pytest.fixture(scope="module")
def installed(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel unpacked, as an installer does it."""
    folder = tmp_path_factory.mktemp("site-packages")
    wheel.extractall(folder)
    return folder


def run(folder: Path, *argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv], cwd=cwd, env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True, encoding="utf-8", check=False, timeout=PATIENCE,
    )  # fmt: skip


def test_the_wheel_holds_the_engine_whole(wheel: zipfile.ZipFile) -> None:
    names = {name for name in wheel.namelist() if name.startswith("mini_vllm/")}
    there = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "mini_vllm").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == there
    for file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        assert f"mini_vllm/checkpoints/tiny-llama/{file}" in names


def test_the_wheel_holds_nothing_of_a_checkout(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    info = f"mini_vllm_course-{mini_vllm.__version__}.dist-info"
    assert tops == {"mini_vllm", "course", info}
    for left_out in ("course/site/assets/", "course/cite/citations.tsv"):
        assert not [name for name in wheel.namelist() if name.startswith(left_out)]
    assert sum(entry.file_size for entry in wheel.infolist()) < 2**24


def test_the_wheel_s_name_and_commands(wheel: zipfile.ZipFile) -> None:
    info = f"mini_vllm_course-{mini_vllm.__version__}.dist-info"
    metadata = wheel.read(f"{info}/METADATA").decode()
    assert "\nName: mini-vllm-course\n" in metadata
    assert f"\nVersion: {mini_vllm.__version__}\n" in metadata
    points = wheel.read(f"{info}/entry_points.txt").decode()
    assert "mini-vllm = mini_vllm.entrypoints.cli:main" in points
    assert "course = course.learner.cli:main" in points


def test_the_wheel_generates_outside_the_repository(installed: Path, tmp_path: Path) -> None:
    command = ("-m", "mini_vllm.entrypoints.cli")
    argv = ("generate", "The KV cache", "--max-tokens", "12")
    done = run(installed, *command, *argv, cwd=tmp_path)
    here = run(ROOT, *command, *argv, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == here.stdout != ""
    done = run(installed, *command, "--version", cwd=tmp_path)
    assert done.stdout == f"mini-vllm {mini_vllm.__version__}\n"
    done = run(installed, "-c", "import mini_vllm; print(mini_vllm.__file__)", cwd=tmp_path)
    assert done.stdout.strip() == str(installed / "mini_vllm" / "__init__.py")


def test_the_wheel_names_packages_for_an_extra(installed: Path, tmp_path: Path) -> None:
    """There is no checkout to install from, and the index has another project of the name."""
    text = "from mini_vllm.utils.extras import how_to_get; print(how_to_get('watch'))"
    assert run(installed, "-c", text, cwd=tmp_path).stdout == 'pip install "rich<16,>=13.9"\n'


def test_course_outside_the_repository_says_so(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("typer")
    done = run(installed, "-m", "course", cwd=tmp_path)
    assert done.returncode == 2
    assert "is not inside the course's repository" in done.stderr


def test_the_changelog_knows_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == mini_vllm.__version__
    assert mini_vllm.__version__ in (ROOT / "CHANGELOG.md").read_text("utf-8")


# --- the image ---


def entrypoint() -> list[str]:
    found = re.search(r"^ENTRYPOINT (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert found is not None
    words: list[str] = json.loads(found[1])
    return words


@pytest.mark.skipif(not Path("/bin/sh").exists(), reason="the image has /bin/sh")
@pytest.mark.parametrize("key", [None, ""])
def test_the_image_does_not_start_without_a_key(key: str | None, tmp_path: Path) -> None:
    env = {"PATH": "/nowhere"} | ({} if key is None else {"VLLM_API_KEY": key})
    done = subprocess.run(entrypoint(), env=env, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 2
    assert b"VLLM_API_KEY" in done.stderr


@pytest.mark.skipif(not Path("/bin/sh").exists(), reason="the image has /bin/sh")
def test_the_image_hands_its_arguments_to_the_server(tmp_path: Path) -> None:
    """On all addresses, with the key from the environment, in place of the shell."""
    command = tmp_path / "mini-vllm"
    command.write_text('#!/bin/sh\necho "$$ $VLLM_API_KEY $*"\n', "utf-8")
    command.chmod(0o755)
    started = subprocess.Popen(
        [*entrypoint(), "--max-model-len", "64", "a b"], stdout=subprocess.PIPE,
        env={"PATH": str(tmp_path), "VLLM_API_KEY": "secret"},
    )  # fmt: skip
    out, _ = started.communicate(timeout=PATIENCE)
    want = f"{started.pid} secret serve --host 0.0.0.0 --max-model-len 64 a b\n"
    assert out.decode() == want


def test_the_image_is_no_root_s_and_its_context_holds_what_it_copies() -> None:
    lines = DOCKERFILE.splitlines()
    last = lines[max(i for i, line in enumerate(lines) if line.startswith("FROM ")) :]
    [user] = [line.split()[1] for line in last if line.startswith("USER ")]
    assert user.isdecimal()
    assert int(user) > 0
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    copied = {
        name
        for line in lines
        if line.startswith("COPY ") and "--from" not in line
        for name in line.split()[1:-1]
    }
    assert "*" in ignored
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)
    assert not re.search(r"(?i)^(?:ENV|ARG) .*(?:KEY|SECRET|TOKEN)", DOCKERFILE, re.MULTILINE)
