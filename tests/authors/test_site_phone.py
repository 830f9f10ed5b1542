"""What is wider than its place: on a phone and on a desktop nothing is cut without a sign of it.

On a page made for it, whose table, code, diagram and formula are too wide for both. Skipped where MkDocs,
Chromium, its driver or selenium is missing.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from site_helpers import Browser, address, build_site, small_course, written

PAGE = "phase-00-a/00-guide.md"
COLUMNS = 14
WIDE = {
    PAGE: "\n\n".join(
        (
            "# Guide",
            "## A wide table",
            f"|{' a heading |' * COLUMNS}\n|{' --- |' * COLUMNS}\n|{' something |' * COLUMNS}",
            "## Wide code",
            "~~~python\n" + "the_first_line_is_long = 1 + " * 9 + "0\nx = 1\n~~~",
            "## Short code",
            "~~~text\none line\n~~~",
            "## A wide diagram",
            "~~~mermaid\nflowchart LR\n"
            + "\n".join(f"  n{i}[station number {i}] --> n{i + 1}" for i in range(14))
            + "\n  n14[the last station]\n"
            + "\n".join(f"  n7 --> m{i}[branch {i}]" for i in range(6))
            + "\n~~~",
            "## A wide formula",
            "$$\n\\sqrt{" + " + ".join(f"a_{{{i}}} x^{{{i}}}" for i in range(40)) + "}\n$$",
            "## A table of settings",
            "| limit | setting | default | asked |\n| --- | --- | --- | --- |\n"
            "| tokens of one request per step | `long_prefill_token_threshold` | 0, off | of everybody |\n"
            "| the whole sequence fits | `scheduler_reserve_full_isl` | on | at admission |",
        )
    )
    + "\n"
}
BOXES = (".md-typeset__scrollwrap", ".language-python pre > code", "div.diagram", "div.arithmatex")
SIZES = pytest.mark.parametrize("width", [390, 1280])

# How much brighter or darker than the box the left and the right edge of what it shows are, of 255: medians,
# so that what stands there does not count.
MEASURE = """
  const [source, css] = arguments;
  return (async () => {
    const picture = await createImageBitmap(await (await fetch(source)).blob());
    const canvas = new OffscreenCanvas(picture.width, picture.height);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(picture, 0, 0);
    const box = document.querySelector(css);
    const { left, top } = box.getBoundingClientRect();
    const sum = ([red, green, blue]) => (red + green + blue) / 3;
    const colour = sum(getComputedStyle(box).backgroundColor.match(/\\d+/g).map(Number));
    return [0, box.clientWidth - 3].map((x) => {
      const { data } = context.getImageData(left + box.clientLeft + x, top, 3, box.clientHeight);
      const sums = [];
      for (let i = 0; i < data.length; i += 4) sums.push(sum(data.slice(i, i + 3)));
      return Math.abs(sums.sort((a, b) => a - b)[sums.length >> 1] - colour);
    });
  })();
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = written(small_course(tmp_path_factory.mktemp("wide")), WIDE)
    return build_site(root, root / "out")


@pytest.fixture
def wide_page(browser: Browser, width: int) -> Browser:
    browser.size(width, 844)
    browser.visit(address(PAGE))
    browser.draw()
    browser.wait("document.querySelector('.katex-display')")
    browser.wait("document.querySelectorAll('.md-code__nav').length === 2")
    return browser


def shadows(browser: Browser, css: str) -> tuple[bool, bool]:
    """Whether a shadow lies on the left and on the right edge of what the box shows."""
    browser.js(f"document.querySelector({css!r}).scrollIntoView({{ block: 'center' }})")
    shot = browser.driver.get_screenshot_as_base64()
    left, right = browser.driver.execute_script(MEASURE, f"data:image/png;base64,{shot}", css)
    return left > 20, right > 20


@SIZES
@pytest.mark.parametrize("scheme", ["default", "slate"])
def test_what_is_cut_is_shaded_and_scrolled_to(wide_page: Browser, scheme: str) -> None:
    """At the edge where something is cut, and at no other; with the keyboard, too."""
    drawing = "document.querySelector('div.diagram svg')?.id"
    before = wide_page.js(f"return {drawing}")
    wide_page.js(f"document.body.dataset.mdColorScheme = '{scheme}'")
    wide_page.wait(f"![undefined, {before!r}].includes({drawing})")
    wide_page.wait("document.getAnimations().every(each => each.playState === 'finished')")
    for css in BOXES:
        box = f"document.querySelector({css!r})"
        assert wide_page.js(f"return {box}.scrollWidth > {box}.clientWidth"), (
            f"{css} is not too wide"
        )
        assert wide_page.js(f"return {box}.tabIndex") == 0, css
        assert shadows(wide_page, css) == (False, True), f"{css} at its beginning"
        wide_page.js(f"{box}.scrollLeft = 100")
        assert shadows(wide_page, css) == (True, True), f"{css} in the middle"
        wide_page.js(f"{box}.scrollLeft = {box}.scrollWidth")
        assert shadows(wide_page, css) == (True, False), f"{css} at its end"
    assert wide_page.js("return document.documentElement.scrollWidth <= innerWidth")


@SIZES
def test_the_last_column_can_be_scrolled_to(wide_page: Browser, width: int) -> None:
    right = wide_page.js(
        "const box = document.querySelector('.md-typeset__scrollwrap');"
        "box.scrollLeft = box.scrollWidth;"
        "return box.querySelector('th:last-child').getBoundingClientRect().right"
    )
    assert right <= width


@SIZES
def test_a_table_of_settings_fits_and_breaks_no_word(wide_page: Browser, width: int) -> None:
    """A setting breaks at its underscores only, and then four columns have room on a phone."""
    table = "[...document.querySelectorAll('.md-typeset__scrollwrap')].at(-1)"
    assert wide_page.js(f"return {table}.scrollWidth <= {table}.clientWidth")
    broken = wide_page.js(
        f"return [...{table}.querySelectorAll('td code')].flatMap(code =>"
        "  [...code.childNodes].filter(node => node.nodeType === Node.TEXT_NODE).filter(node => {"
        "    const range = document.createRange();"
        "    range.selectNode(node);"
        "    return range.getClientRects().length > 1;"
        "  }).map(node => node.data))"
    )
    assert not broken, f"broken inside of a word: {broken}"
    assert wide_page.js(f"return {table}.innerText").count("long_prefill_token_threshold") == 1


@SIZES
def test_the_copy_button_hides_no_code(wide_page: Browser, width: int) -> None:
    """It stands beside what a block shows, however far that is scrolled."""
    covered = wide_page.js(
        "return [...document.querySelectorAll('pre > .md-code__nav')].filter(nav => {"
        "  const code = nav.parentElement.querySelector('code');"
        "  const end = code.getBoundingClientRect().left + code.clientLeft + code.clientWidth;"
        "  return nav.getBoundingClientRect().left < end;"
        "}).map(nav => nav.parentElement.innerText.slice(0, 40))"
    )
    assert not covered, covered
    inside = wide_page.js(
        "return [...document.querySelectorAll('pre > .md-code__nav')].every(nav =>"
        "  nav.getBoundingClientRect().right <= nav.parentElement.getBoundingClientRect().right)"
    )
    assert inside, "a button stands outside of its block"
