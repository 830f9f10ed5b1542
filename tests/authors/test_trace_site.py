"""Viewers in pages: what a line may say, what it becomes, and the site that shows it live.

The site's part is skipped where MkDocs is missing, the browser's where Chromium or selenium is.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_helpers import chromium_driver

from course.docs.pages import COMMENT, pages
from course.site.pages import read_site
from course.site.viewer import (
    Viewer,
    ViewerError,
    frame,
    is_viewer,
    make_page,
    missing_command,
    read_viewer,
)
from mini_vllm.trace.page import data_of_page
from tests.engine.helpers.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
SCENARIO: dict[str, Any] = {
    "scenario": 1,
    "title": 'Two & "one"',
    "config": {"num_gpu_blocks": 12, "max_num_batched_tokens": 32, "max_num_seqs": 4},
    "requests": [{"id": "A", "prompt": "The KV cache"}, {"id": "B", "prompt": 60, "step": 3}],
}
FREE = "<!-- viewer: scenarios/two.json -->"
LINE = "<!-- viewer: scenarios/two.json | step 4 | request B | height 500 -->"
COMMAND = "`mini-vllm trace phase-00-a/scenarios/two.json -o two.html` makes this page."


def small(root: Path, line: str = LINE, sentence: str = COMMAND) -> Path:
    """A course of one page with a viewer."""
    files = {
        "pyproject.toml": 'name = "mini-vllm-course"\n',
        "README.md": "# Home\n\nSee [the guide](phase-00-a/00-guide.md).\n",
        "phase-00-a/00-guide.md": f"# Guide\n\n{line}\n\n{sentence}\n",
        "phase-00-a/scenarios/two.json": json.dumps(SCENARIO),
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


# -- lines ----------------------------------------------------------------------------------------


def test_a_line_is_read(tmp_path: Path) -> None:
    root = small(tmp_path)
    page = root / "phase-00-a" / "00-guide.md"
    scenario = root / "phase-00-a" / "scenarios" / "two.json"
    viewer = read_viewer(LINE, page, root)
    uri = "phase-00-a/scenarios/two.html"
    assert viewer == Viewer(scenario, uri, step=4, request="B", height=500)
    assert read_viewer("<!--viewer:scenarios/two.json-->", page, root) == Viewer(scenario, uri)
    lab = root / "phase-00-a" / "labs" / "lab-01-x" / "README.md"
    assert read_viewer("<!-- viewer: ../../scenarios/two.json -->", lab, root) == Viewer(
        scenario, uri
    )
    assert is_viewer(LINE)
    assert not is_viewer("<!-- output: viewer: x -->")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("<!-- viewer: scenarios/gone.json -->", "no file 'scenarios/gone.json'"),
        ("<!-- viewer: -->", "no file ''"),
        ("<!-- viewer: ../../../etc/hostname -->", "no file"),
        ("<!-- viewer: scenarios/two.json | steps 4 -->", "'steps 4'"),
        ("<!-- viewer: scenarios/two.json | step -->", "'step'"),
        ("<!-- viewer: scenarios/two.json | step x -->", "step must be a number"),
        ("<!-- viewer: scenarios/two.json | step 1 | step 2 -->", "once"),
        ("<!-- viewer: scenarios/two.json | index 1 | seed 2 -->", "not both"),
    ],
)
def test_a_bad_line_is_a_problem_of_the_site(tmp_path: Path, line: str, says: str) -> None:
    made = read_site(small(tmp_path, line))
    assert len(made.problems) == 1
    assert made.problems[0].startswith("phase-00-a/00-guide.md: viewer: ")
    assert says in made.problems[0]
    assert made.viewers == {}


def test_the_page_must_say_how_to_make_it(tmp_path: Path) -> None:
    for sentence in ("Look.", "`mini-vllm trace phase-00-a/scenarios/two.json5`"):
        (problem,) = read_site(small(tmp_path, sentence=sentence)).problems
        assert "`mini-vllm trace phase-00-a/scenarios/two.json -o NAME.html`" in problem
    viewer = read_viewer(LINE, tmp_path / "phase-00-a" / "00-guide.md", tmp_path)
    assert missing_command(viewer, COMMAND, tmp_path) is None


def test_a_line_becomes_a_frame_with_a_title(tmp_path: Path) -> None:
    made = read_site(small(tmp_path))
    assert made.problems == ()
    shown = made.pages["phase-00-a/00-guide.md"]
    assert "<!--" not in shown
    assert '<iframe src="../scenarios/two.html#step=4&amp;request=B"' in shown
    assert 'title="Two &amp; &quot;one&quot;" loading="lazy" sandbox="allow-scripts"' in shown
    assert '<figure class="viewer fixed">' in shown
    assert 'style="height: 500px"' in shown
    free = frame(
        read_viewer(LINE.replace(" | height 500", ""), tmp_path / "phase-00-a/x.md", tmp_path), ""
    )
    assert '<figure class="viewer"><iframe' in free
    (viewer,) = made.viewers["phase-00-a/scenarios/two.html"]
    assert 'src="phase-00-a/scenarios/two.html#' in frame(viewer, "")
    assert 'src="scenarios/two.html#' in frame(viewer, "phase-00-a")


def test_the_page_is_made_by_running_the_engine_and_always_the_same(tmp_path: Path) -> None:
    ((viewer,),) = read_site(small(tmp_path)).viewers.values()
    page = make_page(viewer)
    data = data_of_page(page)
    assert [r["request_id"] for r in data["requests"]] == ["A", "B"]
    assert not any(step["start"] + step["execute_time"] for step in data["steps"])
    assert make_page(viewer) == page
    broken = viewer.path.with_name("broken.json")
    broken.write_text(json.dumps(SCENARIO | {"requests": []}))
    with pytest.raises(ViewerError, match=r"broken\.json: requests must be"):
        make_page(Viewer(broken, "x.html"))
    with pytest.raises(ViewerError, match="no request 'Z'"):
        make_page(viewer, Viewer(viewer.path, viewer.uri, request="Z"))
    with pytest.raises(ViewerError, match="no step 99, but 1 to 19"):
        make_page(Viewer(viewer.path, viewer.uri, step=99))


def test_recordings_of_vllms_have_a_page_each() -> None:
    golden = ROOT / "tests" / "golden" / "scheduler-0.22.1.jsonl.gz"
    page = ROOT / "README.md"
    line = "<!-- viewer: tests/golden/scheduler-0.22.1.jsonl.gz | index {} -->"
    viewers = [read_viewer(line.format(i), page, ROOT) for i in (3, 4)]
    assert [v.uri for v in viewers] == [
        f"tests/golden/scheduler-0.22.1-index-{i}.html" for i in (3, 4)
    ]
    assert viewers[0].path == golden
    assert data_of_page(make_page(viewers[0]))["source"].startswith("vLLM 0.22.1")


def test_every_viewer_line_of_the_course_is_good() -> None:
    """No MkDocs needed: each line leads to a file, and its page says how to make it."""
    for page in pages(ROOT):
        for line, kind in zip(page.lines, page.kinds, strict=True):
            if kind == COMMENT and is_viewer(line):
                viewer = read_viewer(line, page.path, ROOT)
                assert missing_command(viewer, page.text, ROOT) is None, page.name


# -- the site -------------------------------------------------------------------------------------


def build(root: Path, *more: str) -> subprocess.CompletedProcess[str]:
    for name in ("mkdocs.yml", "course", "mini_vllm"):
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, root / name, ignore=ignore, dirs_exist_ok=True)
        else:
            shutil.copy(ROOT / name, root / name)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", *more]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="MkDocs is not installed (the extra 'site')")
    pytest.importorskip(
        "material", reason="Material for MkDocs is not installed (the extra 'site')"
    )
    root = small(tmp_path_factory.mktemp("course"))
    text = f"# Deep dive\n\n{FREE}\n\n{COMMAND}\n"
    (root / "phase-00-a" / "01-deep-dive.md").write_text(text, encoding="utf-8")
    done = build(root, "-d", str(root / "out"))
    assert done.returncode == 0, done.stderr[-2000:]
    return root / "out"


def test_a_strict_build_has_frame_and_page(built: Path) -> None:
    text = (built / "phase-00-a" / "00-guide" / "index.html").read_text()
    assert '<iframe src="../scenarios/two.html#step=4&amp;request=B"' in text
    made = data_of_page((built / "phase-00-a" / "scenarios" / "two.html").read_text())
    assert len(made["steps"]) == 19
    index = (built / "search" / "search_index.json").read_text()
    assert "trace-data" not in index


def test_a_viewer_that_cannot_be_made_fails_the_build(built: Path, tmp_path: Path) -> None:
    root = small(tmp_path, LINE.replace("request B", "request Z"))
    done = build(root, "-d", str(root / "out"))
    assert done.returncode != 0
    assert "no request 'Z'" in done.stderr + done.stdout


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def chromium(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str]]:
    handler = functools.partial(Quiet, directory=str(built))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with chromium_driver(tmp_path_factory.mktemp("chromium")) as driver:
            driver.set_window_size(1280, 1000)
            yield driver, f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()


class Framed:
    """A page of the site, and the page in its frame."""

    def __init__(self, driver: Any, address: str) -> None:
        self.driver = driver
        driver.get(address)
        self.js("document.querySelector('figure.viewer').scrollIntoView()")
        self.inside("window.viewer && viewer.firstDrawn > 0", True)

    def js(self, code: str) -> Any:
        return self.driver.execute_script(code)

    def wait(self, code: str, wanted: Any) -> None:
        end = time.monotonic() + PATIENCE
        while (value := self.js(f"return {code}")) != wanted:
            assert time.monotonic() < end, f"{code}: {value!r}, not {wanted!r}"
            time.sleep(0.05)

    def inside(self, code: str, *wanted: Any) -> Any:
        """What the code gives in the frame; with `wanted`, once it is that."""
        self.driver.switch_to.frame(
            self.driver.find_element("css selector", "figure.viewer iframe")
        )
        try:
            for value in wanted:
                self.wait(code, value)
            return self.js(f"return {code}")
        finally:
            self.driver.switch_to.default_content()


def test_the_frame_is_alive_and_follows_the_pages_colours(chromium: tuple[Any, str]) -> None:
    driver, base = chromium
    page = Framed(driver, f"{base}phase-00-a/00-guide/")
    page.inside("[viewer.model.numbers[viewer.state.step], viewer.state.row].join()", "4,1")
    scheme = "document.body.dataset.mdColorScheme"
    before = page.js(f"return {scheme}")
    theme = {"default": "light", "slate": "dark"}
    page.inside("document.documentElement.dataset.theme", theme[before])
    for _ in range(2):  # from the system's colours to light ones, and then to dark ones
        page.js(
            "[...document.querySelectorAll('form[data-md-component=palette] label')]"
            ".find(l => l.checkVisibility()).click()"
        )
    after = "slate" if before == "default" else "default"
    page.wait(scheme, after)
    page.inside("document.documentElement.dataset.theme", theme[after])
    page.inside("document.documentElement.scrollWidth <= window.innerWidth", True)
    page.wait("document.querySelector('figure.viewer iframe').offsetHeight", 500)
    assert not [e["message"] for e in driver.get_log("browser") if "favicon" not in e["message"]]


@pytest.mark.parametrize("width", [1280, 500])  # no window is narrower
def test_a_frame_is_as_high_as_what_stands_in_it(chromium: tuple[Any, str], width: int) -> None:
    driver, base = chromium
    driver.set_window_size(width, 900)
    page = Framed(driver, f"{base}phase-00-a/01-deep-dive/")
    bare = "Math.ceil(document.body.getBoundingClientRect().height) - window.innerHeight"
    page.inside(bare, 0)
    page.inside("document.documentElement.scrollHeight - window.innerHeight", 0)
    first = page.inside("window.innerHeight")
    page.inside("document.body.lastElementChild.style.paddingBottom = '400px'", "400px")
    page.inside(bare, 0)
    assert page.inside("window.innerHeight") == first + 400
    page.inside("document.body.lastElementChild.style.paddingBottom = '0px'", "0px")
    time.sleep(0.3)
    assert page.inside("window.innerHeight") == first + 400, "it only grows while the width stays"
    driver.set_window_size(800, 900)
    page.inside(bare, 0)
    driver.set_window_size(1280, 1000)
    assert not [e["message"] for e in driver.get_log("browser") if "favicon" not in e["message"]]
