"""The site for people who copy, search, come by keyboard or phone, or took a wrong link."""

from __future__ import annotations

import json

import pytest
from site_helpers import ROOT, Browser, address

from course.cite.own import own_line
from course.cite.text import own_place
from course.docs.pages import pages
from course.learner.labs import load_course
from course.learner.tracks import read_tracks
from course.site.home import read_ideas
from course.site.viewer import is_viewer

EIGHT = (
    "", "phase-00-foundations/00-guide/", "phase-01-architecture/00-guide/",
    "phase-01-architecture/01-deep-dive/", "phase-00-foundations/labs/lab-03-sampling-basics/",
    "GLOSSARY/", "mini_vllm/core/sched/scheduler.py/", "404.html",
)  # fmt: skip
CODE = "[...document.querySelectorAll('article pre > code')]"


@pytest.mark.parametrize("scheme", ["default", "slate"])
def test_axe_finds_nothing_serious(browser: Browser, scheme: str) -> None:
    found = []
    for page in EIGHT:
        browser.visit(page)
        browser.draw()
        browser.js(f"document.body.dataset.mdColorScheme = '{scheme}'")
        found += [f"{page or 'home'}: {line}" for line in browser.axe()]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("width", [1280, 390])
def test_code_scrolls_and_never_wraps(browser: Browser, width: int) -> None:
    """A line of code is one line; where it is too long, its block scrolls, and the keyboard reaches it."""
    browser.size(width, 900)
    scrolled = 0
    for page in EIGHT[:5]:
        browser.visit(page)
        wrapped = browser.js(
            f"return {CODE}.filter(c => {{"
            "  const lines = c.innerText.replace(/\\n$/, '').split('\\n').length;"
            "  const high = parseFloat(getComputedStyle(c).lineHeight);"
            "  const box = getComputedStyle(c);"
            "  const used = c.clientHeight - parseFloat(box.paddingTop) - parseFloat(box.paddingBottom);"
            "  return used > (lines + 0.9) * high;"
            "}).map(c => c.innerText)"
        )
        assert not wrapped, f"{page}: {wrapped[0][:200]}"
        wide = browser.js(
            f"return {CODE}.filter(c => c.scrollWidth > c.clientWidth).map(c => [c.tabIndex,"
            " getComputedStyle(c).overflowX])"
        )
        assert all(box == [0, "auto"] for box in wide), page
        scrolled += len(wide)
    assert scrolled or width == 1280, "on a phone, no code is wider than the window"


def test_copying_a_session_leaves_prompts_and_outputs_out(browser: Browser) -> None:
    """What the button copies is what one would type."""
    from selenium.webdriver.common.action_chains import ActionChains

    browser.visit("phase-01-architecture/00-guide/")
    session = "document.querySelector('.language-pycon')"
    shown = browser.js(f"return {session}.querySelector('code').innerText")
    assert shown.startswith(">>> ")
    browser.js(
        "window.copied = null; document.addEventListener('copy', (event) => {"
        "window.copied = event.target.value ?? getSelection().toString() }, true)"
    )
    button = f"{session}.querySelector('.md-code__button, .md-clipboard')"
    browser.wait(button)
    # A click by script is no act of the user's, and then nothing may be copied.
    element = browser.js(f"{button}.scrollIntoView({{block: 'center'}}); return {button}")
    ActionChains(browser.driver).move_to_element(element).click().perform()
    copied = browser.wait("window.copied")
    typed = [line[4:] for line in shown.splitlines() if line.startswith((">>> ", "... "))]
    assert copied.splitlines() == typed


def test_search_finds_a_word_that_operators_use(browser: Browser) -> None:
    from selenium.webdriver.common.by import By

    browser.driver.find_element(By.CSS_SELECTOR, ".md-search__input").send_keys("OOM")
    browser.wait("document.querySelectorAll('.md-search-result__link').length > 0")
    links = browser.js(
        "return [...document.querySelectorAll('.md-search-result__link')].map(a => a.pathname)"
    )
    assert "/GLOSSARY/" in links


def test_search_answers_why_was_my_request_preempted(browser: Browser) -> None:
    """With a page that says so: of the scheduler's phase, among the first five."""
    from selenium.webdriver.common.by import By

    box = browser.driver.find_element(By.CSS_SELECTOR, ".md-search__input")
    box.send_keys("why was my request preempted")
    browser.wait("document.querySelectorAll('.md-search-result__link').length > 1")
    links = browser.js(
        "return [...document.querySelectorAll('.md-search-result__link')].map(a => a.pathname)"
    )
    assert any(link.startswith("/phase-03-scheduler/") for link in links[:5]), links[:8]


