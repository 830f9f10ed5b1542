"""The rules of later releases: put on when they are asked for, and no token depends on them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import mini_vllm
from mini_vllm import LLM, SamplingParams
from mini_vllm.config.engine import EngineConfig, ResolvedConfig
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.releases import PIN, RELEASES, RULES, put_on, rules_of
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.engine.parts import DEFAULT_PARTS
from mini_vllm.sim.simulator import mini_parts as sim_parts
from tests.engine.helpers.models.published_configs import PUBLISHED, write_tiny

CHECKPOINTS = Path(mini_vllm.__file__).parent / "checkpoints"
NEWEST = RELEASES[-1]
PREFIX = "A block table says where the blocks of a request are. " * 4
PROMPTS = [PREFIX, "The KV cache", PREFIX + "The scheduler", "Kim asks for " * 12, PREFIX]
DRAFTERS = {
    "none": None,
    "ngram": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3},
    "eagle": {
        "method": "eagle",
        "model": str(CHECKPOINTS / "tiny-llama-eagle"),
        "num_speculative_tokens": 3,
    },
    "draft_model": {
        "method": "draft_model",
        "model": str(CHECKPOINTS / "tiny-llama-draft"),
        "num_speculative_tokens": 3,
    },
}


def make_scheduler(rules: str = PIN, **settings: object) -> Scheduler:
    config = ResolvedConfig.of(
        EngineConfig(max_model_len=64, num_gpu_blocks=20, rules=rules, **settings)  # type: ignore[arg-type]
    )
    return DEFAULT_PARTS.make_scheduler(config, DEFAULT_PARTS.kv_cache_manager(20, 16, 64))


def test_a_release_has_the_rules_that_began_and_have_not_ended() -> None:
    assert rules_of(PIN) == ()
    names = {release: {rule.name for rule in rules_of(release)} for release in RELEASES}
    assert "lookahead slots" in names["0.23.0"]
    assert "freed blocks without a hash" not in names["0.23.0"]
    assert "freed blocks without prefix caching" in names["0.27.1"]
    assert "freed blocks without prefix caching" not in names["0.28.0"]
    assert names["0.25.0"] == names["0.25.1"]
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.first in RELEASES[1:]
        assert rule.says.endswith(".")
        assert rule.until is None or rule.until in RELEASES[RELEASES.index(rule.first) + 1 :]


def test_a_release_that_is_not_known_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"rules must be one of 0\.22\.1, .*, got '0\.9'"):
        rules_of("0.9")
    with pytest.raises(ValueError, match=r"rules must be one of 0\.22\.1, .*, got '0\.9'"):
        EngineConfig(rules="0.9")


def test_nothing_is_put_on_a_scheduler_of_the_pin() -> None:
    """What a rule changes, it changes on the one scheduler, manager or pool."""
    ours = make_scheduler()
    newest = make_scheduler(NEWEST, scheduling_policy="priority", long_prefill_token_threshold=4)
    assert "schedule" not in vars(ours)
    assert "schedule" in vars(newest)
    assert "free_blocks" not in vars(ours.kv_cache_manager.block_pool)
    assert "free_blocks" in vars(newest.kv_cache_manager.block_pool)
    assert not ours.serves_behind_victims
    assert newest.serves_behind_victims
    assert not Scheduler.serves_behind_victims
    assert not AsyncScheduler.recounts_victims
    before = dict(vars(ours))
    put_on(ours, rules_of(PIN))
    assert vars(ours) == before


def test_padding_that_vllm_would_cut_is_refused() -> None:
    settings = {"speculative_config": DRAFTERS["ngram"], "long_prefill_token_threshold": 3}
    EngineConfig(rules="0.24.0", **settings)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"long_prefill_token_threshold \(3\) .* \(4\) with rules '0\.33\.0'"
    ):
        EngineConfig(rules=NEWEST, **settings)  # type: ignore[arg-type]


def tokens(rules: str, drafter: str, model: Path, **settings: object) -> list[list[list[int]]]:
    llm = LLM(
        model,
        rules=rules,
        block_size=4,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        speculative_config=DRAFTERS[drafter],
        **settings,
    )  # type: ignore[arg-type]
    params = [SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)] * len(PROMPTS)
    # The second time the prefix cache has all but each prompt's last tokens.
    answers = [llm.generate(PROMPTS, params) for _ in range(2)]
    llm.llm_engine.engine_core.kv_cache_manager.check_invariants()
    return [[list(answer.outputs[0].token_ids) for answer in batch] for batch in answers]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_no_token_depends_on_the_rules(drafter: str, ahead: bool) -> None:
    if ahead and drafter == "ngram":
        pytest.skip("with asynchronous scheduling, n-grams are refused")
    settings = {"async_scheduling": ahead, "num_gpu_blocks": 90}
    at_pin = tokens(PIN, drafter, CHECKPOINTS / "tiny-llama", **settings)
    assert at_pin[0] == at_pin[1]
    for release in ("0.25.1", NEWEST):
        assert tokens(release, drafter, CHECKPOINTS / "tiny-llama", **settings) == at_pin


def test_no_token_of_a_model_with_windows_depends_on_the_rules(tmp_path: Path) -> None:
    shutil.copytree(CHECKPOINTS / "tiny-llama", tmp_path / "windowed")
    config = json.loads((tmp_path / "windowed" / "config.json").read_text(encoding="utf-8"))
    config |= {"sliding_window": 20}
    (tmp_path / "windowed" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for drafter in ("none", "ngram"):
        at_pin = tokens(PIN, drafter, tmp_path / "windowed", num_gpu_blocks=90)
        for release in ("0.23.0", NEWEST):
            settings = {"num_gpu_blocks": 90, "async_scheduling": drafter == "none"}
            assert tokens(release, drafter, tmp_path / "windowed", **settings) == at_pin


@pytest.mark.parametrize(
    ("name", "windows", "hits"),
    [
        ("every layer", {"sliding_window": 16}, [0, 0, 0, 76]),
        ("some layers", {}, [0, 0, 64, 76]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_windows_keep_of_a_prefix_that_prompts_share(
    name: str, windows: dict[str, int], hits: list[int], tmp_path: Path
) -> None:
    """Cached tokens of three prompts with the same 64 in front, and of the third once more. The schedulers of
    0.29.0 and 0.33.0 say the same."""
    config = PUBLISHED["gemma-3-1b-it"] | {"sliding_window": 16}
    if windows:
        config = PUBLISHED["Llama-2-7b"] | {"architectures": ["MistralForCausalLM"]} | windows
        config["model_type"] = "mistral"
    folder = write_tiny(config, tmp_path / "model")
    prompts = [list(range(3, 67)) + [100 + i * 7 + j for j in range(16)] for i in (0, 1, 2, 2)]
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    found = {}
    for rules in ("0.28.0", "0.29.0", NEWEST):
        llm = LLM(folder, rules=rules, block_size=4, max_model_len=120, num_gpu_blocks=200)
        answers = [
            llm.generate([{"prompt_token_ids": p}], params, use_tqdm=False)[0] for p in prompts
        ]
        found[rules] = [answer.num_cached_tokens for answer in answers]
    assert found == {"0.28.0": [0, 64, 64, 76], "0.29.0": hits, NEWEST: hits}


def test_the_simulator_decides_by_the_rules_too() -> None:
    config = EngineConfig(max_model_len=64, num_gpu_blocks=20, rules=NEWEST)
    assert "free_blocks" in vars(sim_parts(config).scheduler.kv_cache_manager.block_pool)
    config = EngineConfig(max_model_len=64, num_gpu_blocks=20)
    assert "free_blocks" not in vars(sim_parts(config).scheduler.kv_cache_manager.block_pool)
