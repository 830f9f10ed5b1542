"""The trace's page in headless Chromium: how soon it opens, how it scrubs, keys, colours, hostility.

Skipped where Chromium, its driver or selenium is missing.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest
from browser_helpers import Page
from viewer_helpers import FRAME_MS, scrub

from course.parity import mini_parts
from course.parity.traces import Arrival, Run, Workload
from mini_vllm.entrypoints.cli.trace import read_trace
from mini_vllm.trace.golden import from_golden
from mini_vllm.trace.page import to_html
from mini_vllm.trace.types import Trace

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "scheduler-0.22.1.jsonl.gz"
OPENS_S, POSITIONS = 2.0, 60
HOSTILE = (
    "</script><script>window.hacked=1;alert(1)</script><img src=x onerror=window.hacked=2>"
    "<svg onload=window.hacked=3>&lt;b&gt;\u202e\u0000"
)


def large(num_requests: int, num_steps: int) -> Trace:
    """A run of the real scheduler, of exactly so many requests and steps, most of them decodes."""
    rng = random.Random(0)
    requests: list[Arrival] = []
    for number in range(num_requests):
        arrives = number * num_steps // (2 * num_requests)
        most = num_steps // 4
        requests.append(
            {
                "id": f"r{number}",
                "step": arrives,
                "prompt": rng.choices(range(3, 50), k=90),
                "max_tokens": rng.randint(most // 2, most),
                "ignore_eos": True,
                "priority": 0,
                "abort": None,
            }
        )
    workload: Workload = {
        "seed": 0,
        "config": {
            "block_size": 16, "num_blocks": 1600, "max_num_seqs": 64,
            "max_num_batched_tokens": 96, "long_prefill_token_threshold": 0,
            "enable_prefix_caching": True, "max_model_len": 4096, "policy": "fcfs",
        },
        "requests": requests,
    }  # fmt: skip
    run = Run(workload, mini_parts(workload["config"]))
    steps = []
    for _ in range(num_steps):
        run.arrive()
        steps.append(run.decide())
    outputs = {r: list(request.output_token_ids) for r, request in run.live.items()}
    return from_golden({**workload, "steps": steps, "outputs": outputs, "engine": "mini_vllm"})


@pytest.fixture(scope="module")
def big() -> Trace:
    return large(200, 2000)


# -- speed ----------------------------------------------------------------------------------------


def test_200_requests_and_2000_steps_open_within_two_seconds(page: Page, big: Trace) -> None:
    """Two seconds of the page's own thread, which do not depend on who else is busy."""
    assert (len(big.requests), len(big.steps)) == (200, 2000)
    assert sum(len(step.scheduled) for step in big.steps) > 60_000
    page.open(big, "big")
    spent, opened = page.seconds(), page.js("return viewer.firstDrawn") / 1000
    size = (page.folder / "big.html").stat().st_size
    print(
        f"200 x 2000: first frame {opened:.2f} s after navigation, {spent:.2f} s of processor time, "
        f"{size / 1e6:.2f} MB"
    )
    assert spent < OPENS_S


def test_scrubbing_is_smooth(page: Page, big: Trace) -> None:
    """Sixty places of the slider, all over: from moving it until the frame is painted."""
    page.open(big, "big")
    spent = scrub(page, POSITIONS)
    assert page.js("return viewer.state.step") == (POSITIONS * 773) % 2000
    assert spent < FRAME_MS


# -- what it shows --------------------------------------------------------------------------------


def test_the_page_shows_what_the_trace_holds(page: Page, mixed: Trace) -> None:
    """Every step's batch, queue and tables, as the page has them, against the trace itself."""
    for trace in (mixed, read_trace(GOLDEN, index=3), read_trace(GOLDEN, index=14)):
        page.open(trace)
        seen = page.js("""
          const m = viewer.model, id = (r) => m.requests[r].request_id;
          return m.steps.map((step, s) => ({
            scheduled: [...Array(m.first[s + 1] - m.first[s]).keys()].map((k) => {
              const r = m.entry.row[m.first[s] + k], p = m.partOf(r, s);
              return [id(r), p.num_computed_tokens, p.num_scheduled_tokens, p.num_cached_tokens,
                m.tableIn(r, s), p.new_token_ids, p.finish_reason, p.why,
                KIND_WORDS[m.cells[r * m.S + s] & 15]];
            }),
            running: m.rows[s].running.map(id), waiting: m.rows[s].waiting.map(id),
            why: m.rows[s].waiting.map((r) => m.reason(r, s)), used: step.blocks_in_use,
          }));
        """)
        for step, shown in zip(trace.steps, seen, strict=True):
            parts = [
                [p.request_id, p.num_computed_tokens, p.num_scheduled_tokens, p.num_cached_tokens,
                 p.block_ids, p.new_token_ids, p.finish_reason, p.why, p.kind]
                for p in step.scheduled
            ]  # fmt: skip
            assert shown["scheduled"] == parts
            assert shown["running"] == step.running
            assert shown["waiting"] == step.waiting
            assert shown["why"] == [step.reason(r) for r in step.waiting]
            held = {block for part in step.scheduled for block in part.block_ids}
            assert len(held) <= shown["used"] <= trace.config["num_gpu_blocks"] - 1


