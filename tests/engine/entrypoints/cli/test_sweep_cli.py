"""`mini-vllm sweep`: which points, that their rows are simulate's, and that a broken-off sweep goes on."""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from mini_vllm.entrypoints.cli import main
from mini_vllm.sim.sweep import Journal

LOAD = ("--num-prompts", "12", "--input-len", "40", "--output-len", "uniform:4:9")
SWEEP = ("sweep", *LOAD, "--request-rate", "50")


def run(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 0) -> str:
    assert main(list(argv)) == status
    out, err = capsys.readouterr()
    return out if status == 0 else err


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_row_is_what_simulate_says_of_its_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    out = run(
        capsys, *SWEEP, "--set", "max-num-seqs=2,64", "--num-runs", "2", "--seed", "5",
        "--goodput", "ttft:50", "--jobs", "1", "--json", str(file),
    )  # fmt: skip
    rows = rows_of(file)
    assert [(r["max_num_seqs"], r["run_number"]) for r in rows] == [
        (2, 0),
        (2, 1),
        (64, 0),
        (64, 1),
    ]
    for number, row in enumerate(rows):
        argv = shlex.split(row["command"])
        assert argv[:2] == ["mini-vllm", "simulate"]
        assert f"--seed={5 + number % 2}" in argv
        alone = json.loads(run(capsys, *argv[1:], "--json", "-"))
        assert {key: row[key] for key in alone} == alone
    assert "ttft" in out.splitlines()[0]
    assert f"{rows[2]['p99_ttft_ms']:.2f}" in out.splitlines()[3]


def test_files_as_vllms_sweep_takes_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    serve, bench = tmp_path / "serve.json", tmp_path / "bench.json"
    serve.write_text('[{"max_num_seqs": 4}, {"async-scheduling": true, "max_num_seqs": 8}]')
    bench.write_text('{"one": {"request_rate": 4.5}, "all": {"goodput": ["ttft:9", "tpot:9"]}}')
    files = ("--serve-params", str(serve), "--bench-params", str(bench))
    lines = run(capsys, "sweep", *files, "--set", "seed=1,2", "--dry-run").splitlines()
    assert len(lines) == 8
    assert lines[0] == "mini-vllm simulate --request-rate=4.5 --seed=1 --max-num-seqs=4"
    assert lines[-1] == (
        "mini-vllm simulate --seed=2 --goodput ttft:9 tpot:9 --max-num-seqs=8 --async-scheduling"
    )


def test_a_broken_off_sweep_goes_on_to_the_same_bytes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another number of workers, one of which is killed while it has a point or waits for one."""
    grid = (*SWEEP, "--set", "max-num-seqs=2,3,4,5,6")
    whole, file = tmp_path / "whole.jsonl", tmp_path / "rows.jsonl"
    table = run(capsys, *grid, "--jobs", "1", "--json", str(whole))
    add = Journal.add

    def add_and_stop(self: Journal, key: str, line: str) -> None:
        add(self, key, line)
        if len(self.lines) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "add", add_and_stop)
    assert "interrupted" in run(capsys, *grid, "--jobs", "2", "--json", str(file), status=130)
    assert multiprocessing.active_children() == []
    assert len(rows_of(file)) == 2
    with file.open("a") as torn:
        torn.write('{"max_num_')

    def add_and_kill(self: Journal, key: str, line: str) -> None:
        add(self, key, line)
        if len(self.lines) == 3:
            for worker in multiprocessing.active_children():
                os.kill(worker.pid or 0, getattr(signal, "SIGKILL", signal.SIGTERM))

    monkeypatch.setattr(Journal, "add", add_and_kill)
    assert main([*grid, "--jobs", "2", "--json", str(file), "--resume"]) == 0
    out, err = capsys.readouterr()
    assert "1 of 3: max_num_seqs=" in err
    assert out == table
    assert file.read_bytes() == whole.read_bytes()
    assert run(capsys, *grid, "--json", str(file), "--resume") == table, "nothing is left to do"


def test_a_point_that_fails_is_a_row_and_the_others_still_count(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    argv = ("sweep", *LOAD, "--set", "max-model-len=20,200", "--jobs", "1", "--json", str(file))
    err = run(capsys, *argv, status=1)
    assert "mini-vllm simulate" in err
    assert "--max-model-len=20: ValueError: every request was refused" in err
    failed, good = rows_of(file)
    assert "every request was refused" in failed["error"]
    assert good["completed"] == 12


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "nothing varies: give --set NAME=V,V"),
        (("--set", "max-num-seqs"), "--set 'max-num-seqs': must be NAME=VALUE,VALUE"),
        (("--set", "max-num-seqs=2,,3"), "--set 'max-num-seqs=2,,3': must be NAME=VALUE,VALUE"),
        (("--set", "seats=2,3"), "--set 'seats=2,3': mini-vllm simulate has no flag '--seats'"),
        (("--set", "plot=a.png"), "has no flag '--plot'"),
        (("--set", "max-num-seqs=2,x"), "'max-num-seqs=2,x': argument --max-num-seqs: invalid int value"),
        (("--set", "async-scheduling=on"), "--async-scheduling is true or false, got 'on'"),
        (("--set", "seed=1,01"), "is there twice"),
        (("--set", "seed=1,2", "--set", "seed=3"), "'seed' is set in two places"),
        (("--set", "seed=1", "--num-runs", "2"), "--num-runs above 1 chooses the seeds"),
        (("--set", "router=prefix,best"), "at router=prefix: --router 'prefix' needs --replicas"),
        (("--set", "seed=1", "--resume"), "--resume needs --json"),
        (("--set", "seed=1", "--json", "no/such.jsonl"), "--json 'no/such.jsonl': must be a file"),
        (("--serve-params", "no.json"), "No such file or directory: 'no.json'"),
    ],
)  # fmt: skip
def test_sweeps_that_make_no_sense_are_refused_before_they_begin(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], message: str
) -> None:
    assert message in run(capsys, "sweep", *flags, status=2)


def test_without_ray_the_flag_names_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mini_vllm.entrypoints.cli.sweep.find_spec", lambda name: None)
    err = run(capsys, "sweep", "--set", "seed=1,2", "--ray", status=2)
    assert "--ray needs Ray: uv sync --inexact --extra ray" in err


def test_an_address_at_which_nothing_listens_is_refused_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray itself tries for minutes."""
    monkeypatch.setattr("mini_vllm.entrypoints.cli.sweep.find_spec", lambda name: True)
    for address in ("127.0.0.1:1", "127.0.0.1:99999"):
        err = run(capsys, "sweep", "--set", "seed=1,2", "--ray", address, status=2)
        assert f"--ray '{address}': no cluster there" in err
