"""The shipped drafters of the tiny Llama: their files, their weights, and what was recorded of them."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module
from mini_vllm import LLM, SamplingParams
from mini_vllm.model_loader import load_model
from mini_vllm.model_loader.drafter import load_eagle
from scripts.tiny_llama.folder import CONFIG

CHECKPOINTS = ROOT / "mini_vllm" / "checkpoints"
TARGET = CHECKPOINTS / "tiny-llama"
ACCEPTANCE = ROOT / "scripts" / "tiny_llama_drafters" / "acceptance.json"
README = ROOT / "scripts" / "tiny_llama_drafters" / "README.md"
LAB = ROOT / "phase-08-speculative-decoding" / "labs" / "lab-05-eagle-for-real"
DRAFTERS = ("tiny-llama-draft", "tiny-llama-eagle", "tiny-llama-eagle3")
TOKENIZER = (
    "generation_config.json", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json",
)  # fmt: skip


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_files_are_small_and_the_tokenizer_is_the_targets(name: str) -> None:
    """Under 1 MB in all, and a training log that counts the weights."""
    files = {path.name: path for path in (CHECKPOINTS / name).iterdir()}
    assert files.keys() == {*TOKENIZER, "config.json", "model.safetensors", "training_log.json"}
    assert sum(path.stat().st_size for path in files.values()) < 1_000_000
    for file in TOKENIZER:
        assert files[file].read_bytes() == (TARGET / file).read_bytes(), file
    log = json.loads(files["training_log.json"].read_text(encoding="utf-8"))
    assert files["model.safetensors"].stat().st_size - 4 * log["parameters"] < 6_000
    assert f"scripts.tiny_llama_drafters.train {name.rpartition('-')[2]} " in log["command"]


def test_the_engine_loads_each_of_them() -> None:
    """Whole, finite and of the target's vocabulary."""
    target = load_model(TARGET)
    assert load_eagle(CHECKPOINTS / "tiny-llama-eagle", "eagle", target).lm_head is target.lm_head
    assert target.aux_hidden_state_layers == ()
    load_eagle(CHECKPOINTS / "tiny-llama-eagle3", "eagle3", target)
    assert len(target.aux_hidden_state_layers) == 3
    draft = load_model(CHECKPOINTS / "tiny-llama-draft")
    assert draft.config.vocab_size == CONFIG["vocab_size"]
    assert draft.config.hidden_size < CONFIG["hidden_size"]


def test_real_vllm_accepts_what_readme_says() -> None:
    """No text changed, the EAGLE head's first token accepted above 70 %, and the table is the file's."""
    recorded = json.loads(ACCEPTANCE.read_text(encoding="utf-8"))
    page = README.read_text(encoding="utf-8")
    for method, result in recorded["methods"].items():
        assert result["equal_texts"] == recorded["prompts"], method
        per_position = result["num_accepted_tokens_per_pos"]
        assert sum(per_position) == result["num_accepted_tokens"], method
        assert row(method, result) in page, row(method, result)
    eagle = recorded["methods"]["eagle"]
    assert eagle["num_accepted_tokens_per_pos"][0] > 0.7 * eagle["num_drafts"]


@pytest.mark.parametrize("method", ["ngram", "draft_model", "eagle", "eagle3"])
def test_the_engine_accepts_what_real_vllm_accepts(method: str) -> None:
    """The same counters, but for guesses that a last bit decides: on another processor a few may turn."""
    recorded = json.loads(ACCEPTANCE.read_text(encoding="utf-8"))
    result, settings = recorded["methods"][method], recorded["settings"]
    config = result["speculative_config"] | {
        "num_speculative_tokens": settings["num_speculative_tokens"]
    }
    if "model" in config:
        config["model"] = CHECKPOINTS / config["model"]
    names = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "enable_prefix_caching")
    llm = LLM(
        TARGET, speculative_config=config, disable_log_stats=False, async_scheduling=False,
        **{name: settings[name] for name in names},
    )  # fmt: skip
    sampling = SamplingParams(temperature=0, max_tokens=settings["max_tokens"])
    folder = ROOT / "scripts" / "tiny_llama"
    prompts = [
        line for name in recorded["lists"] for line in (folder / name).read_text().splitlines()
    ]
    outputs = llm.generate(prompts, sampling)
    assert sum(len(output.outputs[0].token_ids) for output in outputs) == recorded["tokens"]
    prefix = "vllm:spec_decode_"
    got: dict[str, Any] = {
        metric.name.removeprefix(prefix): getattr(metric, "values", None) or metric.value  # type: ignore[attr-defined]
        for metric in llm.get_metrics()
        if metric.name.startswith(prefix)
    }
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert abs(got[name] - result[name]) <= 0.01 * result[name], f"{name}: {got}, {result}"


