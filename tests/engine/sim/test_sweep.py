"""A sweep's grid, its file, and the processes that compute it."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mini_vllm.sim.sweep import Journal, expand, read_params
from mini_vllm.sim.sweep_workers import MOST_TRIES, run_on_processes
from tests.engine.helpers.other_systems import ROOT
from tests.engine.helpers.patience import PATIENCE
from tests.engine.helpers.sweep_workers import MARKS, double_or_die, say_and_wait


def test_the_last_axis_changes_first() -> None:
    axes = [[{"a": 1}, {"a": 2}], [{"b": 3, "c": 4}, {"b": 5}]]
    assert expand(axes) == [
        {"a": 1, "b": 3, "c": 4}, {"a": 1, "b": 5}, {"a": 2, "b": 3, "c": 4}, {"a": 2, "b": 5},
    ]  # fmt: skip
    assert expand([]) == [{}]
    with pytest.raises(ValueError, match="'a' is set in two places"):
        expand([[{"a": 1}], [{"b": 1, "a": 1}]])
    with pytest.raises(ValueError, match="1000000 points: at most 100000"):
        expand([[{str(axis): i} for i in range(100)] for axis in range(3)])


def test_a_file_of_parameters_is_read_as_vllm_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "params.json"
    file.write_text('{"few": {"max_num_seqs": 4}, "many": {"max_num_seqs": 64}}')
    named = read_params("--serve-params", file)
    assert named == [
        {"_benchmark_name": "few", "max_num_seqs": 4},
        {"_benchmark_name": "many", "max_num_seqs": 64},
    ]
    names = [point["_benchmark_name"] for point in expand([named, [{"_benchmark_name": "slow"}]])]
    assert names == ["few-slow", "many-slow"]
    file.write_text('[{"max_num_seqs": 4}]')
    assert read_params("--serve-params", file) == [{"max_num_seqs": 4}]
    for text in ("[]", "{}", "[3]", '{"few": 3}', "few", '"few"'):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"^--serve-params '.*params.json': "):
            read_params("--serve-params", file)


def journal(file: Path, resume: bool = False) -> Journal:
    return Journal(file, ["a", "b", "c"], lambda row: str(row["key"]), resume)


def row(key: str, **more: Any) -> str:
    return json.dumps({"key": key, **more})


def test_rows_are_on_disk_as_they_come_and_in_order_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    with journal(file) as rows:
        rows.add("c", row("c"))
        assert file.read_text() == row("c") + "\n"
        rows.add("a", row("a"))
    assert file.read_text() == row("a") + "\n" + row("c") + "\n"
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
    with pytest.raises(ValueError, match=r"rows.jsonl' exists: --resume"):
        journal(file)


def test_resuming_takes_whole_rows_that_did_not_fail(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{row('b')}\n{row('a', error='no memory')}\n{row('c')[:-2]}")
    with journal(file, resume=True) as rows:
        assert list(rows.lines) == ["b"]
        assert file.read_text().endswith("}\n"), "the line that was cut off is gone"
        rows.add("a", row("a"))
    assert file.read_text() == row("a") + "\n" + row("b") + "\n"
    for text, message in (
        ("{}\n", r"line 1 of '.*rows.jsonl' is no row of a sweep"),
        (row("a") + "\n3\n", "line 2 of .* is no row of a sweep"),
        (row("d") + "\n", "line 1 of .* is of another sweep: 'd'"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            journal(file, resume=True)
        assert file.read_text() == text, "what is not ours is left as it is"


def test_a_task_whose_worker_is_killed_is_given_to_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Killed from inside, so no clock decides when. One task kills every worker, and is given up."""
    monkeypatch.setenv(MARKS, str(tmp_path))
    lost: list[int] = []
    found = dict(
        run_on_processes(double_or_die, range(6), 2, lambda index, how: lost.append(index))
    )
    assert found == {0: "0", 1: "2", 2: "4", 3: "6", 4: None, 5: "10"}
    assert sorted(lost) == [3] + [4] * MOST_TRIES
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == {
        "0": 1, "1": 1, "2": 1, "3": 2, "4": MOST_TRIES, "5": 1,
    }  # fmt: skip
    assert multiprocessing.active_children() == []


def test_a_worker_ends_with_the_sweep_even_in_the_middle_of_a_point() -> None:
    """The pipe ends when the last process that holds it does."""
    code = (
        "from mini_vllm.sim.sweep_workers import run_on_processes as run\n"
        f"from {say_and_wait.__module__} import say_and_wait\n"
        "list(run(say_and_wait, ['begun'], 1, print))"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env) as sweep:
        assert sweep.stdout is not None
        assert sweep.stdout.readline() == b"begun\n"
        sweep.kill()
        assert sweep.communicate(timeout=PATIENCE) == (b"", None)
