"""Phase 01's pictures are what its script draws, and its guide shows every one, with words for it."""

from __future__ import annotations

import json
import re
import sys
from xml.etree import ElementTree

import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module

PHASE = ROOT / "phase-01-architecture"
GUIDE = (PHASE / "00-guide.md").read_text("utf-8")
MOST_BYTES = 150_000

sys.path.insert(0, str(PHASE))  # pictures.py imports the module beside it
try:
    PICTURES = load_module(PHASE / "pictures.py", "phase_01_pictures").PICTURES
finally:
    sys.path.remove(str(PHASE))


@pytest.mark.parametrize("name", PICTURES)
def test_the_file_is_what_the_script_draws(name: str) -> None:
    drawn = PICTURES[name]()
    ElementTree.fromstring(drawn)
    kept = (PHASE / "pictures" / name).read_text("utf-8")
    assert kept == drawn, "python phase-01-architecture/pictures.py draws it again"


def test_every_picture_stands_in_the_guide_with_words_for_it() -> None:
    shown = dict(re.findall(r"!\[([^\]]*)\]\(pictures/([\w.-]+)\)", GUIDE))
    files = {path.name: path.stat().st_size for path in (PHASE / "pictures").iterdir()}
    assert set(shown.values()) == set(files) == {*PICTURES, "viewer.png"}
    assert all(len(words) > 40 for words in shown), "say in words what the picture shows"
    assert max(files.values()) < MOST_BYTES


def test_what_a_pass_with_64_gains_is_what_was_measured() -> None:
    rows = json.loads((ROOT / "benchmarks/results/generate.json").read_text("utf-8"))["rows"]
    alone, crowd = rows[0], rows[-1]
    assert (alone["concurrent"], crowd["concurrent"]) == (1, 64)
    gain = crowd["vLLM eager tok/s"] / alone["vLLM eager tok/s"]
    assert f"{gain:.1f} times the tokens a second" in GUIDE
    assert round(64 / gain) == 4, "the guide says: about as much as four passes of one"
