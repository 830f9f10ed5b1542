"""Lab 11-03 beside vLLM: the buffers of its slots, what it refuses, and what target modules drop."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from course.learner.labs import load_module
from mini_vllm.config.engine import DEFAULT_MODEL
from tests.engine.helpers.real_vllm.vllm_helpers import ROOT, output_of

LAB = ROOT / "phase-11-multi-lora/labs/lab-03-what-a-slot-costs"
CHILD = ROOT / "tests/engine/lora/vllm_child.py"
ADAPTERS = Path(DEFAULT_MODEL).parent / "tiny-llama-lora"
FEW = [[0, 7, 9, 15], [17]]
"""Which of the twenty servers, those of a list in one process; from the 17th on, each has two ranks.
`record.py` runs them all, and below all are made on paper."""


def load_record() -> Any:
    return load_module(LAB / "record.py", "lab_11_03_record")


def lines_of(record: Any) -> list[dict[str, Any]]:
    """The lines of the file, as they stand there."""
    found: list[dict[str, Any]] = json.loads(record.support.RECORDED.read_text("utf-8"))["servers"]
    return found


@pytest.mark.vllm
@pytest.mark.parametrize("numbers", FEW)
def test_served_slots_in_vllm(numbers: list[int]) -> None:
    """What was recorded of running engines is still what they have."""
    record = load_record()
    servers = [record.support.SERVED[n] for n in numbers]
    want = [lines_of(record)[n] for n in numbers]
    assert json.loads(json.dumps(record.record_all(servers))) == want


@pytest.mark.vllm
def test_slots_on_paper_are_those_of_running_engines() -> None:
    """The large models are as recorded, and the way in which they were made gives the small ones rightly,
    those of two ranks included."""
    record = load_record()
    support, lines = record.support, lines_of(record)
    assert {server.tp for server in support.SERVED} == {1, 2}
    for server, line in zip([*support.SERVED, *support.ON_PAPER], lines, strict=True):
        found = json.loads(json.dumps(record.make_on_paper(server)))
        assert found == {"bytes": line["bytes"], "modules": line["modules"]}, server.words()


@pytest.mark.vllm
def test_what_vllm_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that cannot be cut, where it must be; and a large vocabulary, if the head is wrapped."""
    record = load_record()
    support = record.support
    large = support.Shape(1, 64, 128, 2, 2, 32, 258_049)
    monkeypatch.setitem(support.MODELS, "large vocabulary", large)
    heads = support.Shape(1, 512, 1024, 16, 16, 32, 100)
    monkeypatch.setitem(support.MODELS, "many heads", heads)
    settings = support.Settings
    with pytest.raises(AssertionError, match="8 is not divisible by 16"):
        record.make_on_paper(
            support.Server("many heads", settings(max_lora_rank=8, fully_sharded_loras=True), tp=16)
        )
    rows = settings(1, 8, ("o_proj", "lm_head"), fully_sharded_loras=True)
    assert record.make_on_paper(support.Server("many heads", rows, tp=16))["bytes"]
    with pytest.raises(ValueError, match="vocab size must be <= 258048"):
        record.make_on_paper(support.Server("large vocabulary"))
    linears = settings(target_modules=("q_proj",))
    assert record.make_on_paper(support.Server("large vocabulary", linears))["bytes"]


@pytest.mark.vllm
def test_blocks_are_counted_as_vllm_counts_them() -> None:
    """What slots leave, in whole blocks over all layers."""
    from vllm.v1.core.kv_cache_utils import get_num_blocks

    support, lab = load_record().support, load_module(LAB / "solution.py", "lab_11_03_solution")
    config: Any = SimpleNamespace(cache_config=SimpleNamespace(num_gpu_blocks_override=None))
    for name in ("Llama-2-7B", "Llama-3-8B", "Llama-3-70B"):
        model = support.model_of(lab, name)
        for tp in (1, 8, 16):
            page = 2 * 16 * max(1, model.num_kv_heads // tp) * model.head_dim * 2
            for slots, room in ((1, 10**9), (16, 3 * 10**9 + 1), (200, 10**9)):
                lora = lab.LoRAConfig(slots)
                left = room - slots * lab.slot_bytes(model, lora, tp)
                theirs = get_num_blocks(config, model.num_layers, left, page)
                assert lab.kv_blocks(model, lora, tp, room) == theirs, (name, tp, slots)


@pytest.mark.vllm
def test_target_modules_drop_an_adapters_weights(tmp_path: Path) -> None:
    """An adapter for seven linears is served with q and v as target modules: no error, and it answers as one
    that has q, k and v alone."""

    snake, part = ADAPTERS / "snake", tmp_path / "part"
    part.mkdir()
    shutil.copy(snake / "adapter_config.json", part)
    tensors = load_file(snake / "adapter_model.safetensors")
    kept = {n: tensors[n] for n in tensors if any(x in n for x in ("q_proj", "k_proj", "v_proj"))}
    assert 0 < len(kept) < len(tensors)
    save_file(kept, part / "adapter_model.safetensors")
    call = {
        "prompts": [[1, 40, 50, 60], [1, 70, 71, 72, 73]],
        "adapters": [["snake", 1, str(snake)]] * 2,
        "max_tokens": [16, 16],
    }
    settings = {
        "max_loras": 2, "max_lora_rank": 8, "max_model_len": 64, "max_num_batched_tokens": 64,
        "max_num_seqs": 4, "num_gpu_blocks_override": 64, "skip_tokenizer_init": True,
    }  # fmt: skip
    restricted = settings | {"lora_target_modules": ["q_proj", "v_proj"]}
    runs = [
        {"settings": settings, "calls": [call]},
        {"settings": settings, "calls": [call | {"adapters": [["part", 1, str(part)]] * 2}]},
        {"settings": restricted, "calls": [call]},
    ]
    job, answer = tmp_path / "job.json", tmp_path / "answer.json"
    job.write_text(
        json.dumps({"runs": [{"model": str(DEFAULT_MODEL), **run} for run in runs]}), "utf-8"
    )
    printed = output_of(
        CHILD, job, answer, VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_LOGGING_LEVEL="WARNING", TORCH_COMPILE_DISABLE="1",
    )  # fmt: skip
    whole, without, dropped = (
        [tokens for tokens, _ in run[0]] for run in json.loads(answer.read_text("utf-8"))
    )
    assert dropped == without != whole
    assert "target" not in printed.lower()
