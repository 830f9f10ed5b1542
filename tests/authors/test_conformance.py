"""vLLM's own tests on `mini_vllm`: the committed table, its page, what compares them, and the run itself."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import pytest

from course.conformance import missing, swap
from course.conformance.command import main, missing_packages
from course.conformance.missing import Missing, feature_named_in, refuse
from course.conformance.page import PAGE, make_page
from course.conformance.table import (
    DIFFERS,
    LACKS,
    OUTSIDE,
    PASSES,
    UNEXPLAINED,
    Outcome,
    compare,
    read_expected,
    read_outcomes,
    update,
    verdict,
    verdicts,
    write_expected,
)
from course.conformance.upstream_tests import (
    BARE,
    FILES,
    LEFT_OUT,
    LONGEST,
    MODELS,
    find_tests,
    local_tests,
    make_workspace,
    path_below_tests,
)

ROOT = Path(__file__).parents[2]
EXPECTED = read_expected()


# -- the committed table ----------------------------------------------------------------------------


def test_at_least_so_many_pass() -> None:
    assert sum(word == PASSES for word in EXPECTED.values()) >= 260


def test_every_difference_has_its_reason_among_those_on_purpose() -> None:
    pin = " ".join((ROOT / "UPSTREAM_PIN.md").read_text().split())
    reasons = {w.removeprefix(DIFFERS) for w in EXPECTED.values() if w.startswith(DIFFERS)}
    assert not [reason for reason in reasons if UNEXPLAINED in reason or reason not in pin]


def test_every_row_is_of_a_file_that_is_run() -> None:
    assert {test.partition("::")[0] for test in EXPECTED} <= set(FILES)


def test_what_is_left_out_is_of_a_file_that_is_run_and_in_no_row() -> None:
    assert {test.partition("::")[0] for test in LEFT_OUT} <= set(FILES)
    assert not [row for row in EXPECTED if row.partition("[")[0] in LEFT_OUT]


def test_a_file_stands_below_v1_unless_its_folder_is_one_of_the_others() -> None:
    assert path_below_tests("sample/test_logprobs.py") == "v1/sample/test_logprobs.py"
    assert path_below_tests("samplers/test_logprobs.py") == "samplers/test_logprobs.py"


def test_the_page_is_the_tables_and_short_and_linked() -> None:
    page = PAGE.read_text()
    assert page == make_page(EXPECTED), "python -m course.conformance --write makes it anew"
    words = [word for word in page.split() if any(map(str.isalnum, word))]
    assert len(words) <= 500
    assert "(CONFORMANCE.md)" in (ROOT / "docs/PROOF.md").read_text()


# -- verdicts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        (Outcome("t", "passed", entered=True), PASSES),
        (Outcome("t", "passed"), OUTSIDE),
        (Outcome("t", "failed", True, "LoRA", "Missing: LoRA"), LACKS + "LoRA"),
        (Outcome("t", "failed", False, "LoRA", "Missing: LoRA"), LACKS + "LoRA"),
        (Outcome("t", "passed", True, "LoRA"), LACKS + "LoRA"),
        (Outcome("t", "failed", True, None, "AssertionError: 1"), "fails: AssertionError: 1"),
        (Outcome("t", "skipped"), "fails: skipped"),
        (None, "fails: it was not run"),
    ],
)
def test_a_verdict(ours: Outcome | None, expected: str) -> None:
    assert verdict(ours) == expected


def test_only_what_vllm_passes_gets_a_verdict() -> None:
    theirs = {name: Outcome(name, end) for name, end in (("a", "passed"), ("b", "failed"))}
    assert verdicts(theirs, {"b": Outcome("b", "passed", True)}) == {"a": "fails: it was not run"}


def test_the_comparison_names_both_verdicts_either_way() -> None:
    table = {"a": PASSES, "b": "lacks LoRA", "c": "differs: on purpose", "d": PASSES, "e": OUTSIDE}
    run = {"a": "fails: x", "b": PASSES, "c": "fails: y", "d": PASSES, "f": PASSES}
    assert compare(table, run) == [
        "a\n    table: passes\n    run:   fails: x",
        "b\n    table: lacks LoRA\n    run:   passes",
        "e\n    table: outside\n    run:   not passed by vLLM in this run",
        "f\n    table: not in the table\n    run:   passes",
    ]
    assert compare(table, run | {"c": PASSES}, only="c") == [
        "c\n    table: differs: on purpose\n    run:   passes"
    ]


def test_a_new_table_keeps_the_reasons_and_asks_for_new_ones(tmp_path: Path) -> None:
    before = {"a": "differs: on purpose", "b": PASSES, "gone": PASSES}
    table = update(before, {"a": "fails: x", "b": "fails: y", "c": PASSES})
    assert table == {
        "a": "differs: on purpose",
        "b": "differs: not explained yet: fails: y",
        "c": PASSES,
    }
    write_expected(table, tmp_path / "table.tsv")
    assert read_expected(tmp_path / "table.tsv") == table


@pytest.mark.parametrize("line", ["a", "a\tmaybe", "a\tpasses\na\tpasses", "a\tfails: x"])
def test_a_line_that_is_no_verdict_is_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "table.tsv").write_text(line + "\n")
    with pytest.raises(ValueError, match=r"table\.tsv, line"):
        read_expected(tmp_path / "table.tsv")


def test_outcomes_are_read_as_they_were_written(tmp_path: Path) -> None:
    row = Outcome("a::b[1]", "failed", True, None, "E: x")
    (tmp_path / "run.jsonl").write_text(json.dumps(asdict(row)) + "\n")
    assert read_outcomes(tmp_path / "run.jsonl") == {"a::b[1]": row}


# -- what is missing --------------------------------------------------------------------------------


def test_the_first_feature_that_is_asked_for_is_named_and_noted() -> None:
    missing.asked.clear()
    refuse(LoRA=None, several_KV_cache_groups=0)
    with pytest.raises(Missing, match="multi-modal inputs"):
        refuse(LoRA=False, multi__modal_inputs=[1], pooling=True)
    assert missing.asked == ["multi-modal inputs"]


def test_an_error_message_may_name_a_feature() -> None:
    assert feature_named_in("AttributeError: WAITING_FOR_REMOTE_KVS") == "KV connector"
    assert feature_named_in("AttributeError: WAITING_FOR_STREAMING_REQ") == "streaming input"
    assert feature_named_in("TypeError: no parameter 'lora_config'") == "LoRA"
    assert feature_named_in("AssertionError: 1 == 2") is None
    # The engine has grammars: an error that speaks of them hides behind no feature.
    assert feature_named_in("AttributeError: structured_output_request") is None


# -- the exchange -----------------------------------------------------------------------------------


class Theirs:
    """Stands for a class of vLLM's."""


