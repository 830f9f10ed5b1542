"""Where `mini_vllm` differs from vLLM 0.22.1 on purpose (UPSTREAM_PIN.md), with both sides shown.

A test marked `vllm` that fails here means that vLLM has mended what it is about.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from course.parity import mini_parts
from course.parity.traces import Arrival, Config, Parts
from mini_vllm.config.engine import EngineConfig
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.upstream_scheduler import UpstreamAsyncScheduler, UpstreamScheduler
from mini_vllm.engine.build import check_windows
from mini_vllm.engine.parts import EngineParts
from mini_vllm.sampling_params import SamplingParams
from tests.engine.helpers.engine.workloads import (
    DEFAULT_PARTS,
    make_engine,
    make_request,
    make_scheduler,
    step,
)
from tests.engine.helpers.sampling.seeds_beside import play as play_seeded
from tests.engine.helpers.scheduler import reset_with_drafts, windows_with_drafts
from tests.engine.helpers.scheduler.preempted_mid_step import play

UPSTREAM = EngineParts(scheduler=UpstreamScheduler)

# -- a victim that was already scheduled in the same step -----------------------------------------

ALONE = {"num_gpu_blocks": 40, "enable_prefix_caching": True, "before": None, "high": False}
SHORT = ALONE | {"num_gpu_blocks": 9, "high": True}
SITUATIONS = {
    "alone": ALONE,
    "not cached": SHORT | {"enable_prefix_caching": False},
    "preempted": SHORT,
    "after a neighbour": SHORT | {"before": "The prompt is hidden. " * 6},
}
RIGHT, WRONG = "compute only one new tok", "compute only the rest."


@functools.cache
def answers(engine: str) -> dict[str, Any]:
    return dict(zip(SITUATIONS, play(engine, list(SITUATIONS.values())), strict=True))


def test_a_victim_of_the_same_step_says_what_it_says_alone() -> None:
    found = answers("mini_vllm")
    assert {name: answer["texts"]["low"] for name, answer in found.items()} == dict.fromkeys(
        SITUATIONS, RIGHT
    )
    assert found["preempted"]["preempted"] == ["low"]
    for name in ("preempted", "after a neighbour"):
        assert found[name]["logprobs"] == pytest.approx(found["alone"]["logprobs"], abs=1e-4), name


def check_faulty(found: dict[str, Any]) -> None:
    """What vLLM 0.22.1 does: another text, which hangs on what another salt's request left."""
    assert found["alone"]["texts"]["low"] == found["not cached"]["texts"]["low"] == RIGHT
    assert found["preempted"]["preempted"] == ["low"]
    assert found["preempted"]["texts"]["low"] == WRONG
    assert found["after a neighbour"]["texts"]["low"] == WRONG
    first = [found[name]["logprobs"][0] for name in ("preempted", "after a neighbour")]
    assert abs(first[0] - first[1]) > 0.01, f"the neighbour is not seen: {first}"


def test_with_upstreams_scheduler_it_says_something_else() -> None:
    check_faulty(answers("upstream_scheduler"))


@pytest.mark.vllm
def test_real_vllm_says_something_else() -> None:
    from course.parity.tokens_run import run_worker

    job = list(SITUATIONS.values())
    found = run_worker("tests.engine.helpers.scheduler.preempted_mid_step", ["vllm"], job)
    check_faulty(dict(zip(SITUATIONS, found, strict=True)))


