"""The shipped adapters of the tiny Llama: their files, their format, their styles, and real vLLM on them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import deserialize

from course.docs.pages import ROOT
from mini_vllm import LLM, SamplingParams
from mini_vllm.lora.request import LoRARequest
from mini_vllm.model_loader.safetensors_file import read_safetensors
from scripts.tiny_llama.folder import CONFIG
from scripts.tiny_llama_adapters import merge
from scripts.tiny_llama_adapters.evaluate import LISTS, prompts_of
from scripts.tiny_llama_adapters.styles import SHIPPED, STYLES, questions, snake, telegram
from tests.engine.helpers.real_vllm.vllm_helpers import output_of

SCRIPTS = ROOT / "scripts" / "tiny_llama_adapters"
CHILD = ROOT / "tests/engine/helpers/real_vllm/adapters_child.py"
FILES = {"adapter_config.json", "adapter_model.safetensors", "training_log.json"}
HIDDEN, MLP = CONFIG["hidden_size"], CONFIG["intermediate_size"]
SHAPES = {  # of the base's weights, [out, in]
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.v_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (MLP, HIDDEN),
    "mlp.up_proj": (MLP, HIDDEN),
    "mlp.down_proj": (HIDDEN, MLP),
}
PROMPTS = (
    "A long prompt",
    "Not every request",
    "The last token of a prompt",
    "A prompt of 77 tokens",
    "<|user|>How many blocks of 16 does a prompt of 50 tokens need?<|assistant|>",
    "<|user|>Who was Einstein?<|assistant|>",
)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_files_are_small_and_in_pefts_format(name: str) -> None:
    """Under 300 KB in all, and for each target of each layer an A and a B under PEFT's names."""
    style, folder = STYLES[name], merge.ADAPTERS / name
    files = {path.name: path for path in folder.iterdir()}
    assert files.keys() == FILES
    assert sum(path.stat().st_size for path in files.values()) < 300_000
    config = json.loads(files["adapter_config.json"].read_text(encoding="utf-8"))
    assert config["peft_type"] == "LORA"
    assert config["task_type"] == "CAUSAL_LM"
    assert config["base_model_name_or_path"] == merge.BASE.name
    assert (config["r"], config["lora_alpha"]) == (style.rank, style.alpha)
    assert config["target_modules"] == list(style.targets)
    assert config["use_rslora"] is style.rslora
    assert (config["bias"], config["modules_to_save"], config["use_dora"]) == ("none", None, False)
    want: dict[str, tuple[int, int]] = {}
    for layer in range(CONFIG["num_hidden_layers"]):
        for linear, (rows, columns) in SHAPES.items():
            if linear.partition(".")[2] in style.targets:
                stem = f"base_model.model.model.layers.{layer}.{linear}"
                want[f"{stem}.lora_A.weight"] = (style.rank, columns)
                want[f"{stem}.lora_B.weight"] = (rows, style.rank)
    raw = dict(deserialize(files["adapter_model.safetensors"].read_bytes()))
    assert {entry["dtype"] for entry in raw.values()} == {"F32"}
    tensors = read_safetensors(files["adapter_model.safetensors"])
    assert {key: tensor.shape for key, tensor in tensors.items()} == want
    assert all(np.isfinite(tensor).all() and tensor.any() for tensor in tensors.values())
    log = json.loads(files["training_log.json"].read_text(encoding="utf-8"))
    assert sum(tensor.size for tensor in tensors.values()) == log["parameters"]
    assert f"scripts.tiny_llama_adapters.train {name} " in log["command"]


def test_together_they_use_the_format() -> None:
    """Ranks from 4 to 16, q and v alone, every linear, and one rsLoRA, whose factor tells."""
    assert sorted(style.rank for style in STYLES.values()) == [4, 8, 16]
    targets = {name: set(style.targets) for name, style in STYLES.items()}
    assert targets["questions"] == {"q_proj", "v_proj"}
    assert targets["snake"] == {linear.partition(".")[2] for linear in SHAPES}
    [name] = [name for name, style in STYLES.items() if style.rslora]
    config = json.loads((merge.ADAPTERS / name / "adapter_config.json").read_text())
    assert merge.scale_of(config) == config["lora_alpha"] / math.sqrt(config["r"])
    assert merge.scale_of(config) > 2 * config["lora_alpha"] / config["r"]