def test_names_are_exchanged_by_identity_in_tests_and_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ours:
        pass

    def module(name: str, file: Path) -> ModuleType:
        made = ModuleType(name)
        made.__file__ = str(file)
        made.Alias, made.Other = Theirs, Theirs()  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, made)
        return made

    test = module("conformance_test_module", tmp_path / "tests" / "v1" / "test_x.py")
    home = module("conformance_home", tmp_path / "vllm" / "x.py")
    other = module("conformance_other", tmp_path / "vllm" / "y.py")
    monkeypatch.setattr(Theirs, "__module__", "conformance_home")
    swap.exchange([(Theirs, Ours)], tmp_path / "tests")
    assert [m.Alias for m in (test, home, other)] == [Ours, Ours, Theirs]
    assert isinstance(test.Other, Theirs)


def test_the_plugin_notes_how_each_test_ended_and_whether_it_entered(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "v1"
    folder.mkdir(parents=True)
    (folder / "test_some.py").write_text(
        "import pytest\n"
        "from mini_vllm.utils.math import cdiv\n"
        "from course.conformance.missing import Missing\n"
        "def test_in(): assert cdiv(3, 2) == 2\n"
        "def test_out(): assert 1\n"
        "def test_wrong(): assert cdiv(3, 2) == 1\n"
        "def test_lacks():\n"
        "    with pytest.raises(Missing): raise Missing('LoRA')\n"
        "@pytest.fixture\n"
        "def broken(): raise KeyError('x')\n"
        "def test_never_begun(broken): pass\n"
        "@pytest.mark.skip\n"
        "def test_skipped(): pass\n"
    )
    # On a laptop there is nothing to exchange with: the plugin watches as it does, over no names.
    (tmp_path / "no_names.py").write_text(
        "from course.conformance import swap\n"
        "swap.pairs = lambda: []\n"
        "swap.seed_everything = lambda: None\n"
    )
    command = [
        sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", "-p",
        "course.conformance.swap", "-p", "no_names", "--record", "run.jsonl", "tests/v1/test_some.py",
    ]  # fmt: skip
    subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": f"{ROOT}:{tmp_path}"}, capture_output=True
    )
    rows = read_outcomes(tmp_path / "run.jsonl")
    assert {test.partition("::test_")[2]: verdict(row) for test, row in rows.items()} == {
        "in": PASSES,
        "out": OUTSIDE,
        "wrong": "fails: AssertionError: assert 2 == 1 + where 2 = cdiv(3, 2)",
        "lacks": OUTSIDE,
        "never_begun": "fails: KeyError: 'x'",
        "skipped": "fails: skipped",
    }
    assert rows["test_some.py::test_lacks"].missing == "LoRA"


# -- vLLM's tests, and the run ----------------------------------------------------------------------


def test_a_folder_without_vllms_tests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="v1/core is not in it"):
        find_tests(tmp_path)
    (tmp_path / "tests" / "v1" / "core").mkdir(parents=True)
    assert find_tests(tmp_path) == find_tests(tmp_path / "tests") == tmp_path / "tests"


def test_a_workspace_has_the_tests_and_a_model_under_every_name(tmp_path: Path) -> None:
    (tmp_path / "tests" / "v1").mkdir(parents=True)
    (tmp_path / "tests" / "v1" / "test_x.py").write_text("")
    make_workspace(tmp_path / "tests", tmp_path / "work")
    assert (tmp_path / "work" / "tests" / "v1" / "test_x.py").exists()
    for name in MODELS:
        config = json.loads((tmp_path / "work" / name / "config.json").read_text())
        assert config["max_position_embeddings"] == LONGEST
        tokenizer = json.loads((tmp_path / "work" / name / "tokenizer.json").read_text())
        assert (tokenizer["post_processor"] is None) == (name in BARE)


@pytest.mark.skipif(not missing_packages(), reason="this environment has all that a run needs")
def test_an_environment_that_lacks_something_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert missing_packages()[0] in capsys.readouterr().err


@pytest.mark.vllm
def test_every_verdict_is_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """Takes minutes: vLLM starts twice, and computes with a small model three times."""
    if lacking := missing_packages():
        pytest.skip(f"this environment lacks {', '.join(lacking)}")
    tests = local_tests()
    if tests is None:
        pytest.skip("vLLM's tests are not here: python -m course.conformance --fetch")
    assert main(["--tests", str(tests)]) == 0, capsys.readouterr().out
