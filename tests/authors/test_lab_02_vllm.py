"""Lab 00-02 against the real vLLM: its classes on the lab's configs, and a real start."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_module

LAB = (
    Path(__file__).resolve().parents[2]
    / "phase-00-foundations"
    / "labs"
    / "lab-02-kv-memory-calculator"
)
CONFIGS = sorted(path.stem for path in (LAB / "configs").glob("*.json"))


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    return load_module(LAB / "solution.py", "lab_00_02_solution_for_vllm")


@pytest.fixture(scope="module")
def ask() -> ModuleType:
    return load_module(LAB / "ask_vllm.py", "lab_00_02_ask_vllm")


def test_every_config_names_its_source() -> None:
    """Each file says whose config.json it is and where its numbers were read."""
    assert len(CONFIGS) >= 5
    for name in CONFIGS:
        config = json.loads((LAB / "configs" / f"{name}.json").read_text("utf-8"))
        assert config["_source"].startswith("https://huggingface.co/"), name
        assert config["_source"].endswith("/config.json"), name
        assert config["_read_from"].startswith("https://"), name


def _hf_config(config: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    fields = {k: v for k, v in config.items() if not k.startswith("_") and k != "model_type"}
    return AutoConfig.for_model(config["model_type"], **fields)


@pytest.mark.vllm
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8"])
@pytest.mark.parametrize("name", CONFIGS)
def test_bytes_a_block_are_those_of_vllms_specs(
    lab: ModuleType, name: str, kv_cache_dtype: str
) -> None:
    """vLLM reads head size and KV heads from the same file; its spec gives the bytes of a block."""
    import torch
    import vllm.config  # noqa: F401  # first, or the next line goes round in a circle
    from vllm.transformers_utils.model_arch_config_convertor import ModelArchConfigConvertorBase
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

    config = lab.read_config(name)
    hf_config = _hf_config(config)
    convertor = ModelArchConfigConvertorBase(hf_config, hf_config)
    dtype = {"auto": torch.bfloat16, "fp8": torch.uint8}[kv_cache_dtype]
    mla = convertor.is_deepseek_mla()
    assert mla == name.startswith("deepseek")
    spec = (MLAAttentionSpec if mla else FullAttentionSpec)(
        block_size=16,
        num_kv_heads=1 if mla else convertor.get_total_num_kv_heads(),
        head_size=convertor.get_head_size(),
        dtype=dtype,
    )
    theirs = spec.page_size_bytes * convertor.get_num_hidden_layers()
    assert 16 * lab.kv_bytes_per_token(config, kv_cache_dtype) == theirs


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("num_blocks", "length"), [(96, 1024), (3051, 1000), (63, 1000), (7, 1025)]
)
def test_the_report_is_vllms_own_function(lab: ModuleType, num_blocks: int, length: int) -> None:
    """get_max_concurrency_for_kv_cache_config on a pool of this many blocks."""
    from types import SimpleNamespace

    import torch
    from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=32, dtype=torch.float32)
    group = KVCacheGroupSpec(layer_names=[f"layer.{i}" for i in range(4)], kv_cache_spec=spec)
    pool = KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[group])
    settings = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=length),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1, prefill_context_parallel_size=1
        ),
    )
    theirs = get_max_concurrency_for_kv_cache_config(settings, pool)
    assert lab.reported_concurrency(num_blocks, length) == theirs
    assert lab.reported_tokens(num_blocks, length) == int(theirs * length)


@pytest.mark.vllm
def test_a_real_start_reports_what_the_calculator_says(lab: ModuleType, ask: ModuleType) -> None:
    """1 GiB of KV, block_size 16, max_model_len 1024: the number of blocks and both log lines."""
    run = ask.RUNS[0]
    assert run["kv_cache_memory_bytes"] == 1024**3
    assert run["max_model_len"] == 1024
    said, calculated = ask.start(run), ask.ours(lab, run)
    assert said["num_gpu_blocks"] == calculated["num_gpu_blocks"]
    assert said["log"] == calculated["log"]
    assert said["free_blocks"] == said["num_gpu_blocks"] - 1, "the null block is taken"
    recorded = json.loads(ask.RECORD.read_text("utf-8"))["starts"]
    assert [start["run"] for start in recorded] == ask.RUNS, "record again: ask_vllm.py --record"
    assert said == recorded[0]
