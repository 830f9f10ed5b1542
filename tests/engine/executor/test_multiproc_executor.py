"""An engine whose model is on several ranks: the plain engine's tokens, and an end that leaves nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from mini_vllm import LLM, EngineConfig, LLMEngine, SamplingParams
from mini_vllm.distributed.communicator import RankDiedError
from mini_vllm.distributed.parallel_state import RankGroups
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.engine.core import EngineDeadError
from mini_vllm.engine.parts import EngineParts
from mini_vllm.executor.multiproc_executor import MultiprocExecutor
from mini_vllm.model_loader import load_model
from mini_vllm.sample.sampler import Sampler
from tests.engine.helpers.models.checkpoint_formats import MIXTRAL
from tests.engine.helpers.ranks import is_alive
from tests.engine.helpers.thorough import either

PROMPTS = ["Once upon a time", "The scheduler", "A block table holds", "The KV cache"]
TP2 = {"tensor_parallel_size": 2}
PP2 = {"pipeline_parallel_size": 2}


@contextmanager
def engine_of(model: Any = None, **settings: Any) -> Iterator[LLM]:
    llm = LLM(model, **settings) if model else LLM(**settings)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()


def tokens_of(llm: LLM) -> list[list[int]]:
    greedy = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    drawn = SamplingParams(temperature=1, seed=3, max_tokens=20, logprobs=2)
    outputs = llm.generate(PROMPTS * 2, [greedy] * 4 + [drawn] * 4, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.parametrize(
    "settings",
    [
        TP2 | {"async_scheduling": True},
        TP2 | {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}, "num_gpu_blocks": 24},
        TP2 | PP2 | {"num_gpu_blocks": 16, "max_num_batched_tokens": 32, "max_num_seqs": 8},
        *either([], [TP2, PP2, {"tensor_parallel_size": 4}, {"pipeline_parallel_size": 4}]),
    ],
    ids=lambda settings: " ".join(f"{k}={v}" for k, v in settings.items()),
)  # fmt: skip
def test_several_ranks_give_the_tokens_of_one(settings: dict[str, Any]) -> None:
    with engine_of(**settings) as llm:
        made = tokens_of(llm)
        pids = llm.llm_engine.engine_core.model_executor.pids  # type: ignore[attr-defined]
        size = settings.get("tensor_parallel_size", 1) * settings.get("pipeline_parallel_size", 1)
        assert len(set(pids)) == size
    plain = tokens_of(LLM())
    if "speculative_config" in settings:  # the draws are others, of the same distribution
        made, plain = made[:4], plain[:4]
    assert made == plain
    assert not any(map(is_alive, pids))


def test_experts_on_ranks_of_their_own() -> None:
    with engine_of(MIXTRAL, enable_expert_parallel=True, **TP2) as llm:
        assert tokens_of(llm) == tokens_of(LLM(MIXTRAL))


def test_what_the_ranks_say_in_24_steps() -> None:
    """As real vLLM with 2 ranks: 9 all-reduces a step, of 354,816 bytes in all, and 24 gathers."""
    with engine_of(**TP2) as llm:
        greedy = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
        llm.generate(PROMPTS[:2], greedy, use_tqdm=False)
        ledgers = llm.llm_engine.engine_core.model_executor.collective_rpc("get_ledgers")
    for ledger in (of_rank["tensor"] for of_rank in ledgers):
        assert (ledger.count("all_reduce"), ledger.nbytes("all_reduce")) == (216, 354816)
        gathers = {key: n for key, n in ledger.calls.items() if key[0] == "all_gather"}
        assert gathers == {("all_gather", (2, 160), 1280): 24}


def test_half_of_the_pipeline_stays_empty() -> None:
    """Requests that come together go through together: every second plan is empty, as real vLLM's are."""
    with engine_of(**PP2) as llm:
        scheduler = llm.llm_engine.engine_core.scheduler
        planned: list[int] = []
        schedule = scheduler.schedule

        def note() -> Any:
            output = schedule()
            planned.append(output.total_num_scheduled_tokens)
            return output

        scheduler.schedule = note  # type: ignore[method-assign]
        greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        llm.generate(PROMPTS, greedy, use_tqdm=False)
        ledgers = llm.llm_engine.engine_core.model_executor.collective_rpc("get_ledgers")
    assert planned[1:16:2] == [0] * 8
    assert planned[2:16:2] == [4] * 7
    sent = ledgers[0]["pipeline"].calls
    assert sent[("send", (4 * 128,), 4 * 128 * 4)] == 2 * 7  # hidden states and residual


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_ends_the_engine_by_name(victim: int) -> None:
    engine = LLMEngine(config=EngineConfig(**TP2))  # type: ignore[arg-type]
    llm = AsyncLLM(engine)
    pids = engine.engine_core.model_executor.pids  # type: ignore[attr-defined]

    async def ask(name: str, *, kill: bool = False) -> None:
        params = SamplingParams(max_tokens=400, ignore_eos=True)
        async for _ in llm.generate("Once upon a time", params, name):
            if kill:
                os.kill(pids[victim], signal.SIGKILL)

    async def run() -> list[Any]:
        asked = (ask("a"), ask("b", kill=True), ask("c"))
        errors = list(await asyncio.gather(*asked, return_exceptions=True))
        return errors + list(await asyncio.gather(ask("late"), return_exceptions=True))

    errors = asyncio.run(run())
    llm.shutdown()
    assert [type(error) for error in errors] == [EngineDeadError] * 4
    for error in errors:
        assert f"rank {victim} (process {pids[victim]}) was ended by signal 9 (SIGKILL)" in str(
            error
        )
    assert not any(map(is_alive, pids))


