"""A model on several cards in the simulator: shares, ledger, prices, and the pipeline's clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from mini_vllm import LLM, EngineConfig, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.distributed.parallel_state import get_place
from mini_vllm.entrypoints.cli import main
from mini_vllm.model_loader import load_config
from mini_vllm.model_loader.shards import check_tensor_parallel
from mini_vllm.models.registry import read_config
from mini_vllm.sim import (
    Link,
    PipelineCost,
    ServingMetrics,
    SimRequest,
    Simulator,
    Speculation,
    StageTime,
    StepWork,
    all_gather_s,
    all_reduce_s,
    all_reduce_ways,
    cards,
    get_card,
    get_link,
    make_ranked_cost,
    mini_parts,
    models,
    rank_calls,
    rank_params,
    should_custom_all_reduce,
)
from mini_vllm.sim.cost import DERIVED
from tests.engine.helpers.models.checkpoint_formats import MIXTRAL

MIB = 2**20
H100 = get_card("h100")
DECODE = StepWork(1, 0, 16, 0, 16, 16_000, 16_000)
PROMPT = StepWork(1, 1, 1, 1, 2048, 2048, 2048 * 2049 // 2)
WORKS = [DECODE, PROMPT, StepWork(1, 1, 9, 1, 520, 9_000, 140_000), StepWork(1, 0, 0, 0, 0, 0, 0)]
BIG = "llama-3-70b"


# ---- one rank's share ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a100-llama-3-8b", "h100-llama-3-8b", "h100-llama-3.2-1b"])
def test_one_card_has_the_presets_figures(name: str) -> None:
    card, _, model = name.partition("-")
    cost, preset = make_ranked_cost(model, card), DERIVED[name]
    assert (cost.name, cost.source) == (name, preset.source)
    assert (cost.num_kv_tokens, cost.max_model_len) == (preset.num_kv_tokens, preset.max_model_len)
    for work in WORKS:
        assert cost.device(work) == preset.device(work)
        assert cost.communication(work) == 0


@pytest.mark.parametrize(
    ("model", "params"), [(BIG, 70_553_706_496), ("llama-3-8b", 8_030_261_248)]
)
def test_the_weights_are_shared_out(model: str, params: int) -> None:
    """Norms are on each rank, all else on one, whatever the split."""
    config = models()[model]
    assert rank_params(config, 1, 1, 0) == params
    norms = config.hidden_size * (2 * config.num_hidden_layers + 1)
    for tp, pp in ((8, 1), (2, 4), (1, 3), (4, 2)):
        shares = [rank_params(config, tp, pp, stage) for stage in range(pp)]
        assert tp * sum(shares) - (tp - 1) * norms == params, (tp, pp)


def test_a_tied_table_is_on_both_ends_of_a_pipeline() -> None:
    config = models()["llama-3.2-1b"]
    table = config.vocab_size * config.hidden_size
    whole = rank_params(config, 1, 1, 0)
    assert rank_params(config, 1, 2, 0) + rank_params(config, 1, 2, 1) == whole + table


def test_kv_heads_are_replicated_and_the_cache_stops_growing() -> None:
    """Eight KV heads: at 16 ranks each has one, as at eight."""
    kv_bytes = {
        tp: make_ranked_cost(BIG, "h200", tensor_parallel_size=tp).stages[0].kv_bytes_per_token
        for tp in (2, 4, 8, 16)
    }
    one_head = 2 * 80 * 128 * 2
    assert kv_bytes == {2: 4 * one_head, 4: 2 * one_head, 8: one_head, 16: one_head}


def test_the_fullest_card_decides_on_the_cache() -> None:
    """Of 80 layers in three stages the middle one has one less than the second; the ends have the tables."""
    cost = make_ranked_cost(BIG, "h100", tensor_parallel_size=2, pipeline_parallel_size=3)
    assert [stage.num_layers for stage in cost.stages] == [27, 27, 26]
    slots = [stage.num_kv_tokens for stage in cost.stages]
    assert cost.num_kv_tokens == min(s or 0 for s in slots) == slots[0]
    assert len(set(slots)) == 3
    less = make_ranked_cost(BIG, "h100", None, 2, 3, reserved_bytes=10**9)
    per_token = cost.stages[0].kv_bytes_per_token
    assert less.num_kv_tokens == pytest.approx(cost.num_kv_tokens - 1e9 / per_token, abs=1)


# ---- what ranks say ------------------------------------------------------------------------------


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2), (2, 2)])
def test_the_ledger_is_the_engines(tp: int, pp: int) -> None:
    """Call for call, with shapes and bytes, on each rank; the engine also made these plans, in this order,
    with each second one empty where they go through a pipeline, and the simulator makes the same."""
    config = load_config(DEFAULT_MODEL)
    llm = LLM(tensor_parallel_size=tp, pipeline_parallel_size=pp)
    core = llm.llm_engine.engine_core
    try:
        plans: list[dict[str, int]] = []
        schedule = core.scheduler.schedule

        def note() -> Any:
            output = schedule()
            plans.append(dict(output.num_scheduled_tokens))
            return output

        core.scheduler.schedule = note  # type: ignore[method-assign]
        params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (9, 7, 9)]
        prompts = [[5] * 40, [7] * 3, [9] * 20]
        llm.generate(prompts, params, use_tqdm=False)
        ledgers = core.model_executor.collective_rpc("get_ledgers")
    finally:
        core.shutdown()
    for rank, ledger in enumerate(ledgers):
        tensor: Counter[Any] = Counter()
        pipeline: Counter[Any] = Counter()
        for plan in filter(None, plans):
            calls = rank_calls(
                config, tp, pp, get_place(rank, tp)[0], sum(plan.values()), len(plan), itemsize=4
            )
            tensor += calls.tensor
            pipeline += calls.pipeline
        assert tensor == ledger["tensor"].calls, rank
        assert pipeline == ledger["pipeline"].calls, rank
    if pp > 1:
        assert [len(plan) for plan in plans[:6]] == [3, 0, 3, 0, 3, 0]
    cost = FixedStages([StageTime(1.0, 0.0)] * pp)
    requests = [
        SimRequest(str(i), 0.0, prompt, one.max_tokens or 0)
        for i, (prompt, one) in enumerate(zip(prompts, params, strict=True))
    ]
    simulated = simulate(cost, requests)
    lengths = [sorted(plan.values()) for plan in plans]
    assert [sorted(plan.values()) for plan, _ in simulated] == lengths[: len(simulated)]
    assert not any(lengths[len(simulated) :])


def test_a_step_of_the_big_model() -> None:
    """2L + 1 sums and one gather; a stage hands on two tensors, of which each rank sends its part."""
    config = models()[BIG]
    calls = rank_calls(config, 8, 1, 0, 16, 16)
    assert calls.tensor == {
        ("all_reduce", (16, 8192), 262_144): 161,
        ("all_gather", (16, 16_032), 513_024): 1,
    }
    assert not calls.pipeline
    first, last = (rank_calls(config, 4, 2, stage, 16, 16) for stage in (0, 1))
    assert first.tensor == {("all_reduce", (16, 8192), 262_144): 81}
    assert first.pipeline == {("send", (32_768,), 65_536): 2}
    assert last.tensor["all_gather", (32_768,), 65_536] == 2
    assert last.tensor["all_reduce", (16, 8192), 262_144] == 80
    assert not last.pipeline


# ---- prices --------------------------------------------------------------------------------------

SLOW = Link("slow", 1.0, 8.0, same_node=True, fully_connected=True)  # 1 s a step, 8 bytes a second


def test_the_ways_of_a_sum_by_hand() -> None:
    """16 bytes on four ranks: 3 x 16 at once; twice 3 x 4; six steps of 4."""
    ways = all_reduce_ways(H100, SLOW, 4, 16)
    assert ways == {"one_shot": 7.0, "two_shot": 5.0, "ring": 9.0}
    assert all_reduce_s(H100, SLOW, 4, 16) == 5.0
    assert all_reduce_s(H100, SLOW, 1, 16) == 0.0
    assert all_gather_s(SLOW, 4, 16) == 9.0


@pytest.mark.parametrize(
    ("card", "link", "ranks", "nbytes", "custom", "ways"),
    [
        ("h100", "nvlink", 8, MIB // 4 - 16, True, 3),
        ("h100", "nvlink", 8, MIB // 4, False, 2),  # its table's limit; symmetric memory takes it
        ("h100", "nvlink", 8, 65 * MIB, False, 1),
        ("h100", "nvlink", 4, 8 * MIB - 16, True, 3),  # 32 MiB in the table, and at most 8
        ("h100", "nvlink", 4, 8 * MIB, False, 2),
        ("a100", "nvlink", 8, 8 * MIB - 16, True, 3),  # no symmetric memory, so no table
        ("a100", "nvlink", 8, 8 * MIB, False, 1),
        ("h100", "nvlink", 8, 24, False, 2),  # no multiple of 16
        ("h100", "nvlink", 3, 1024, False, 1),
        ("h100", "nvlink", 16, 1024, False, 1),
        ("h100", "pcie", 2, 1024, True, 3),
        ("h100", "pcie", 4, 1024, False, 1),
        ("h100", "ndr400", 2, 1024, False, 1),
    ],
)
def test_the_gates(card: str, link: str, ranks: int, nbytes: int, custom: bool, ways: int) -> None:
    on = get_card(card)
    over = get_link(link, on)
    assert should_custom_all_reduce(on, over, ranks, nbytes) is custom
    assert len(all_reduce_ways(on, over, ranks, nbytes)) == ways


def test_a_step_is_its_shares_and_its_calls() -> None:
    """By hand, for a prompt on four cards in two stages."""
    cost = make_ranked_cost(BIG, "h100", "nvlink", 2, 2, pipeline_link="100gbe")
    first, last = cost.stage_times(PROMPT)
    payload = 2048 * 8192 * 2
    over = get_link("nvlink", H100)
    sums = all_reduce_s(H100, over, 2, payload)
    assert first.busy == pytest.approx(cost.stages[0].device(PROMPT) + 81 * sums)
    assert first.hand_over == pytest.approx(2 * (14e-6 + payload / 2 / 12.5e9))
    arriving = 2 * all_gather_s(over, 2, payload // 2)
    logits = all_gather_s(over, 2, 64_128 * 2)
    want = cost.stages[1].device(PROMPT) + 80 * sums + arriving + logits
    assert last.busy == pytest.approx(want)
    assert last.hand_over == 0.0
    assert cost.device(PROMPT) == pytest.approx(first.busy + first.hand_over + last.busy)
    assert cost.stage_times(WORKS[-1]) == [(0.0, 0.0)] * 2


def test_decode_gets_faster_with_cards_and_on_a_slow_link_slower() -> None:
    """At 16 tokens the weights are read in an eighth of the time; 161 sums over Ethernet take longer than
    that saves."""
    two, eight = (make_ranked_cost(BIG, "h100", None, tp).device(DECODE) for tp in (2, 8))
    assert 3 < two / eight < 4
    ethernet = make_ranked_cost(BIG, "h100", "100gbe", 8)
    assert ethernet.device(DECODE) > two
    assert ethernet.communication(DECODE) > 0.7 * ethernet.device(DECODE)


# ---- the pipeline's clock ------------------------------------------------------------------------


class FixedStages:
    """Each step takes so long in each stage, whatever it computes."""

    name, source, add_request_s, num_kv_tokens, max_model_len = "fixed", "made up", 0.0, None, None
    scatter: tuple[float, ...] = ()

    def __init__(self, times: Sequence[StageTime]) -> None:
        self.times = list(times)

    @property
    def pipeline_parallel_size(self) -> int:
        return len(self.times)

    def host(self, work: StepWork) -> float:
        return 0.0

    launching = host

    def device(self, work: StepWork) -> float:
        return sum(map(sum, self.stage_times(work)))

    def stage_times(self, work: StepWork) -> list[StageTime]:
        return self.times if work.num_tokens else [StageTime(0.0, 0.0)] * len(self.times)


def simulate(
    cost: PipelineCost, requests: list[SimRequest], **settings: Any
) -> list[tuple[dict[str, int], float]]:
    """The plans, and when each was made; at the end of them the run's end."""
    config = EngineConfig(
        num_gpu_blocks=200, max_model_len=512,
        pipeline_parallel_size=cost.pipeline_parallel_size, **settings,
    )  # fmt: skip
    plans: list[tuple[dict[str, int], float]] = []
    simulator = Simulator(
        mini_parts(config), cost, ServingMetrics(),
        lambda plan, now: plans.append((dict(plan.num_scheduled_tokens), now)),
    )  # fmt: skip
    simulator.run(requests)
    assert simulator.metrics.completed == len(requests)
    simulate.last = simulator.metrics.result(0)  # type: ignore[attr-defined]
    return plans


