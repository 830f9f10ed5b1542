"""A track that is followed on the site: every way on is the track's, on a phone and on a desktop.

On a small course, whose guide is a step three times. Skipped where MkDocs, Chromium, its driver or selenium
is missing.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from site_helpers import ROOT, Browser, build_site, small_course, written

from course.learner.labs import load_course
from course.learner.tracks import read_tracks

GUIDE, DIVE = "/phase-00-a/00-guide/", "/phase-00-a/01-deep-dive/"
LAB, TRACK = "/phase-00-a/labs/lab-01-x/", "/tracks/short/"
FILES = {
    "tracks/tracks.toml": """\
[[track]]
name = "short"
title = "A short way"
reader = "people in a hurry."
gain = "go home."
steps = [
  "phase-00-a/00-guide.md#One",
  "phase-00-a/00-guide.md#Two",
  "00-01",
  "phase-00-a/00-guide.md#Three",
  "phase-00-a/01-deep-dive.md",
]
""",
    "tracks/short.md": (
        "# A short way\n\n## The way\n\n<!-- steps of the track -->\n\n<!-- end steps -->\n\n"
        "## Your task\n\nGo home.\n"
    ),
    "phase-00-a/00-guide.md": (
        "# Guide\n\n## One\n\nText.\n\n### More of it\n\nText.\n\n## Two\n\nText.\n\n"
        "## Aside\n\nText.\n\n## Three\n\nText.\n\n## End\n\nText.\n"
    ),
    "phase-00-a/01-deep-dive.md": "# Deep dive\n\nText.\n",
    "phase-00-a/02-mini-build.md": "# Mini-build\n\nText.\n",
    "phase-00-a/labs/README.md": "# Labs\n\nText.\n",
    "phase-00-a/labs/lab-01-x/README.md": (
        "---\nphase: 0\nlab: 1\ntitle: L\ntag: CPU-OK\nminutes: 7\nprerequisites: []\n---\n\n"
        "# Lab 00-01: L\n\n## Run it\n\nText.\n"
    ),
}  # fmt: skip
BRIDGE = "Ada draws *two* lines: [the lab](../phase-00-a/labs/lab-01-x/README.md)."
PAGES = [TRACK, f"{GUIDE}#one", LAB, f"{GUIDE}#three", DIVE, f"{TRACK}#your-task"]
"""What Next leads to, page by page; the guide's first two steps are one stay on it."""
FOOTER = {way: f"document.querySelector('.md-footer__link--{way}')" for way in ("prev", "next")}
BAR = "document.querySelector('.track-bar')"
SIZES = pytest.mark.parametrize("width", [390, 1280])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = written(small_course(tmp_path_factory.mktemp("tracked")), FILES)
    subprocess.run([sys.executable, "-m", "course.learner.tracks"], cwd=root, check=True)
    page = root / "tracks" / "short.md"
    text = page.read_text(encoding="utf-8").replace("**2. ", f"{BRIDGE}\n\n**2. ")
    page.write_text(text, encoding="utf-8")
    return build_site(root, root / "out")


@pytest.fixture
def follower(browser: Browser, width: int) -> Browser:
    """At the track's page, which has just been chosen."""
    browser.size(width, 844)
    browser.visit(TRACK)
    browser.wait("document.querySelector('.track-button')")
    browser.js("document.querySelector('.track-button').click()")
    browser.wait(BAR)
    return browser


def arrive(browser: Browser, page: str) -> str:
    """What the bar says at `page`, once the browser is there."""
    here = "location.pathname + location.hash"
    browser.wait(f"{here} === {page!r} && {BAR}")
    return str(browser.js(f"return {BAR}.innerText"))


def links(browser: Browser) -> list[Any]:
    """What the bar leads to beside the track's page."""
    code = "[...document.querySelectorAll('.track-bar > a')].map(a => [a.innerText, a.pathname + a.hash])"
    return list(browser.js(f"return {code}"))


@SIZES
def test_next_and_previous_walk_the_track(follower: Browser) -> None:
    arrive(follower, PAGES[0])
    assert not follower.js(f"return {FOOTER['prev']}.checkVisibility()")
    for page in PAGES[1:]:
        assert follower.js(f"return {FOOTER['next']}.innerText").startswith("Next on your track")
        head = "const at = document.querySelector('link[rel=next]'); return at.pathname ?? at.href"
        assert follower.js(head).endswith(page), "the key n leads off the track"
        follower.js(f"{FOOTER['next']}.click()")
        arrive(follower, page)
    assert not follower.js(f"return {FOOTER['next']}.checkVisibility()"), "after the task"
    assert not follower.js("return document.querySelector('link[rel=next]')")
    for page in [DIVE, f"{GUIDE}#three", LAB, f"{GUIDE}#two", TRACK]:
        follower.js(f"{FOOTER['prev']}.click()")
        arrive(follower, page)


