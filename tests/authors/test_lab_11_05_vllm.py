"""Lab 11-05 beside vLLM: what was recorded is still what it does; and which layers an adapter changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_module
from mini_vllm import LLM, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.lora.lora_model import LoRAModel
from mini_vllm.lora.request import LoRARequest

LAB = Path(__file__).resolve().parents[2] / "phase-11-multi-lora/labs/lab-05-two-voices"
SNAKE = Path(DEFAULT_MODEL).parent / "tiny-llama-lora/snake"


@pytest.mark.vllm
def test_two_voices_in_vllm() -> None:
    """Every scene's trace, answers and hits are those recorded; the last one ends the engine.

    A failure here may mean that vLLM has mended one of them: issues 30931, 42125, 44701, 33791.
    """
    in_vllm = load_module(LAB / "in_vllm.py", "lab_11_05_in_vllm")
    support = in_vllm.support
    recorded = support.recorded()
    played = in_vllm.play_all()
    assert played.keys() == recorded.keys()
    for name, scene in played.items():
        for what in ("said", "cached", "answers"):
            assert scene[what] == recorded[name][what], (name, what)
        assert support.rows_of(scene) == support.rows_of(recorded[name]), name
    assert recorded["in place"]["said"] == 8, "a folder is read in each of 8 steps"
    truth = recorded["fresh name"]["answers"]
    assert recorded["reload"]["answers"]["ada 2"] != truth["ada 2"]
    assert recorded["in place"]["answers"]["ada 2"] != truth["ada 2"][:8]
    assert recorded["forced"]["answers"]["ada 2"] != truth["ada 3"]


@pytest.mark.parametrize(
    ("module", "changed"),
    [
        ("model.layers.0.self_attn.q_proj", [1, 2, 3]),
        ("model.layers.3.mlp.down_proj", []),
        ("model.layers.0.self_attn.k_proj", [0, 1, 2, 3]),
        ("model.layers.3.self_attn.v_proj", [3]),
    ],
)
def test_an_adapter_changes_k_and_v_of_these_layers(
    monkeypatch: pytest.MonkeyPatch, module: str, changed: list[int]
) -> None:
    """The prediction `layers`, in the engine's cache."""
    read: Callable[..., LoRAModel] = LoRAModel.from_local_checkpoint

    def caches(keep: str) -> list[Any]:
        def only(*args: Any) -> LoRAModel:
            whole = read(*args)
            loras = {name: pair for name, pair in whole.loras.items() if name == keep}
            return LoRAModel(whole.rank, loras, whole.version)

        monkeypatch.setattr(LoRAModel, "from_local_checkpoint", only)
        llm = LLM(enable_lora=True, num_gpu_blocks=8)
        params = SamplingParams(temperature=0, max_tokens=2)
        lora = LoRARequest("ada", 1, str(SNAKE))
        llm.generate("The scheduler decides", params, use_tqdm=False, lora_request=lora)
        return list(llm.llm_engine.engine_core.model_runner.kv_caches)

    pairs = zip(caches("none"), caches(module), strict=True)
    assert [i for i, (a, b) in enumerate(pairs) if not np.array_equal(a, b)] == changed
