"""The site for people who copy, search, come by keyboard or phone, or took a wrong link."""

from __future__ import annotations

import json

import pytest
from site_helpers import Browser

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
        browser.wait("document.querySelectorAll('pre.diagram').length === 0")
        browser.js(f"document.body.dataset.mdColorScheme = '{scheme}'")
        found += [f"{page or 'home'}: {line}" for line in browser.axe()]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("width", [1280, 390])
def test_no_code_is_cut(browser: Browser, width: int) -> None:
    browser.size(width, 900)
    for page in EIGHT[:5]:
        browser.visit(page)
        assert browser.js(f"return {CODE}.length") > 0 or page == ""
        cut = browser.js(
            f"return {CODE}.filter(c => c.scrollWidth > c.clientWidth + 1).map(c => c.innerText)"
        )
        assert not cut, f"{page}: {cut[0][:200]}"


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


def test_a_term_of_the_glossary_has_an_anchor(browser: Browser) -> None:
    browser.visit("GLOSSARY/#block-table")
    top = "document.getElementById('block-table').getBoundingClientRect().top"
    browser.wait(f"{top} >= 0 && {top} < 200")


def test_a_citation_of_this_repository_leads_to_its_line(browser: Browser) -> None:
    browser.visit("phase-01-architecture/03-correspondence/")
    link = "document.querySelector('article a[href*=codelineno]')"
    title = browser.js(f"return {link}.title")
    browser.js(f"{link}.click()")
    line = title.split(":")[1].split(" ")[0]
    browser.wait(f"location.hash === {json.dumps('#__codelineno-0-' + line)}")
    assert browser.js("return document.querySelector(location.hash) !== null")


def test_who_took_a_wrong_link_finds_the_way_back(browser: Browser) -> None:
    browser.visit("404.html")
    ways = browser.js("return [...document.querySelectorAll('article a')].map(a => a.pathname)")
    assert "/" in ways
    assert "/GLOSSARY/" in ways