@pytest.mark.parametrize(
    ("parts", "num_hit_tokens"), [(DEFAULT_PARTS, 8), (UPSTREAM, 10)], ids=["ours", "upstream"]
)
def test_only_what_was_computed_before_the_step_stays_published(
    parts: EngineParts, num_hit_tokens: int
) -> None:
    """8 blocks of 2; a prompt of 12 in chunks of 4, then one of 4, in the step of the last chunk."""
    scheduler = make_scheduler(
        parts,
        block_size=2,
        num_gpu_blocks=9,
        max_model_len=32,
        long_prefill_token_threshold=4,
        scheduling_policy="priority",
    )
    low = make_request(scheduler, "low", range(10, 22), priority=5, arrival_time=0.0, max_tokens=4)
    scheduler.add_request(low)
    step(scheduler)
    high = make_request(scheduler, "high", range(30, 34), arrival_time=1.0, max_tokens=2)
    scheduler.add_request(high)
    step(scheduler)
    decided = step(scheduler)
    assert decided.preempted == {"low"}
    assert decided.scheduled == {"high": 1}
    scheduler.kv_cache_manager.check_invariants()
    assert step(scheduler).scheduled == {"low": 12 - num_hit_tokens}
    assert low.num_cached_tokens == num_hit_tokens


# -- equals ---------------------------------------------------------------------------------------

SIZE_OF_EQUALS = (6, 4)  # prompt tokens, output tokens: 9 slots each, and the pool has 9
EQUALS: dict[str, Any] = {
    "block_size": 1,
    "num_gpu_blocks": 10,
    "max_model_len": 32,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 16,
    "long_prefill_token_threshold": 1,
    "enable_prefix_caching": False,
    "scheduler_reserve_full_isl": False,
    "scheduling_policy": "priority",
}


def steps_of_equals(parts: EngineParts, limit: int) -> int:
    """Steps that two requests, equal but for their ids, take to the end; at most `limit`."""
    scheduler = make_scheduler(parts, **EQUALS)
    length, max_tokens = SIZE_OF_EQUALS
    for request_id in ("0_parent", "1_parent"):
        prompt = list(range(5, 5 + length))
        scheduler.add_request(
            make_request(scheduler, request_id, prompt, arrival_time=0.0, max_tokens=max_tokens)
        )
    for count in range(limit):
        if not scheduler.has_unfinished_requests():
            return count
        step(scheduler)
    return limit


def test_of_two_equals_one_gets_on() -> None:
    assert steps_of_equals(DEFAULT_PARTS, 400) == 18


def test_with_upstreams_scheduler_they_preempt_each_other_for_ever() -> None:
    assert steps_of_equals(UPSTREAM, 400) == 400


@pytest.mark.parametrize("order", [("0_r", "1_r"), ("1_r", "0_r")])
def test_the_larger_id_among_equals_goes_whatever_the_running_order(order: tuple[str, str]) -> None:
    scheduler = make_scheduler(**EQUALS | {"num_gpu_blocks": 6, "long_prefill_token_threshold": 0})
    for request_id in order:
        request = make_request(scheduler, request_id, [5], arrival_time=0.0, max_tokens=5)
        scheduler.add_request(request)
        if request_id == order[0]:
            step(scheduler)
    preempted: set[str] = set()
    while not preempted:
        preempted = step(scheduler).preempted
    assert preempted == {"1_r"}


def test_children_of_one_request_come_to_an_end() -> None:
    """The same through the engine: `n` = 2 under the settings in which vLLM 0.22.1 never returns."""
    engine = make_engine(DEFAULT_PARTS, **EQUALS)
    length, max_tokens = SIZE_OF_EQUALS
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=0, n=2)
    engine.add_request("parent", list(range(5, 5 + length)), params)
    lengths, count = {}, 0
    while engine.has_unfinished_requests() and count < 400:
        for output in engine.step():
            lengths |= {one.index: len(one.token_ids) for one in output.outputs}
        count += 1
    assert count == 18
    assert lengths == {0: max_tokens, 1: max_tokens}


