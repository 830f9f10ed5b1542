"""The lab contract and the markers of the root conftest.py, on tiny labs made for the purpose."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]

TEST_LAB = """
import sys
def test_answer(lab):
    assert lab.answer() == 42, "answer() must be 42"
def test_the_module_is_registered_under_its_own_name(lab):
    assert sys.modules[lab.__name__] is lab
"""
SOLUTION = "def answer():\n    return 42\n"
STARTER = "def answer():\n    raise NotImplementedError('lab-01: write answer()')\n"
WRONG = '"""Off by one."""\ndef answer():\n    return 41\n'


@pytest.fixture
def house(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A repository with the real conftest.py and one lab, in a phase folder as in the course."""
    monkeypatch.delenv("LAB_IMPL", raising=False)
    pytester.makeconftest((ROOT / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyprojecttoml(
        '[tool.pytest.ini_options]\naddopts = ["--import-mode=importlib", "--strict-markers"]\n'
    )
    _make_lab(pytester.path / "phase-00-x" / "labs" / "lab-01-answer")
    return pytester


def _make_lab(folder: Path, solution: str = SOLUTION) -> None:
    (folder / "wrong").mkdir(parents=True)
    (folder / "test_lab.py").write_text(TEST_LAB)
    (folder / "solution.py").write_text(solution)
    (folder / "starter.py").write_text(STARTER)
    (folder / "wrong" / "off_by_one.py").write_text(WRONG)


def test_the_solution_is_graded_by_default(house: pytest.Pytester) -> None:
    house.runpytest_inprocess().assert_outcomes(passed=2)


def test_starter_fails_with_its_own_message(
    house: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_IMPL", "starter")
    result = house.runpytest_inprocess()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*NotImplementedError: lab-01: write answer()*"])


@pytest.mark.parametrize("form", ["absolute", "from the start directory", "from the lab"])
def test_a_path_chooses_the_file(
    house: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    wrong = house.path / "phase-00-x" / "labs" / "lab-01-answer" / "wrong" / "off_by_one.py"
    choice = {
        "absolute": str(wrong),
        "from the start directory": str(wrong.relative_to(house.path)),
        "from the lab": "wrong/off_by_one.py",
    }[form]
    monkeypatch.setenv("LAB_IMPL", choice)
    result = house.runpytest_inprocess()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*answer() must be 42*"])


def test_a_file_edited_in_place_is_read_anew(
    house: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = house.path / "mine.py"
    monkeypatch.setenv("LAB_IMPL", str(mine))
    mine.write_text(WRONG)
    house.runpytest_inprocess().assert_outcomes(passed=1, failed=1)
    mine.write_text(WRONG.replace("41", "42"))  # same size, same second
    house.runpytest_inprocess().assert_outcomes(passed=2)


@pytest.mark.parametrize("choice", ["solutoin", "no/such/file.py", "phase-00-x"])
def test_a_name_that_leads_nowhere_ends_the_run(
    house: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    monkeypatch.setenv("LAB_IMPL", choice)
    result = house.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stdout.str() + result.stderr.str()
    assert f"LAB_IMPL={choice!r} names no file" in text
    assert str(house.path / choice) in text, "the message names the path that was tried"


def test_labs_with_the_same_file_names_stay_apart(house: pytest.Pytester) -> None:
    _make_lab(
        house.path / "phase-01-y" / "labs" / "lab-01-answer",
        SOLUTION + "assert __name__.startswith('lab_lab_01_answer_solution_')\n",
    )
    house.runpytest_inprocess().assert_outcomes(passed=4)


@pytest.mark.parametrize("marker", ["torch", "triton", "vllm"])
def test_a_marker_skips_with_one_line_where_its_need_is_missing(
    house: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, marker: str
) -> None:
    house.makepyfile(
        test_it=f"import pytest\n@pytest.mark.{marker}\ndef test_it():\n    assert True\n"
    )
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *a: None if n == marker else real(n, *a)
    )
    result = house.runpytest_inprocess("-rs", "test_it.py")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines([f"SKIPPED * {marker}: {marker} is not installed"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: real("json"))
    house.runpytest_inprocess("test_it.py").assert_outcomes(passed=1)


def test_gpu_says_what_is_missing(house: pytest.Pytester) -> None:
    house.makepyfile(
        test_it="""
        import pytest
        @pytest.mark.gpu
        def test_it():
            import torch
            assert torch.cuda.is_available()
        """
    )
    result = house.runpytest_subprocess("-rs", "test_it.py")
    outcomes = result.parseoutcomes()
    if "passed" not in outcomes:  # a machine with a GPU runs the test
        result.assert_outcomes(skipped=1)
        reason = "torch is not installed"
        if importlib.util.find_spec("torch"):
            reason = "torch sees no CUDA device"
        result.stdout.fnmatch_lines([f"SKIPPED * gpu: {reason}"])


def test_a_run_without_gpu_tests_imports_no_torch(house: pytest.Pytester) -> None:
    house.makepyfile(
        test_it="""
        import sys
        import pytest
        @pytest.mark.gpu
        def test_gpu():
            pass
        def test_clean():
            assert "torch" not in sys.modules
        """
    )
    house.runpytest_subprocess("-m", "not gpu", "test_it.py").assert_outcomes(
        passed=1, deselected=1
    )


def test_a_misspelt_marker_is_refused(house: pytest.Pytester) -> None:
    house.makepyfile(test_it="import pytest\n@pytest.mark.tritn\ndef test_it():\n    assert True\n")
    result = house.runpytest_inprocess("test_it.py")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*'tritn' not found in `markers`*"])


def test_the_markers_are_listed(house: pytest.Pytester) -> None:
    out = subprocess.run(
        [sys.executable, "-m", "pytest", "--markers"],
        cwd=house.path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for marker in ("gpu", "torch", "triton", "vllm"):
        assert f"@pytest.mark.{marker}: needs " in out
