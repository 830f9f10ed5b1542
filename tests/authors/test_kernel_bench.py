"""The kernel bench: a part of its proof (`kernel_proof.py` is the whole), and what needs no torch."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import kernel_contract
import kernel_proof as proof
import pytest

from course.kernels import (
    JUDGES,
    PROBLEMS,
    BenchError,
    Finding,
    Report,
    bench,
    judge,
    lab,
    sass,
    ttir,
)
from course.kernels.report import from_data, to_data
from course.learner.cli import main
from course.learner.grade import engine_digest

ROOT = Path(__file__).resolve().parents[2]
FAULTS = proof.read_faults()
# One fault at least for each judge, and the mistakes that beginners make most.
QUICK = (
    "no_tail_mask_on_v",
    "tail_scores_stay_zero",
    "table_read_behind_its_end",
    "heads_dealt_in_turn",
    "half_accumulator",
    "answered_by_torch",
    "two_programs_do_the_same",
    "counter_not_looked_at",
    "keys_read_twice",
    "sum_starts_as_an_integer",
    "chunk_position_starts_at_zero",
    "left_over_rows_stored",
    "keys_behind_the_frontier_read",
    "split_tail_reaches_over",
    "not_split_at_all",
    "codes_without_their_offset",
    "words_read_twice",
    "splits_behind_the_32nd_lost",
    "answer_kept_by_shape",
    "divided_by_torch",
    "torch_answers_and_a_kernel_copies",
    "nothing_rescaled",
    "next_expert",
    "blocks_behind_the_end_masked",
    "noise_by_the_lane",
    "no_adapter_is_the_last_slot",
    "idle_programs_read_weights",
    "times_one_over_temperature",
    "query_heads_side_by_side",
    "hidden_keys_score_minus_10000",
    "no_more_than_132_programs",
    "splits_behind_the_128th_lost",
    "prefill_chunk_of_256_at_most",
)

kernels = [pytest.mark.torch, pytest.mark.triton]


def needs(*markers: pytest.MarkDecorator) -> pytest.MarkDecorator:
    """All of `markers` on one test."""

    def mark(test):  # type: ignore[no-untyped-def]
        for marker in markers:
            test = marker(test)
        return test

    return mark  # type: ignore[return-value]


@needs(*kernels)
@pytest.mark.parametrize("problem", sorted(PROBLEMS))
def test_the_cases_reach_what_the_contract_allows(problem: str) -> None:
    holes = [str(row) for row in kernel_contract.rows(problem) if row.is_hole]
    assert not holes, "no case goes so far:\n" + "\n".join(holes)


# -- judged ---------------------------------------------------------------------------------------


@needs(*kernels)
def test_correct_kernels_are_accepted() -> None:
    names = (
        "split.py", "walks_pairs.py", "one.py", "two_stages.py", "keeps_memory.py",
        "chunks.py", "nibbles.py", "walks_outputs.py", "walks_vocabulary.py",
        "walks_slots.py",
    )  # fmt: skip
    for report in proof.correct(names, judges=("right", "races"), vllm=False):
        assert report.ok, f"{report.path} is correct\n{report.refusals()}"


@needs(*kernels)
def test_faults_are_refused_by_their_judge() -> None:
    faults = [fault for fault in FAULTS if fault.name in QUICK]
    assert len(faults) == len(QUICK)
    wrong = [
        f"{fault.name}: {why}\n{report.refusals()}"
        for fault, report in proof.planted(faults)
        if (why := proof.amiss(fault, report))
    ]
    assert not wrong, "\n".join(wrong)


@needs(*kernels, pytest.mark.vllm)
def test_vllms_kernel_stands_beside() -> None:
    report = judge(proof.HERE / "one.py", "decode-one")
    assert report.ok, report.refusals()
    right, _, moved, compiled = report.findings
    assert (
        0 < right.figures["error"]["float32, vLLM 2D"] < 1e-4
    )  # the cold scores, about -120, cost digits
    assert moved.figures["ratio"] == pytest.approx(1, abs=0.01)
    assert moved.figures["vllm"]["2D"] == pytest.approx(1, abs=0.05)
    kernels_on = {(row["GPU"], row["kernel"]) for row in compiled.figures["rows"]}
    assert {(gpu, "vLLM 2D") for gpu in ("sm_75", "sm_80", "sm_90", "sm_100")} < kernels_on


@needs(*kernels)
def test_an_unwritten_kernel_is_said_to_be_one(tmp_path: Path) -> None:
    starter = tmp_path / "starter.py"
    starter.write_text("def paged_decode(*args):\n    raise NotImplementedError('write it')\n")
    report = judge(starter, "decode", ("right", "races"), vllm=False)
    assert [finding.ok for finding in report.findings] == [False, None]
    assert "paged_decode is not written yet" in report.findings[0].message


@needs(*kernels)
def test_a_file_without_the_entry_is_said_to_be_one(tmp_path: Path) -> None:
    empty = tmp_path / "empty.py"
    empty.write_text("import math\n")
    [finding] = judge(empty, "decode", ("right",), vllm=False).findings
    assert finding.message == "empty.py defines no function paged_decode"


# -- without torch --------------------------------------------------------------------------------


def test_the_first_that_asks_has_all_files_of_a_lab_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But those that are not written; and whoever stands behind a process that died is asked alone."""
    right, dead, open_, other = (
        tmp_path / f"{name}.py" for name in ("right", "dead", "open", "other")
    )
    for file in (right, dead, other):
        file.write_text("def k():\n    return 1\n")
    open_.write_text("def k():\n    raise NotImplementedError\n")
    place = tmp_path / "files"
    place.write_text(json.dumps([str(file) for file in (right, open_, dead)]))
    asked: list[list[str]] = []

    def together(paths: list[str], problem: str, judges: object, *, vllm: bool) -> list[Report]:
        asked.append([Path(path).name for path in paths])
        said = {str(right): Finding("right", True, "well", {"cases": 2}),
                str(dead): Finding("right", False, f"{bench.DIED}exit status 1")}  # fmt: skip
        return [Report(path, problem, (said[path],)) for path in paths]

    def alone(path: str, problem: str, judges: object, *, vllm: bool) -> Report:
        asked.append([Path(path).name])
        return Report(path, problem, (Finding("right", False, "alone"),))

    monkeypatch.setattr(lab, "judge_many", together)
    monkeypatch.setattr(lab, "ask", alone)

    def said(file: Path, judges: tuple[str, ...] = lab.FIRST) -> str:
        module = ModuleType("lab")
        module.__file__ = str(file)
        [finding] = lab.Kernels("decode", ["k"], "").report(module, judges, False).findings
        return finding.message

    assert said(right) == "alone"
    monkeypatch.setenv(lab.TOGETHER, str(place))
    assert (said(right), said(dead), said(other)) == ("well", "alone", "alone")
    assert said(right, ("compiled",)) == "alone"
    wanted = ["right.py"], ["right.py", "dead.py"], ["dead.py"], ["other.py"], ["right.py"]
    assert asked == list(wanted)