def test_details_say_what_was_decided_and_why(page: Page, mixed: Trace) -> None:
    page.open(mixed, step=12, request="D")
    assert page.text("h1") == "All that can happen"
    assert page.text(".where") == "step 12 (12 of 40)"
    assert page.text(".selected h3") == "D, step 12: waiting after a preemption"
    assert "preempted in this step" in page.text(".selected")
    lists = page.text(".lists")
    assert "Preempted (1)" in lists
    assert "needs 1 more block and 0 are free; it is the last of the running list" in lists
    assert "nobody is admitted in a step that preempts (D)" in lists
    page.js("viewer.go(6)")
    page.drawn()
    assert "32 from the prefix cache" in page.text(".lists")
    assert "(2 shared)" in page.text("section[aria-label='KV blocks'] .facts")


def test_hover_shows_the_reason(page: Page, mixed: Trace) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    page.open(mixed)
    x, y = page.js("""
      const box = viewer.timelineCanvas.getBoundingClientRect();
      const [x, y] = viewer.timeline.place(2, 3);
      return [Math.round(box.left + x + 5), Math.round(box.top + y + 8)];
    """)
    chain = ActionChains(page.driver)
    chain.w3c_actions.pointer_action.move_to_location(x, y)
    chain.perform()
    page.wait("!viewer.tip.hidden")
    assert page.text(".tip").splitlines() == [
        "C, step 4: waiting", "arrived before this step", "why: the token budget of 32 is used up",
    ]  # fmt: skip


def test_blocks_are_described(page: Page, mixed: Trace) -> None:
    page.open(mixed, step=7)
    texts = page.js(
        "return [...Array(viewer.pool.count).keys()].map((b) => viewer.blocks.describe(b))"
    )
    assert texts[0] == "Block 0: the null block, never given out"
    step = mixed.steps[6]
    tables = {p.request_id: p.block_ids for p in step.scheduled}
    for block in sorted({b for table in tables.values() for b in table}):
        holders = [r for r, table in tables.items() if block in table]
        assert ("shared by 2: " in texts[block]) == (len(holders) > 1)
        for request_id in holders:
            assert f"{request_id} (its block {tables[request_id].index(block)})" in texts[block]
    assert any("shared by 2" in text for text in texts)


def test_vllms_own_decisions_open(page: Page) -> None:
    page.open(read_trace(GOLDEN, index=7), step=30)
    assert page.text("h1").startswith("Recorded decisions of vLLM 0.22.1")
    assert page.text("h2") == "Step 30"
    assert "vLLM 0.22.1, its own scheduler, recorded." in page.text(".source")


def test_an_empty_trace_says_so(page: Page, mixed: Trace) -> None:
    page.open(replace(mixed, steps=[], requests=[]))
    assert page.text("main") == "No step was recorded."


def test_a_page_with_broken_data_says_so(page: Page, mixed: Trace) -> None:
    good = to_html(mixed)
    start = good.index('id="trace-data">') + len('id="trace-data">')
    for packed in ("QUJD", good[start : start + 400], "%"):
        page.open(good[:start] + packed + good[good.index("</script>") :])
        assert page.text("main").startswith("The trace in this page cannot be read: ")


# -- hands ----------------------------------------------------------------------------------------


def test_keys(page: Page, mixed: Trace) -> None:
    from selenium.webdriver.common.keys import Keys

    page.open(mixed)

    def at() -> list[int]:
        page.drawn()
        return list(page.js("return [viewer.state.step, viewer.state.row]"))

    page.js("viewer.timelineCanvas.focus()")
    page.wait("!viewer.tip.hidden")
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    assert at() == [2, 1]
    assert page.text(".tip").startswith("B, step 3: prefill")
    page.wait("viewer.live.textContent.startsWith('Step 3: 32 tokens for 2 requests. B, step 3')")
    page.press(Keys.END)
    assert at() == [39, 1]
    page.press(Keys.PAGE_UP, Keys.ARROW_LEFT, Keys.ARROW_UP, Keys.ARROW_UP)
    assert at() == [28, 0]
    page.press(Keys.HOME, Keys.PAGE_DOWN)
    assert at() == [10, 0]
    page.press(Keys.SPACE)
    page.wait("viewer.state.step > 11")
    assert page.js("return viewer.playButton.getAttribute('aria-label')") == "Pause"
    page.press(Keys.SPACE)
    assert page.js("return viewer.playing") is None
    page.js("viewer.poolCanvas.focus()")
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    page.drawn()
    assert page.text(".tip").startswith("Block 2: held by B")
    page.wait("viewer.live.textContent.startsWith('Block 2: held by B')")


