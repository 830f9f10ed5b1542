"""Settings, requests and files of adapters: vLLM's rules, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm import LLM, EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.checks import CheckpointError
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.lora.lora_model import LoRAModel
from mini_vllm.lora.peft_helper import PEFTHelper
from mini_vllm.lora.request import LoRARequest
from tests.engine.helpers.engine.adapters import (
    NUM_LAYERS,
    SHAPES,
    ask,
    make_tensors,
    write_adapter,
)

MODULES = {
    f"model.layers.{i}.{name}": size for i in range(NUM_LAYERS) for name, size in SHAPES.items()
} | {"model.embed_tokens": (264, 128), "lm_head": (128, 264)}
GREEDY = SamplingParams(temperature=0, max_tokens=4)


def load(folder: Path, max_lora_rank: int = 16) -> LoRAModel:
    return LoRAModel.from_local_checkpoint(folder, MODULES, max_lora_rank)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_loras": 0}, "max_loras must be an integer of at least 1, got 0"),
        ({"max_loras": 2, "max_cpu_loras": 1}, r"max_cpu_loras \(1\) must be .* max_loras \(2\)"),
        ({"max_lora_rank": 9}, "max_lora_rank must be one of 1, 8, 16, .*, got 9"),
        ({"max_lora_rank": True}, "max_lora_rank must be one of .*, got True"),
        ({"attention": "torch"}, "enable_lora does not go with attention 'torch'"),
        ({"cudagraph_mode": "FULL"}, "does not go with cudagraph_mode 'FULL'"),
        ({"tensor_parallel_size": 2}, "does not go with tensor_parallel_size 2"),
        ({"data_parallel_size": 2}, "does not go with data_parallel_size 2"),
        ({"rules": "0.33.0"}, "does not go with rules '0.33.0'"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, "speculative_config"),
        ({"enable_lora": 1}, "enable_lora must be True or False, got 1"),
    ],
)  # fmt: skip
def test_settings_are_refused_by_name(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        EngineConfig(**{"enable_lora": True, **settings})


def test_settings_have_the_defaults_of_vllm_and_say_nothing_while_it_is_off() -> None:
    config = EngineConfig()
    settings = (config.enable_lora, config.max_loras, config.max_cpu_loras, config.max_lora_rank)
    assert settings == (False, 1, None, 16)
    assert EngineConfig(enable_lora=True, max_loras=3).num_cpu_loras == 3
    assert EngineConfig(max_lora_rank=9).max_lora_rank == 9, (
        "as upstream, which then has no LoRAConfig"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("x", 0, "p"), "lora_int_id: id must be > 0, got 0"),
        (("x", True, "p"), "lora_int_id must be an integer, got True"),
        (("", 1, "p"), "lora_name must be a string that is not empty, got ''"),
        (("\ud800", 1, "p"), "lora_name"),
        (("x", 1, ""), "lora_path must be the path of a folder, got ''"),
        (("x", 1, "p", None, {"a": 1}), "tensorizer_config_dict"),
    ],
)  # fmt: skip
def test_requests_are_refused_by_name(arguments: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        LoRARequest(*arguments)


def test_requests_are_equal_by_name() -> None:
    one, other = LoRARequest("x", 1, "p"), LoRARequest("x", 2, "q")
    assert one == other
    assert len({one, other, LoRARequest("y", 1, "p")}) == 2
    assert (one.adapter_id, one.name, one.path) == (1, "x", "p")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"use_dora": True}, "use_dora True is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save .*lm_head.* is not supported"),
        ({"bias": "all"}, "bias 'all' is not supported"),
        ({"lora_bias": True}, "lora_bias True"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": 4}}, "alpha_pattern"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"peft_type": "IA3"}, "peft_type 'IA3' is not supported"),
        ({"r": 0}, "r must be an integer of at least 1"),
        ({"r": "8"}, "r must be an integer"),
        ({"r": None}, "r is missing"),
        ({"r": 17}, "rank 17 is greater than max_lora_rank 16"),
        ({"r": 4}, r"has the shape \[8, \d+\], and rank 4 and the model's module ask for \[4, \d+\]"),
        ({"lora_alpha": None}, "lora_alpha is missing"),
        ({"lora_alpha": float("nan")}, "lora_alpha must be a finite number, got nan"),
        ({"target_modules": 3}, "target_modules must be a list of names or a pattern, got 3"),
        ({"use_rslora": 2}, "use_rslora must be true or false, got 2"),
    ],
)  # fmt: skip
def test_what_the_settings_of_an_adapter_may_not_say(
    tmp_path: Path, config: dict[str, Any], says: str
) -> None:
    folder = write_adapter(tmp_path / "one", 1, **config)
    with pytest.raises(CheckpointError, match=says) as caught:
        load(folder)
    assert str(folder) in str(caught.value)


def test_the_scale() -> None:
    raw = {"r": 16, "lora_alpha": 8, "target_modules": ["q_proj"]}
    assert PEFTHelper.from_dict(raw).scaling == 0.5
    assert PEFTHelper.from_dict({**raw, "use_rslora": True}).scaling == 2.0


def test_the_scale_is_in_b_and_the_version_follows_what_the_weights_mean(tmp_path: Path) -> None:
    one = load(write_adapter(tmp_path / "one", 1))
    double = load(write_adapter(tmp_path / "double", 1, lora_alpha=32))
    name = "model.layers.0.self_attn.q_proj"
    assert np.array_equal(2 * one.loras[name].lora_b, double.loras[name].lora_b)
    assert one.version != double.version
    again = load(write_adapter(tmp_path / "again", 1, lora_dropout=0.5))
    assert again.version == one.version
    assert one.nbytes == sum(a.nbytes for a in make_tensors(1).values())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t, p: t.pop(p + "q_proj.lora_B.weight"), "has lora_A and no lora_B"),
        (lambda t, p: t.update({p + "q_proj.bias": t[p + "q_proj.lora_A.weight"]}), "is no LoRA weight"),
        (lambda t, p: t.update({"base_model.model.model.embed_tokens.lora_embedding_A": t[
            p + "q_proj.lora_A.weight"].copy()}), "'model.embed_tokens' has lora_A and no lora_B"),
        (lambda t, p: t.update({"base_model.model.lm_head.lora_A.weight": np.zeros((8, 128), np.float32),
                                "base_model.model.lm_head.lora_B.weight": np.zeros((300, 8), np.float32)}),
         r"'base_model.model.lm_head.lora_B.weight' has the shape \[300, 8\], and .* for \[264, 8\]"),
        (lambda t, p: t.update({p + "x.lora_A.weight": t[p + "q_proj.lora_A.weight"].copy(),
                                p + "x.lora_B.weight": t[p + "q_proj.lora_B.weight"].copy()}),
         r"no module .model.layers.0.self_attn.x. that can be adapted; it has down_proj, embed_tokens"),
        (lambda t, p: t.update({p + "q_proj.lora_A.weight": np.zeros((8, 64), np.float32)}),
         r"has the shape \[8, 64\], and .* ask for \[8, 128\]"),
        (lambda t, p: t.update({p + "q_proj.lora_A.weight": np.full((8, 128), np.nan, np.float32)}),
         "numbers that are not finite"),
        (lambda t, p: t.update({p + "q_proj.lora_A.weight": np.zeros((8, 128), np.int64)}), "dtype I64"),
        (lambda t, p: t.clear(), "has no tensors"),
    ],
)  # fmt: skip
def test_what_the_tensors_may_not_be(tmp_path: Path, change: Any, says: str) -> None:
    tensors = make_tensors(1)
    change(tensors, "base_model.model.model.layers.0.self_attn.")
    folder = write_adapter(tmp_path / "one", 1, tensors=tensors)
    with pytest.raises(CheckpointError, match=says):
        load(folder)


def test_a_model_with_experts_is_refused() -> None:
    with pytest.raises(
        ValueError, match="enable_lora is not supported for this MixtralForCausalLM"
    ):
        LLM(DEFAULT_MODEL.with_name("tiny-mixtral"), enable_lora=True)


def test_without_enable_lora_a_request_with_an_adapter_is_told(tmp_path: Path) -> None:
    lora = ask(write_adapter(tmp_path / "one", 1), 1)
    with pytest.raises(ValueError, match=r"lora_request .*'one'.* LoRA is not enabled"):
        LLM().generate("a", GREEDY, use_tqdm=False, lora_request=lora)


def test_another_object_is_told() -> None:
    llm = LLM(enable_lora=True)
    with pytest.raises(TypeError, match="lora_request must be a LoRARequest, got int"):
        llm.generate("a", GREEDY, use_tqdm=False, lora_request=3)  # type: ignore[arg-type]
    assert not llm.llm_engine.has_unfinished_requests()


def spoil(folder: Path, case: int) -> None:
    """One of a hundred ways in which a folder is not what it should be."""
    rng = np.random.default_rng(case)
    weights, config = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    kind = case % 10
    data = weights.read_bytes()
    if kind == 0:
        weights.write_bytes(data[: int(rng.integers(0, len(data)))])
    elif kind == 1:
        weights.write_bytes(rng.bytes(int(rng.integers(1, 4000))))
    elif kind == 2:
        (weights if case % 20 < 10 else config).unlink()
    elif kind == 3:
        config.write_bytes(rng.bytes(int(rng.integers(1, 300))))
    elif kind == 4:
        text = config.read_text(encoding="utf-8")
        config.write_text(text[: int(rng.integers(0, len(text) - 1))], encoding="utf-8")
    elif kind == 5:  # too large
        rank = int(rng.choice([16, 64, 200]))
        write_adapter(folder, case, rank=rank)
    elif kind == 6:  # another model's
        tensors = {n: np.zeros((8, int(rng.integers(1, 100))), np.float32) for n in make_tensors(1)}
        write_adapter(folder, case, tensors=tensors)
    elif kind == 7:
        tensors = make_tensors(case)
        name = sorted(tensors)[int(rng.integers(len(tensors)))]
        tensors[name][0, 0] = rng.choice([np.nan, np.inf, -np.inf])
        write_adapter(folder, case, tensors=tensors)
    elif kind == 8:
        raw = json.loads(config.read_text(encoding="utf-8"))
        raw[str(rng.choice(["r", "lora_alpha", "target_modules", "use_dora", "bias"]))] = [1]
        config.write_text(json.dumps(raw), encoding="utf-8")
    else:
        weights.unlink()
        weights.mkdir()


def test_a_hundred_bad_adapters_are_told_and_harm_nothing(tmp_path: Path) -> None:
    engine = LLMEngine(config=EngineConfig(enable_lora=True, max_lora_rank=8, num_gpu_blocks=64))
    good = ask(write_adapter(tmp_path / "good", 7), 1)
    params = SamplingParams(temperature=0, max_tokens=110, ignore_eos=True)
    expected = [o.outputs[0].token_ids for o in engine.stream("The cache", params) if o.finished]
    engine.add_request("good", "The scheduler", params, lora_request=good)
    engine.add_request("base", "The cache", params)
    for case in range(100):
        folder = write_adapter(tmp_path / f"bad{case}", case)
        spoil(folder, case)
        with pytest.raises(ValueError, match=rf"lora_request 'bad{case}': .*bad{case}"):
            engine.add_request(f"bad{case}", "a", params, lora_request=ask(folder, 2 + case))
        engine.step()
    done = {}
    while engine.has_unfinished_requests():
        done.update({o.request_id: o for o in engine.step() if o.finished})
    assert set(done) == {"good", "base"}
    assert done["base"].outputs[0].token_ids == expected[0]
    assert engine.input_processor.loras is not None
    assert engine.input_processor.loras.num_loads == 1
