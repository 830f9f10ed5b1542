"""Lab 03-06: its capture, and the same predictions for the real vLLM, live.

    LAB_IMPL=starter pytest -m vllm tests/authors/test_lab_03_06_vllm.py

holds a learner's own functions against a vLLM that is started here. Without LAB_IMPL the reference is held.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_module
from tests.engine.helpers.real_vllm import vllm_helpers

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "phase-03-scheduler" / "labs" / "lab-06-prefix-cache-hitrate"
CHOICE = os.environ.get("LAB_IMPL", "").strip() or "solution"
LIVE = (
    "caching on", "caching off", "the default block", "eight blocks", "the line",
    "the line, in pieces", "no reservation",
)  # fmt: skip
"""The groups that are started live: all but the long wait of 1,002 steps."""


@pytest.fixture(scope="module")
def capture() -> ModuleType:
    return load_module(LAB / "capture.py", "lab_03_06_capture")


@pytest.fixture(scope="module")
def captured(capture: ModuleType) -> dict[tuple[str, str], Any]:
    """The committed records, by group and name."""
    return {(line["group"], line["name"]): line for line in capture.predictions.read_capture()[1:]}


def test_the_capture_is_of_these_runs(
    capture: ModuleType, captured: dict[tuple[str, str], Any]
) -> None:
    """It says how it was made, and holds the workloads of runs.py with their settings and texts."""
    made = capture.predictions.read_capture()[0]
    assert made.keys() == {"command", "date", "hardware", "versions"}
    assert made["command"] == capture.COMMAND
    assert made["versions"]["vllm"] == "0.22.1"
    wanted = [(group, one) for group in capture.runs.GROUPS for one in group.workloads]
    assert [(group.name, one.name) for group, one in wanted] == list(captured)
    for group, one in wanted:
        kept = captured[group.name, one.name]
        rounds = json.loads(json.dumps(dataclasses.asdict(one)))["rounds"]
        again = f"{one.name}: record again: {capture.COMMAND}"
        assert kept["settings"] == group.settings, again
        assert kept["rounds"] == rounds, again


def test_the_capture_names_no_place() -> None:
    """Neither folders nor addresses of the machine it was made on."""
    text = (LAB / "capture.jsonl").read_text(encoding="utf-8")
    for word in (str(Path.home()), str(ROOT), "/tmp/", "127.0.0.1"):
        assert word not in text, word


def test_what_the_page_says_of_the_long_wait(captured: dict[tuple[str, str], Any]) -> None:
    """Gil alone is in the window, and nothing of what he would have found is there in the end."""
    said = captured["the long wait", "the long wait"]["said"]
    looks = [
        (name, num_hits)
        for times, lookups, _, _ in said["steps"]
        for name, _, num_hits, _ in lookups * times
    ]
    gil = [num_hits for name, num_hits in looks if name == "gil"]
    assert (len(looks), len(gil), gil[0], gil[-1]) == (1003, 1001, 1008, 0)
    assert gil == sorted(gil, reverse=True)
    assert said["window"][:2] == [1000, 1000 * 1010]
    assert said["sent"]["hits"] == 500_976


@pytest.mark.vllm
def test_predictions_live(
    capture: ModuleType, captured: dict[tuple[str, str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven fresh starts: the meters show what the functions say, and what was captured."""
    monkeypatch.setattr(capture, "subprocess", vllm_helpers.Forking)
    import torch

    lab = capture.load_lab(CHOICE)
    _, *lines = capture.ask_vllm(list(LIVE))
    assert {line["group"] for line in lines} == set(LIVE)
    for line in lines:
        where = (line["group"], line["name"])
        for what, theirs, yours in capture.predictions.predict(lab, line):
            assert theirs == yours, f"{where}, {what}: vLLM {theirs!r}, predicted {yours!r}"
        if not torch.cuda.is_available():  # there the default block is another
            kept = captured[where]["said"]
            assert line["said"] == kept, f"{where}: record again: {capture.COMMAND}"


@pytest.mark.vllm
@pytest.mark.parametrize("seed", range(20))
def test_the_window_is_vllms(capture: ModuleType, seed: int) -> None:
    """`CachingMetrics` itself, told of random steps."""
    from vllm.v1.metrics.stats import CachingMetrics, PrefixCacheStats

    lab = capture.load_lab(CHOICE)
    rng = random.Random(seed)
    most = rng.choice([1, 3, 10])
    theirs = CachingMetrics(most)
    steps = []
    for _ in range(40):
        stats = PrefixCacheStats()
        looks = []
        for i in range(rng.choice([0, 1, 1, 2, 5, 14])):
            num_tokens = rng.randint(1, 50)
            look = lab.Lookup(str(i), num_tokens, rng.randrange(num_tokens), rng.random() < 0.2)
            stats.record(look.num_tokens, look.num_hits, look.preempted)
            looks.append(look)
        theirs.observe(stats)
        steps.append(lab.Step(tuple(looks), {}, frozenset()))
        assert lab.line_rate(steps, most) == pytest.approx(theirs.hit_rate), (steps, most)
