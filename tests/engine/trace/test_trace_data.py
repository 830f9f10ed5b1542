"""A trace as data and as a page: nothing is lost, nothing broken is taken, nothing foreign runs."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.entrypoints.cli import main
from mini_vllm.trace import (
    StepTrace,
    TraceRecorder,
    check_trace_path,
    to_chrome_trace,
    to_text,
    write_trace,
)
from mini_vllm.trace import data as trace_data
from mini_vllm.trace.data import TraceDataError, dumps, from_data, loads, to_data, zipped
from mini_vllm.trace.page import data_of_page, to_html
from mini_vllm.utils.untrusted import gunzip
from tests.engine.helpers.engine.adapters import ask, write_adapter
from tests.engine.helpers.engine.engine_helpers import make_engine
from tests.engine.helpers.engine.text_helpers import finish, greedy
from tests.engine.helpers.engine.trace_helpers import PROMPTS, Recorded, record


@pytest.fixture(scope="module")
def traced() -> Recorded:
    return record()


# -- files ----------------------------------------------------------------------------------------


def test_write_trace_by_the_paths_ending(traced: Recorded, tmp_path: Path) -> None:
    trace = traced.trace
    for name in ("t.txt", "t.json", "t.trace.json", "t.trace.json.gz", "t.html"):
        write_trace(trace, tmp_path / name)
    text = {name: (tmp_path / name).read_text("utf-8") for name in ("t.txt", "t.json", "t.html")}
    assert text["t.txt"] == to_text(trace.steps)
    assert json.loads(text["t.json"]) == to_chrome_trace(trace.steps)
    plain = (tmp_path / "t.trace.json").read_bytes()
    assert json.loads(plain) == to_data(trace)
    assert gzip.decompress((tmp_path / "t.trace.json.gz").read_bytes()) == plain
    assert data_of_page(text["t.html"])["steps"] == to_data(trace)["steps"]
    for name in ("t.xml", "t", "txt", "t.json.gz", "t.html.gz"):
        with pytest.raises(ValueError, match=name):
            write_trace(trace, tmp_path / name)
        with pytest.raises(ValueError, match=r"\.txt or \.json"):
            check_trace_path(tmp_path / name)


def test_an_empty_trace_is_a_trace(tmp_path: Path) -> None:
    trace = TraceRecorder(make_engine(num_gpu_blocks=18)).trace
    for name in ("t.txt", "t.json", "t.trace.json", "t.trace.json.gz", "t.html"):
        write_trace(trace, tmp_path / name)
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    for name in ("t.trace.json", "t.trace.json.gz"):
        assert from_data(loads((tmp_path / name).read_bytes())) == trace


# -- data -----------------------------------------------------------------------------------------


def test_data_is_plain_json_with_a_line_a_step_and_nothing_left_out(traced: Recorded) -> None:
    text = dumps(to_data(traced.trace))
    lines = [line for line in text.splitlines() if line.startswith('{"index":')]
    assert len(lines) == len(traced.steps)
    step = json.loads(lines[4].rstrip(","))
    assert step.keys() == {f.name for f in fields(StepTrace)}
    assert step["scheduled"][0]["why"] == "one decode token"
    assert step["scheduled"][0]["kind"] == "decode"
    assert step["why_behind"] == "behind c, the head of the queue" * (len(step["waiting"]) > 0)
    assert zipped(text) == zipped(text), "the page is the same each time"
    assert from_data(loads(text.encode())) == from_data(loads(zipped(text))) == traced.trace


def test_a_recording_that_begins_in_the_middle() -> None:
    engine = make_engine(num_gpu_blocks=18, block_size=4, max_num_batched_tokens=12, max_num_seqs=4)
    for request_id, prompt in PROMPTS.items():
        engine.add_request(request_id, prompt, greedy(18, ignore_eos=True))
    for _ in range(4):
        engine.step()
    recorder = TraceRecorder(engine)
    done = finish(engine)
    trace = recorder.trace
    assert {r.request_id: r.output_token_ids for r in trace.requests} == {
        request_id: output.outputs[0].token_ids for request_id, output in done.items()
    }
    assert trace.steps[0].index == 5
    assert all("vLLM's rules" not in p.why for s in trace.steps for p in s.scheduled)
    for step in trace.steps:
        step.start = step.schedule_time = step.execute_time = step.update_time = 0.0
    assert from_data(to_data(trace)) == trace


def test_who_was_there_before_the_first_step_arrives_with_it_or_never() -> None:
    engine = make_engine(num_gpu_blocks=18, block_size=4)
    engine.add_request("late", [7] * 9, greedy(3, ignore_eos=True), 2.0)
    engine.add_request("early", [8] * 9, greedy(3, ignore_eos=True), 1.0)
    engine.add_request("gone", [9] * 9, greedy(3, ignore_eos=True), 0.0)
    recorder = TraceRecorder(engine)
    engine.abort_request("gone")
    assert from_data(to_data(recorder.trace)) == recorder.trace, "before the first step"
    finish(engine)
    trace = recorder.trace
    assert [r.request_id for r in trace.requests] == trace.steps[0].arrived == ["early", "late"]
    assert trace.steps[0].aborted == trace.aborted_at_end == []
    assert [p.request_id for p in trace.steps[0].scheduled] == ["late", "early"]
    assert "not by vLLM's rules" not in to_text(trace.steps)
    assert from_data(to_data(trace)) == trace


def test_an_id_used_twice_and_an_abort_at_the_end_survive_the_data() -> None:
    engine = make_engine(num_gpu_blocks=18, block_size=4)
    recorder = TraceRecorder(engine)
    engine.add_request("a", [7] * 9, greedy(9, ignore_eos=True))
    engine.add_request("b", [8] * 9, greedy(9, ignore_eos=True))
    engine.step()
    engine.abort_request("a")
    engine.add_request("a", [9] * 5, greedy(20, ignore_eos=True))
    engine.step()
    engine.abort_request(["a", "b"])
    trace = recorder.trace
    assert [r.request_id for r in trace.requests] == ["a", "b", "a"]
    assert trace.steps[1].aborted == ["a"] == trace.steps[1].arrived
    assert sorted(trace.aborted_at_end) == ["a", "b"]
    back = from_data(to_data(trace))
    assert [s.scheduled for s in back.steps] == [s.scheduled for s in trace.steps]
    assert back.aborted_at_end == trace.aborted_at_end


def _broken(change: Callable[[Any], object]) -> Callable[[Any], Any]:
    def broken(data: Any) -> Any:
        change(data)
        return data

    return broken


BROKEN: list[tuple[Callable[[Any], Any], str]] = [
    (lambda d: [1], "not a trace"),
    (lambda d: d | {"format": "other"}, "not a trace"),
    (lambda d: d | {"version": 1}, "trace version 1; this reads 6"),
    (lambda d: d | {"requests": 5}, "requests cannot be 5"),
    (lambda d: d | {"extra": 5}, "'extra' is unknown"),
    (_broken(lambda d: d.pop("pieces")), "'pieces' is missing"),
    (lambda d: d | {"pieces": {"x": "y"}}, "pieces cannot be"),
    (lambda d: d | {"steps": [{"index": 1}]}, r"steps\[0\] is no StepTrace: '\w+' is missing"),
    (lambda d: d | {"steps": [None]}, r"steps\[0\] is no StepTrace"),
    (_broken(lambda d: d["steps"][3].update(running=[7])), r"running cannot be \[7\]"),
    (_broken(lambda d: d["steps"][3].update(free_blocks=True)), "free_blocks cannot be True"),
    (_broken(lambda d: d["steps"][3].update(why={"a": 1})), "why cannot be"),
    (_broken(lambda d: d["steps"][3]["scheduled"][0].update(block_ids=["1"])), "block_ids cannot"),
    (
        _broken(lambda d: d["steps"][3]["scheduled"][0].update(block_ids=[18])),
        "step 4: there is no",
    ),
    (_broken(lambda d: d["steps"][3].update(evicted=[-1])), "step 4: there is no block -1"),
    (_broken(lambda d: d["steps"][3].update(waiting=["z"])), "step 4: no request 'z' has arrived"),
    (_broken(lambda d: d["steps"][3].update(aborted=["z"])), "step 4: no request 'z' has arrived"),
    (_broken(lambda d: d["steps"][3].update(arrived=["a"])), "step 4: its arrivals are not"),
    (_broken(lambda d: d["config"].update(num_gpu_blocks="18")), "num_gpu_blocks must be int"),
    (_broken(lambda d: d["config"].pop("block_size")), "block_size must be int, got None"),
]


@pytest.mark.parametrize(("change", "says"), BROKEN, ids=[says for _, says in BROKEN])
def test_what_is_no_trace_is_refused(
    traced: Recorded, change: Callable[[Any], Any], says: str
) -> None:
    data = json.loads(dumps(to_data(traced.trace)))
    with pytest.raises(TraceDataError, match=says) as error:
        from_data(change(data))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


BOMB = gzip.compress(bytes(1 << 22))  # 4 kB that unpack to 4 MiB


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (gzip.compress(b"{}")[:-9], "the gzip data ends too early"),
        (b"\x1f\x8bnothing", "not gzip"),
        (gzip.compress(b"["), "not JSON"),
        (gzip.compress(b"\xff"), "not UTF-8"),
        (gzip.compress(b"[" * 200_000), "nested too deep"),
        (BOMB, "more than 1048576 bytes when unpacked"),
    ],
    ids=["cut", "no gzip", "no JSON", "no UTF-8", "deep", "bomb"],
)
def test_a_hostile_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    raw: bytes, says: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(trace_data, "gunzip", partial(gunzip, most=1 << 20))
    packed = base64.b64encode(raw).decode()
    page = f'<script type="application/gzip;base64" id="trace-data">{packed}</script>'
    for name, content in {"t.trace.json.gz": raw, "t.html": page.encode()}.items():
        path = tmp_path / name
        path.write_bytes(content)
        assert main(["trace", str(path), "-o", str(tmp_path / "out.html")]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        (line,) = err.splitlines()
        assert line.startswith(f"mini-vllm: {path}: ")
        assert says in line
    assert len(list(tmp_path.iterdir())) == 2


def test_what_is_no_number_is_refused(traced: Recorded) -> None:
    text = dumps(to_data(traced.trace))
    assert '"kv_usage":0.' in text
    for odd in ("NaN", "-Infinity", "1e999", "9" * 30):
        data = loads(text.replace('"start":0.0,', f'"start":{odd},').encode())
        with pytest.raises(TraceDataError, match="start cannot be"):
            from_data(data)


def test_a_page_whose_data_is_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.html"
    for data, says in (
        ("A", "broken base64"),
        ("\u00e9", "broken base64"),
        ("e30=", "not a trace"),
    ):
        page = f'<script type="application/gzip;base64" id="trace-data">{data}</script>'
        path.write_text(page, encoding="utf-8")
        assert main(["trace", str(path), "-o", "-"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert says in line


# -- the page -------------------------------------------------------------------------------------

HOSTILE = "</script><script>window.hacked=1</script><!-- <img src=x onerror=hacked()>"


def test_nothing_from_outside_is_markup_in_the_page(traced: Recorded) -> None:
    requests = [replace(traced.trace.requests[0], prompt=HOSTILE), *traced.trace.requests[1:]]
    page = to_html(replace(traced.trace, requests=requests, title=HOSTILE, about=HOSTILE))
    assert page.count("</script>") == page.count("<script") == 2
    assert "<img" not in page
    assert "<!--" not in page
    assert data_of_page(page)["requests"][0]["prompt"] == HOSTILE


def test_the_page_asks_nobody_and_lets_nothing_else_run(traced: Recorded) -> None:
    page = to_html(traced.trace)
    assert not re.search(r"https?:|//[a-z]+[.]|url[(]|@import", page.replace("http-equiv", ""))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    for tag in ("script", "style"):
        (body,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy[1]
    assert "unsafe" not in policy[1]


def test_a_trace_names_each_requests_adapter(tmp_path: Path) -> None:
    engine = LLMEngine(config=EngineConfig(enable_lora=True, max_loras=2))
    recorder = TraceRecorder(engine)
    folder = write_adapter(tmp_path / "snake", 1)
    for name, lora in (("A", None), ("B", ask(folder, 1))):
        engine.add_request(name, "The KV cache", SamplingParams(max_tokens=2), lora_request=lora)
    while engine.has_unfinished_requests():
        engine.step()
    data = json.loads(dumps(to_data(recorder.trace)))
    assert [info["lora"] for info in data["requests"]] == [None, "snake"]
    assert [info.lora for info in from_data(data).requests] == [None, "snake"]