def test_every_fault_can_be_planted() -> None:
    assert len(FAULTS) >= 30
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert {fault.judge for fault in FAULTS} == set(JUDGES)
    for fault in FAULTS:
        compile(fault.text(), fault.name, "exec")
        assert fault.text() != (proof.HERE / fault.base).read_text(encoding="utf-8"), fault.name


def test_the_bench_is_imported_without_what_only_the_children_need() -> None:
    code = "import sys, course.kernels; print(*{'numpy', 'torch', 'triton', 'vllm'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (ran.stdout.strip(), ran.stderr) == ("", "")


def test_a_problem_is_found_in_its_phases_folder(tmp_path: Path) -> None:
    """From any folder, and unread but for its name, its entry and what times it."""
    package = tmp_path / "course" / "kernels" / "problems"
    package.mkdir(parents=True)
    shutil.copy(ROOT / "course" / "kernels" / "problems" / "__init__.py", package)
    for above in package.parents[:2]:
        (above / "__init__.py").touch()
    folder = tmp_path / "phase-03-scheduler" / "kernels"
    folder.mkdir(parents=True)
    (folder / "top_k.py").write_text(
        "import no_such_module\n\nENTRY = 'top_k'\nBENCHMARK = 'b.py'\n"
    )
    (folder / "top_k_answer.py").write_text("ANSWER = 42\n")
    code = (
        "from course.kernels.problems import BENCHMARKS, ENTRIES, PROBLEMS\n"
        "print(PROBLEMS, ENTRIES, BENCHMARKS)\n"
        "from course.kernels.problems.top_k_answer import ANSWER\nprint(ANSWER)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True,
                         env={**os.environ, "PYTHONPATH": str(tmp_path)})  # fmt: skip
    assert ran.stdout.splitlines() == [
        "{'top-k': 'course.kernels.problems.top_k'} {'top-k': 'top_k'} {'top-k': 'b.py'}",
        "42",
    ], ran.stderr


