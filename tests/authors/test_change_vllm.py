"""`tracks/change-vllm.md`: its test fails at the pin and passes with its patch, on a copy of vLLM's file."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.engine.helpers.real_vllm.vllm_helpers import output_of

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tracks" / "change_vllm"
PAGE = ROOT / "tracks" / "change-vllm.md"
TARGET = "vllm/v1/core/sched/scheduler.py"
CHILD = """\
import importlib.util, os, sys
import pytest, vllm.config
name, path, test = "vllm.v1.core.sched.scheduler", *sys.argv[1:]
os.chdir(os.path.dirname(path))
spec = importlib.util.spec_from_file_location(name, path)
module = sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
import vllm.v1.core.sched
vllm.v1.core.sched.scheduler = module
pytest.main(["-q", "-p", "no:cacheprovider", "--noconftest", "-c", "/dev/null", "--tb=line", test])
"""


def added_lines(patch: str) -> list[str]:
    return [line[1:] for line in patch.split("\n") if line.startswith("+") and line[:3] != "+++"]


def patched(source: str, patch: str) -> str:
    """The one hunk put in: the lines after line N, nothing taken away."""
    [at, count] = re.findall(r"(?m)^@@ -(\d+),0 \+\d+,(\d+) @@$", patch)[0]
    lines, added = source.split("\n"), added_lines(patch)
    assert len(added) == int(count)
    return "\n".join([*lines[: int(at)], *added, *lines[int(at) :]])


def test_the_patch_holds_our_lines_alone_and_the_page_shows_them() -> None:
    patch = (FOLDER / "evict_uncomputed.patch").read_text()
    assert f"+++ b/{TARGET}" in patch
    body = patch.rstrip("\n").split("\n")[2:]
    assert [line for line in body if line[0] not in "+@"] == [], "no line of vLLM's stands here"
    assert "\n".join(body) in PAGE.read_text()


@pytest.mark.vllm
@pytest.mark.parametrize("with_patch", [False, True], ids=["at the pin", "patched"])
def test_its_test_fails_at_the_pin_and_passes_with_the_patch(
    tmp_path: Path, with_patch: bool
) -> None:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    source = (Path(spec.origin).parents[1] / TARGET).read_text()
    patch = (FOLDER / "evict_uncomputed.patch").read_text()
    file = tmp_path / "scheduler.py"
    file.write_text(patched(source, patch) if with_patch else source)
    # The test asks for a model by a name of the hub; a folder of that name comes first.
    (tmp_path / "facebook").mkdir()
    (tmp_path / "facebook" / "opt-125m").symlink_to(ROOT / "mini_vllm/checkpoints/tiny-llama")
    ran = output_of("-c", CHILD, file, FOLDER / "test_preempted_blocks.py")
    if with_patch:
        assert "2 passed" in ran, ran
    else:
        assert "2 failed" in ran, ran
        assert ran.count("AssertionError: 10 tokens found, 8 computed") >= 2
