"""`mini-vllm simulate`: what it prints and writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from mini_vllm.entrypoints.cli import main
from tests.engine.helpers.thorough import THOROUGH

SMALL = ("simulate", "--num-prompts", "20", "--input-len", "40", "--output-len", "uniform:4:9")


def run(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 0) -> str:
    assert main(list(argv)) == status
    out, err = capsys.readouterr()
    return out if status == 0 else err


def test_the_table_has_vllms_words(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, *SMALL, "--request-rate", "50", "--goodput", "ttft:500")
    for title in (
        "Successful requests:                     20",
        "Request rate configured (RPS):           50.00",
        "Total input tokens:                      800",
        "Request goodput (req/s):",
        "---------------Time to First Token----------------",
        "P99 ITL (ms):",
        "Preemptions:                             0",
    ):
        assert title in out, title
    assert "derived, not measured" in out, "nobody may take it for a measurement"


def test_json_has_the_figures_and_where_they_come_from(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "run.json"
    shown = run(capsys, *SMALL, "--json", str(file))
    data = json.loads(file.read_text())
    assert data["completed"] == 20
    assert data["request_rate"] == "inf"
    assert data["cost"]["name"] == "a100-llama-3-8b"
    assert data["config"]["max_model_len"] == 8192
    assert f"{data['p99_ttft_ms']:.2f}" in shown
    assert json.loads(run(capsys, *SMALL, "--json", "-")) == data, "twice the same"


def test_a_file_of_costs_and_one_of_lengths(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cost = {
        "name": "mine", "source": "by hand", "host_s": {"steps": 0.25}, "device_s": {"steps": 0.75},
        "num_kv_tokens": 640, "max_model_len": 128,
    }  # fmt: skip
    (tmp_path / "cost.json").write_text(json.dumps(cost))
    (tmp_path / "lengths.csv").write_text("prompt,output\n10,3\n20,5\n")
    files = ("--cost", str(tmp_path / "cost.json"), "--dataset", str(tmp_path / "lengths.csv"))
    data = json.loads(run(capsys, "simulate", *files, "--json", "-"))
    assert (data["completed"], data["total_input_tokens"], data["total_output_tokens"]) == (
        2,
        30,
        8,
    )
    assert data["duration"] == 5
    assert data["config"]["num_gpu_blocks"] == 41


def test_the_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "simulate", "--cost", "list")
    assert "a100-llama-3-8b         derived, not measured" in out


def test_a_plot_without_matplotlib_names_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("mini_vllm.entrypoints.cli.simulate_plot.find_spec", lambda name: None)
    err = run(capsys, *SMALL, "--plot", str(tmp_path / "run.png"), status=2)
    assert "uv sync --inexact --extra plots" in err


@pytest.mark.skipif(not THOROUGH, reason="to load matplotlib takes a second: MINI_VLLM_THOROUGH=1")
def test_a_plot_is_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "run.svg"
    run(capsys, *SMALL, "--plot", str(file))
    assert "KV cache in use" in file.read_text() or "<svg" in file.read_text()


FLEET = (*SMALL, "--request-rate", "50", "--replicas")


def test_a_fleet_says_how_its_replicas_differ(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, *FLEET, "4", "--router", "least-loaded")
    assert "Successful requests:                     20" in out
    assert "-----------Replicas: min / median / max-----------\nRequests of 4: " in out
    data = json.loads(run(capsys, *FLEET, "4", "--json", "-"))
    assert (data["replicas"], data["router"]) == (4, "round-robin")
    assert data["replica_requests"] == {"min": 5, "median": 5, "max": 5}


def test_a_fleet_of_one_has_the_figures_of_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    alone = json.loads(run(capsys, *SMALL, "--request-rate", "50", "--json", "-"))
    fleet = json.loads(run(capsys, *FLEET, "1", "--router", "prefix", "--json", "-"))
    assert {key: fleet[key] for key in alone} == alone


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--router", "prefix"), "--router 'prefix' needs --replicas"),
        (
            ("--replicas", "2", "--router", "best"),
            "router must be one of round-robin, least-loaded",
        ),
        (("--replicas", "20000"), "--replicas 20000: at most 10000"),
        (("--replicas", "9999"), "give fewer with --num-gpu-blocks"),
        (("--replicas", "2", "--plot", "x.png"), "--plot draws one engine"),
        (
            ("--replicas", "2", "--router", "prefix", "--no-enable-prefix-caching"),
            "--router prefix needs engines with prefix caching",
        ),
    ],
)
def test_fleets_that_make_no_sense_are_refused(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], message: str
) -> None:
    assert message in run(capsys, *SMALL, *flags, status=2)
