"""Several engines behind one client: the tokens of one, a balance, and an end that leaves nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mini_vllm import LLM, EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.distributed.communicator import RankDiedError
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.engine.core import EngineDeadError
from mini_vllm.engine.core_proc import EngineCounts
from mini_vllm.engine.dp_client import DPLBClient, RemoteCores
from mini_vllm.engine.parts import EngineParts
from mini_vllm.model_loader import load_model
from mini_vllm.sample.sampler import Sampler
from tests.engine.helpers.models.checkpoint_formats import MIXTRAL
from tests.engine.helpers.ranks import is_alive
from tests.engine.helpers.thorough import either

PROMPTS = ["Once upon a time", "The scheduler", "A block table holds", "The KV cache", "Two", "x"]
DP2 = {"data_parallel_size": 2}
IN_STEP = DP2 | {"enable_expert_parallel": True}
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


def make_engine(settings: dict[str, Any], model: Any = None, **others: Any) -> LLMEngine:
    return LLMEngine(model or DEFAULT_MODEL, EngineConfig(**settings), **others)


@contextmanager
def engines_of(settings: dict[str, Any], model: Any = None) -> Iterator[tuple[AsyncLLM, Any]]:
    """The front end, and its client."""
    llm = AsyncLLM(make_engine(settings, model))
    try:
        yield llm, llm.engine.core_client
    finally:
        llm.shutdown()


def all_pids(client: Any) -> list[int]:
    return [*client.pids, *(pid for of_engine in client.rank_pids for pid in of_engine)]


async def ask(llm: AsyncLLM, prompt: str, name: str, params: SamplingParams = GREEDY) -> list[int]:
    token_ids: list[int] = []
    async for output in llm.generate(prompt, params, name):
        token_ids = list(output.outputs[0].token_ids)
    return token_ids


async def ask_all(llm: AsyncLLM, prompts: list[str] = PROMPTS) -> list[list[int]]:
    return list(await asyncio.gather(*(ask(llm, p, str(i)) for i, p in enumerate(prompts))))


def plain_tokens(model: Any = None) -> list[list[int]]:
    llm = LLM(model) if model else LLM()
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        *either(
            [],
            [
                {"tensor_parallel_size": 2},
                {"async_scheduling": True},
                {"cudagraph_mode": "FULL"},
                {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
            ],
        ),
    ],
    ids=str,
)  # fmt: skip
def test_engines_of_a_dense_model_take_requests_in_turn(settings: dict[str, Any]) -> None:
    with engines_of(DP2 | settings) as (llm, client):
        pids = all_pids(client)
        assert len(set(pids)) == 2 * (1 + 2 * ("tensor_parallel_size" in settings))
        assert asyncio.run(ask_all(llm)) == plain_tokens()
        # No engine tells, so each request counts as waiting for good.
        assert client.lb_engines == [[3, 0], [3, 0]]
        steps = client.call_utility("get_step_counts")
        assert all(of_engine[0] for of_engine in steps)
        assert client.engine_core.num_steps == sum(of_engine[0] for of_engine in steps)
        assert client.reset_prefix_cache() is True
        assert (len(client.engine_core.running), client.reqs_in_flight) == (0, {})
    assert not any(map(is_alive, pids))


@pytest.mark.parametrize("ranks", either([1], [1, 2]))
def test_engines_that_share_experts_step_together(ranks: int) -> None:
    """One request: in its engine 20 steps that are its own, in the other none, and in both 32 in all."""
    settings = IN_STEP | {"tensor_parallel_size": ranks}
    with engines_of(settings, MIXTRAL) as (llm, client):
        pids = all_pids(client)
        with asyncio.Runner() as loop:
            first = loop.run(ask_all(llm, PROMPTS[:1]))
            wait_for_rest(client)
            assert client.call_utility("get_step_counts") == [(20, 12, 1), (0, 32, 1)]
            assert client.current_wave == 1
            ledgers = [ledgers[0]["data"] for ledgers in client.call_utility("get_ledgers")]
            made = loop.run(ask_all(llm))
        for ledger in ledgers:
            assert ledger.count("all_reduce") == 32  # how many tokens each has
            assert ledger.count("all_gatherv") == 2 * ledger.count("reduce_scatterv")
        assert ledgers[0].calls["all_gatherv", (1, 128), 512] == 4 * 31  # four layers
        assert ledgers[1].calls["all_gatherv", (1, 128), 512] == 4 * 32
        plain = plain_tokens(MIXTRAL)
        assert first == plain[:1]
        assert made == plain
        wait_for_rest(client)
        assert client.lb_engines == [[0, 0], [0, 0]]  # these engines tell
        assert len({syncs for _, _, syncs in client.call_utility("get_step_counts")}) == 1
    assert not any(map(is_alive, pids))


def wait_for_rest(client: Any) -> None:
    while client.engines_running:
        time.sleep(0.01)


def test_requests_that_come_between_two_waves() -> None:
    """Each right after the last has ended, so that it comes while the engines are about to stop, or have."""
    with engines_of(IN_STEP, MIXTRAL) as (llm, client):

        async def run() -> list[list[int]]:
            answers = []
            for i in range(either(6, 60)):
                params = SamplingParams(temperature=0, max_tokens=29 + i % 5, ignore_eos=True)
                answers.append(await ask(llm, "The scheduler", str(i), params))
            return answers

        answers = asyncio.run(run())
        wait_for_rest(client)
        assert [len(answer) for answer in answers] == [29 + i % 5 for i in range(len(answers))]
        assert len({tuple(answer[:29]) for answer in answers}) == 1


class Balance(DPLBClient):
    """Its choice alone."""

    def __init__(self, counts: list[list[int]]) -> None:
        self.lb_engines = counts


def test_a_waiting_request_weighs_as_much_as_four() -> None:
    balance = Balance([[1, 0], [0, 3], [0, 3]])
    assert [balance.get_core_engine_for_request() for _ in range(4)] == [1, 2, 0, 1]
    assert balance.lb_engines == [[2, 0], [2, 3], [1, 3]]


def test_a_request_that_is_aborted_gives_nothing_more() -> None:
    engine = make_engine(DP2 | {"num_gpu_blocks": 20})
    try:
        long = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
        for name in ("a", "b"):
            engine.add_request(name, PROMPTS[0], long)
        while not engine.step():
            pass
        engine.abort_request(["a", "b"])
        assert engine.step() == []
        engine.add_request("a", PROMPTS[1], GREEDY)  # its id may be taken again at once
        last = run_until_done(engine)
        assert list(last.outputs[0].token_ids) == plain_tokens()[1]
        with pytest.raises(ValueError, match="may need"):
            engine.add_request("c", {"prompt_token_ids": [5] * 8}, SamplingParams(max_tokens=400))
    finally:
        engine.engine_core.shutdown()


DEATHS = [
    pytest.param(IN_STEP, "rank", id="in step-rank"),
    pytest.param(IN_STEP, "engine", id="in step-engine"),
    pytest.param(DP2 | {"tensor_parallel_size": 2}, "rank", id="dense-rank"),
    pytest.param(DP2 | {"tensor_parallel_size": 2}, "engine", id="dense-engine"),
]


@pytest.mark.parametrize(("settings", "whose"), either([DEATHS[0]], DEATHS))
def test_an_engine_that_dies_ends_all_by_name(settings: dict[str, Any], whose: str) -> None:
    model = MIXTRAL if "enable_expert_parallel" in settings else None
    with engines_of(settings, model) as (llm, client):
        pids = all_pids(client)
        victim = client.pids[1] if whose == "engine" else client.rank_pids[1][0]

        async def stream(name: str, *, kill: bool = False) -> None:
            params = SamplingParams(max_tokens=200, ignore_eos=True)
            async for _ in llm.generate("Once upon a time", params, name):
                if kill:
                    os.kill(victim, signal.SIGKILL)

        async def run() -> list[Any]:
            asked = (stream("a"), stream("b", kill=True), stream("c"))
            errors = list(await asyncio.gather(*asked, return_exceptions=True))
            return errors + list(await asyncio.gather(stream("late"), return_exceptions=True))

        errors = asyncio.run(run())
    killed = "was ended by signal 9 (SIGKILL)"
    named = f"engine 1 (process {client.pids[1]}) {killed}"
    if whose == "rank":
        named = f"engine 1 (process {client.pids[1]}): rank 0 (process {victim}) {killed}"
    for error in errors:
        assert isinstance(error, EngineDeadError)
        assert named in str(error)
    assert not any(map(is_alive, pids))


def test_an_engine_that_dies_while_nothing_is_asked() -> None:
    with engines_of(DP2) as (llm, client):
        os.kill(client.pids[0], signal.SIGKILL)

        async def wait_for_the_end() -> None:
            while not llm.errored:
                await asyncio.sleep(0.01)

        asyncio.run(wait_for_the_end())
        assert "engine 0 " in str(llm.dead_error)
        with pytest.raises(RankDiedError, match="engine 0 "):
            client.call_utility("get_step_counts")
        assert not any(map(is_alive, client.pids))


def test_engines_that_are_no_longer_used_leave_no_process() -> None:
    engine = make_engine(DP2)
    pids = all_pids(engine.core_client)
    assert all(map(is_alive, pids))
    del engine
    gc.collect()
    assert not any(map(is_alive, pids))


class FailingSampler(Sampler):
    """Raises where an engine samples."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise ArithmeticError("no token")


