"""Lab 03-08: the committed ranking and leaderboard, and what the pages say of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from course.learner.labs import load_module, load_support

[LAB] = (Path(__file__).parents[2] / "phase-03-scheduler" / "labs").glob("lab-08-*")
policies = load_module(LAB / "policies.py", "lab_03_08_policies")


@pytest.fixture(scope="module")
def ranking() -> Any:
    return json.loads((LAB / "ranking.json").read_text(encoding="utf-8"))


def goodputs(ranking: Any, workload: str, column: str) -> dict[str, float]:
    return {row["policy"]: row[column] for row in ranking["rows"] if row["workload"] == workload}


def test_simulation_and_vllm_rank_policies_alike(ranking: Any) -> None:
    """Kendall's tau of at least 0.9 on each of five workloads over eight policies; computed anew here."""
    assert len(ranking["taus"]) == 5
    for row in ranking["taus"]:
        simulated = goodputs(ranking, row["workload"], "goodput, simulated")
        real = goodputs(ranking, row["workload"], "goodput, vLLM")
        assert len(simulated) == len(real) == 8
        assert row["tau"] == policies.tau(simulated, real, ranking["apart"]) >= 0.9
        assert row["tau, all pairs"] == policies.tau(simulated, real) >= 0.9
        assert row["pairs"] >= 24, "of 28: few are too close to rank"


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_what_the_grading_compares_with_was_run(policy: str) -> None:
    support = load_support(LAB / "test_lab.py")
    found = support.stand(None, policy, support.HELD, support.N, with_flood=False)
    noted = getattr(support, f"HELD_{policy.upper()}")
    assert asdict(found) == pytest.approx(asdict(noted), rel=1e-3)


def test_what_fcfs_makes_of_each_workload_was_run() -> None:
    support = load_support(LAB / "test_lab.py")
    workloads = {
        name: support.workload(name, support.HELD[0], support.N) for name in support.STREAMS
    }
    found = {name: support.run(None, requests).goodput for name, requests in workloads.items()}
    assert found == pytest.approx(support.GOODPUT_FCFS)


def test_the_longest_wait_in_the_flood_was_run() -> None:
    support = load_support(LAB / "test_lab.py")
    found = support.run(None, support.flood()).longest_wait_s
    assert found == pytest.approx(support.LONGEST_WAIT_UNDER_FCFS_S, rel=1e-6)


def test_tau_counts_pairs() -> None:
    one = {"a": 1.0, "b": 2.0, "c": 3.0}
    assert policies.tau(one, one) == 1
    assert policies.tau(one, {"a": 3.0, "b": 2.0, "c": 1.0}) == -1
    assert policies.tau(one, {"a": 1.0, "b": 3.0, "c": 2.0}) == pytest.approx(1 / 3)
    assert policies.tau(one, {"a": 1.0, "b": 1.0, "c": 2.0}) == pytest.approx(2 / 3)
    assert policies.tau(one, {"a": 2.0, "b": 1.0, "c": 3.0}, apart=1.5) == 1, "a and c only"
    with pytest.raises(ValueError, match="more than 5 apart"):
        policies.tau(one, one, apart=5)


def test_the_leaderboard_is_what_the_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's rows, as `leaderboard.py` prints them, stand in the README."""
    monkeypatch.syspath_prepend(str(LAB))
    board = load_module(LAB / "leaderboard.py", "lab_03_08_leaderboard")
    rows = board.read()
    assert set(rows) == {"fcfs", "priority", "solution", *policies.OTHERS}
    page = (LAB / "README.md").read_text(encoding="utf-8")
    for name, row in rows.items():
        assert f"{name:16}  {row.goodput:6.3f}  {row.p99_ttft_ms:5.0f} ms" in page, name
    assert [name for name, row in rows.items() if not row.starves] == ["fcfs", "solution"]
