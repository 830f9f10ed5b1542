"""Scenarios run as they say; recorded decisions of vLLM's are read, explained and kept; the command."""

from __future__ import annotations

import gzip
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from mini_vllm.entrypoints.cli import main
from mini_vllm.trace import Trace, to_text
from mini_vllm.trace.data import from_data, to_data
from mini_vllm.trace.golden import GoldenError, from_golden, read_lines
from mini_vllm.trace.page import data_of_page
from mini_vllm.trace.scenario import ScenarioError, read_scenario, run_scenario

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "golden" / "scheduler-0.22.1.jsonl.gz"
SCENARIOS = sorted(ROOT.glob("phase-*/scenarios/*.json"))
LONG: dict[str, Any] = {
    "scenario": 1,
    "title": "A long prompt",
    "config": {"num_gpu_blocks": 24, "max_num_batched_tokens": 32, "max_num_seqs": 4},
    "requests": [
        {"id": "A", "prompt": "The KV cache", "max_tokens": 12},
        {"id": "B", "prompt": 90, "step": 3, "max_tokens": 4},
        {"id": "C", "prompt": 40, "shared": 32, "step": 4, "max_tokens": 6},
        {"id": "D", "prompt": 50, "shared": 32, "step": 6, "max_tokens": 6, "abort": 9},
    ],
}


def run(**changes: Any) -> Trace:
    return run_scenario(read_scenario(LONG | changes))


# -- scenarios ------------------------------------------------------------------------------------


def test_requests_come_and_go_when_the_scenario_says() -> None:
    trace = run()
    came = {request_id: step.index for step in trace.steps for request_id in step.arrived}
    assert came == {"A": 1, "B": 3, "C": 4, "D": 6}
    assert {r: s.index for s in trace.steps for r in s.aborted} == {"D": 9}
    info = {r.request_id: r for r in trace.requests}
    assert info["A"].prompt == "The KV cache"
    assert [info[r].num_prompt_tokens for r in "ABCD"] == [13, 90, 40, 50]
    assert len(info["A"].output_token_ids) == 12, "ignore_eos unless told otherwise"
    hits = {p.request_id: p.num_cached_tokens for s in trace.steps for p in s.scheduled}
    assert hits["B"] == 0
    found = [p for s in trace.steps for p in s.scheduled if p.num_cached_tokens]
    assert [(p.request_id, p.num_cached_tokens) for p in found] == [("D", 32)]
    assert trace.title == "A long prompt"


def test_an_idle_engine_does_not_wait() -> None:
    requests = [
        {"id": "A", "prompt": 3, "max_tokens": 1},
        {"id": "late", "prompt": 3, "step": 50, "max_tokens": 2},
    ]
    trace = run(requests=requests)
    assert [(step.index, step.arrived) for step in trace.steps] == [
        (1, ["A"]),
        (2, ["late"]),
        (3, []),
    ]


def test_prompts_of_a_number_share_what_they_are_told_to() -> None:
    sizes = [{"prompt": 9}, {"prompt": 9}, {"prompt": 9, "shared": 8}, {"prompt": 12, "shared": 8}]
    made = read_scenario(
        LONG | {"requests": [{"id": str(i), **size} for i, size in enumerate(sizes)]}
    )
    a, b, c, d = (r.prompt for r in made.requests)
    assert [len(p) for p in (a, b, c, d)] == [9, 9, 9, 12]
    assert c[:8] == d[:8]
    assert len({p[0] for p in (a, b, c)}) == 3
    assert c[8] != d[8]
    whole = read_scenario(LONG | {"requests": [{"id": "x", "prompt": 5, "shared": 5}]})
    assert len(whole.requests[0].prompt) == 5


def test_without_times_a_scenario_is_always_the_same() -> None:
    scenario = read_scenario(LONG)
    one, other = (to_data(run_scenario(scenario, timed=False)) for _ in range(2))
    assert one == other
    assert not any(step["schedule_time"] + step["execute_time"] for step in one["steps"])


def test_a_request_that_the_engine_refuses_is_named() -> None:
    with pytest.raises(ScenarioError, match=r"request 'A'.*KV blocks"):
        run(requests=[{"id": "A", "prompt": 600}])
    with pytest.raises(ScenarioError, match="not a scenario"):
        read_scenario([])


@pytest.mark.parametrize("path", SCENARIOS, ids=[f"{p.parts[-3]}/{p.stem}" for p in SCENARIOS])
def test_the_courses_scenarios_run_and_every_decision_is_by_the_rules(path: Path) -> None:
    value = json.loads(path.read_text(encoding="utf-8"))
    assert value.get("title"), "a scenario needs a title: it is the frame's title too"
    trace = run_scenario(read_scenario(value))
    assert len(trace.requests) == len(value["requests"])
    assert "not by vLLM's rules" not in to_text(trace.steps)


# -- vLLM's own decisions -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recordings() -> list[Any]:
    return [json.loads(line) for line in read_lines(GOLDEN)]


