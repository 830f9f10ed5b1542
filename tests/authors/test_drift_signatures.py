"""What `course drift X --record` warns of: parameters that a release gave to what the recorder calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from course.drift import command
from course.drift.compare import Results
from course.drift.signatures import CALLED, changed_parameters, parameters
from course.parity import record

BEFORE = """
class Spec:
    block_size: int
    head_size: int = 8

class Wide(Spec):
    window: int

class Scheduler:
    def __init__(self, config, *, log_stats: bool = False) -> None: ...

def get_request_block_hasher(block_size: int, hash_function=None): ...
"""
NOW = """
class Spec:
    block_size: int
    head_size: int = 16
    retention: int | None = None

class Wide(Spec):
    window: int

class Scheduler:
    def __init__(self, config, block_size: int = 4, *, log_stats: bool = False) -> None: ...

def get_request_block_hasher(hash_block_size: int, hash_function=None): ...
"""


def test_parameters_of_functions_and_of_classes() -> None:
    assert parameters(BEFORE, "Scheduler") == {"self": "", "config": "", "log_stats": "False"}
    assert parameters(BEFORE, "Wide") == {"block_size": "", "head_size": "8", "window": ""}
    assert parameters(BEFORE, "Gone") is None


def test_each_change_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("Scheduler", "Wide", "get_request_block_hasher")
    monkeypatch.setattr("course.drift.signatures.CALLED", {"vllm/a.py": names})
    for tree, text in (("before", BEFORE), ("now", NOW), ("empty", "")):
        (tmp_path / tree / "vllm").mkdir(parents=True)
        (tmp_path / tree / "vllm" / "a.py").write_text(text, encoding="utf-8")
    before, now = tmp_path / "before", tmp_path / "now"
    assert changed_parameters(before, before) == []
    assert changed_parameters(before, now) == [
        "Scheduler: new block_size = 4",
        "Wide: new retention = None; head_size = 16, was = 8",
        "get_request_block_hasher: new hash_block_size; block_size is gone",
    ]
    assert (
        changed_parameters(before, tmp_path / "empty")[0]
        == "Scheduler is not in vllm/a.py any more"
    )


def test_what_is_looked_at_is_what_the_recorder_calls() -> None:
    source = Path(record.__file__).read_text(encoding="utf-8")
    for names in CALLED.values():
        for name in names:
            assert f"{name}" in source, name


def test_the_command_warns_before_it_records(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is fetched or recorded here: what is said comes before that."""
    for tree, text in (("before", BEFORE), ("now", NOW)):
        file = tmp_path / tree / "vllm" / "v1" / "core" / "sched" / "scheduler.py"
        file.parent.mkdir(parents=True)
        file.write_text(text, encoding="utf-8")

    def stopped(tree: Path) -> list[str]:
        raise command.CourseError("recorded")

    monkeypatch.setattr(command, "pin_tree", lambda: tmp_path / "before")
    monkeypatch.setattr(command, "fetch", lambda release: tmp_path / "now")
    monkeypatch.setattr(command, "record", stopped)
    monkeypatch.setattr(Results, "save", stopped)
    assert command.main(["0.99.0", "--record"]) == 2
    assert capsys.readouterr().out == "warning: Scheduler: new block_size = 4\n"