def test_every_control_has_a_name_and_comes_by_tab(page: Page, mixed: Trace) -> None:
    from selenium.webdriver.common.keys import Keys

    page.open(mixed)
    nameless = page.js("""
      return [...document.querySelectorAll('button, input, select, canvas')].filter((e) =>
        !e.getAttribute('aria-label') && !e.innerText.trim()).map((e) => e.outerHTML);
    """)
    assert nameless == []
    reached = []
    for _ in range(14):
        page.press(Keys.TAB)
        reached.append(page.js("return document.activeElement.getAttribute('aria-label')"))
    for name in ("Play", "Step", "Speed", "Timeline of requests and steps"):
        assert name in reached
    assert page.js("return document.querySelector('[aria-live=polite]') !== null")


def test_play_runs_to_the_end_and_stops(page: Page, mixed: Trace) -> None:
    page.open(mixed, step=36)
    page.js("viewer.speed.value = 30; viewer.playButton.click()")
    page.wait("viewer.playing === null && viewer.state.step === 39")
    assert page.js("return viewer.playButton.getAttribute('aria-label')") == "Play"


# -- looks ----------------------------------------------------------------------------------------


def test_light_and_dark(page: Page, mixed: Trace) -> None:
    look = "getComputedStyle(document.body).backgroundColor"
    page.colours("dark")
    page.open(mixed)
    dark = page.js(f"return {look}")
    assert page.js("return viewer.palette.ground") == "#14181f"
    page.js("viewer.themeButton.click()")
    assert page.js(f"return {look}") == "rgb(255, 255, 255)" != dark
    page.open(mixed)
    assert page.js(f"return {look}") == "rgb(255, 255, 255)", "the choice is kept"
    page.js("localStorage.clear()")
    page.colours("light")
    page.open(mixed, fragment="#theme=dark&step=5&request=C")
    assert page.js(f"return {look}") == dark
    assert page.js("return [viewer.state.step, viewer.state.row]") == [4, 2]


@pytest.mark.parametrize("width", [320, 390, 760, 1900])
def test_no_page_is_wider_than_the_window(page: Page, mixed: Trace, big: Trace, width: int) -> None:
    page.size(width, 844)
    for trace in (mixed, big):
        page.open(trace)
        page.wait("window.viewer && viewer.firstDrawn")
        assert page.js("return document.documentElement.scrollWidth") <= width
        assert page.js("return viewer.timelineCanvas.getBoundingClientRect().width") > width / 2


# -- hostility ------------------------------------------------------------------------------------


def test_hostile_text_is_inert(page: Page, mixed: Trace) -> None:
    requests = [
        replace(r, request_id=HOSTILE if r.request_id == "A" else r.request_id,
                prompt=HOSTILE, texts=[HOSTILE] * len(r.output_token_ids))
        for r in mixed.requests
    ]  # fmt: skip
    trace = replace(mixed, requests=requests, title=HOSTILE, about=HOSTILE, source=HOSTILE,
                    pieces=dict.fromkeys(mixed.pieces, HOSTILE))  # fmt: skip
    for step in (renamed := [replace(step) for step in mixed.steps]):
        step.scheduled = [
            replace(p, request_id=HOSTILE if p.request_id == "A" else p.request_id, why=HOSTILE)
            for p in step.scheduled
        ]
        for name in ("running", "waiting", "arrived"):
            ids = getattr(step, name)
            setattr(step, name, [HOSTILE if r == "A" else r for r in ids])
        step.why_waiting = HOSTILE if step.why_waiting else ""
    page.open(replace(trace, steps=renamed))
    page.wait("window.viewer && viewer.firstDrawn")
    for step in (0, 3, 11, 39):
        page.js(f"viewer.go({step}, {{show: true, say: true}}); viewer.timelineCanvas.focus()")
        page.drawn()
        page.js("viewer.tipAtCursor()")
    time.sleep(0.3)
    assert page.js("return window.hacked") is None
    assert page.js("return document.querySelectorAll('img, svg, iframe').length") == 0
    assert page.js("return document.querySelectorAll('script').length") == 2
    assert "</script><script>window.hacked=1" in page.text("h1")
    assert "\u202e" not in page.text("body")
    assert "\\u202e" in page.text("h1")


def test_the_policy_stops_what_would_run_or_be_fetched(viewer_tab: Page, mixed: Trace) -> None:
    """Were the escaping ever to fail, the page's policy would still hold."""
    page = viewer_tab
    page.complaints()
    injected = "<script>window.hacked=1</script><img src=https://example.org/x onerror=hacked=2>"
    page.open(to_html(mixed).replace("</body>", f"{injected}</body>"))
    page.wait("window.viewer && viewer.firstDrawn")
    time.sleep(0.3)
    assert page.js("return window.hacked") is None
    events = [json.loads(e["message"])["message"] for e in page.driver.get_log("performance")]
    stopped = [e["params"] for e in events if e["method"] == "Network.loadingFailed"]
    assert [params.get("blockedReason") for params in stopped] == ["csp"]
    said = [e["message"] for e in page.driver.get_log("browser")]
    assert len([line for line in said if "Content Security Policy" in line]) >= 2