@pytest.mark.parametrize("name", ["course/kernels/lab.py", "phase-02-pages/kernels/decode.py"])
def test_a_lab_is_graded_anew_when_the_bench_has_changed(tmp_path: Path, name: str) -> None:
    """What the tests said is kept by content, and the bench's files and problems are a part of that."""
    bench_file = tmp_path / name
    bench_file.parent.mkdir(parents=True)
    digests = set()
    for text in ("", "MOST_BYTES = 2"):
        bench_file.write_text(text)
        engine_digest.cache_clear()
        digests.add(engine_digest(tmp_path))
    assert len(digests) == 2, "a kernel that the old bench accepted would count as accepted"


def test_what_is_missing_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        bench.importlib.util, "find_spec", lambda name: None if name == "triton" else found(name)
    )
    assert main(["kernel", str(proof.HERE / "one.py")]) == 2
    error = capsys.readouterr().err
    assert "triton" in error
    assert "--extra torch" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("path", "problem", "judges", "said"),
    [
        ("one.py", "decode-two", JUDGES, "there is no problem 'decode-two'"),
        ("one.py", "decode", ("fast",), "there is no judge 'fast'"),
        ("none.py", "decode", JUDGES, "is no file"),
    ],
)
def test_bad_requests(path: str, problem: str, judges: tuple[str, ...], said: str) -> None:
    with pytest.raises(BenchError, match=said):
        judge(proof.HERE / path, problem, judges)


def test_a_report_sums_up() -> None:
    findings = (
        Finding("right", True, "fine", {"cases": 7}),
        Finding("races", False, "two write out[0]"),
        Finding("bytes", None, "not judged"),
    )
    report = Report("k.py", "decode", from_data(to_data(findings)))
    assert report.findings == findings
    assert not report.ok
    assert report.refused_by == ("races",)
    assert report.refusals() == "races: two write out[0]\nbytes: not judged"


RESOURCES = " Function k:\n  REG:96 STACK:8 SHARED:0 LOCAL:0 CONSTANT[0]:600 TEXTURE:0\n"
CODE = """
        /*0000*/                   LDG.E R2, desc[UR4][R2.64] ;
.L_x_1:
        /*0010*/              @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/                   LDGSTS.E.BYPASS.128 [R9], desc[UR4][R2.64] ;
	//## File "/k.py", line 27
        /*0030*/                   LDG.E.U16 R4, desc[UR4][R2.64] ;
	//## File "/k.py", line 31
        /*0040*/                   HMMA.16816.F32 R12, R4, R8, R12 ;
        /*0050*/                   STL [R1], R4 ;
        /*0060*/               @P1 BRA `(.L_x_1) ;
        /*0070*/                   EXIT ;
"""


def test_machine_code_is_counted() -> None:
    code = sass.read(RESOURCES, CODE)
    assert (code.registers, code.stack, code.spills, code.tensor_core) == (96, 8, 1, 1)
    assert code.loads == {16: 1, 128: 2}, "of the loop alone"
    assert code.wide() == pytest.approx(256 / 272)
    assert code.wide(without={27}) == 1
    assert code.instructions == 8
    assert code.narrow() == {27: 16}, "the line of the file that loads 16 bits at a time"


TTIR = """
module {
    %acc = scf.for %i = %c0 to %n step %c1 iter_args(%sum = %zero, %next = %first) -> (tensor<64xf16>) {
      %s = tt.splat %scales_ptr : !tt.ptr<f16> -> tensor<64x!tt.ptr<f16>> loc(#loc3)
      %p = tt.addptr %s, %i64 : tensor<64x!tt.ptr<f16>>, tensor<64xi32> loc(#loc3)
      %x = tt.load %p, %mask, %zero : tensor<64x!tt.ptr<f16>> loc(#loc4)
      %d = tt.dot %a, %b, %c, inputPrecision = tf32 : tensor<16x64xf32> * tensor<64x16xf32> loc(#loc5)
      %e = tt.dot %f, %g, %h : tensor<16x64xf16> * tensor<64x16xf16> -> tensor<16x16xf32> loc(#loc4)
      %new = arith.addf %sum, %x : tensor<64xf16> loc(#loc6)
      scf.yield %new, %x : tensor<64xf16>, tensor<64xf16> loc(#loc1)
    } loc(#loc1)
}
#loc1 = loc("/k.py":9:4)
#loc2 = loc("/k.py":21:8)
#loc3 = loc("s"(#loc2))
#loc4 = loc("x"(#loc2))
#loc5 = loc("/k.py":23:8)
#loc6 = loc(callsite("/venv/triton/language/standard.py":7:1 at "/k.py":24:8))
"""