def test_vllms_decisions_are_read_explained_and_kept(recordings: list[Any]) -> None:
    """Each of vLLM's decisions has a reason by the rules; the data gives all of them back."""
    preempted = hits = 0
    for recording in recordings[::3]:
        trace = from_golden(recording)
        assert "not by vLLM's rules" not in to_text(trace.steps)
        for step, recorded in zip(trace.steps, recording["steps"], strict=True):
            scheduled = {p.request_id: p.num_scheduled_tokens for p in step.scheduled}
            assert list(scheduled.items()) == list(recorded["scheduled"].items())
            assert {p.request_id: p.block_ids for p in step.scheduled} == recorded["blocks"]
            assert step.running == recorded["running"]
            assert step.preempted == recorded["preempted"]
            preempted += len(step.preempted)
            hits += sum(p.num_cached_tokens for p in step.scheduled)
        outputs = {r.request_id: r.output_token_ids for r in trace.requests}
        assert outputs == {r: t for r, t in recording["outputs"].items() if r in outputs}
        assert from_data(json.loads(json.dumps(to_data(trace)))) == trace
    assert preempted > 20
    assert hits > 100


def test_what_is_no_recording_is_refused(recordings: list[Any], tmp_path: Path) -> None:
    with pytest.raises(GoldenError, match="needs the keys"):
        from_golden({"seed": 1})
    with pytest.raises(GoldenError, match="broken"):
        from_golden(recordings[0] | {"config": {}})
    (tmp_path / "cut.jsonl.gz").write_bytes(GOLDEN.read_bytes()[:2000])
    with pytest.raises(GoldenError, match="not JSON lines"):
        read_lines(tmp_path / "cut.jsonl.gz")


# -- the command ----------------------------------------------------------------------------------


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = main(["trace", *argv])
    out, err = capsys.readouterr()
    return status, out, err


def test_one_run_through_all_its_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = tmp_path / "long.json"
    scenario.write_text(json.dumps(LONG))
    steps = len(run().steps)
    for source, target in (
        ("long.json", "a.html"),
        ("a.html", "b.trace.json"),
        ("b.trace.json", "c.html"),
    ):
        status, out, err = said(capsys, str(tmp_path / source), "-o", str(tmp_path / target))
        assert (status, err) == (0, "")
        assert out == f"{tmp_path / target}: 4 requests, {steps} steps\n"
    first, last = (data_of_page((tmp_path / n).read_text()) for n in ("a.html", "c.html"))
    assert first == last
    for name in ("p.json", "p.txt"):
        assert said(capsys, str(tmp_path / "a.html"), "-o", str(tmp_path / name))[0] == 0
    assert "traceEvents" in json.loads((tmp_path / "p.json").read_text())
    _, shown, _ = said(capsys, str(tmp_path / "a.html"), "-o", "-")
    assert shown == (tmp_path / "p.txt").read_text()
    assert shown.startswith("step 1: 13 tokens for 1 requests")


def test_two_runs_beside_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = str(tmp_path / "one.json"), str(tmp_path / "other.json")
    Path(one).write_text(json.dumps(LONG))
    Path(other).write_text(
        json.dumps(LONG | {"title": "The <other>", "requests": LONG["requests"][:1]})
    )
    both = tmp_path / "both.html"
    status, out, err = said(capsys, one, other, "--beside", "-o", str(both), "--step", "2")
    assert (status, err) == (0, "")
    assert out.startswith(f"{both}: {len(run().steps)} and ")
    text = both.read_text(encoding="utf-8")
    pages = [html.unescape(page) for page in re.findall(r'srcdoc="([^"]*)"', text)]
    first, second = (data_of_page(page) for page in pages)
    assert [len(each["requests"]) for each in (first, second)] == [len(LONG["requests"]), 1]
    assert first["view"] == {"step": 2, "request": None}
    assert '<iframe title="The &lt;other&gt;"' in text
    for wrong in ([one, "--beside"], [one, other, "--beside", "-o", str(tmp_path)]):
        assert said(capsys, *wrong)[::2] == (2, BOTH)
    assert (
        "no step 9999" in said(capsys, one, other, "--beside", "-o", str(both), "--step", "9999")[2]
    )


BOTH = "mini-vllm: --beside takes two FILEs and writes a page: -o NAME.html\n"


def test_recordings_by_place_and_by_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recordings: list[Any]
) -> None:
    page = tmp_path / "vllm.html"
    said(capsys, str(GOLDEN), "--index", "3", "-o", str(page), "--step", "5")
    by_place = data_of_page(page.read_text())
    assert len(by_place["steps"]) == len(recordings[3]["steps"])
    assert by_place["view"] == {"step": 5, "request": None}
    seed = str(recordings[3]["seed"])
    said(capsys, str(GOLDEN), "--seed", seed, "-o", str(page))
    assert data_of_page(page.read_text())["steps"] == by_place["steps"]
    plain = tmp_path / "one.json"
    plain.write_text(json.dumps(recordings[3]))
    zipped = tmp_path / "two.jsonl.gz"
    zipped.write_bytes(gzip.compress((json.dumps(recordings[3]) + "\n").encode()))
    folder = tmp_path / "pages"
    folder.mkdir()
    assert said(capsys, str(plain), str(zipped), "-o", str(folder))[0] == 0
    assert sorted(path.name for path in folder.iterdir()) == ["one.html", "two.html"]
