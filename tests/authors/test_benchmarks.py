"""The benchmarks run, measure what they say, and keep what they found."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import ideas, machine, real_model
from benchmarks.scheduler import GOLDEN, compare, drive, large, waiting_cost
from course.parity import mini_parts
from course.parity.traces import read_traces

MODES = ("compiled", "eager")  # vLLM's default first


def golden() -> list[dict[str, object]]:
    file = next(iter(sorted(GOLDEN.glob("scheduler-*.jsonl.gz"))))
    return [trace for _, trace in read_traces(str(file))][:3]  # type: ignore[misc]


def test_the_timed_scheduler_takes_the_recorded_decisions() -> None:
    for trace in golden():
        timed, decisions = drive(trace, mini_parts)  # type: ignore[arg-type]
        assert [json.loads(decision) for decision in decisions] == trace["steps"]
        assert timed.steps == len(decisions)
        assert timed.spent > 0


def test_a_large_workload_keeps_its_batch_full() -> None:
    row = compare("decode, 64 running", [large("decode, 64 running")], False, 1)
    assert row["requests a step"] > 60
    assert row["times faster"] is None, "there was nothing to compare with"


def test_an_unknown_workload_is_named() -> None:
    with pytest.raises(ValueError, match="'no such'"):
        large("no such")


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_waiting_requests_cost_a_step_nothing(policy: str) -> None:
    few, many = waiting_cost(100, policy, steps=60), waiting_cost(10_000, policy, steps=60)
    assert many < 3 * few, f"{few:.0f} us a step with 100 waiting, {many:.0f} with 10,000"


@pytest.mark.vllm
def test_faster_than_vllms_scheduler() -> None:
    row = compare("golden", golden(), True, 2)  # type: ignore[arg-type]
    # Three times is the goal, shown by the committed result; a loaded machine may blur it.
    assert row["times faster"] > 1.5, row


def test_prefill_ends_with_the_last_first_token_and_decode_with_the_first_last_one() -> None:
    # Two requests of 4 tokens: the second begins a step later, and the first is done a step earlier.
    stamps = [(1.0, 1, 1), (3.0, 2, 3), (4.0, 2, 5), (5.0, 2, 7), (9.0, 2, 8)]
    assert real_model.rates(stamps, 2, 30, 4) == (10.0, 2.0)
    late = [(1.0, 1, 1), (2.0, 1, 2), (3.0, 1, 3), (4.0, 1, 4), (5.0, 2, 5)]
    with pytest.raises(AssertionError, match="4 output tokens are too few"):
        real_model.rates(late, 2, 30, 4)


def test_a_roof_is_bytes_or_operations() -> None:
    folder = Path(__file__).parents[2] / "mini_vllm" / "checkpoints" / "tiny-llama"
    layers = 4 * (128 * 256 + 128 * 128 + 3 * 128 * 384 + 2 * 128)
    weights = layers + 264 * 128
    # So little bandwidth that only bytes count, then so much that only operations do.
    _, decode = real_model.roofs(folder, 1, 0, (4.0 * weights, 1e30))
    assert decode == pytest.approx(1, rel=0.01)
    prefill, decode = real_model.roofs(folder, 64, 0, (1e30, 2.0 * weights))
    assert decode == pytest.approx(1, rel=0.01)
    assert prefill > decode  # a prompt needs no head


def test_results_say_where_they_were_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    saved = json.loads(machine.save("x", "python -m x", [{"a": 1}]).read_text())
    assert saved["rows"] == [{"a": 1}]
    assert saved["command"] == "python -m x"
    assert saved["machine"]["processor"]
    assert saved["machine"]["cores"] >= 1
    assert "numpy" in saved["machine"]["versions"]


def test_a_table_lines_up() -> None:
    lines = machine.table([{"name": "a", "x": 1.5}, {"name": "long", "x": None}]).splitlines()
    assert lines == ["name     x", "a     1.50", "long     -"]


def test_the_front_page_prints_what_the_ideas_are_worth(capsys: pytest.CaptureFixture[str]) -> None:
    """The counts depend on no clock, so what was captured must come out again."""
    ideas.main()
    printed = capsys.readouterr().out
    front = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert printed.strip("\n") in front, f"capture `python -m benchmarks.ideas` again:\n{printed}"


def test_the_mixtures_result_is_of_equal_tokens() -> None:
    """Of the committed run: all engines at 1, 16 and 64 requests, and all gave the same tokens."""
    rows = json.loads((machine.RESULTS / "moe.json").read_text())["rows"]
    assert [row["concurrent"] for row in rows] == [1, 16, 64]
    for row in rows:
        assert row["same tokens"] == "yes"
        assert {"/ mini_vllm, reference", "/ vLLM eager", "/ vLLM compiled", "/ HF"} <= set(row)


def test_the_plain_experts_are_the_ones_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker of `benchmarks.moe` puts `reference_experts` into the layer."""
    from benchmarks import generate, moe
    from mini_vllm.layers.fused_moe import layer

    seen: list[int] = []

    def counted(*args: object) -> object:
        seen.append(1)
        return moe_reference(*args)  # type: ignore[arg-type]

    moe_reference = moe.reference_experts
    monkeypatch.setattr(layer, "fused_experts", layer.fused_experts)  # put back at the end
    monkeypatch.setattr(moe, "reference_experts", counted)
    prompts = [[1, 40, 41, 42]]
    plain = generate.mini_worker(str(moe.MODEL))(prompts, 5)
    assert not seen
    assert moe.reference_worker(str(moe.MODEL))(prompts, 5) == plain
    assert len(seen) == 4 * 5, "four layers, five steps"


def test_neither_kernel_of_experts_spills_from_sm_80_on() -> None:
    """`benchmarks.moe_kernel`: both at every size, and on sm_75 vLLM's spills wherever the lab's does."""
    rows = json.loads((machine.RESULTS / "moe-kernel.json").read_text())["rows"]
    spills = {(row["tokens"], row["kernel"], row["GPU"]): row["spills"] for row in rows}
    assert {tokens for tokens, *_ in spills} == {1, 16, 64, 256, 1024, 4096}
    for (tokens, kernel, gpu), count in spills.items():
        if gpu != "sm_75":
            assert count == 0, (tokens, kernel, gpu)
        elif kernel == "the lab's":
            assert count < spills[tokens, "vLLM's", gpu], tokens


def test_a_sampler_step_is_timed_in_every_case() -> None:
    """`benchmarks.sampler`: each case runs, and every step appends a token to every row."""
    from benchmarks import sampler

    rows = sampler.make_rows(sampler.CASES["seeds, penalties"], 3, 50)
    logits = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32)
    step = sampler.mini_step(rows, logits)
    step()
    step()
    assert {len(row.output_token_ids) for row in rows} == {sampler.NUM_OUTPUT_TOKENS + 2}
    assert [row.sampling_params.seed for row in rows] == [1, 2, 3]
    table = sampler.measure(3, 50, 1)
    assert [line["case"] for line in table] == list(sampler.CASES)
    assert all("mini_vllm, ms" in line for line in table)
