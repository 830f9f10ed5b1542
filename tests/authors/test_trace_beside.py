"""Two runs side by side, in a browser: where one goes, the other follows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from browser_helpers import Page, chromium_driver

from course.drift.shown import page, rule_named, show


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium_driver(tmp_path_factory.mktemp("chromium")) as driver:
        yield Page(driver, tmp_path_factory.mktemp("pages"))


def test_both_go_to_the_same_step(tab: Page) -> None:
    tab.size(1400, 900)
    tab.complaints()
    tab.open(page(show(rule_named("a request alone"))))
    frames = tab.driver.find_elements("css selector", "iframe")

    def inside(number: int, condition: str) -> Any:
        tab.driver.switch_to.frame(frames[number])
        try:
            return tab.wait(condition)
        finally:
            tab.driver.switch_to.default_content()

    for number in (0, 1):
        assert inside(number, "window.viewer?.firstDrawn && viewer.where.textContent").startswith(
            "step 2 "
        )
    inside(0, "(viewer.go(6), true)")
    assert inside(1, "viewer.state.step === 6 && viewer.where.textContent").startswith("step 7 ")
    inside(1, "(viewer.go(3), true)")
    inside(0, "viewer.state.step === 3")
    inside(0, "(viewer.go(16), true)")  # the other is over by then
    assert inside(1, "viewer.state.step === 12")
    heights = tab.js("return [...document.querySelectorAll('iframe')].map((f) => f.offsetHeight)")
    assert min(heights) > 600
    assert tab.js("return document.documentElement.scrollWidth") <= 1400
    tab.size(390, 844)
    tab.wait("document.documentElement.scrollWidth <= 390")
    assert not tab.complaints()
