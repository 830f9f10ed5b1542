"""Graphs, a sliding window, torch and drafts in all sixteen ways: the plain run's tokens."""

from __future__ import annotations

import functools
import json
import shutil
from itertools import product
from pathlib import Path

import pytest

import mini_vllm
from mini_vllm import LLM, SamplingParams
from tests.engine.helpers.thorough import either

ABILITIES = ("graphs", "window", "torch", "drafts")
PROMPTS = ["The KV cache", "A block table is a block table is a block", "Kim asks for " * 12]
WINDOW = 20
CHECKPOINTS = Path(mini_vllm.__file__).parent / "checkpoints"
TINY = CHECKPOINTS / "tiny-llama"
DRAFTERS = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3},
} | {
    method: {"method": method, "model": str(CHECKPOINTS / folder), "num_speculative_tokens": 3}
    for method, folder in (
        ("eagle", "tiny-llama-eagle"),
        ("eagle3", "tiny-llama-eagle3"),
        ("draft_model", "tiny-llama-draft"),
    )
}


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped Llama, attending to a window."""
    folder = tmp_path_factory.mktemp("windowed") / "model"
    shutil.copytree(TINY, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"sliding_window": WINDOW, "eos_token_id": None}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def generate(
    model: str | Path, on: tuple[str, ...], drafter: str = "ngram", **other: object
) -> LLM:
    settings: dict[str, object] = {
        "max_num_batched_tokens": 64,
        "max_num_seqs": 8,
        "num_gpu_blocks": 60,
        "disable_log_stats": False,
        **other,
    }
    if "graphs" in on:
        settings["cudagraph_mode"] = "FULL_AND_PIECEWISE"
    if "torch" in on:
        settings["attention"] = "torch"
    if "drafts" in on:
        settings["speculative_config"] = DRAFTERS[drafter]
    return LLM(model, **settings)  # type: ignore[arg-type]


def tokens_of(llm: LLM) -> list[list[int]]:
    greedy = SamplingParams(temperature=0, max_tokens=either(20, 30), ignore_eos=True)
    drawn = SamplingParams(temperature=1, seed=3, max_tokens=12, ignore_eos=True)
    outputs = llm.generate(PROMPTS * 2, [greedy] * 3 + [drawn] * 3, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


@functools.cache
def plain_tokens(model: str | Path, on: tuple[str, ...] = ()) -> list[list[int]]:
    """What the plain run says, once for each model."""
    return tokens_of(generate(model, on))


def check(llm: LLM, on: tuple[str, ...]) -> None:
    """What is on was used."""
    runner = llm.llm_engine.engine_core.model_runner
    assert (runner.forward.stat is not None) == ("graphs" in on)
    assert type(runner.kv_caches[0]).__module__.startswith("torch" if "torch" in on else "numpy")
    assert runner.sliding_windows == [WINDOW if "window" in on else None]
    assert runner.speculation.num_spec_tokens == (3 if "drafts" in on else 0)


@pytest.mark.parametrize(
    "on",
    [tuple(a for a, used in zip(ABILITIES, chosen, strict=True) if used)
     for chosen in product((False, True), repeat=4)],
    ids=lambda on: "+".join(on) or "plain",
)  # fmt: skip
def test_every_combination_gives_the_plain_run_s_tokens(
    on: tuple[str, ...], windowed: Path
) -> None:
    if "torch" in on:
        pytest.importorskip("torch")
    model = windowed if "window" in on else TINY
    llm = generate(model, on)
    made = tokens_of(llm)
    check(llm, on)
    plain = plain_tokens(model, ("window",) if "window" in on else ())
    assert made[:3] == plain[:3]
    if "drafts" not in on:  # with drafts the draws are others, of the same distribution
        assert made[3:] == plain[3:]


@pytest.mark.parametrize("drafter", ["eagle", "eagle3", "draft_model"])
@pytest.mark.parametrize(
    "on", [("graphs", "drafts"), ("torch", "drafts"), ("graphs", "torch", "drafts")],
    ids="+".join,
)  # fmt: skip
@pytest.mark.parametrize("ahead", [False, True], ids=["sync", "async"])
def test_a_drafter_with_a_model_goes_with_graphs_and_torch(
    on: tuple[str, ...], drafter: str, ahead: bool
) -> None:
    if "torch" in on:
        pytest.importorskip("torch")
    llm = generate(TINY, on, drafter, async_scheduling=ahead)
    made = tokens_of(llm)
    check(llm, on)
    accepted = [m for m in llm.get_metrics() if m.name == "vllm:spec_decode_num_accepted_tokens"]
    assert accepted[0].value > 20  # type: ignore[attr-defined]
    assert made[:3] == plain_tokens(TINY)[:3]


def test_a_window_goes_with_ngrams_only(windowed: Path) -> None:
    with pytest.raises(
        ValueError, match="method 'eagle' is not supported for this LlamaForCausalLM"
    ):
        generate(windowed, ("drafts",), "eagle")
