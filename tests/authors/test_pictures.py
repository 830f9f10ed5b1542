"""The pictures of phases and tracks are what their scripts draw, and pages show each, with words for it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from course.docs.drawing import Drawing
from course.docs.pages import ROOT
from course.learner.labs import load_module

MOST_BYTES = 150_000
A_LENGTH = re.compile(r"-?\d+(?:\.\d+)?(?=[^<]*>)")  # a number inside a tag: the words stay exact
SCRIPTS = sorted([*ROOT.glob("phase-*/pictures.py"), ROOT / "tracks" / "pictures.py"])


def load(script: Path) -> dict[str, Callable[[], Drawing]]:
    sys.path.insert(0, str(script.parent))  # it imports the modules beside it
    try:
        module = load_module(script, script.parent.name.replace("-", "_") + "_pictures")
    finally:
        sys.path.remove(str(script.parent))
    pictures: dict[str, Callable[[], Drawing]] = module.PICTURES
    return pictures


PICTURES = {script.parent.name: load(script) for script in SCRIPTS}
EACH = [(phase, name) for phase, pictures in PICTURES.items() for name in pictures]


@pytest.mark.parametrize(("phase", "name"), EACH)
def test_the_file_is_what_the_script_draws(phase: str, name: str) -> None:
    drawn = PICTURES[phase][name]().svg()
    ElementTree.fromstring(drawn)
    kept = (ROOT / phase / "pictures" / f"{name}.svg").read_text("utf-8")
    again = f"python {phase}/pictures.py draws it again"
    assert A_LENGTH.sub("", kept) == A_LENGTH.sub("", drawn), again
    # One that comes from a matrix product may round otherwise on another processor, in its last digit.
    lengths = [[float(number) for number in A_LENGTH.findall(text)] for text in (kept, drawn)]
    assert lengths[0] == pytest.approx(lengths[1], rel=0, abs=0.02), again


@pytest.mark.parametrize("phase", PICTURES)
def test_every_picture_stands_on_a_page_with_words_for_it(phase: str) -> None:
    folder = ROOT / phase
    text = "\n".join(path.read_text("utf-8") for path in folder.glob("*.md"))
    shown = re.findall(r"!\[([^\]]*)\]\(pictures/([\w.-]+)\)", text)
    files = {path.name: path.stat().st_size for path in (folder / "pictures").iterdir()}
    assert sorted(name for _, name in shown) == sorted(files)
    assert {f"{name}.svg" for name in PICTURES[phase]} == {f for f in files if f.endswith(".svg")}
    assert all(len(words) > 40 for words, _ in shown), "say in words what the picture shows"
    assert max(files.values()) < MOST_BYTES


def test_what_phase_00s_pictures_say_is_what_its_guide_says() -> None:
    """The numbers that the guide works out stand in the pictures beside it."""
    drawn = {name: draw().svg() for name, draw in PICTURES["phase-00-foundations"].items()}
    for name, numbers in {
        "memory": ("15.0 GiB", "58 requests", "73.6 GiB"),
        "roofline": ("(127)", "(2,031)", "(19,424)", "(19,427)", "(1,510)", "ridge 153"),
        "attention": ("0.088", "0.734", "0.178", "8.23, 1.77"),
        "block-table": ("0 → 1", "1 → 3", "0 → 2"),
        "flat-batch": ("[0, 1, 7]",),
    }.items():
        missing = [number for number in numbers if number not in drawn[name]]
        assert not missing, f"{name}: {missing}"


def test_what_a_pass_with_64_gains_is_what_was_measured() -> None:
    guide = (ROOT / "phase-01-architecture/00-guide.md").read_text("utf-8")
    rows = json.loads((ROOT / "benchmarks/results/generate.json").read_text("utf-8"))["rows"]
    alone, crowd = rows[0], rows[-1]
    assert (alone["concurrent"], crowd["concurrent"]) == (1, 64)
    gain = crowd["vLLM eager tok/s"] / alone["vLLM eager tok/s"]
    assert f"{gain:.1f} times the tokens per second" in guide
    assert round(64 / gain) == 4, "the guide says: about as much as four passes of one"