def two(apart: float) -> list[SimRequest]:
    return [SimRequest("ada", 0.0, [1] * 8, 4), SimRequest("bo", apart, [2] * 8, 4)]


def test_requests_that_come_together_leave_half_of_it_empty() -> None:
    """Two stages of 1 s: a token each takes 2 s, of which each stage computes for one."""
    cost = FixedStages([StageTime(1.0, 0.0)] * 2)
    plans = simulate(cost, two(0.0))
    assert [len(plan) for plan, _ in plans[:8]] == [2, 0] * 4
    assert [now for _, now in plans[:8:2]] == [0.0, 2.0, 4.0, 6.0]
    result = simulate.last  # type: ignore[attr-defined]
    assert (result["duration"], result["device_busy_share"]) == (8.0, 0.5)
    plans = simulate(cost, two(0.0), max_num_seqs=1)
    result = simulate.last  # type: ignore[attr-defined]
    assert result["duration"] == 16.0, "one after the other"


def test_a_step_behind_another_waits_for_its_stage() -> None:
    """A token budget of one prompt splits the two: the second is a step behind, in each stage."""
    cost = FixedStages([StageTime(1.0, 0.5), StageTime(2.0, 0.0)])
    plans = simulate(cost, two(0.0), max_num_batched_tokens=8, max_num_seqs=8)
    assert [list(plan) for plan, _ in plans[:4]] == [["ada"], ["bo"], ["ada"], ["bo"]]
    # Ada's first: 0-1, on its way to 1.5, 1.5-3.5. Bo's: 1-2, there at 2.5, waits, 3.5-5.5.
    # Ada's second is planned at 3.5: 3.5-4.5, there at 5, waits, 5.5-7.5.
    assert [now for _, now in plans[:5]] == [0.0, 0.0, 3.5, 5.5, 7.5]
    assert simulate.last["duration"] == 17.5  # type: ignore[attr-defined]