def run_until_done(engine: LLMEngine) -> Any:
    outputs: list[Any] = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs[-1]


def test_what_an_engine_raises_is_raised() -> None:
    engine = make_engine(DP2, parts=EngineParts(sampler=FailingSampler))
    pids = all_pids(engine.core_client)
    engine.add_request("a", PROMPTS[0], GREEDY)
    with pytest.raises(ArithmeticError, match="no token"):
        run_until_done(engine)
    assert not any(map(is_alive, pids))


def test_numbers_are_summed_up() -> None:
    config: Any = EngineConfig(**DP2)  # type: ignore[arg-type]
    cores = RemoteCores(config)
    cores.counts = [EngineCounts(3, 2, 1, 0, 4, 0.5), EngineCounts(2, 1, 0, 1, 1, 0.25)]
    assert (cores.num_steps, cores.num_preemptions, cores.usage) == (5, 5, 0.375)
    assert (len(cores.running), cores.get_num_waiting_requests()) == (3, 2)


@pytest.mark.parametrize(
    ("model", "settings", "says"),
    [
        (None, {"attention": "torch"}, "attention 'torch' does not go with data_parallel_size 2"),
        (None, {"distributed_executor_backend": "external_launcher"}, "data_parallel_size 2 does not go"),
        (None, {"data_parallel_size": 0}, "data_parallel_size must be an integer of at least 1, got 0"),
        (None, {"enable_expert_parallel": True}, "enable_expert_parallel is for a model with experts"),
        (MIXTRAL, {}, "whose experts the engines share, needs enable_expert_parallel"),
        (MIXTRAL, IN_STEP | {"pipeline_parallel_size": 2}, "pipeline_parallel_size does not go with data_pa"),
        (MIXTRAL, IN_STEP | {"async_scheduling": True}, "async_scheduling does not go with data_parallel"),
        (MIXTRAL, IN_STEP | {"data_parallel_size": 16}, r"num_experts \(8\) must be at least data_parallel_"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_by_name(
    model: Any, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        make_engine(DP2 | settings, model)


def test_a_loaded_model_has_one_engine() -> None:
    with pytest.raises(ValueError, match="data_parallel_size 2 is for a checkpoint folder"):
        make_engine(DP2, load_model(MIXTRAL))


def test_the_offline_door_has_one_engine() -> None:
    with pytest.raises(
        ValueError, match="LLM does not take data_parallel_size 2: several engines are for"
    ):
        LLM(data_parallel_size=2)


def test_parts_that_no_engine_can_have() -> None:
    class Local(Sampler):
        pass

    with pytest.raises(ValueError, match=r"parts\.sampler .* cannot be sent to the engines"):
        make_engine(DP2, parts=EngineParts(sampler=Local))
    with pytest.raises(ValueError, match=r"parts\.kv_event_publisher does not go with"):
        make_engine(DP2, parts=EngineParts(kv_event_publisher=print))
