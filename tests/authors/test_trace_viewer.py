"""What the trace's page shows of text, events and blocks, and that it stays light and quick.

All but the first are skipped where Chromium, its driver or selenium is missing.
"""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browser_helpers import Page
from viewer_helpers import FRAME_MS, scrub

from mini_vllm.entrypoints.cli import main
from mini_vllm.entrypoints.cli.trace import read_trace
from mini_vllm.trace import Trace, TraceRecorder
from mini_vllm.trace.data import dumps, to_data, zipped
from mini_vllm.trace.page import to_html
from mini_vllm.trace.scenario import read_scenario, run_scenario
from tests.engine.helpers.engine.engine_helpers import make_engine
from tests.engine.helpers.engine.text_helpers import finish, greedy
from tests.engine.helpers.engine.trace_helpers import PROMPTS, Replay

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "scheduler-0.22.1.jsonl.gz"
POSITIONS = 60


@pytest.fixture(scope="module")
def readme(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """The run that the README tells people to look at."""
    path = tmp_path_factory.mktemp("readme") / "run.html"
    with redirect_stdout(io.StringIO()):
        main(["generate", "The KV cache", "A block table", "--trace", str(path)])
    return read_trace(path)


def test_the_text_and_the_blocks_cost_little(readme: Trace) -> None:
    """Against the same trace with the end text alone, as it was before: 12,605 bytes zipped became
    12,967. The page, with its script, is below 110 kB."""
    now = to_data(readme)
    for step in now["steps"]:
        step["start"] = step["schedule_time"] = step["execute_time"] = step["update_time"] = 0.0
    before = {k: v for k, v in now.items() if k not in ("free_at_start", "hashes_at_start")}
    before["requests"] = [
        {k: v for k, v in info.items() if k not in ("texts", "blocks_before")}
        | {"text": "".join(info["texts"])}
        for info in now["requests"]
    ]
    before["steps"] = [
        {k: v for k, v in step.items() if k not in ("hashes", "freed")} for step in now["steps"]
    ]
    small, large = (len(zipped(dumps(data))) for data in (before, now))
    page = len(to_html(readme))
    print(
        f"README's trace: {small} bytes zipped without text and blocks, {large} with; page {page}"
    )
    assert readme.config["num_gpu_blocks"] == 4096
    assert readme.free_at_start == [[1, 4095]]
    assert large - small < 1000
    assert page < 110_000


# -- text and names -------------------------------------------------------------------------------


def test_the_text_is_the_one_so_far(page: Page, readme: Trace) -> None:
    page.open(readme)
    for r, info in enumerate(readme.requests):
        steps = [s for s, step in enumerate(readme.steps) for p in step.scheduled
                 if p.request_id == info.request_id and p.new_token_ids]  # fmt: skip
        seen = page.js(
            f"return [...Array(viewer.model.S).keys()].map(s => viewer.model.textIn({r}, s))"
        )
        assert info.texts is not None
        for s, (before, fresh, count) in enumerate(seen):
            done = sum(at <= s for at in steps)
            assert count == done
            assert before + fresh == "".join(info.texts[:done])
            assert fresh == (info.texts[done - 1] if s in steps else "")
    page.js("viewer.go(13, {row: 0})")
    page.drawn()
    assert page.text(".output") == "Output so far (14 tokens):  stores the ke"
    assert page.text(".output mark") == "e"
    page.js("viewer.go(184, {row: 1})")
    page.drawn()
    assert page.text(".output").endswith("entry 1 the next ones, and so on.")
    assert page.text(".output").startswith("Output so far (")


def test_requests_are_shown_by_their_prompts(page: Page, readme: Trace, mixed: Trace) -> None:
    page.open(readme)
    assert page.js("return viewer.timeline.prompts") == ["The KV cache", "A block table"]
    assert page.text(".happened") == "0 The KV cache arrives; 1 A block table arrives"
    assert page.text(".lists .name") == "0 The KV cache"
    page.open(mixed)
    assert page.js("return viewer.timeline.prompts")[:2] == ["The KV cache", "90 tokens"]
    page.size(390, 844)
    page.wait("viewer.timeline.measured < 400")
    page.drawn()
    assert page.js("return viewer.timeline.left") < 140
    assert (
        page.js("return promptOf({prompt: 'The key and the value of a token'}, 12)")
        == "The key and…"
    )


def test_legends_name_what_occurs_and_nothing_else(page: Page, mixed: Trace) -> None:
    def legends() -> list[str]:
        items = "[...document.querySelectorAll('.legend li')].map((e) => e.lastChild.textContent)"
        return [str(text) for text in page.js(f"return {items}")]

    requests = [{"id": "A", "prompt": 30, "max_tokens": 5}]
    settings = {"num_gpu_blocks": 9, "enable_prefix_caching": False}
    quiet = run_scenario(read_scenario({"scenario": 1, "config": settings, "requests": requests}))
    page.open(quiet)
    assert legends() == [
        "prefill (tokens)", "decode (1 token)", "finished",
        "bars: tokens of the batch, decodes below; line: blocks in use",
        "held: its owner's colour", "filled in this step", "free", "ref: tables that hold it",
        "queue: its place in the free queue",
    ]  # fmt: skip
    page.open(mixed)
    for said in ("computed again", "waiting", "preempted", "prefix hit", "ended from outside",
                 "shared", "free, content cached", "evicted in this step"):  # fmt: skip
        assert said in legends()


# -- events ---------------------------------------------------------------------------------------


def test_one_jumps_from_event_to_event(page: Page, mixed: Trace) -> None:
    from selenium.webdriver.support.ui import Select

    page.open(mixed)
    kinds = {
        "arrival": [s for s, step in enumerate(mixed.steps) if step.arrived],
        "preemption": [s for s, step in enumerate(mixed.steps) if step.preempted],
        "prefix-cache hit": [s for s, step in enumerate(mixed.steps)
                             if any(p.num_cached_tokens for p in step.scheduled)],
        "finish": [s for s, step in enumerate(mixed.steps)
                   if any(p.finish_reason for p in step.scheduled)],
        "end from outside": [s for s, step in enumerate(mixed.steps) if step.aborted],
    }  # fmt: skip
    assert all(kinds.values())

    def visited(press: str) -> list[int]:
        steps = [int(page.js("return viewer.state.step"))]
        while True:
            page.js(press)
            page.drawn()
            step = int(page.js("return viewer.state.step"))
            if step == steps[-1]:
                return steps
            steps.append(step)

    after = "document.querySelector('[aria-label^=\"Next event\"]').click()"
    before = "document.querySelector('[aria-label^=\"Event before\"]').click()"
    everything = sorted(set().union(*kinds.values()))
    assert visited(after) == everything
    page.wait("viewer.live.textContent === 'No such event after this step'")
    assert visited(before) == everything[::-1]
    choice = Select(page.driver.find_element("css selector", ".controls select"))
    shown = [option.text for option in choice.options]
    assert len(shown) == 1 + len(kinds)
    for noun, steps in kinds.items():
        choice.select_by_visible_text(next(text for text in shown if text.startswith(f"{noun} (")))
        page.js("viewer.go(0)")
        assert visited(after) == sorted({0, *steps})


def test_keys_jump_and_say_what_happened(page: Page, mixed: Trace) -> None:
    page.open(mixed)
    page.js("viewer.timelineCanvas.focus()")
    page.press("n", "n")
    page.drawn()
    assert page.js("return viewer.model.numbers[viewer.state.step]") == 4
    assert page.text(".happened") == "C 40 tokens arrives"
    page.wait("viewer.live.textContent === 'Step 4: C arrives'")
    assert page.js("return viewer.state.row") == 2, "the request of the event is selected"
    page.press("p")
    page.drawn()
    assert page.text(".happened") == "B 90 tokens arrives"
    page.js("viewer.go(1)")
    page.drawn()
    assert page.text(".happened").startswith("Nobody comes, goes")


# -- blocks ---------------------------------------------------------------------------------------

BLOCKS = """
  return viewer.model.steps.map((step, s) => {
    const b = viewer.blocks;
    b.look(s);
    const all = [...Array(b.count).keys()];
    return {queue: [...b.queue], refs: all.map((i) => b.refs[i]), place: all.map((i) => b.place[i]),
      hashes: all.map((i) => b.hashOf(i)), slots: all.map((i) => b.slots(i))};
  });
"""


def test_numbers_slots_references_hashes_and_places_of_every_block(
    page: Page, mixed: Trace
) -> None:
    """In every step, against a replay in Python that itself is held against the pool."""
    page.open(mixed)
    replay, size = Replay(mixed), mixed.config["block_size"]
    blocks = range(mixed.config["num_gpu_blocks"])
    for step, seen in zip(mixed.steps, page.js(BLOCKS), strict=True):
        replay.play(step)
        held = [block for table in replay.held.values() for block in table]
        assert seen["queue"] == replay.free
        assert seen["refs"] == [held.count(block) for block in blocks]
        places = {block: place for place, block in enumerate(replay.free, 1)}
        assert seen["place"] == [places.get(block, 0) for block in blocks]
        assert seen["hashes"] == [replay.hashes.get(block) for block in blocks]
        tokens = {p.request_id: p.num_computed_tokens + p.num_scheduled_tokens
                  for p in step.scheduled}  # fmt: skip
        for request_id, count in tokens.items():
            for i, block in enumerate(replay.held[request_id]):
                assert seen["slots"][block] == min(size, count - i * size)
        assert all(seen["slots"][block] == size for block in replay.hashes)


def test_blocks_held_before_the_recording_are_held_in_it(page: Page) -> None:
    engine = make_engine(num_gpu_blocks=18, block_size=4, max_num_batched_tokens=12, max_num_seqs=4)
    for request_id, prompt in PROMPTS.items():
        engine.add_request(request_id, prompt, greedy(18, ignore_eos=True))
    for _ in range(6):
        engine.step()
    recorder = TraceRecorder(engine)
    finish(engine)
    page.open(recorder.trace)
    replay = Replay(recorder.trace)
    for step, seen in zip(recorder.steps, page.js(BLOCKS), strict=True):
        replay.play(step)
        assert seen["queue"] == replay.free


def test_a_block_says_all_of_it(page: Page, mixed: Trace) -> None:
    page.open(mixed, step=7, request="D")
    texts = page.js("return [...Array(14).keys()].map((b) => viewer.blocks.describe(b))")
    shared = [text for text in texts if "ref count 2" in text]
    assert len(shared) == 2
    assert (
        "; shared by 2: C (its block 0), D (its block 0); ref count 2; 16 of 16 slots filled; hash "
        in (shared[0].replace(": shared", "; shared", 1))
    )
    assert any("16 of 16 slots filled, 16 of them in this step" in text for text in texts)
    assert any("no hash yet" in text for text in texts)
    page.js("viewer.go(39)")
    page.drawn()
    texts = page.js("return [...Array(14).keys()].map((b) => viewer.blocks.describe(b))")
    free = [text for text in texts if "free, its content cached" in text]
    assert free
    assert all("ref count 0; hash " in text and " in the free queue" in text for text in free)
    queue = page.js("return [...viewer.blocks.queue]")
    assert f"Block {queue[0]}: " in texts[queue[0]]
    assert f"number 1 of {len(queue)} in the free queue" in texts[queue[0]]
    assert page.text(".queue").startswith(f"Free queue, next to be given out first: {queue[0]}")


CURVES = """
  const c = viewer.poolCanvas.getContext('2d'), curves = [];
  const draw = c.bezierCurveTo.bind(c);
  let from = null;
  const move = c.moveTo.bind(c);
  c.moveTo = (x, y) => { from = [x, y]; move(x, y); };
  c.bezierCurveTo = (...at) => { curves.push([from, at.slice(4)]); draw(...at); };
  viewer.render();
  delete c.moveTo; delete c.bezierCurveTo;
  return curves;
"""


@pytest.mark.parametrize("width", [1280, 390])
def test_a_line_leads_from_each_table_entry_to_its_block(
    page: Page, mixed: Trace, width: int
) -> None:
    page.size(width, 844)
    page.open(mixed, step=8, request="B")
    page.drawn()
    table = page.js("return viewer.model.tableIn(viewer.state.row, viewer.state.step)")
    assert len(table) > 2
    curves = page.js(CURVES)
    assert len(curves) == len(table)
    for i, (block, (start, end)) in enumerate(zip(table, curves, strict=True)):
        entry = f"viewer.pool.at({start[0]}, {start[1]} - 8, viewer.state)"
        assert page.js(f"return {entry}") == block, f"entry {i} is not where its line begins"
        cell = f"viewer.pool.at({end[0]}, {end[1]} + 5, viewer.state)"
        assert page.js(f"return {cell}") == block, f"the line of entry {i} ends elsewhere"
    page.js("viewer.go(0)")
    page.drawn()
    assert page.js(CURVES) == [], "B holds nothing yet"


def test_a_long_table_says_how_much_is_left_out(page: Page) -> None:
    requests = [{"id": "A", "prompt": 900, "max_tokens": 2}]
    settings = {"block_size": 8, "num_gpu_blocks": 200}
    page.size(390, 844)
    page.open(
        run_scenario(read_scenario({"scenario": 1, "config": settings, "requests": requests}))
    )
    room = page.js("return viewer.pool.entries() * BANDS")
    assert len(page.js(CURVES)) == room - 1 < 113
    assert page.js("return viewer.pool.head(0)") == 6 + 62 * 3


def test_blocks_that_nobody_used_fold_away(page: Page, readme: Trace) -> None:
    page.open(readme)
    used = {b for step in readme.steps for p in step.scheduled for b in p.block_ids}
    assert page.js("return viewer.pool.ids") == [0, *sorted(used)]
    button = "document.querySelector('[aria-label=\"KV blocks\"] > button')"
    assert page.js(f"return {button}.innerText") == f"Show the {4095 - len(used)} never used"
    page.js(f"{button}.click()")
    page.drawn()
    assert page.js("return viewer.pool.ids.length") == 4096
    assert page.js(f"return {button}.innerText") == f"Fold away the {4095 - len(used)} never used"
    page.js(f"{button}.click()")
    page.drawn()
    assert page.js("return viewer.pool.ids.length") == 1 + len(used)
    assert page.js("return viewer.blocks.place[4095]") == 4095 - page.js(
        "return viewer.blocks.refs.reduce((a, b) => a + b)"
    )


def test_what_vllms_recordings_do_not_tell_is_left_out(page: Page) -> None:
    trace = read_trace(GOLDEN, index=7)
    assert trace.free_at_start is None
    page.open(trace, step=30)
    assert page.js("return viewer.queueFacts.checkVisibility()") is False
    texts = page.js(
        "return [...Array(viewer.pool.count).keys()].map((b) => viewer.blocks.describe(b))"
    )
    assert not any("queue" in text or "; hash" in text or "no hash" in text for text in texts)
    assert any("full, to be found by its hash" in text for text in texts)
    legend = page.text("[aria-label='Legend of the blocks']")
    assert "full, found by its hash" in legend
    assert "queue" not in legend
    assert page.js("return document.querySelector('.output')") is None, "nobody knows the text"


# -- a large pool, a small window -----------------------------------------------------------------


def test_4096_blocks_and_hundreds_of_steps_are_scrubbed_smoothly(page: Page) -> None:
    """All blocks in sight, most of them used. In the page's own processor time."""
    requests: list[dict[str, Any]] = [
        {"id": f"r{i}", "prompt": 200 + i, "max_tokens": 120, "step": 1 + 4 * i} for i in range(48)
    ]
    settings = {"block_size": 4, "num_gpu_blocks": 4096, "max_num_batched_tokens": 512}
    trace = run_scenario(
        read_scenario({"scenario": 1, "config": settings, "requests": requests}), timed=False
    )
    assert len(trace.steps) > 300
    page.open(trace)
    page.js("viewer.fold(false)")
    page.drawn()
    assert page.js("return viewer.model.used.size") > 3000
    assert scrub(page, POSITIONS) < FRAME_MS


def test_on_a_phone_all_stands_in_one_column_under_large_controls(page: Page, mixed: Trace) -> None:
    page.size(390, 844)
    page.open(mixed, step=12, request="D")
    page.drawn()
    boxes = page.js("""
      return [...document.querySelectorAll('main section')].map((e) => {
        const {left, right, top} = e.getBoundingClientRect();
        return [left, right, top];
      });
    """)
    assert all(left >= 0 and right <= 390 for left, right, _ in boxes)
    assert all(one[2] < other[2] for one, other in pairwise(boxes))
    small = page.js("""
      return [...document.querySelectorAll('.controls button, .controls select')]
        .filter((e) => e.checkVisibility())
        .map((e) => [e.getAttribute('aria-label'), e.getBoundingClientRect()])
        .filter(([, box]) => box.width < 40 || box.height < 40).map(([name]) => name);
    """)
    assert small == []
    page.js("window.scrollTo(0, 600)")
    top, bottom = page.js("""
      const {top, bottom} = document.querySelector('.controls').getBoundingClientRect();
      return [top, bottom];
    """)
    assert top == 0, "the controls stay in sight"
    assert bottom < 120


# -- axe ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_nothing_serious(page: Page, mixed: Trace, readme: Trace, colours: str) -> None:
    # The page's own policy refuses every script but its own, and axe is one.
    page.driver.execute_cdp_cmd("Page.setBypassCSP", {"enabled": True})
    try:
        found = []
        for trace in (mixed, readme):
            for width in (1280, 390):
                page.size(width, 900)
                page.colours(colours)
                page.open(trace)
                found += [f"{trace.title}, {width} px: {line}" for line in page.axe()]
    finally:
        page.driver.execute_cdp_cmd("Page.setBypassCSP", {"enabled": False})
    assert not found, "\n".join(found)