def test_a_track_is_followed_from_page_to_page(browser: Browser) -> None:
    """Its own page sets it; each page then says which step it is and leads to the next."""
    track = read_tracks(load_course(ROOT))[0]
    browser.visit(address(track.page.relative_to(ROOT).as_posix()))
    browser.js("document.querySelector('.track-button').click()")
    browser.wait("document.querySelector('.track-bar')")
    seen = []
    for number, step in enumerate(track.steps[:4], 1):
        browser.js("document.querySelector('.track-bar > a').click()")
        browser.wait(
            f"document.querySelector('.track-bar')?.innerText.includes('step {number} of')"
        )
        seen.append(browser.js("return location.pathname"))
        assert seen[-1] == "/" + address(step.path.relative_to(ROOT).as_posix())
        assert browser.js("return document.querySelectorAll('.md-nav__link.on-track').length") > 0
    browser.visit("phase-00-foundations/INTERVIEW/")
    browser.wait("document.querySelector('.track-bar')?.innerText.includes('not on it')")
    browser.visit(address(track.page.relative_to(ROOT).as_posix()))
    browser.wait("document.querySelector('.track-button')?.innerText.startsWith('Stop')")
    browser.js("document.querySelector('.track-button').click()")
    browser.wait("document.querySelector('.track-button')?.innerText.startsWith('Follow')")
    assert not browser.js("return document.querySelector('.track-bar')")


def test_home_shows_the_ideas_the_tracks_and_plays_noon(browser: Browser) -> None:
    tracks = read_tracks(load_course(ROOT))
    shown = browser.js("return document.querySelector('article').innerText")
    ideas = read_ideas((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(ideas) == 5
    for idea in ideas:
        assert idea.name in shown
        assert f"{idea.passes:,} passes" in shown
    wide = browser.js(
        "return [...document.querySelectorAll('.bar.passes')].map(b => b.clientWidth)"
    )
    assert wide == sorted(wide, reverse=True)
    assert wide[-1] / wide[0] == pytest.approx(ideas[-1].passes / ideas[0].passes, abs=0.01)
    cards = browser.js("return [...document.querySelectorAll('.cards li a')].map(a => a.innerText)")
    assert cards == [*(track.title for track in tracks), "The whole course"]
    assert browser.js("return document.querySelectorAll('article .md-button').length") == 1
    assert browser.js("return document.querySelector('figure.viewer iframe').src") == ""
    browser.js("document.querySelector('.play').click()")
    browser.wait("document.querySelector('figure.viewer iframe').src.includes('noon.html')")
    browser.driver.switch_to.frame(
        browser.driver.find_element("css selector", "figure.viewer iframe")
    )
    try:
        browser.wait("/step ([2-9]|1\\d) /.test(document.body.innerText)")
    finally:
        browser.driver.switch_to.default_content()


@pytest.mark.parametrize("width", [1280, 390])
def test_home_has_no_room_for_the_run_before_it_plays(browser: Browser, width: int) -> None:
    """Below the button stood an empty box, as high as the run."""
    browser.size(width, 844)
    frame, button = (
        f"document.querySelector('figure.on-click {one}')" for one in ("iframe", "button")
    )
    browser.wait(f"{button}.querySelector('img').complete")
    assert not browser.js(f"return {frame}.checkVisibility()")
    spare = browser.js(f"return {button}.parentElement.offsetHeight - {button}.offsetHeight")
    assert spare < 2, f"{spare} px of nothing"
    browser.js(f"{button}.click()")
    assert browser.js(f"return {frame}.checkVisibility() && {frame}.offsetHeight") > 300
    assert browser.js(f"return {button}") is None


@pytest.mark.parametrize("width", [1280, 390])
def test_no_dead_picture_of_a_viewer_stands_beside_the_live_one(
    browser: Browser, width: int
) -> None:
    """GitHub needs a screenshot, and a sentence that leads to it; the site has the run itself."""
    browser.size(width, 844)
    # Two runs side by side are linked, not shown in the page.
    shown = [
        [line for line in page.lines if is_viewer(line) and "| rule " not in line]
        for page in pages(ROOT)
    ]
    live = [page for page, lines in zip(pages(ROOT), shown, strict=True) if lines]
    assert len(live) > 2
    for page in live:
        browser.visit(address(page.name))
        assert browser.js("return document.querySelector('figure.viewer > iframe[src]')"), page.name
        dead = "[...document.querySelectorAll('article img')].map(i => `${i.src}: ${i.alt}`)"
        shown = [one for one in browser.js(f"return {dead}") if "viewer" in one.lower()]
        assert not shown, page.name
        said = "[...document.querySelectorAll('article > p')].map(p => p.innerText.trim())"
        assert not [p for p in browser.js(f"return {said}") if p.endswith("looks like this:")]


def test_a_term_of_the_glossary_has_an_anchor(browser: Browser) -> None:
    browser.visit("GLOSSARY/#block-table")
    top = "document.getElementById('block-table').getBoundingClientRect().top"
    browser.wait(f"{top} >= 0 && {top} < 200")


def test_a_citation_of_this_repository_leads_to_its_line(browser: Browser) -> None:
    browser.visit("phase-01-architecture/03-correspondence/")
    link = "document.querySelector('article a[href*=codelineno]')"
    place = own_place(browser.js(f"return {link}.title"), ROOT)
    assert place is not None
    line = own_line(ROOT, *place.group("path", "symbol", "code"))
    browser.js(f"{link}.click()")
    browser.wait(f"location.hash === {json.dumps(f'#__codelineno-0-{line}')}")
    assert browser.js("return document.querySelector(location.hash) !== null")


def test_who_took_a_wrong_link_finds_the_way_back(browser: Browser) -> None:
    browser.visit("404.html")
    ways = browser.js("return [...document.querySelectorAll('article a')].map(a => a.pathname)")
    assert "/" in ways
    assert "/GLOSSARY/" in ways
