"""The site: built strictly, complete, in order, silent towards the world.

Skipped where MkDocs is missing (the extra `site`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from site_helpers import ROOT, Html, address, site, small_course, written

from course.drift.compare import recorded_releases
from course.learner.labs import load_course
from course.site.pages import read_site, track_pages
from mini_vllm.core.sched.releases import PIN
from tests.engine.helpers.patience import PATIENCE


def test_nothing_is_fetched_from_a_third_party(built: Path, html: dict[str, Html]) -> None:
    found = []
    for name, page in {**html, "404.html": Html((built / "404.html").read_text())}.items():
        for tag, key in (
            ("script", "src"), ("link", "href"), ("img", "src"), ("img", "srcset"),
            ("iframe", "src"), ("source", "src"), ("object", "data"), ("form", "action"),
        ):  # fmt: skip
            found += [f"{name}: <{tag} {key}={url}>" for url in page.all(tag, key) if "//" in url]
    for path in built.rglob("*.css"):
        css = path.read_text()
        found += [
            f"{path.name}: {m[0]}" for m in re.finditer(r"url\([\"']?(?:https?:)?//[^)]*", css)
        ]
        found += [f"{path.name}: {m[0]}" for m in re.finditer(r"@import[^;]*//[^;]*", css)]
    assert not found, "\n".join(found)


def test_every_page_names_both_releases(built: Path, html: dict[str, Html]) -> None:
    """The pin, and the newest that it was checked against; a link into vLLM says where its line is there."""
    newest = recorded_releases()[-1]
    for name in ("index.html", "phase-03-scheduler/00-guide/index.html"):
        text = (built / name).read_text()
        both = rf"About vLLM {PIN},\s+<a href=\"[./]*docs/RELEASES/\">checked against {newest}</a>"
        assert re.search(both, text)
    told = re.findall(rf'title="vllm/\S+:\d+ [^"]*\({re.escape(newest)}: line \d+, [^"]*\)"', text)
    assert len(told) >= 3


def test_next_and_previous_walk_the_course(html: dict[str, Html]) -> None:
    course = load_course(ROOT)
    expected = ["/", "SETUP/"]
    expected += [address(path.relative_to(ROOT).as_posix()) for path in track_pages(course)]
    for phase in course.phases:
        name = phase.folder.name
        inside = sorted(page.stem for page in phase.folder.glob("[0-9][0-9]-*.md"))
        inside += ["labs", *(f"labs/{lab.folder.name}" for lab in phase.labs)]
        inside += ["STORIES", "EXERCISES", "INTERVIEW", "CHEATSHEET"]
        there = [
            p
            for p in inside
            if any((phase.folder / q).is_file() for q in (f"{p}.md", f"{p}/README.md"))
        ]
        expected += [f"{name}/{p}/" for p in there]
    walked, at = [], "/"
    while True:
        walked.append(at)
        onward = html[at].footer("next")
        if onward is None or len(walked) > len(html):
            break
        ahead = urljoin(f"/{at}".replace("//", "/"), onward).removeprefix("/") or "/"
        back = html[ahead].footer("prev")
        assert back is not None, f"{ahead} has no way back to {at}"
        assert (urljoin(f"/{ahead}", back).removeprefix("/") or "/") == at
        at = ahead
    assert walked[: len(expected)] == expected
    assert walked == [address(uri) for uri in read_site(ROOT).order]
    for page in ("GLOSSARY/", "UPSTREAM_PIN/", "CONTRIBUTING/"):
        assert page in walked


def test_every_link_inside_the_site_leads_somewhere(built: Path, html: dict[str, Html]) -> None:
    broken = []
    for name, page in html.items():
        for url in (*page.all("a", "href"), *page.all("img", "src"), *page.all("script", "src")):
            there = urlsplit(urljoin(f"http://site/{name.removeprefix('/')}", url))
            if there.netloc != "site":
                continue
            path = unquote(there.path).removeprefix("/")
            anchor = unquote(there.fragment)
            file = built / path / "index.html" if path.endswith("/") or not path else built / path
            page_there = html.get(path or "/")
            if not file.is_file():
                broken.append(f"{name}: {url}")
            elif (
                anchor
                and page_there
                and not anchor.startswith("__")
                and anchor not in page_there.ids
            ):
                broken.append(f"{name}: {url}: no such heading")
    assert not broken, "\n".join(broken)


def test_our_side_of_a_correspondence_leads_to_its_line(html: dict[str, Html]) -> None:
    """The page names a symbol, or code in it; the site has found the line where that stands today."""
    seen = 0
    for name in (n for n in html if n.endswith("/03-correspondence/")):
        for tag, values in html[name].elements:
            title, url = values.get("title", ""), values.get("href", "")
            if tag != "a" or not title.startswith("mini_vllm/"):
                continue
            path, _, what = title.partition(" ")
            there, _, anchor = urljoin(f"/{name}", url).partition("#")
            assert there == f"/{path}/", f"{name}: {url}"
            assert anchor in html[there.removeprefix("/")].ids, f"{name}: {url}"
            lines = (ROOT / path).read_text(encoding="utf-8").split("\n")
            line = lines[int(anchor.removeprefix("__codelineno-0-")) - 1]
            _, _, code = what.partition(": ")
            symbol = what.rsplit(".", 1)[-1]
            defines = rf"\s*(?:(?:async )?def |class |(?:self\.)?){symbol}\b"
            assert code in line if code else re.match(defines, line), f"{name}: {title}: {line}"
            seen += 1
    assert seen > 400


def test_no_solution_in_the_search_index(built: Path) -> None:
    index = json.loads((built / "search" / "search_index.json").read_text())
    places = [entry["location"].partition("#")[0] for entry in index["docs"]]
    shown = [place for place in places if re.search(r"\.(py|json|sh|txt)/$", place)]
    assert not shown, f"files in the index: {sorted(set(shown))}"
    assert {address(uri) for uri in read_site(ROOT).order} == {place or "/" for place in places}


def test_no_front_matter_and_no_comment_is_shown(built: Path) -> None:
    for lab in load_course(ROOT).labs:
        folder = built / lab.folder.relative_to(ROOT)
        text = (folder / "index.html").read_text()
        assert f"{lab.minutes} minutes" in text
        assert f">{lab.tag}<" in text
        assert "prerequisites:" not in text
        assert "<!-- output" not in text
        assert "&lt;!--" not in text


def test_the_solution_is_one_click_away_behind_a_warning(html: dict[str, Html]) -> None:
    labs = load_course(ROOT).labs
    assert labs, "no labs"
    for lab in labs:
        folder = lab.folder.relative_to(ROOT).as_posix()
        assert "solution.py/" in html[f"{folder}/"].all("a", "href"), folder
        for path in (lab.solution, lab.mistakes):
            page = html[f"{path.relative_to(ROOT).as_posix()}/"]
            assert ("div", {"class": "admonition warning"}) in page.elements
            code = max(path.read_text(encoding="utf-8").splitlines(), key=len).strip()
            assert code not in "".join(page.open_text), f"{path} is shown without being asked for"


# -- the command ----------------------------------------------------------------------------------


def test_a_broken_link_fails_the_build(built: Path, tmp_path: Path) -> None:
    root = small_course(tmp_path / "repo")
    written(root, {"phase-00-a/00-guide.md": "# Guide\n\n[gone](gone.md)\n"})
    done = site(root, "build", str(tmp_path / "out"))
    assert done.returncode == 1
    assert "'gone.md'" in done.stderr + done.stdout


def test_a_symbol_that_is_gone_fails_the_build(built: Path, tmp_path: Path) -> None:
    root = small_course(tmp_path / "repo")
    link = '[`{0}`](../mini_vllm/engine/llm_engine.py "mini_vllm/engine/llm_engine.py {0}")'
    text = "# Guide\n\n" + link.format("LLMEngine") + " and " + link.format("LLMMotor") + "\n"
    written(root, {"phase-00-a/00-guide.md": text})
    done = site(root, "build", str(tmp_path / "out"))
    assert done.returncode == 1
    said = done.stderr + done.stdout
    assert "mini_vllm/engine/llm_engine.py does not define LLMMotor" in said
    assert "define LLMEngine" not in said


def test_build_empties_no_folder_of_yours(built: Path, tmp_path: Path) -> None:
    import course.site.command
    from course.learner.labs import CourseError

    (tmp_path / "thesis.txt").write_text("3 years")
    with pytest.raises(CourseError, match="holds something that is no site of ours"):
        course.site.command.build(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "3 years"


def fetched(url: str, what: str, seconds: float) -> str:
    """The page once it holds `what`; the last state of it after `seconds`."""
    text, end = "", time.monotonic() + seconds
    while time.monotonic() < end and what not in text:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                text = answer.read().decode()
        except OSError:
            pass
        time.sleep(0.1)
    return text


@contextmanager
def serving(root: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "course.site", "serve", *arguments]
    # A session of its own, so that the end of it reaches MkDocs too.
    server = subprocess.Popen(
        command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            os.killpg(server.pid, signal.SIGTERM)
        server.communicate(timeout=PATIENCE)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_serve_builds_again_when_a_page_is_saved(built: Path, tmp_path: Path) -> None:
    root = small_course(tmp_path)
    port = free_port()
    with serving(root, "--port", str(port)):
        url = f"http://127.0.0.1:{port}/phase-00-a/00-guide/"
        assert "<h1" in fetched(url, "<h1", PATIENCE)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:  # a test may begin to watch after the first page is out
            written(root, {"phase-00-a/00-guide.md": "# Guide\n\nSaved just now.\n"})
            if "Saved just now." in fetched(url, "Saved just now.", 5):
                return
        pytest.fail("the page that was saved never came")


def test_serve_says_where_it_will_be_and_how_far_it_is(built: Path, tmp_path: Path) -> None:
    """A build takes a minute: MkDocs says nothing for all of it."""
    root = small_course(tmp_path)
    pages = {f"phase-00-a/{n:02}-more.md": f"# Page {n}\n" for n in range(1, 30)}
    address = f"http://127.0.0.1:{free_port()}/"
    with serving(written(root, pages), "--port", address.strip("/").rpartition(":")[2]) as server:
        assert server.stdout is not None
        said = []
        for line in server.stdout:
            said.append(line)
            if "Serving on" in line:
                break
    assert address in said[0]
    assert "Serving on" in said[-1], "".join(said)
    shares = [
        int(found[1]) for line in said if (found := re.search(r" (\d+) % of the site: ", line))
    ]
    assert shares == list(range(10, 101, 10)), "".join(said)


def test_serve_leaves_the_engines_port_alone() -> None:
    """Both are to run side by side, as the README starts them."""
    pytest.importorskip("typer")
    pytest.importorskip("mkdocs")
    import argparse

    from course.site.command import PORT
    from mini_vllm.entrypoints.cli.serve import add_serve_arguments

    parser = argparse.ArgumentParser()
    add_serve_arguments(parser)
    assert parser.get_default("port") != PORT


def test_serve_refuses_a_port_that_is_taken_before_it_builds(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import course.site.command
    from course.learner.labs import CourseError

    monkeypatch.chdir(small_course(tmp_path))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CourseError, match=f"port {port}: .* choose another with --port"):
            course.site.command.serve(port)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line() -> None:
    pytest.importorskip("mkdocs")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "course.site", "--help"], cwd=ROOT, stdout=full,
            env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},
            stderr=subprocess.PIPE, encoding="utf-8", check=False, timeout=PATIENCE,
        )  # fmt: skip
    line = "course.site: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, line)