def real_scheduler(**changes: Any) -> tuple[Any, Callable[[str, int, int], Any], Callable[[], int]]:
    """vLLM's own scheduler in the settings `EQUALS`: it, `add` a request, `step` it.

    `add(id, prompt length, max_tokens)` returns the request; `step()` the tokens it scheduled.
    """
    from course.parity.record import vllm_parts

    settings = EQUALS | changes
    config = {
        "num_blocks" if name == "num_gpu_blocks" else name: value
        for name, value in settings.items()
        if name != "scheduling_policy"
    }
    parts = vllm_parts(config | {"policy": settings["scheduling_policy"]})  # type: ignore[arg-type]
    requests = {}

    def add(request_id: str, length: int, max_tokens: int) -> Any:
        arrival: Arrival = {
            "id": request_id, "step": 0, "prompt": list(range(5, 5 + length)), "priority": 0,
            "max_tokens": max_tokens, "ignore_eos": True, "abort": None,
        }  # fmt: skip
        request = requests[request_id] = parts.make_request(arrival, 0)  # 0: the arrival time
        parts.scheduler.add_request(request)
        return request

    def one_step() -> int:
        output = parts.scheduler.schedule()
        ids = list(output.num_scheduled_tokens)
        caught_up = [requests[i].num_computed_tokens == requests[i].num_tokens for i in ids]
        sampled = [[9] if done else [] for done in caught_up]
        parts.scheduler.update_from_output(output, parts.make_output(ids, sampled))
        return int(output.total_num_scheduled_tokens)

    return parts.scheduler, add, one_step


@pytest.mark.vllm
def test_real_vllm_lets_equals_preempt_each_other_for_ever() -> None:
    _, add, one_step = real_scheduler()
    equals = [add("0_parent", *SIZE_OF_EQUALS), add("1_parent", *SIZE_OF_EQUALS)]
    for _ in range(400):
        one_step()
    assert [request.is_finished() for request in equals] == [False, False]
    assert min(request.num_preemptions for request in equals) > 20


# -- a request that may come to need more blocks than there are -----------------------------------


def test_a_request_that_may_not_fit_is_refused() -> None:
    scheduler = make_scheduler(**EQUALS)
    too_long = make_request(scheduler, "r", list(range(5, 11)), max_tokens=12)
    with pytest.raises(ValueError, match=r"may need 17 KV blocks .* the pool has 9"):
        scheduler.add_request(too_long)


@pytest.mark.vllm
def test_real_vllm_takes_it_and_never_ends() -> None:
    scheduler, add, one_step = real_scheduler()
    too_long = add("r", 6, 12)
    scheduled = [one_step() for _ in range(100)]
    assert len(scheduler.requests) == 1
    assert not too_long.is_finished()
    assert too_long.num_preemptions > 0
    assert too_long.num_output_tokens < 12, scheduled


# -- a forced reset while drafts are in flight --------------------------------------------------------


@pytest.mark.parametrize("num_drafts", [0, 1, 3])
@pytest.mark.parametrize("reset_before", [None, 4])
def test_a_reset_with_drafts_in_flight_loses_nothing(
    num_drafts: int, reset_before: int | None
) -> None:
    """One result is void, however many tokens are in it."""
    parts = mini_parts(reset_with_drafts.config(num_drafts), AsyncScheduler)
    found = reset_with_drafts.text(parts, reset_before)
    assert found == reset_with_drafts.RIGHT, "results that hold were dropped"


def check_lost(make_parts: Callable[[Config], Parts]) -> None:
    """What vLLM 0.22.1 does: with one draft a token is gone, and what follows moves up; with three the text
    is another. Without drafts, or without the reset, nothing is wrong."""
    right = reset_with_drafts.RIGHT
    found = {
        (num_drafts, reset_before): reset_with_drafts.text(
            make_parts(reset_with_drafts.config(num_drafts)), reset_before
        )
        for num_drafts in (0, 1, 3)
        for reset_before in (None, 4)
    }
    for num_drafts, reset_before in found:
        if not num_drafts or reset_before is None:
            assert found[num_drafts, reset_before] == right
    one = found[1, 4]
    assert one[:3] == right[:3]
    assert one[3:12] == right[4:13], "a token is lost"
    assert found[3, 4] != right


def test_with_upstreams_way_of_counting_a_token_is_lost() -> None:
    """`UpstreamAsyncScheduler` counts as vLLM does."""
    check_lost(lambda config: mini_parts(config, UpstreamAsyncScheduler))


@pytest.mark.vllm
def test_real_vllm_loses_it() -> None:
    """The same, on vLLM's own `AsyncScheduler`."""
    from course.parity.record import vllm_parts

    check_lost(lambda config: vllm_parts(config, True))


