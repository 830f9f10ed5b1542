"""`mini-vllm sweep --ray`: the rows are those of processes, and Ray makes good a worker that is killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mini_vllm.entrypoints.cli import main
from mini_vllm.sim.sweep_workers import MOST_TRIES
from tests.engine.helpers.other_systems import ROOT
from tests.engine.helpers.sweep_workers import DIES_ALWAYS, DIES_ONCE, MARKS, run_point_or_die

SWEEP = (
    "sweep", "--set", f"num-prompts=12,{DIES_ONCE},20,{DIES_ALWAYS},30", "--input-len", "40",
    "--output-len", "uniform:4:9", "--request-rate", "50", "--jobs", "2",
)  # fmt: skip


def test_ray_gives_the_bytes_of_processes_with_killed_workers_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A cluster of its own ("local"), whatever else runs here. The workers kill themselves with SIGKILL in
    the middle of a task: one task does so once, another each time."""
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for the workers
    monkeypatch.setattr("mini_vllm.entrypoints.cli.sweep_point.run_point", run_point_or_die)
    made: dict[str, tuple[bytes, str]] = {}
    for name, flags in (("processes", ()), ("ray", ("--ray", "local"))):
        marks = tmp_path / name
        marks.mkdir()
        monkeypatch.setenv(MARKS, str(marks))
        file = tmp_path / f"{name}.jsonl"
        assert main([*SWEEP, *flags, "--json", str(file)]) == 1
        made[name] = file.read_bytes(), capsys.readouterr().out
        assert (marks / str(DIES_ONCE)).stat().st_size == 2
        assert (marks / str(DIES_ALWAYS)).stat().st_size == MOST_TRIES
    assert made["ray"] == made["processes"]
    rows = [json.loads(line) for line in made["ray"][0].splitlines()]
    assert [row.get("completed") for row in rows] == [12, DIES_ONCE, 20, None, 30]
    assert f"each of the {MOST_TRIES} workers" in rows[3]["error"]
