"""The page of `course compare` in headless Chromium: level, scrolling together, keys, folds, colours.

Skipped where Chromium, its driver or selenium is missing; the tests with vLLM's own files also where
there is no tree (`MINI_VLLM_TREE` names one).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser_helpers import Page, chromium_driver
from compare_helpers import GROW, THEIRS, line_of, readers_vllm, small_page

from course.cite.compare_command import compare_page
from course.cite.index import Index

LEVEL = """
  const [left, right] = panes.map((pane) => [...pane.children].map((b) => b.getBoundingClientRect()));
  return [left.length, right.length, panes[0].scrollHeight - panes[1].scrollHeight,
    left.filter((box, n) => Math.abs(box.top - right[n].top) > 1).length];
"""
# The pairs whose two first lines do not stand at the same height.
UNEVEN = """
  return pairs.filter((button) => {
    const lines = marked.get(button.dataset.go);
    const top = (side) => lines.find((line) => line.closest(side))?.getBoundingClientRect().top;
    return !(Math.abs(top('.ours') - top('.theirs')) < 1);
  }).map((button) => button.title);
"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium_driver(tmp_path_factory.mktemp("chromium")) as driver:
        yield Page(driver, tmp_path_factory.mktemp("pages"))


@pytest.fixture
def page(chromium: Page) -> Iterator[Page]:
    """Nothing may be fetched from elsewhere, and nothing complained about, whatever a test does."""
    chromium.size(1280, 860)
    chromium.colours("light")
    chromium.complaints()
    yield chromium
    assert not (found := chromium.complaints()), "\n".join(found)


@pytest.fixture(scope="module")
def vllms() -> str:
    html, _, wrong = compare_page(
        ["mini_vllm/core/sched/scheduler.py", "mini_vllm/engine/llm_engine.py"],
        readers_vllm(),
        Index(),
    )
    assert not wrong
    return html


def opened(page: Page, html: str, fragment: str = "") -> None:
    page.open(html, "compare", fragment)
    page.wait("document.body.dataset.ready")


def folded_lines(page: Page) -> int:
    return int(page.js("return sheet.querySelectorAll('.more[hidden] > div').length"))


# --- small files ---


def test_both_halves_are_level_folded_and_unfolded(page: Page) -> None:
    opened(page, small_page())
    blocks, others, longer, uneven = page.js(LEVEL)
    assert blocks == others > 10
    assert (longer, uneven) == (0, 0)
    assert page.js(UNEVEN) == []
    assert folded_lines(page) > 10
    page.press("e")
    assert folded_lines(page) == 0
    assert page.js(LEVEL)[2:] == [0, 0]
    assert page.js(UNEVEN) == []
    page.press("e")
    assert folded_lines(page) > 10
    assert page.js(LEVEL)[2:] == [0, 0]


def test_j_and_k_walk_the_pairs(page: Page) -> None:
    opened(page, small_page())
    page.press("j", "j", "j")
    assert page.text("#where").startswith("3 of 6: grow (mini_vllm/part.py:13 beside vllm/part.py:")
    assert page.js("return [...document.querySelectorAll('.block .now code')].map((c) => "
                   "c.textContent.trim())") == ["self.grow(n)", "self.grow(n)"]  # fmt: skip
    page.press("k")
    assert page.text("#where").startswith("2 of 6: run ")
    for _ in range(9):
        page.press("j")
    assert page.text("#where").startswith("6 of 6: helper")


def test_the_mouse_lights_the_partner(page: Page) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    opened(page, small_page())
    pair = f"[data-pair='{page.js('return pairs[2].dataset.go')}']"
    for side, other in (("ours", "theirs"), ("theirs", "ours")):
        line = page.driver.find_element(By.CSS_SELECTOR, f".{side} {pair} code")
        ActionChains(page.driver).move_to_element(line).perform()
        page.wait(f"document.querySelector('.{other} .lit')")
        assert page.text(f".{other} .lit code").strip() == "self.grow(n)"
        assert page.js("return document.querySelectorAll('.lit').length") == 2