# -- a window, with drafts in flight -----------------------------------------------------------------


def check_given_back_too_early(make_parts: Callable[[Config], Parts]) -> None:
    """What vLLM 0.22.1 decides: blocks are given back that the same plan reads if drafts are rejected."""
    found = [windows_with_drafts.read_after_giving_back(make_parts, k) for k in (1, 2, 3, 5)]
    assert found == GIVEN_BACK


GIVEN_BACK = [(10, 1), (21, 4), (26, 7), (28, 0)]
"""With 1, 2, 3 and 5 drafts: blocks given back and read, and those of them that went to another request."""


def test_the_scheduler_alone_decides_as_vllm_does() -> None:
    """So the engine refuses what would read them."""
    check_given_back_too_early(lambda config: mini_parts(config, AsyncScheduler))


def test_the_engine_refuses_drafts_in_flight_beside_a_window() -> None:
    """By name. Synchronous scheduling knows what was accepted, and goes."""
    model: Any = SimpleNamespace(
        config=SimpleNamespace(architecture="MistralForCausalLM", sliding_windows=(8, 8)),
        attention=SimpleNamespace(supports_sliding_window=True),
    )
    spec = {"method": "eagle", "num_speculative_tokens": 3, "model": "a drafter"}
    check_windows(model, EngineConfig(speculative_config=spec))
    config = EngineConfig(speculative_config=spec, async_scheduling=True)
    with pytest.raises(
        ValueError, match="async_scheduling does not go with speculation for this Mistral"
    ):
        check_windows(model, config)


@pytest.mark.vllm
def test_real_vllm_gives_back_what_it_reads() -> None:
    """The same, on vLLM's own `AsyncScheduler`."""
    from course.parity.record import vllm_parts

    check_given_back_too_early(lambda config: vllm_parts(config, True))


# -- seeds ----------------------------------------------------------------------------------------


WITHOUT: dict[str, Any] = {}  # params of a neighbour that has no seed
COMPANY: list[list[dict[str, Any]]] = [
    [],
    [{"seed": 3}, {"seed": 4}],
    [WITHOUT],
    [{"temperature": 0}],
    [{"seed": 3}, WITHOUT],
]
NUM_SEEDED = 2  # of COMPANY, how many have a seed in every row


def test_a_seed_is_honoured_whoever_else_is_in_the_batch() -> None:
    alone, *beside = play_seeded("mini_vllm", COMPANY)
    assert len(set(alone)) > 1
    assert beside == [alone] * len(beside)


@pytest.mark.vllm
def test_a_neighbour_without_a_seed_changes_a_seeded_text_of_real_vllm() -> None:
    """The whole engine on a CPU: the text repeats alone and among seeds, and in no mixed batch."""
    from course.parity.tokens_run import run_worker

    alone, *beside = run_worker("tests.engine.helpers.sampling.seeds_beside", ["vllm"], COMPANY)
    assert beside[: NUM_SEEDED - 1] == [alone] * (NUM_SEEDED - 1)
    for situation, tokens in zip(COMPANY[NUM_SEEDED:], beside[NUM_SEEDED - 1 :], strict=True):
        assert tokens != alone, f"the seed is honoured beside {situation}"


@pytest.mark.vllm
def test_real_vllm_on_the_cpu_honours_a_seed_only_if_every_row_has_one() -> None:
    import torch
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    def draws(num_rows: int) -> set[int]:
        """Row 0's token out of 1,000 equally likely ones, ten times with the same seed."""
        found = set()
        for _ in range(10):
            generators = {0: torch.Generator().manual_seed(7)}
            logits = torch.zeros(num_rows, 1000)
            tokens, _ = TopKTopPSampler().forward_cpu(logits, generators, None, None)
            found.add(int(tokens[0]))
        return found

    with torch.compiler.set_stance("force_eager"):
        assert len(draws(1)) == 1
        assert len(draws(2)) > 1, "the seed is honoured beside a row without one"