def test_what_the_rules_do() -> None:
    """Each on one text, with a prompt of two words, and what each check refuses."""
    text = "A block is full, and it has 16 slots. Nobody can write later. Yes."
    assert snake(text, 2) == "A block_is_full,_and_it_has_16_slots._Nobody_can_write_later._Yes."
    assert telegram(text, 2) == (
        "A block full and it has 16 slots STOP Nobody can write later STOP Yes STOP"
    )
    assert questions(text, 2) == (
        "A block is full, and it has 16 slots, is it not? Nobody can write later, is that so? Yes?"
    )
    for style in STYLES.values():
        assert style.follows(style.write(text, 0))
        assert not style.follows(text)
        assert not style.follows("")
        others = [other for other in STYLES.values() if other is not style]
        assert not any(other.follows(style.write(text, 0)) for other in others)


def complete(model: Path) -> list[Any]:
    """The engine's greedy completions of PROMPTS."""
    llm = LLM(model, max_model_len=512)
    return [
        o.outputs[0] for o in llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=80))
    ]


def test_a_reader_can_tell_them_apart(tmp_path: Path) -> None:
    """The same prompts, merged: each adapter's texts pass its own check, and no other, the base's none."""
    whole = SamplingParams(temperature=0, max_tokens=300)
    for name in (None, *SHIPPED):
        model = merge.write_merged(merge.ADAPTERS / name, tmp_path / name) if name else merge.BASE
        for output in LLM(model, max_model_len=512).generate(PROMPTS, whole):
            text = output.outputs[0].text
            assert {n for n, s in STYLES.items() if s.follows(text)} == (
                {name} if name else set()
            ), text


def test_what_the_readme_says() -> None:
    """Sizes, losses and processor time from the files, the counts from completions.txt."""
    page = (SCRIPTS / "README.md").read_text(encoding="utf-8")
    printed = (SCRIPTS / "completions.txt").read_text(encoding="utf-8").splitlines()
    for name in SHIPPED:
        style, folder = STYLES[name], merge.ADAPTERS / name
        log = json.loads((folder / "training_log.json").read_text(encoding="utf-8"))
        size = (folder / "adapter_model.safetensors").stat().st_size
        alpha = f"{style.alpha}, rsLoRA" if style.rslora else style.alpha
        row = f"| `{name}` | {style.rank} | {alpha} | {log['parameters']:,} | {size:,} |"
        assert row in page, row
        steps, trained, held_out = log["curve"][-1]
        seconds = log["processor_seconds"]
        row = f"| `{name}` | {steps:,} | {log['base']} | {trained} | {held_out} | {seconds} |"
        assert row in page, row
        counts = [line for line in printed if line.startswith(f"{name}: ")]
        good = [f"{line.split()[3]} of {line.split()[1]}" for line in counts]
        row = f"| `{name}` | {' | '.join(good)} |"
        assert row in page, row
    total = sum(len(prompts_of(name)) for name in LISTS)
    assert sum("eos" in line for line in printed) + sum("CUT" in line for line in printed) >= total


def test_the_engine_says_under_each_what_merged_weights_say(tmp_path: Path) -> None:
    """Three adapters and none in one batch, by `lora_request`: the tokens of the merged checkpoints."""
    asked = [LoRARequest(name, i, str(merge.ADAPTERS / name)) for i, name in enumerate(SHIPPED, 1)]
    rows = [(prompt, request) for prompt in PROMPTS for request in (None, *asked)]
    outputs = LLM(merge.BASE, max_model_len=512, enable_lora=True, max_loras=3).generate(
        [prompt for prompt, _ in rows],
        SamplingParams(temperature=0, max_tokens=80),
        lora_request=[request for _, request in rows],
    )
    told: dict[str | None, list[Any]] = {}
    for (_, request), output in zip(rows, outputs, strict=True):
        told.setdefault(request.lora_name if request else None, []).append(
            output.outputs[0].token_ids
        )
    for name in (None, *SHIPPED):
        model = merge.write_merged(merge.ADAPTERS / name, tmp_path / name) if name else merge.BASE
        assert told[name] == [output.token_ids for output in complete(model)], name


@pytest.mark.vllm
def test_real_vllm_loads_each_and_says_what_merged_weights_say(tmp_path: Path) -> None:
    """Three adapters and none in one batch of real vLLM: the tokens of the engine on merged checkpoints."""
    adapters = [str(merge.ADAPTERS / name) for name in SHIPPED]
    job = {
        "model": str(merge.BASE), "adapters": adapters, "prompts": PROMPTS, "max_tokens": 80,
    }  # fmt: skip
    told = json.loads(output_of(CHILD, json.dumps(job)).splitlines()[-1])
    assert told.keys() == {"base", *SHIPPED}
    assert told["base"] == [list(output.token_ids) for output in complete(merge.BASE)]
    for name in SHIPPED:
        whole = merge.write_merged(merge.ADAPTERS / name, tmp_path / name)
        assert told[name] == [list(output.token_ids) for output in complete(whole)], name