def row(method: str, result: dict[str, Any]) -> str:
    """A line of the table in README.md."""
    drafts, per_position = result["num_drafts"], result["num_accepted_tokens_per_pos"]
    shares = " | ".join(f"{100 * n / drafts:.1f}" for n in per_position)
    length = 1 + result["num_accepted_tokens"] / drafts
    return (
        f"| {method} | {drafts:,} | {result['num_draft_tokens']:,} | "
        f"{result['num_accepted_tokens']:,} | {shares} | {length:.2f} |"
    )


@pytest.mark.torch
@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_the_engines_head_is_the_trained_one(method: str) -> None:
    """First pass of a chain, in torch and in the engine: the same states, from random ones of the target."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from scripts.tiny_llama_drafters import heads
    from tests.engine.models.test_eagle_models import HeadServer

    folder = CHECKPOINTS / f"tiny-llama-{method}"
    target = load_model(TARGET)
    head: Any = load_eagle(folder, method, target)
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    weights.pop("d2t", None), weights.pop("t2d", None)
    trained: Any = heads.Eagle() if method == "eagle" else heads.Eagle3(*heads.sizes_of(weights))
    trained.load_state_dict(weights)
    rng = np.random.default_rng(1)
    ids = rng.integers(8, 140, 40)
    width = CONFIG["hidden_size"] * (1 if method == "eagle" else 3)
    given = rng.standard_normal((40, width)).astype(np.float32)
    with torch.no_grad():
        states = torch.tensor(given)[None]
        if method == "eagle3":
            states = trained.fc(states)
        out, state = trained(torch.tensor(target.embed_tokens[ids])[None], states, [])
    want = torch.cat((out, state), dim=-1)[0].numpy()
    server = HeadServer(head, given if method == "eagle" else head.combine_hidden_states(given))
    got = np.concatenate(
        [server.step({"a": ids[:17].tolist()})["a"], server.step({"a": ids[17:].tolist()})["a"]]
    )
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


def test_what_lab_08_05_says_of_its_recording() -> None:
    """The numbers under "What you should find", from the recorded file and the solution."""
    lab = load_module(LAB / "solution.py", "lab_08_05_solution")
    support = load_module(LAB / "support.py", "lab_08_05_support")
    page = (LAB / "README.md").read_text(encoding="utf-8")
    kept, requests = support.recorded(), support.requests()
    places = [hits for text in kept["right"] for hits in text]
    pairs = [pair for text in kept["right"] for pair in itertools.pairwise(text)]
    after_a_miss = [bool(b) for a, b in pairs if not a]
    after_a_hit = [bool(b) for a, b in pairs if a]
    counted = {k: support.in_vllm(lab, k) for k in (1, 2, 3, 5)}
    tokens = sum(kept["plain"]["tokens"])
    for said in (
        f"all {len(places):,} places in the texts its first guess is right at "
        f"{100 * sum(map(bool, places)) / len(places):.0f} %, and in the drafts of k = 3 in "
        f"{100 * lab.acceptance_rates(counted[3])[0]:.0f} %",
        f"the next is right in {100 * sum(after_a_miss) / len(after_a_miss):.0f} %, after a right one in "
        f"{100 * sum(after_a_hit) / len(after_a_hit):.0f} %",
        f"{lab.mean_acceptance_length(counted[3]):.2f} tokens per draft, yet only a factor of "
        f"{kept['plain']['steps'] / kept['runs']['3']['steps']:.1f} in steps",
        f"takes {kept['plain']['steps']} steps, with k = 3 it takes {kept['runs']['3']['steps']}",
        f"and {lab.thrown_away(counted[3], len(requests), tokens)} of the tokens came after",
        f"With k = 5 these are {lab.thrown_away(counted[5], len(requests), tokens)}",
        f"k = 2 brings {lab.mean_acceptance_length(counted[2]):.2f}",
    ):
        assert said in page, said
    rates = lab.acceptance_rates(counted[5])
    off = {
        k: lab.expected_drafts(rates[:k], len(requests), tokens) / counted[k].drafts - 1
        for k in counted
    }
    assert all(abs(off[k]) < 0.04 for k in (1, 2, 3)), off
    assert round(100 * off[5]) == -6, off


@pytest.mark.vllm
def test_real_vllm_counts_what_lab_08_05_predicts() -> None:
    """Live, with four speculative tokens, of which nothing was recorded."""
    lab = load_module(LAB / "solution.py", "lab_08_05_solution")
    support = load_module(LAB / "support.py", "lab_08_05_support")
    command = [sys.executable, str(LAB / "ask_vllm.py"), "4", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    steps, counters = lab.serve(support.requests(), 4)
    assert {
        "num_drafts": counters.drafts,
        "num_draft_tokens": counters.draft_tokens,
        "num_accepted_tokens": counters.accepted,
        "num_accepted_tokens_per_pos": list(counters.per_position),
    } == told["counters"]
    assert steps == told["steps"]