def test_tritons_own_code_is_read() -> None:
    text = ttir.Text(TTIR)
    assert text.rounded_products() == [23], "not the product of float16"
    assert text.half_sums() == [24], "not what is merely loaded ahead"
    assert list(text.loads()) == [ttir.Load(21, "scales_ptr", 64, 16)]


BRANCHES = """
    scf.for %i = %c0 to %n step %c1  : i32 {
      %b = tt.load %table_ptr : !tt.ptr<i64> loc(#loc1)
      %x = tt.load %x_ptr, %m : tensor<16x8x!tt.ptr<f16>> loc(#loc2)
      %r = scf.if %tail -> (tensor<16x8xf16>) {
        %y = tt.load %x_ptr, %odd : tensor<16x8x!tt.ptr<f16>> loc(#loc3)
        %w = tt.load %w_ptr, %odd : tensor<16x8x!tt.ptr<f16>> loc(#loc4)
        scf.yield %y : tensor<16x8xf16> loc(#loc3)
      } else {
        scf.yield %x : tensor<16x8xf16> loc(#loc3)
      } loc(#loc3)
      %s = tt.dot %x, %w, %z : tensor<16x8xf16> * tensor<8x16xf16> -> tensor<16x16xf16> loc(#loc2)
      %t = arith.addf %a, %b : tensor<16x16xf32> loc(#loc3)
      %u = arith.truncf %t : tensor<16x16xf32> to tensor<16x16xf16> loc(#loc3)
      %v = arith.extf %u : tensor<16x16xf16> to tensor<16x16xf32> loc(#loc4)
      %q = tt.atomic_rmw fadd, relaxed, gpu, %p, %u : (!tt.ptr<f16>, f16) -> f16 loc(#loc5)
    } loc(#loc1)
#loc1 = loc("/k.py":1:4)
#loc2 = loc("/k.py":2:8)
#loc3 = loc("/k.py":3:8)
#loc4 = loc("/k.py":4:8)
#loc5 = loc("/k.py":5:8)
"""


def test_loads_of_one_number_and_behind_an_if_are_told_apart() -> None:
    text = ttir.Text(BRANCHES)
    assert [(load.line, load.lanes, load.conditional) for load in text.loads()] == [
        (1, 0, False), (2, 128, False), (3, 128, True), (4, 128, True),
    ]  # fmt: skip
    assert text.beside_the_way() == {1, 3}, "w is loaded nowhere else, so its line counts"


def test_sums_in_half_precision_are_found_wherever_they_are() -> None:
    """In a product, on the way from one float32 sum to another, and in memory."""
    assert ttir.Text(BRANCHES).half_sums() == [2, 4, 5]


def test_what_the_two_children_start_is_compared() -> None:
    one, other = ["k", "source", "[1, 1, 1]", "TILE=16"], ["k", "source", "[1, 1, 1]", "TILE=32"]
    assert bench._differ([[one]], [[one]]) is None
    assert bench._differ([[one], [one]], [[one], [other]]) == "the arguments of k"
    assert bench._differ([[one]], [[["k", "changed", *one[2:]]]]) == (
        "the source of k, or a number that it reads from its file"
    )
    assert bench._differ([[one]], [[one, one]]) == "1 launches in the one and 2 in the other"


@needs(*kernels)
def test_every_named_mistake_of_a_draw_shows_in_a_case_that_vllm_runs_too() -> None:
    """Else it could neither be refused nor be named."""
    from course.kernels.beside import CASES
    from course.kernels.problems import gumbel

    cases = gumbel.cases()[:CASES]
    unseen = [
        words
        for words, wrong in gumbel.MISTAKES
        if all(
            gumbel.explain(case, gumbel.answer(case.inputs, **wrong)[0]) != words for case in cases
        )
    ]
    assert not unseen, unseen


@needs(*kernels)
def test_a_close_race_is_decided_by_the_last_bit_of_the_noise() -> None:
    """With a neighbour of each token's noise in its place, half of the rows or more draw another token."""
    import numpy as np

    from course.kernels.problems import gumbel

    [case] = [case for case in gumbel.cases() if "float32, close races" in case.label]
    rng = np.random.default_rng(0)
    changed = np.zeros(len(case.expected), bool)
    for _ in range(8):

        def nudged(x, t, noise):  # type: ignore[no-untyped-def]
            return x / t + np.nextafter(
                noise, np.float32(rng.choice([-np.inf, np.inf], noise.shape))
            )

        changed |= (gumbel.answer(case.inputs, score=nudged)[0] != case.expected).numpy()
    assert changed.mean() >= 0.5, f"{changed.sum()} of {len(changed)} rows"
