"""Adapters of the embedding and of the head: each row gets its own, and a tied base stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.lora.layers import get_lora_modules
from mini_vllm.lora.ops import LoRAMapping, Run
from mini_vllm.lora.request import LoRARequest
from mini_vllm.model_loader import load_model
from tests.engine.helpers.engine.adapters import (
    ask,
    make_tensors,
    make_vocabulary_tensors,
    write_adapter,
    write_merged,
)

PROMPTS = [[20 + i, *range(60 + i, 90 + 2 * i)] for i in range(9)]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[LoRARequest]:
    folder = tmp_path_factory.mktemp("adapters")
    tensors: list[dict[str, Any]] = [
        make_vocabulary_tensors(1),
        {**make_vocabulary_tensors(2), **make_tensors(2)},
        {name: t for name, t in make_vocabulary_tensors(3).items() if "lm_head" in name},
        make_tensors(4),
    ]
    return [
        ask(write_adapter(folder / f"ad{i}", i, tensors=its), i) for i, its in enumerate(tensors, 1)
    ]


def generate(llm: LLM, params: SamplingParams, loras: Any = None) -> list[Any]:
    return llm.generate(PROMPTS, params, use_tqdm=False, lora_request=loras)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_tokens_and_logprobs_are_those_of_merged_weights(
    adapters: list[LoRARequest], tmp_path: Path, async_scheduling: bool
) -> None:
    """In one batch with others and with none, chunked; the prompt's scores, too."""
    params = SamplingParams(
        temperature=0, max_tokens=8, ignore_eos=True, logprobs=2, prompt_logprobs=0
    )
    of_prompts = [None, *adapters, adapters[1], None, adapters[0], adapters[2]]
    llm = LLM(
        enable_lora=True, max_loras=3, max_num_batched_tokens=48, async_scheduling=async_scheduling
    )
    got = generate(llm, params, of_prompts)
    for lora in (None, *adapters):
        whole = (
            LLM()
            if lora is None
            else LLM(write_merged(tmp_path / lora.lora_name, Path(lora.lora_path)))
        )
        due = generate(whole, params)
        for mine, other, asked in zip(got, due, of_prompts, strict=True):
            if asked != lora:
                continue
            assert mine.outputs[0].token_ids == other.outputs[0].token_ids
            assert score(mine) == pytest.approx(score(other), abs=2e-4)


def score(output: Any) -> list[float]:
    places = [*output.prompt_logprobs[1:], *output.outputs[0].logprobs]
    return [logprob.logprob for place in places for _, logprob in sorted(place.items())]


def test_rows_are_chosen() -> None:
    """Of six rows, of which two and then one have slots; behind the last of them there are none."""
    mapping = LoRAMapping()
    mapping.set_rows([None, 3, 0, None], [1, 2, 1, 2])
    with mapping.select(np.array([5, 0, 1, 3, 2])):
        assert mapping.runs == [Run(2, 3, 3), Run(3, 4, 0), Run(4, 5, 3)]
        assert sorted(mapping.groups) == [0, 3]
    assert mapping.runs == [Run(1, 3, 3), Run(3, 4, 0)]
    with mapping.select(np.array([], np.int64)):
        assert not mapping.runs


def test_what_of_the_vocabulary_can_be_adapted() -> None:
    modules = get_lora_modules(load_model(DEFAULT_MODEL))
    assert modules["model.embed_tokens"] == (264, 128)
    assert modules["lm_head"] == (128, 264)
