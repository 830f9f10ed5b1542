"""The site, read in a browser.

Skipped where MkDocs, Chromium, its driver or selenium is missing.
"""

from __future__ import annotations

import json

import pytest
from site_helpers import ROOT, Browser, Html, address, pages_with

from course.learner.labs import load_course
from course.site.pages import read_site


def test_home(browser: Browser) -> None:
    browser.visit("/")
    assert browser.js("return document.title") == "mini-vllm"
    assert browser.js("return document.querySelector('article h1').innerText").startswith(
        "mini-vllm"
    )
    assert browser.js("return document.querySelectorAll('.md-nav--primary a').length") > 10


def test_every_diagram_is_drawn(browser: Browser, html: dict[str, Html]) -> None:
    names = pages_with(html, "diagram")
    assert names, "no page has a diagram"
    for name in names:
        browser.visit(name)
        browser.draw()
        drawn = "[...document.querySelectorAll('div.diagram svg')]"
        assert browser.js(f"return {drawn}.length") > 0, name
        assert browser.js(f"return {drawn}.every(s => s.getBoundingClientRect().width > 50)"), name
        assert browser.js(f"return {drawn}.every(s => !s.querySelector('.error-icon'))"), name


def test_every_formula_is_set(browser: Browser, html: dict[str, Html]) -> None:
    names = pages_with(html, "arithmatex")
    assert names, "no page has a formula"
    for name in names:
        browser.visit(name)
        some, done = "document.querySelectorAll('.arithmatex').length", ".arithmatex > .katex"
        display = f"{done.replace('> ', '> .katex-display > ')}"
        browser.wait(f"{some} === document.querySelectorAll('{done}, {display}').length")
        wrong = browser.js(
            "return [...document.querySelectorAll('.katex-error')].map(e => e.innerText)"
        )
        assert not wrong, f"{name}: {wrong}"


def test_a_lab_page(browser: Browser) -> None:
    lab = load_course(ROOT).labs[-1]
    browser.visit(f"{lab.folder.relative_to(ROOT).as_posix()}/")
    facts = browser.js("return document.querySelector('.lab-facts').innerText")
    for fact in (lab.tag, f"{lab.minutes} minutes", *lab.prerequisites, "starter.py"):
        assert fact in facts
    browser.js("document.querySelector('.lab-facts a[href*=solution]').click()")
    browser.wait("document.querySelector('article h1').innerText.startsWith('solution.py')")
    shown = "document.querySelector('article details pre').checkVisibility()"
    assert not browser.js(f"return {shown}"), "the answer stands open"
    browser.js("document.querySelector('article details summary').click()")
    browser.wait(shown)


def test_search_finds_a_term_and_no_solution(browser: Browser) -> None:
    from selenium.webdriver.common.by import By

    browser.driver.find_element(By.CSS_SELECTOR, ".md-search__input").send_keys("preemption")
    browser.wait("document.querySelectorAll('.md-search-result__link').length > 1")
    links = browser.js(
        "return [...document.querySelectorAll('.md-search-result__link')].map(a => a.pathname)"
    )
    assert "/GLOSSARY/" in links
    assert not [link for link in links if ".py/" in link]


def test_a_term_is_explained_under_the_pointer(browser: Browser) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    term = browser.driver.find_element(By.CSS_SELECTOR, "article abbr")
    title = term.get_attribute("title")
    assert title
    ActionChains(browser.driver).move_to_element(term).perform()
    browser.wait(f"document.querySelector('[role=tooltip]')?.innerText === {json.dumps(title)}")