def test_a_rank_that_dies_while_nothing_is_asked() -> None:
    engine = LLMEngine(config=EngineConfig(**PP2))  # type: ignore[arg-type]
    llm = AsyncLLM(engine)
    pids = engine.engine_core.model_executor.pids  # type: ignore[attr-defined]
    os.kill(pids[1], signal.SIGKILL)

    async def wait_for_the_end() -> None:
        while not llm.errored:
            await asyncio.sleep(0.01)

    asyncio.run(wait_for_the_end())
    assert "rank 1 " in str(llm.dead_error)
    llm.shutdown()
    assert not any(map(is_alive, pids))


def test_an_engine_that_is_no_longer_used_leaves_no_process() -> None:
    llm = LLM(**TP2)
    executor: Any = llm.llm_engine.engine_core.model_executor
    pids = executor.pids
    assert all(map(is_alive, pids))
    del llm, executor
    gc.collect()
    assert not any(map(is_alive, pids))


def test_an_id_that_is_still_in_flight_is_refused() -> None:
    engine = LLMEngine(config=EngineConfig(**PP2))  # type: ignore[arg-type]
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    try:
        engine.add_request("a", PROMPTS[0], params)
        engine.step()
        engine.abort_request("a")
        with pytest.raises(ValueError, match="'a' was aborted and is still in a step in flight"):
            engine.add_request("a", PROMPTS[1], params)
        engine.add_request("b", PROMPTS[1], params)
        last: list[int] = []
        while engine.has_unfinished_requests():
            for output in engine.step():
                last = list(output.outputs[0].token_ids)
    finally:
        engine.engine_core.shutdown()
    [plain] = LLM().generate([PROMPTS[1]], params, use_tqdm=False)
    assert last == list(plain.outputs[0].token_ids)


def test_a_stage_counts_its_own_layers_of_the_cache() -> None:
    blocks = {}
    for settings in ({}, PP2):
        with engine_of(kv_cache_memory_bytes=4 << 20, **settings) as llm:
            blocks[len(settings)] = llm.llm_engine.config.num_gpu_blocks
    assert blocks == {0: 128, 1: 256}


class WorkerThatDies:
    """Rank 1 ends itself before a call that is too long for its pipe."""

    def __init__(self, groups: RankGroups) -> None:
        self.rank = groups.rank

    def wait(self, _: bytes) -> None:
        if self.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


def test_a_call_that_waits_for_a_dead_rank_does_not_hang() -> None:
    executor = MultiprocExecutor(WorkerThatDies, 2, max_concurrent_batches=2)
    future = executor.collective_rpc("wait", (b"",), non_block=True, single_value=True)
    for _ in range(2):  # the second finds the first's rank gone, or waits for the other's pipe
        with suppress(RankDiedError):
            executor.collective_rpc("wait", (bytes(2 << 20),), non_block=True, single_value=True)
    with pytest.raises(RankDiedError, match="rank 1 "):
        future.result()
    assert not any(map(is_alive, executor.pids))


class FailingSampler(Sampler):
    """Raises where a rank samples."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise ArithmeticError("no token")


def test_what_a_rank_raises_is_raised() -> None:
    with engine_of(**TP2, parts=EngineParts(sampler=FailingSampler)) as llm:
        executor: Any = llm.llm_engine.engine_core.model_executor
        with pytest.raises(ArithmeticError, match="no token"):
            tokens_of(llm)
        with pytest.raises((ArithmeticError, RankDiedError)):
            executor.collective_rpc("get_ledgers")
    assert not any(map(is_alive, executor.pids))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (TP2 | {"attention": "torch"}, "attention 'torch' does not go with tensor_parallel_size 2: only"),
        (TP2 | {"cudagraph_mode": "FULL"}, "cudagraph_mode 'FULL' does not go with tensor_parallel_size 2"),
        (PP2 | {"async_scheduling": True}, "async_scheduling does not go with pipeline_parallel_size 2"),
        ({"tensor_parallel_size": 3}, r"num_attention_heads \(4\) must be divisible by tensor_parallel_size"),
        ({"pipeline_parallel_size": 5}, r"pipeline_parallel_size \(5\) must be at most num_hidden_layers"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size must be an integer of at least 1, got 0"),
        ({"distributed_executor_backend": "mp", "attention": "torch"},
         "attention 'torch' does not go with distributed_executor_backend 'mp'"),
        (TP2 | {"distributed_executor_backend": "uni"}, "'uni' runs one rank, and there are 2"),
        ({"distributed_executor_backend": "dask"}, "distributed_executor_backend must be"),
        ({"enable_expert_parallel": True}, "enable_expert_parallel is for a model with experts"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_by_name(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        LLM(**settings)


def test_a_loaded_model_cannot_be_split() -> None:
    model = load_model(MIXTRAL)
    with pytest.raises(ValueError, match="are for a checkpoint folder"):
        LLMEngine(model, EngineConfig(**TP2))  # type: ignore[arg-type]


def test_another_s_part_that_no_rank_can_have() -> None:
    class Local(Sampler):
        pass

    with pytest.raises(ValueError, match="cannot be sent to the ranks of tensor_parallel_size 2"):
        LLM(**TP2, parts=EngineParts(sampler=Local))
