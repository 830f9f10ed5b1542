"""The trace's page in a browser: what the tests of it share."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import pytest
from browser_helpers import Page, chromium_driver

from mini_vllm.trace.scenario import read_scenario, run_scenario
from mini_vllm.trace.types import Trace

FRAME_MS = 50.0
"""Of the page's own processor time, to move the slider and paint what it leads to."""
MIXED: dict[str, Any] = {
    "scenario": 1,
    "title": "All that can happen",
    "config": {"num_gpu_blocks": 14, "max_num_batched_tokens": 32, "max_num_seqs": 4},
    "requests": [
        {"id": "A", "prompt": "The KV cache", "max_tokens": 32},
        {"id": "B", "prompt": 90, "step": 3, "max_tokens": 24},
        {"id": "C", "prompt": 40, "shared": 32, "step": 4, "max_tokens": 26},
        {"id": "D", "prompt": 50, "shared": 32, "step": 6, "max_tokens": 16},
        {"id": "E", "prompt": 50, "shared": 32, "step": 6, "max_tokens": 6, "abort": 19},
    ],
}


@pytest.fixture(scope="module")
def viewer_tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium_driver(tmp_path_factory.mktemp("chromium")) as driver:
        yield Page(driver, tmp_path_factory.mktemp("pages"))


@pytest.fixture
def page(viewer_tab: Page) -> Iterator[Page]:
    """A desktop window in daylight; whatever a test does, nothing may be complained about."""
    viewer_tab.size(1280, 900)
    viewer_tab.colours("light")
    viewer_tab.complaints()
    yield viewer_tab
    assert not (found := viewer_tab.complaints()), "\n".join(found)


@pytest.fixture(scope="module")
def mixed() -> Trace:
    return run_scenario(read_scenario(MIXED))


SCRUB = """
  window.frames_ = [];
  window.drawings_ = 0;
  const slider = document.querySelector('input[type=range]');
  const draw = viewer.render.bind(viewer);
  viewer.render = () => { draw(); drawings_++; };
  let n = 0;
  const next = () => {
    if (n++ === POSITIONS) { window.done_ = true; return; }
    const start = performance.now();
    slider.value = (n * 773) % viewer.model.S;
    slider.dispatchEvent(new Event('input'));
    requestAnimationFrame(() => {
      // A task after the frame's callbacks: layout and painting are done then.
      const channel = new MessageChannel();
      channel.port1.onmessage = () => { frames_.push(performance.now() - start); next(); };
      channel.port2.postMessage(0);
    });
  };
  next();
"""


def scrub(page: Page, positions: int) -> float:
    """Move the slider to so many places all over; milliseconds of processor time for each."""
    page.drawn()
    before = page.seconds()
    page.js(SCRUB.replace("POSITIONS", str(positions)))
    page.wait("window.done_", 60)
    spent = 1000 * (page.seconds() - before) / positions
    frames = page.js("return frames_")
    assert len(frames) == positions
    assert page.js("return drawings_") >= positions, "a place of the slider was not drawn"
    print(
        f"frames: median {statistics.median(frames):.1f} ms, worst {max(frames):.1f} ms, "
        f"{spent:.1f} ms of processor time each"
    )
    return spent