def test_chunks_of_a_prompt_follow_each_other_through_the_stages() -> None:
    """No token decides on the next chunk, so it is not waited for."""
    cost = FixedStages([StageTime(1.0, 0.0)] * 4)
    one = [SimRequest("ada", 0.0, [1] * 64, 1)]
    plans = simulate(cost, one, max_num_batched_tokens=16, max_num_seqs=8)
    assert [(sum(plan.values()), now) for plan, now in plans[:4]] == [(16, 0.0)] * 4
    assert not any(plan for plan, _ in plans[4:])
    assert simulate.last["duration"] == 7.0  # type: ignore[attr-defined]


def test_what_does_not_go_together_is_refused() -> None:
    config = EngineConfig(num_gpu_blocks=200, max_model_len=512, pipeline_parallel_size=2)
    with pytest.raises(ValueError, match=r"async_scheduling .* pipeline_parallel_size 2"):
        mini_parts(config, AsyncScheduler, async_scheduling=True)
    with pytest.raises(ValueError, match=r"pipeline_parallel_size 2: .* one of 1 stages"):
        Simulator(mini_parts(config), DERIVED["a100-llama-3-8b"], ServingMetrics())
    cost = FixedStages([StageTime(1.0, 0.0)] * 2)
    with pytest.raises(ValueError, match=r"pipeline_parallel_size 1: .* one of 2 stages"):
        Simulator(mini_parts(replace(config, pipeline_parallel_size=1)), cost, ServingMetrics())
    drafts: Any = {
        "method": "ngram", "num_speculative_tokens": 1,
        "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5],
    }  # fmt: skip
    config = replace(config, speculative_config=drafts)
    assert config.speculation is not None
    speculation = Speculation(config.speculation)
    with pytest.raises(ValueError, match=r"speculative_config .* pipeline_parallel_size 2"):
        Simulator(mini_parts(config), cost, ServingMetrics(), speculation=speculation)


