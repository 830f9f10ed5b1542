"""Phase 00's pictures are what its script draws, and its pages show every one of them."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module

PHASE = ROOT / "phase-00-foundations"
PICTURES = load_module(PHASE / "pictures.py", "phase_00_pictures").PICTURES


@pytest.mark.parametrize("name", PICTURES)
def test_the_file_is_what_the_script_draws(name: str) -> None:
    drawn = PICTURES[name]().svg()
    ElementTree.fromstring(drawn)
    kept = (PHASE / "pictures" / f"{name}.svg").read_text("utf-8")
    assert kept == drawn, "python phase-00-foundations/pictures.py draws it again"


def test_every_picture_stands_on_a_page_with_words_for_it() -> None:
    text = "\n".join(path.read_text("utf-8") for path in PHASE.glob("*.md"))
    shown = dict(re.findall(r"!\[([^\]]*)\]\(pictures/([\w-]+)\.svg\)", text))
    assert sorted(shown.values()) == sorted(PICTURES)
    assert all(len(words) > 40 for words in shown), "say in words what the picture shows"
    files = {path.stem for path in (PHASE / "pictures").iterdir()}
    assert files == set(PICTURES)


def test_what_the_pictures_say_is_what_the_guide_says() -> None:
    """The numbers that the guide works out stand in the pictures beside it."""
    drawn = {name: draw().svg() for name, draw in PICTURES.items()}
    for name, numbers in {
        "memory": ("15.0 GiB", "58 requests", "73.6 GiB"),
        "roofline": ("(127)", "(2,031)", "(19,424)", "(19,427)", "(1,510)", "ridge 153"),
        "attention": ("0.088", "0.734", "0.178", "8.23, 1.77"),
        "block-table": ("0 → 1", "1 → 3", "0 → 2"),
        "flat-batch": ("[0, 1, 7]",),
    }.items():
        missing = [number for number in numbers if number not in drawn[name]]
        assert not missing, f"{name}: {missing}"