def test_a_fold_says_what_it_holds_and_opens_by_key(page: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(page, small_page())
    fold = "[...document.querySelectorAll('.fold')].find((f) => f.textContent.includes('leaves'))"
    first, last = line_of(THEIRS, "Run,"), line_of(THEIRS, "water = ")
    text = page.js(f"return {fold}.textContent")
    assert text.startswith(f"{last - first + 1} lines: {first} to {last}; not in ours: ")
    page.js(f"{fold}.focus()")
    page.press(Keys.ENTER)
    assert page.js(f"return {fold}.getAttribute('aria-expanded')") == "true"
    shown = page.js(f"return {fold}.nextElementSibling.innerText")
    assert "roots = self.count_roots(leaves)" in shown
    assert page.js(LEVEL)[2:] == [0, 0]


def test_find_goes_into_folds_and_to_the_next(page: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(page, small_page())
    page.press("/")
    page.press(*"ROOTS", Keys.ENTER)
    assert page.text("#hits") == "1 of 3 lines"
    assert page.text(".hit code").strip() == "roots."
    page.press(Keys.ENTER)
    assert page.text("#hits") == "2 of 3 lines"
    assert page.text(".hit code").strip() == "roots = self.count_roots(leaves)"
    page.press(Keys.ESCAPE, "j")
    assert page.text("#where").startswith("1 of 6: ")


def test_their_line_numbers_lead_to_the_tag(page: Page) -> None:
    opened(page, small_page())
    tag = "https://github.com/vllm-project/vllm/blob/v0.22.1/vllm/part.py"
    assert page.js(
        f"return document.querySelector(\"a[href='{tag}#L{GROW.line}']\").textContent"
    ) == (str(GROW.line))
    assert page.js("return [...document.querySelectorAll('.theirs a')].every((a) => "
                   f"a.href.startsWith('{tag}') && a.target === '_blank')")  # fmt: skip


def test_light_and_dark(page: Page) -> None:
    look = "return ['body', '.block .pair', '.k'].map((css) => {" \
        " const s = getComputedStyle(document.querySelector(css));" \
        " return [s.backgroundColor, s.color]; })"  # fmt: skip
    opened(page, small_page())
    light = page.js(look)
    page.colours("dark")
    dark = page.js(look)
    assert all(a != b for a, b in zip(light, dark, strict=True))


def test_the_list_can_be_put_away_and_a_narrow_window_has_none(page: Page) -> None:
    opened(page, small_page())
    width = "document.querySelector('.ours').clientWidth"
    before = page.js(f"return {width}")
    page.press("l")
    assert page.js(f"return {width}") > before
    page.press("l")
    page.size(390, 800)
    assert page.js("return document.querySelector('.pairs').offsetWidth") == 0
    assert page.js("return document.documentElement.scrollWidth") <= 390


# --- vLLM's own ---


def test_vllms_scheduler_stands_beside_ours(page: Page, vllms: str) -> None:
    opened(page, vllms)
    assert page.js("return sheet.dataset.path") == "mini_vllm/core/sched/scheduler.py"
    assert page.js(LEVEL)[2:] == [0, 0]
    assert page.js("return pairs.length") > 45
    page.js("go(pairs.findIndex((button) => button.textContent === 'cap: budget'))")
    ours, theirs = page.js("return ['.ours', '.theirs'].map((side) => "
                           "document.querySelector(`${side} .now code`).textContent.trim())")  # fmt: skip
    assert ours == "num_new_tokens = min(num_new_tokens, step.token_budget, room)"
    assert theirs == "num_new_tokens = min(num_new_tokens, token_budget)"
    names = page.js("return [...document.querySelectorAll('.fold')].map((f) => f.textContent)")
    assert any("encoder_inputs_to_schedule" in name for name in names)
    assert any("more functions of Scheduler" in name for name in names)
    assert "KV connectors" in page.text(".theirs .note ~ .note")


def test_they_scroll_together(page: Page, vllms: str) -> None:
    opened(page, vllms)
    for one, other in (("ours", "theirs"), ("theirs", "ours")):
        for top in (900, 5000, 0):
            page.js(f"sheet.querySelector('.{one}').scrollTop = {top}")
            page.wait(f"sheet.querySelector('.{other}').scrollTop === {top}")
    # Ours goes on while theirs still has to hear where it was put.
    page.js("const pane = sheet.querySelector('.ours'); pane.scrollTop = 900; "
            "pane.addEventListener('scroll', () => { pane.scrollTop = 5000 }, {once: true})")  # fmt: skip
    page.wait("sheet.querySelector('.theirs').scrollTop === 5000")
    assert page.js("return sheet.querySelector('.ours').scrollTop") == 5000
    page.js("sheet.querySelector('.theirs').scrollLeft = 80")
    assert page.js("return sheet.querySelector('.ours').scrollLeft") == 0, "sideways each by itself"


def test_pairs_stand_at_one_height(page: Page, vllms: str) -> None:
    """All but those that share their statement with another pair, or our line with one."""
    opened(page, vllms)
    uneven = page.js(UNEVEN)
    print(f"{len(uneven)} of {page.js('return pairs.length')} pairs are not level: {uneven}")
    assert len(uneven) <= 2


def test_another_file_is_chosen(page: Page, vllms: str) -> None:
    opened(page, vllms)
    page.js("const file = document.querySelector('#file'); file.value = 'mini_vllm/engine/llm_engine.py';"
            "file.dispatchEvent(new Event('change'))")  # fmt: skip
    page.wait("sheet.dataset.path === 'mini_vllm/engine/llm_engine.py'")
    assert page.js(LEVEL)[2:] == [0, 0]
    assert page.js("return document.querySelectorAll('.sheet:not([hidden])').length") == 1
    opened(page, vllms, "#mini_vllm/engine/llm_engine.py")
    assert page.js("return sheet.dataset.path") == "mini_vllm/engine/llm_engine.py"


def test_the_page_without_a_tree_has_links(page: Page) -> None:
    html, _, _ = compare_page(["mini_vllm/core/sched/utils.py"], None, Index())
    opened(page, html)
    assert page.js(LEVEL)[2:] == [0, 0]
    page.press("j")
    assert "vllm/v1/core/sched/utils.py" in page.text(".theirs .now a")
    assert page.js("return document.querySelectorAll('.theirs code').length") == 0