# ---- refusals by name ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((BIG, "h100"), "does not fit: a rank of stage 0 has 141.1 GB"),
        ((BIG, "l4", None, 4), "does not fit: a rank of stage 0 has 35.3 GB"),
        ((BIG, "h100", None, 3), r"num_attention_heads \(64\)"),
        ((BIG, "h100", None, 1, 81), "pipeline_parallel_size"),
        ((BIG, "h100", None, 8, 0), "pipeline_parallel_size.*got 0"),
        ((BIG, "h100", None, 128), "tensor_parallel_size.*at most 64"),
        (("llama-4", "h100"), "unknown model 'llama-4': one of .*llama-3-70b"),
        ((BIG, "v100"), "unknown card 'v100': one of a100"),
        ((BIG, "h100", "string", 8), "unknown link 'string'"),
        ((BIG, "l4", "nvlink", 8), "the card 'l4' has none"),
        ((BIG, "h100", "nvlink,gb_s=fast", 8), "gb_s=fast"),
        ((BIG, "h100", "nvlink,gb_s=0", 8), "gb_s=0"),
        ((BIG, "h100", "nvlink,speed=9", 8), "speed=9"),
        ((BIG, "h100", "nvlink,latency_us=nan", 8), "latency_us=nan"),
        ((load_config(MIXTRAL), "h100", None, 2), "mixture of experts"),
        ((replace(models()[BIG], sliding_window=4096), "h100", None, 8), "sliding_window"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(arguments: tuple[Any, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make_ranked_cost(*arguments)


def test_settings_may_be_a_files_content_and_figures_your_own() -> None:
    raw = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 128_256, "hidden_size": 8192,
        "intermediate_size": 28_672, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 8192,
    }  # fmt: skip
    mine, named = (make_ranked_cost(model, "h100", None, 8) for model in (raw, BIG))
    assert mine.device(DECODE) == named.device(DECODE)
    assert make_ranked_cost(read_config(raw), "h100", None, 8).num_kv_tokens == named.num_kv_tokens
    link = get_link("nvlink,latency_us=2,gb_s=400", H100)
    assert link.latency_s == pytest.approx(2e-6)
    assert link.bandwidth == 400e9
    assert link.fully_connected
    assert get_link(None, get_card("l4")).name == "pcie4"
    with pytest.raises(ValueError, match="reserved_bytes"):
        make_ranked_cost(BIG, "h100", None, 8, reserved_bytes=-1)
    with pytest.raises(ValueError, match="gpu_memory_utilization"):
        make_ranked_cost(BIG, "h100", None, 8, gpu_memory_utilization=1.5)


def test_every_card_and_model_of_the_table_can_be_taken() -> None:
    for card in cards().values():
        assert get_link(None, card).bandwidth > 0
    for config in models().values():
        check_tensor_parallel(config, 8)


# ---- the command ---------------------------------------------------------------------------------

SMALL = ("simulate", "--num-prompts", "12", "--input-len", "40", "--output-len", "6")


def command(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 0) -> str:
    assert main([*SMALL, *argv]) == status
    out, err = capsys.readouterr()
    return out if status == 0 else err


def test_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    plain = command(capsys)
    assert command(capsys, "-tp", "1", "-pp", "1") == plain, "off costs nothing"
    out = command(capsys, "--cost", "h200-llama-3-8b", "--cudagraph-mode", "FULL")
    assert "The cost of a step: h200-llama-3-8b, FULL; derived" in out, (
        "any card and model, on one card"
    )
    out = command(capsys, "--cost", "h100-llama-3-70b", "-tp", "4", "-pp", "2", "--replicas", "2")
    assert "tensor parallel 4, pipeline parallel 2, over nvlink4 (3.4 us, 450 GB/s)" in out
    assert "Empty steps:                             0" not in out
    out = command(
        capsys, "--cost", "h100-llama-3-70b", "-tp", "8", "-pp", "2", "--link", "nvlink,gb_s=400",
        "--pipeline-link", "100gbe",
    )  # fmt: skip
    assert "(3.4 us, 400 GB/s), from stage to stage 100gbe (14 us, 12.5 GB/s)" in out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--link", "pcie"], "--link 'pcie' needs --tensor-parallel-size or --pipeline-parallel-size"),
        (["-tp", "2", "--pipeline-link", "pcie"], "--pipeline-link 'pcie' needs --pipeline"),
        (["-tp", "2", "--cost", "vllm-cpu-tiny-llama"], "CARD-MODEL, got 'vllm-cpu-tiny-llama'"),
        (["-tp", "2", "--cudagraph-mode", "FULL"], "--cudagraph-mode does not go with --tensor-par"),
        (["-pp", "2", "--async-scheduling"], "--async-scheduling does not go with --pipeline-par"),
        (["-pp", "2", "-sc", '{"method": "ngram", "num_speculative_tokens": 1, '
          '"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5]}'],
         "speculative_config does not go with pipeline_parallel_size 2"),
        (["--cost", "h100-llama-3-70b"], "does not fit: a rank of stage 0 has 141.1 GB of weights"),
    ],
)  # fmt: skip
def test_flags_that_do_not_go_together(
    capsys: pytest.CaptureFixture[str], argv: list[str], says: str
) -> None:
    assert says in command(capsys, *argv, status=2)
