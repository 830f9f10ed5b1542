"""Adapters on a base of few bits: its own product first, then a delta in full precision."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from mini_vllm import LLM, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.lora.component import LoRAComponent
from tests.engine.helpers.engine.adapters import ask, write_adapter, write_merged
from tests.engine.helpers.quantization.quantized_helpers import cases, write_quantized

PROMPTS = [[20 + i, *range(60 + i, 90 + 2 * i)] for i in range(6)]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def generate(llm: LLM, lora: object = None) -> list[list[int]]:
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False, lora_request=lora)  # type: ignore[arg-type]
    return [o.outputs[0].token_ids for o in outputs]


@pytest.mark.parametrize("name", ["w4a16", "w8a16-asym", "w4a16-actorder", "awq", "gptq"])
def test_tokens_are_those_of_what_the_codes_stand_for_with_the_adapter_merged(
    tmp_path: Path, name: str
) -> None:
    """Where only weights are rounded: then the base is a float32 model of other numbers."""
    numbers = write_quantized(DEFAULT_MODEL, tmp_path / "quantized", cases(group=128)[name])
    plain = tmp_path / "plain"
    shutil.copytree(DEFAULT_MODEL, plain)
    save_file(
        {k: np.ascontiguousarray(v, np.float32) for k, v in numbers.items()},
        plain / "model.safetensors",
    )
    folder = write_adapter(tmp_path / "one", 1)
    llm = LLM(tmp_path / "quantized", enable_lora=True)
    merged = LLM(write_merged(tmp_path / "merged", folder, base=plain))
    assert generate(llm, ask(folder, 1)) == generate(merged)
    assert generate(llm) == generate(LLM(tmp_path / "quantized"))


@pytest.mark.parametrize("name", ["w8a8", "fp8"])
def test_a_layer_whose_activations_are_rounded_too_gets_the_whole_delta(
    tmp_path: Path, name: str
) -> None:
    """The base sees rounded rows, the adapter the rows as they are."""
    write_quantized(DEFAULT_MODEL, tmp_path / "quantized", cases(group=128)[name])
    llm = LLM(tmp_path / "quantized", enable_lora=True)
    folder = write_adapter(tmp_path / "one", 1)
    generate(llm, ask(folder, 1))
    component = llm.llm_engine.engine_core.model_runner.lora
    assert isinstance(component, LoRAComponent)
    layer = next(its for its in component.layers if its.names[0].endswith("0.self_attn.o_proj"))
    x = np.random.default_rng(0).standard_normal((5, 128)).astype(np.float32)
    component.mapping.set_rows([None, 0], [2, 3])
    (piece,) = layer.slots[0]
    due = layer.base_layer(x)
    due[2:] += (x[2:] @ piece.lora_a.T) @ piece.lora_b.T
    np.testing.assert_allclose(layer(x), due, rtol=1e-5, atol=1e-5)