@SIZES
def test_the_keys_walk_the_track(follower: Browser) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    for key, page in (("n", f"{GUIDE}#one"), ("n", LAB), ("p", f"{GUIDE}#two")):
        ActionChains(follower.driver).send_keys(key).perform()
        arrive(follower, page)


@SIZES
def test_the_bar_leads_from_step_to_step(follower: Browser) -> None:
    steps = [f"{GUIDE}#one", f"{GUIDE}#two", LAB, f"{GUIDE}#three", DIVE]
    for number, page in enumerate(steps, 1):
        follower.js(f"{BAR}.querySelector(':scope > a').click()")
        arrive(follower, page)
        follower.wait(f"{BAR}.innerText.includes('A short way: step {number} of 5')")
    assert links(follower) == [["Next: Your task", f"{TRACK}#your-task"]]
    follower.js(f"{BAR}.querySelector(':scope > a').click()")
    assert "your task, after all 5 steps" in arrive(follower, f"{TRACK}#your-task")
    assert links(follower) == []


@SIZES
def test_the_tracks_own_page_is_its_start(follower: Browser) -> None:
    bar = arrive(follower, TRACK)
    assert "this page is its start" in bar
    assert "not on it" not in bar
    assert links(follower) == [["First: One", f"{GUIDE}#one"]]
    follower.visit(LAB)
    arrive(follower, LAB)
    follower.visit(TRACK)
    arrive(follower, TRACK)
    back = ["Back to step 3: Lab 00-01: L", LAB]
    assert links(follower) == [["First: One", f"{GUIDE}#one"], back]


@SIZES
def test_the_place_follows_the_anchor(follower: Browser) -> None:
    """Where the anchor names no step, it is the step nearest to the last one."""
    follower.visit(GUIDE)
    assert "step 1 of 5" in arrive(follower, GUIDE)
    for anchor, number, after in (
        ("two", 2, LAB),
        ("three", 4, DIVE),
        ("end", 4, DIVE),
        ("one", 1, LAB),
    ):
        follower.js(f"location.hash = '#{anchor}'")
        follower.wait(f"{BAR}.innerText.includes('step {number} of 5')")
        arrive(follower, f"{GUIDE}#{anchor}")
        assert follower.js(f"const a = {FOOTER['next']}; return a.pathname + a.hash") == after
    follower.visit(f"{LAB}#run-it")
    assert "step 3 of 5" in arrive(follower, f"{LAB}#run-it"), "any part of a page that is a step"


@SIZES
def test_a_page_beside_the_track_offers_the_way_back(follower: Browser) -> None:
    beside = "/phase-00-a/02-mini-build/"
    follower.visit(beside)
    assert "this page is not on it" in arrive(follower, beside)
    assert links(follower) == [["First: One", f"{GUIDE}#one"]]
    follower.visit(f"{GUIDE}#three")
    arrive(follower, f"{GUIDE}#three")
    follower.visit(beside)
    arrive(follower, beside)
    assert links(follower) == [["Back to step 4: Three", f"{GUIDE}#three"]]
    footer = follower.js(f"const a = {FOOTER['next']}; return [a.innerText, a.pathname + a.hash]")
    assert footer == ["Back to your track\nThree", f"{GUIDE}#three"]
    assert not follower.js(f"return {FOOTER['prev']}.checkVisibility()")


@SIZES
def test_a_step_has_what_leads_to_it_and_the_way_on(follower: Browser) -> None:
    """Before a section what the track's page says of it, behind it the next step, if that is elsewhere."""
    follower.visit(f"{GUIDE}#two")
    arrive(follower, f"{GUIDE}#two")
    leads = "[...document.querySelectorAll('.track-lead')]"
    shown = follower.js(f"return {leads}.map(d => [d.previousElementSibling.id, d.innerText])")
    assert shown == [["two", "Ada draws two lines: the lab."]]
    assert follower.js(f"return {leads}[0].querySelector('a').pathname") == LAB
    onward = follower.js(
        "return [...document.querySelectorAll('.track-next')].map(p =>"
        "  [p.nextElementSibling.id, p.innerText, p.querySelector('a').pathname])"
    )
    assert onward == [
        ["aside", "Next on your track: Lab 00-01: L", LAB],
        ["end", "Next on your track: Deep dive", DIVE],
    ]


@SIZES
def test_who_follows_none_walks_the_course(browser: Browser, width: int) -> None:
    browser.size(width, 844)
    browser.visit(GUIDE)
    browser.wait("performance.getEntriesByType('resource').some(e => /tracks.json/.test(e.name))")
    assert browser.js(f"return {FOOTER['next']}.pathname") == DIVE
    assert not browser.js("return document.querySelector('.track-bar, .track-next, .track-lead')")


def test_every_track_of_the_course_has_the_task_to_which_its_last_step_leads() -> None:
    for track in read_tracks(load_course(ROOT)):
        assert "\n## Your task\n" in track.page.read_text(encoding="utf-8"), track.name
