"""`tracks/log-and-metrics.md` leaves no meter out, and what it quotes of a run stands in the capture."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "tracks" / "log-and-metrics.md").read_text(encoding="utf-8")
CAPTURES = ROOT / "tracks" / "captures"
NAMED = set(re.findall(r"`(vllm:\w+|(?:http|process|python)_\w+)`", PAGE))


def served(name: str) -> set[str]:
    """The meters of a captured `/metrics`, without the times at which they were made."""
    text = (CAPTURES / f"{name}.metrics").read_text(encoding="utf-8")
    return {m for m in re.findall(r"(?m)^# TYPE (\S+) ", text) if not m.endswith("_created")}


def defined(folder: Path) -> set[str]:
    """Every meter that vLLM's source defines: `name=` of a call, or a variable `name`, with `vllm:`."""
    found = set()
    for file in folder.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if '"vllm:' not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                found |= {_meter(k.value) for k in node.keywords if k.arg == "name"}
            elif isinstance(node, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == "name" for t in node.targets
            ):
                found.add(_meter(node.value))
    return found - {""}


def _meter(node: ast.expr) -> str:
    value = node.value if isinstance(node, ast.Constant) else ""
    return value if isinstance(value, str) and value.startswith("vllm:") else ""


@pytest.mark.parametrize("name", ["plain", "flags"])
def test_each_meter_that_was_served_is_on_the_page(name: str) -> None:
    missing = {
        m for m in served(name) if not {m, m.removesuffix("_total")} & NAMED
        and not m.startswith(("process_", "python_"))
    }  # fmt: skip
    assert missing == set()
    assert len(served(name)) > 40


@pytest.mark.vllm
def test_each_meter_that_vllm_defines_is_on_the_page_and_no_other() -> None:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    meters = defined(Path(spec.origin).parent)
    assert len(meters) > 60
    assert {m for m in NAMED if m.startswith("vllm:")} == meters


def test_the_periodic_lines_and_numbers_on_the_page_are_the_captures() -> None:
    log = (CAPTURES / "plain.log").read_text(encoding="utf-8")
    shown = re.findall(r"(?m)^\(APIServer .*Engine 000: .*$", PAGE)
    assert len(shown) == 2
    assert all(line in log for line in shown)
    metrics = (CAPTURES / "plain.metrics").read_text(encoding="utf-8")
    assert re.search(r"(?m)^vllm:time_to_first_token_seconds_count\{.*\} 11\.0$", metrics)
    assert re.search(r"(?m)^vllm:e2e_request_latency_seconds_count\{.*\} 10\.0$", metrics)
    assert re.search(r'(?m)^vllm:request_success_total\{.*"abort".*\} 0\.0$', metrics)
    assert re.search(r'(?m)^http_requests_total\{.*status="5xx"\} 1\.0$', metrics)
    assert 'completions HTTP/1.1" 400 Bad Request' in log


def test_the_lines_of_a_cpu_that_the_page_explains_were_printed() -> None:
    logs = "".join(
        (CAPTURES / f"{name}.log").read_text(encoding="utf-8") for name in ("plain", "flags")
    )
    table = PAGE.partition("## From start to ready")[2].partition("## While it serves")[0]
    rows = [r for r in table.split("\n") if r.startswith("| `")]
    assert len(rows) > 15
    for row in rows:
        for quoted in re.findall(r"`([^`]+)`", row.split(" | ")[0]):
            pieces = [piece.strip() for piece in re.split(r"…|\{…\}", quoted) if piece.strip()]
            assert all(piece in logs for piece in pieces), quoted


def test_each_line_that_was_printed_is_explained() -> None:
    prose = re.sub(r"(?s)```.*?```", "", PAGE)
    quoted = [piece for text in re.findall(r"`([^`]+)`", prose) for piece in re.split(r"…", text)]
    known = [piece.strip(" :") for piece in quoted if len(piece.strip(" :{}()")) > 6]
    known += ["VLLMValidationError", "Traceback (most recent", "HTTP/1.1", "shared_memory"]
    for name in ("plain", "flags"):
        for line in (CAPTURES / f"{name}.log").read_text(encoding="utf-8").split("\n")[2:]:
            said = re.sub(r"^(\(\w+ pid=\d+\)\s?)?", "", line)
            continued = re.search(r"(ompmultiprocessing|utils)\.py:\d+\]\s", said)  # of one message
            if said.strip() and not continued:
                assert any(piece in line for piece in known), f"{name}.log: {line[:150]}"


def test_what_the_page_says_of_the_run_with_few_blocks() -> None:
    metrics = (CAPTURES / "flags.metrics").read_text(encoding="utf-8")
    log = (CAPTURES / "flags.log").read_text(encoding="utf-8")
    for meter, value in {
        "prefix_cache_queries_total": "16123.0", "prompt_tokens_total": "1071.0",
        "prompt_tokens_cached_total": "192.0", "num_preemptions_total": "6.0",
    }.items():  # fmt: skip
        assert re.search(rf"(?m)^vllm:{meter}\{{.*\}} {value}$", metrics), meter
    assert "Prefix cache hit rate: 1.2%" in log
    assert "Preemptions:" not in log
    assert "num_gpu_blocks_override=24" in log


def test_the_captures_hold_nothing_of_a_machines_folders_and_no_source() -> None:
    for file in CAPTURES.iterdir():
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"/root/|/home/|/Users/|site-packages|  File \"", text), file.name