def test_light_and_dark(browser: Browser, html: dict[str, Html]) -> None:
    """The switch turns the page, and its diagrams with it; the choice is kept."""
    browser.visit(pages_with(html, "diagram")[0])
    browser.draw()
    scheme = "document.body.dataset.mdColorScheme"
    look = "getComputedStyle(document.body).backgroundColor"
    light, drawing = browser.js(f"return {look}"), "document.querySelector('div.diagram svg').id"
    before = browser.js(f"return {drawing}")
    press = (
        "[...document.querySelectorAll('form[data-md-component=palette] label')]"
        ".find(l => l.checkVisibility()).click()"
    )
    assert browser.js(f"return {scheme}") == "default"
    browser.js(press)  # from the system's to light, and from light to dark
    browser.wait(f"{scheme} === 'default'")
    browser.js(press)
    browser.wait(f"{scheme} === 'slate'")
    browser.wait(f"{look} !== {json.dumps(light)}")
    browser.wait(f"{drawing} !== {json.dumps(before)}")
    browser.visit("/")
    browser.wait(f"{scheme} === 'slate'")


def test_the_palette_follows_the_system(browser: Browser) -> None:
    browser.visit("/")
    scheme = "document.body.dataset.mdColorScheme"
    for wish, name in (("dark", "slate"), ("light", "default"), ("dark", "slate")):
        features = [{"name": "prefers-color-scheme", "value": wish}]
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        browser.wait(f"{scheme} === {json.dumps(name)}")
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    browser.wait(f"{scheme} === 'default'")


def test_what_is_large_comes_when_it_is_wanted(browser: Browser, html: dict[str, Html]) -> None:
    """The words of all pages when somebody searches, Mermaid when a diagram is near."""
    from selenium.webdriver.common.by import By

    for name in pages_with(html, "diagram"):
        browser.visit(name)
        browser.wait("document.readyState === 'complete'")
        top = "document.querySelector('pre.diagram')?.getBoundingClientRect().top"
        if browser.js(f"return {top} > 3 * innerHeight"):
            break
    else:
        raise AssertionError("each page's diagrams are near its beginning")
    browser.js("return new Promise(done => setTimeout(done, 300))")
    assert not browser.fetched("mermaid.tiny.js")
    assert not browser.fetched("search_index.json")
    browser.draw()
    assert browser.fetched("mermaid.tiny.js")
    browser.driver.find_element(By.CSS_SELECTOR, ".md-search__input").click()
    browser.wait("performance.getEntriesByType('resource').some(e => /search_index/.test(e.name))")
    browser.visit("/GLOSSARY/?h=block")
    browser.wait("document.querySelector('article mark')")


# What is wider than its box, and neither fits nor shows that it can be scrolled to; what is for ears aside.
CUT = """
  return [...document.querySelectorAll('article :not(.katex-mathml, .katex-mathml *)')].filter((e) => {
    const { display, overflowX, backgroundAttachment } = getComputedStyle(e);
    if (display === 'inline' || overflowX === 'visible' || e.scrollWidth <= e.clientWidth + 1) return false;
    return e.clientWidth > 0 && !(overflowX === 'auto' && backgroundAttachment.includes('local'));
  }).map((e) => e.outerHTML.slice(0, 120));
"""
WRAPPED = """
  return [...document.querySelectorAll('pre, pre > code')]
    .filter((e) => !['pre', 'nowrap'].includes(getComputedStyle(e).whiteSpace))
    .map((e) => e.innerText.slice(0, 60));
"""


@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_is_wider_than_its_window_and_nothing_is_cut(
    browser: Browser, html: dict[str, Html], width: int
) -> None:
    """Code neither: a line that is too long is scrolled to, and never wraps."""
    browser.size(width, 844)
    wrong = []
    diagrams = pages_with(html, "diagram")
    for page in map(address, read_site(ROOT).order):
        browser.visit(page)
        if page in diagrams:
            browser.draw()
        wide = browser.js("return document.documentElement.scrollWidth")
        wrong += [f"{page}: {wide} px"] if wide > width else []
        wrong += [f"{page}: cut: {what}" for what in browser.js(CUT)]
        wrong += [f"{page}: wrapped: {what}" for what in browser.js(WRAPPED)]
    assert not wrong, "\n".join(wrong)
    drawer = "document.querySelector('.md-header label[for=__drawer]').checkVisibility()"
    assert browser.js(f"return {drawer}") is (width == 390)
