"""Lab 02-05: its capture, and the same predictions for the real vLLM, live.

    LAB_IMPL=starter pytest -m vllm tests/authors/test_lab_02_05_vllm.py

holds a learner's own functions against a vLLM that is started here. Without LAB_IMPL the reference is held.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_module
from tests.engine.helpers.real_vllm import vllm_helpers

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "phase-02-paged-attention" / "labs" / "lab-05-real-vllm-blocks"
CHOICE = os.environ.get("LAB_IMPL", "").strip() or "solution"
LIVE = (
    "64 MiB, blocks of 32", "3 blocks by order", "2.00x", "a step of 24 tokens", "4 copies of 32 tokens",
    "waiting and finding", "the whole prompt", "hits that are free", "a crowd",
)  # fmt: skip
"""The runs that are started live; capture.py starts them all."""


@pytest.fixture(scope="module")
def capture() -> ModuleType:
    return load_module(LAB / "capture.py", "lab_02_05_capture")


@pytest.fixture(scope="module")
def captured(capture: ModuleType) -> dict[str, Any]:
    """The committed records by name."""
    return {line["name"]: line for line in capture.predictions.read_capture()[1:]}


def test_the_capture_is_of_these_runs(capture: ModuleType, captured: dict[str, Any]) -> None:
    """It says how it was made, and holds the runs of runs.py with their settings and prompts."""
    made = capture.predictions.read_capture()[0]
    assert made.keys() == {"command", "date", "hardware", "versions"}
    assert made["command"] == capture.COMMAND
    assert made["versions"]["vllm"] == "0.22.1"
    wanted = [run for some in capture.runs.KINDS.values() for run in some]
    assert [run.name for run in wanted] == list(captured)
    for run in wanted:
        kept = captured[run.name]
        for field, value in json.loads(json.dumps(dataclasses.asdict(run))).items():
            assert kept[field] == value, f"{run.name}, {field}: record again: {capture.COMMAND}"


def test_the_capture_names_no_place() -> None:
    """Neither folders nor addresses of the machine it was made on."""
    text = (LAB / "capture.jsonl").read_text(encoding="utf-8")
    for word in (str(Path.home()), str(ROOT), "/tmp/", "127.0.0.1"):
        assert word not in text, word


def test_what_the_page_says_of_the_counters(captured: dict[str, Any]) -> None:
    """768 tokens looked up, and the offline front end's counter, without the silent steps, says 96."""
    said = captured["the whole prompt"]["said"]
    assert (said["asked"]["queries"], said["metrics"]["queries"]) == (768, 96)
    moments = [
        moment
        for line in captured.values()
        if line["kind"] == "moments"
        for record in line["said"]["rounds"]
        for step in record["steps"]
        for moment in step["moments"]
    ]
    assert len(moments) == 438


@pytest.mark.vllm
def test_predictions_live(
    capture: ModuleType, captured: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine fresh starts: what vLLM says and does is what the functions say, and what was captured."""
    monkeypatch.setattr(capture, "subprocess", vllm_helpers.Forking)
    import torch

    lab = capture.load_lab(CHOICE)
    _, *lines = capture.ask_vllm(list(LIVE))
    assert sorted(line["name"] for line in lines) == sorted(LIVE)
    for line in lines:
        for what, theirs, yours in capture.predictions.predict(lab, line):
            assert theirs == yours, f"{line['name']}, {what}: vLLM {theirs!r}, predicted {yours!r}"
        if not torch.cuda.is_available():  # there the defaults of a step are others
            assert line["said"] == captured[line["name"]]["said"], (
                f"record again: {capture.COMMAND}"
            )


@pytest.mark.vllm
@pytest.mark.parametrize("text", ["67108864", "1G", "1g", "2K", "1.5g", "64m", "1.5G", "0.0015k"])
def test_sizes_are_read_as_vllm_reads_them(capture: ModuleType, text: str) -> None:
    """`human_readable_int`, which parses the flag."""
    import argparse

    from vllm.utils.argparse_utils import human_readable_int

    lab = capture.load_lab(CHOICE)
    try:
        theirs = human_readable_int(text)
    except argparse.ArgumentTypeError:
        with pytest.raises(ValueError, match=r".*"):
            lab.memory_bytes(text)
    else:
        assert lab.memory_bytes(text) == theirs
