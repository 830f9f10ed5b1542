"""Configurations as published: served as vLLM serves them, or refused by a sentence that names the field."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

from mini_vllm import LLM, EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.model import CheckpointError
from mini_vllm.models.registry import CONFIGS, MODEL_TYPES, read_config
from tests.engine.helpers.models.published_configs import (
    LLAMA,
    PHI3,
    PUBLISHED,
    REFUSED,
    longrope,
    make_tiny,
    write_tiny,
)
from tests.engine.helpers.real_vllm.vllm_helpers import output_of
from tests.engine.helpers.thorough import either

NAMES = list(PUBLISHED)
GREEDY = SamplingParams(temperature=0, max_tokens=8)


def test_there_are_at_least_forty_and_all_architectures_are_among_them() -> None:
    assert len(PUBLISHED) + len(REFUSED) >= 40
    served = {read_config(make_tiny(config)).architecture for config in PUBLISHED.values()}
    assert served == CONFIGS.keys() == set(MODEL_TYPES.values())


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused_by_name(name: str) -> None:
    config, says = REFUSED[name]
    with pytest.raises(CheckpointError) as refused:
        read_config(config)
    for words in says:
        assert words in str(refused.value)


@pytest.mark.parametrize("name", ["gemma-2-2b", "Phi-4-mini", "Qwen2.5-7B-Instruct, long"])
def test_a_chunked_prompt_gives_the_same_text(name: str, tmp_path: Path) -> None:
    folder = write_tiny(PUBLISHED[name], tmp_path / "model")
    prompts = [{"prompt_token_ids": [3 + i * 7 % 250 for i in range(n)]} for n in (5, 60)]
    texts = [
        [
            output.outputs[0].token_ids
            for output in LLM(folder, max_model_len=100, num_gpu_blocks=40, **settings).generate(
                prompts, GREEDY, use_tqdm=False
            )
        ]
        for settings in ({}, {"max_num_batched_tokens": 16, "block_size": 8})
    ]
    assert texts[0] == texts[1]


def test_ids_outside_the_vocabulary_are_no_ids() -> None:
    config = read_config(LLAMA | {"eos_token_id": [2, 40000, -1], "bos_token_id": -1})
    assert (config.eos_token_ids, config.bos_token_id) == ((2,), None)


def test_long_and_short_factors_are_chosen_by_the_longest_text(tmp_path: Path) -> None:
    raw = PHI3 | {
        "max_position_embeddings": 512, "original_max_position_embeddings": 64, "sliding_window": None,
        "rope_scaling": longrope(),
    }  # fmt: skip
    folder = write_tiny(raw, tmp_path / "model")
    prompt = {"prompt_token_ids": list(range(3, 43))}
    made: dict[int | None, Any] = {}
    for longest in (None, 60, 65, 500):
        llm = LLM(folder, max_model_len=longest, num_gpu_blocks=60)
        made[longest] = llm.generate([prompt], GREEDY, use_tqdm=False)[0].outputs[0].token_ids
        if longest is None:
            assert llm.llm_engine.config.max_model_len == 64
    assert made[None] == made[60] != made[65] == made[500]
    with pytest.raises(ValueError, match="max_model_len 60 needs other RoPE factors than 500"):
        LLMEngine(llm.llm_engine.model, config=EngineConfig(max_model_len=60, num_gpu_blocks=60))


@pytest.mark.vllm
def test_the_longest_text_is_vllms(tmp_path: Path) -> None:
    printed = output_of(
        "-m", "tests.engine.helpers.models.published_parity", tmp_path, "lengths", *NAMES
    )
    assert printed.count(" and ") >= len(NAMES)


@pytest.mark.vllm
@pytest.mark.parametrize("part", range(4))
def test_the_tokens_are_vllms(part: int, tmp_path: Path) -> None:
    """All of them when thorough; else two of each quarter, by their names."""
    names = sorted(NAMES, key=lambda name: zlib.crc32(name.encode()))[part::4]
    names = names[: either(2, len(names))]
    printed = output_of(
        "-m", "tests.engine.helpers.models.published_parity", tmp_path, "tokens", *names,
        TORCH_COMPILE_DISABLE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1",
    )  # fmt: skip
    assert all(name in printed for name in names)
