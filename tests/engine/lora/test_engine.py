"""Adapters in the running engine: tokens as of merged weights, slots, reloads, the prefix cache."""

from __future__ import annotations

import asyncio
import gc
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm import LLM, AsyncLLM, EngineConfig, LLMEngine, SamplingParams
from mini_vllm.engine.parts import EngineParts
from mini_vllm.engine.step_record import StepRecord
from mini_vllm.lora.component import LoRAComponent
from mini_vllm.lora.layers import LinearWithLoRA
from mini_vllm.lora.ops import add_lora_by_run
from mini_vllm.lora.request import LoRARequest
from mini_vllm.models.llama import MLP_ROWS
from tests.engine.helpers.engine.adapters import (
    ask,
    write_adapter,
    write_five,
    write_merged,
)

TEXT = "The scheduler decides which requests run, and with how many tokens each. "


def greedy(max_tokens: int = 12) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def tokens(outputs: Any) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def component_of(llm: LLM) -> LoRAComponent:
    component = llm.llm_engine.engine_core.model_runner.lora
    assert isinstance(component, LoRAComponent)
    return component


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[LoRARequest]:
    folders = write_five(tmp_path_factory.mktemp("adapters"))
    return [ask(folder, i) for i, folder in enumerate(folders, 1)]


@pytest.fixture(scope="module")
def merged(adapters: list[LoRARequest], tmp_path_factory: pytest.TempPathFactory) -> list[LLM]:
    """An engine for the base, and one for each adapter with its weights merged."""
    folder = tmp_path_factory.mktemp("merged")
    scale = [2.0] * 4 + [2 * 9 / 3]
    models = [
        LLM(str(write_merged(folder / lora.lora_name, Path(lora.lora_path), scale[i])))
        for i, lora in enumerate(adapters)
    ]
    return [LLM(), *models]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_loras": 2, "max_num_batched_tokens": 48, "max_num_seqs": 12, "num_gpu_blocks": 40},
        {"max_loras": 1, "num_gpu_blocks": 40, "block_size": 8, "max_num_seqs": 5},
        {"max_loras": 5, "enable_prefix_caching": False, "num_gpu_blocks": 24},
        {"max_loras": 3, "max_cpu_loras": 4, "async_scheduling": True, "num_gpu_blocks": 40},
        {"max_loras": 2, "scheduling_policy": "priority", "num_gpu_blocks": 40},
    ],
)  # fmt: skip
def test_tokens_are_those_of_merged_weights(
    adapters: list[LoRARequest], merged: list[LLM], settings: dict[str, Any]
) -> None:
    """Sixty requests over five adapters and none: waiting, chunked, preempted."""
    rng = random.Random(str(settings))
    choice = [rng.randrange(6) for _ in range(60)]
    prompts = [TEXT[: rng.randint(1, len(TEXT))] for _ in choice]
    params = [greedy(rng.randint(1, 40)) for _ in choice]
    llm = LLM(enable_lora=True, max_model_len=160, **settings)
    of_prompts = [adapters[i - 1] if i else None for i in choice]
    got = tokens(llm.generate(prompts, params, use_tqdm=False, lora_request=of_prompts))
    for which, model in enumerate(merged):
        mine = [i for i, chosen in enumerate(choice) if chosen == which]
        outputs = model.generate(
            [prompts[i] for i in mine], [params[i] for i in mine], use_tqdm=False
        )
        for i, expected in zip(mine, tokens(outputs), strict=True):
            assert got[i] == expected, (i, which)
    if settings.get("num_gpu_blocks", 99) < 30:
        assert llm.llm_engine.engine_core.scheduler.num_preemptions > 0


def test_a_step_of_more_rows_than_an_mlp_takes_at_once(
    adapters: list[LoRARequest], merged: list[LLM]
) -> None:
    prompts = [(TEXT * 6)[i : i + 330] for i in range(4)]
    assert sum(map(len, prompts)) > 2 * MLP_ROWS
    llm = LLM(enable_lora=True, max_loras=2)
    which = [1, 0, 2, 1]
    of_prompts = [adapters[i - 1] if i else None for i in which]
    got = tokens(llm.generate(prompts, greedy(4), use_tqdm=False, lora_request=of_prompts))
    for i, prompt, answer in zip(which, prompts, got, strict=True):
        assert tokens(merged[i].generate(prompt, greedy(4), use_tqdm=False)) == [answer]


def test_the_plain_form_gives_the_same_tokens(adapters: list[LoRARequest]) -> None:
    answers = []
    for plain in (False, True):
        llm = LLM(enable_lora=True, max_loras=3)
        for layer in component_of(llm).layers:
            layer.add_lora = add_lora_by_run if plain else layer.add_lora
        of_prompts = [adapters[i % 3] for i in range(8)]
        outputs = llm.generate([TEXT[: 5 + 3 * i] for i in range(8)], greedy(), lora_request=of_prompts,
                               use_tqdm=False)  # fmt: skip
        answers.append(tokens(outputs))
    assert answers[0] == answers[1]


def test_no_step_has_more_adapters_than_slots_and_a_running_request_keeps_its_slot(
    adapters: list[LoRARequest],
) -> None:
    llm = LLM(enable_lora=True, max_loras=2, max_lora_rank=16)
    core, manager = llm.llm_engine.engine_core, component_of(llm).manager
    slot_of: dict[str, int] = {}
    seen: list[int] = []

    def observe(record: StepRecord) -> None:
        running = {r.request_id: r.lora_request for r in core.scheduler.running if r.lora_request}
        seen.append(len({lora.slot_key for lora in running.values()}))
        for req_id, lora in running.items():
            slot = manager.lora_index_to_id.index(lora.slot_key)
            assert slot_of.setdefault(req_id, slot) == slot

    core.step_observers.append(observe)
    rng = random.Random(0)
    of_prompts = [rng.choice([None, *adapters]) for _ in range(40)]
    params = [greedy(rng.randint(2, 12)) for _ in of_prompts]
    llm.generate(["a"] * 40, params, use_tqdm=False, lora_request=of_prompts)
    assert max(seen) == 2
    assert len(slot_of) > 20


def test_requests_that_are_skipped_are_overtaken(adapters: list[LoRARequest]) -> None:
    engine = LLMEngine(config=EngineConfig(enable_lora=True, max_loras=1))
    for name, lora in (
        ("one", adapters[0]),
        ("two", adapters[1]),
        ("base", None),
        ("again", adapters[0]),
    ):
        engine.add_request(name, "a", greedy(), lora_request=lora)
    engine.step()
    scheduler = engine.engine_core.scheduler
    assert [r.request_id for r in scheduler.running] == ["one", "base", "again"]
    assert [r.request_id for r in scheduler.skipped_waiting] == ["two"]


def test_memory_is_given_back_and_read_again(adapters: list[LoRARequest]) -> None:
    llm = LLM(enable_lora=True, max_loras=1, max_cpu_loras=2)
    loras = llm.llm_engine.input_processor.loras
    assert loras is not None
    for which, loads in ((0, 1), (0, 1), (1, 2), (0, 2), (2, 3), (0, 3), (1, 4)):
        llm.generate("a", greedy(2), use_tqdm=False, lora_request=adapters[which])
        gc.collect()
        assert loras.num_loads == loads, "two are kept, those that were used last"
    assert len(component_of(llm).manager.list_adapters()) == 2


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_an_adapter_is_added_ahead_of_its_requests_and_between_two_steps(
    adapters: list[LoRARequest], async_scheduling: bool
) -> None:
    settings = EngineConfig(enable_lora=True, max_loras=2, async_scheduling=async_scheduling)
    engine = LLMEngine(config=settings)
    loras = engine.input_processor.loras
    assert loras is not None
    expected = tokens(LLM(enable_lora=True).generate("a", greedy(), lora_request=adapters[0]))
    engine.add_request("one", "a", greedy(), lora_request=adapters[0])
    done = []
    for turn in range(100):
        if turn in (3, 5):  # the second takes the slot that the request is in, and gives it back
            assert engine.add_lora(adapters[turn // 2])
        done += [output for output in engine.step() if output.finished]
    assert tokens(done) == expected
    assert done[0].lora_request == adapters[0]
    assert type(done[0].lora_request) is LoRARequest
    assert loras.num_loads == 3
    assert len(engine.list_loras()) == 2


# -- the prefix cache -----------------------------------------------------------------------------


def answer(llm: LLM, lora: LoRARequest | None, prompt: str = TEXT) -> tuple[list[int], int]:
    output = llm.generate(prompt, greedy(8), use_tqdm=False, lora_request=lora)[0]
    assert output.num_cached_tokens is not None
    return output.outputs[0].token_ids, output.num_cached_tokens


def test_tenants_share_no_prefix_and_each_finds_its_own(adapters: list[LoRARequest]) -> None:
    llm = LLM(enable_lora=True, max_loras=5)
    everyone = [None, *adapters]
    first = [answer(llm, lora) for lora in everyone]
    assert [cached for _, cached in first] == [0] * 6
    again = [answer(llm, lora) for lora in everyone]
    assert all(cached > 0 for _, cached in again)
    assert [ids for ids, _ in again] == [ids for ids, _ in first]


@pytest.mark.parametrize("how", ["load_inplace", "another folder", "another id and folder"])
def test_a_reload_under_the_same_name_never_reads_the_old_adapters_kv(
    tmp_path: Path, how: str
) -> None:
    """vLLM 0.22.1 does, because its key is the name: `test_vllm.py` shows it."""
    folder = write_adapter(tmp_path / "tenant", 1)
    llm = LLM(enable_lora=True)
    old, _ = answer(llm, ask(folder, 1, "tenant"))
    if how == "load_inplace":
        write_adapter(folder, 2)
        new = ask(folder, 1, "tenant", load_inplace=True)
    else:
        new = ask(write_adapter(tmp_path / "new", 2), 1 if how == "another folder" else 2, "tenant")
    truth, _ = answer(LLM(enable_lora=True), ask(write_adapter(tmp_path / "fresh", 2), 1))
    got, cached = answer(llm, new)
    assert (got, cached) == (truth, 0)
    assert got != old
    assert answer(llm, new)[1] > 0


def test_a_reload_of_the_same_weights_keeps_their_kv(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "tenant", 1)
    llm = LLM(enable_lora=True)
    answer(llm, ask(folder, 1))
    loras = llm.llm_engine.input_processor.loras
    assert loras is not None
    _, cached = answer(llm, ask(folder, 1, load_inplace=True))
    assert cached > 0
    assert loras.num_loads == 2
    answer(llm, ask(folder, 1))
    assert loras.num_loads == 2, "the flag is of its request alone"


def test_a_request_under_way_goes_on_with_the_weights_that_it_began_with(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "tenant", 1)
    engine = LLMEngine(config=EngineConfig(enable_lora=True, max_loras=2))
    expected, _ = answer(LLM(enable_lora=True), ask(folder, 1))
    engine.add_request("old", TEXT, greedy(8), lora_request=ask(folder, 1))
    for _ in range(3):
        engine.step()
    write_adapter(folder, 2)
    engine.add_request("new", TEXT, greedy(8), lora_request=ask(folder, 1, load_inplace=True))
    done = {}
    while engine.has_unfinished_requests():
        done.update({o.request_id: o.outputs[0].token_ids for o in engine.step() if o.finished})
    assert done["old"] == expected
    assert done["new"] == answer(LLM(enable_lora=True), ask(folder, 1))[0]


def test_no_salt_spells_an_adapters_key(adapters: list[LoRARequest]) -> None:
    llm = LLM(enable_lora=True)
    answer(llm, adapters[0])
    assert llm.llm_engine.input_processor.loras is not None
    loaded = llm.llm_engine.input_processor.loras.load(adapters[0])
    for salt in (adapters[0].lora_name, loaded.hash_key.decode("latin-1"), loaded.version.hex()):
        output = llm.generate({"prompt": TEXT, "cache_salt": salt}, greedy(2), use_tqdm=False)[0]
        assert output.num_cached_tokens == 0


# -- how it is joined -----------------------------------------------------------------------------


def test_the_model_that_is_handed_in_stays_plain(adapters: list[LoRARequest]) -> None:
    plain = LLM()
    model = plain.llm_engine.model
    engine = LLMEngine(model, EngineConfig(enable_lora=True))
    assert engine.engine_core.model_runner.model is not model
    assert not any(isinstance(v, LinearWithLoRA) for v in vars(model.layers[0].mlp).values())
    engine.add_request("0", [5, 6, 7], greedy(4), lora_request=adapters[0])
    while engine.has_unfinished_requests():
        engine.step()
    other = LLM().llm_engine.model.layers[0].mlp.down_proj.weight
    assert np.array_equal(model.layers[0].mlp.down_proj.weight, other)


def test_an_adapter_counts_for_all_samples_of_a_prompt(adapters: list[LoRARequest]) -> None:
    llm = LLM(enable_lora=True)
    params = SamplingParams(temperature=1, max_tokens=6, n=3, ignore_eos=True, top_k=1)
    output = llm.generate("a", params, use_tqdm=False, lora_request=adapters[0])[0]
    one = llm.generate("a", greedy(6), use_tqdm=False, lora_request=adapters[0])[0]
    assert [o.token_ids for o in output.outputs] == [one.outputs[0].token_ids] * 3


def test_lists_must_have_one_for_each_prompt(adapters: list[LoRARequest]) -> None:
    llm = LLM(enable_lora=True)
    with pytest.raises(ValueError, match=r"the lengths of prompts \(2\) and lora_request \(1\)"):
        llm.generate(["a", "b"], greedy(), use_tqdm=False, lora_request=[adapters[0]])
    with pytest.raises(ValueError, match=r"not supported by LLM\.beam_search"):
        llm.beam_search("a", None, lora_request=adapters[0])  # type: ignore[arg-type]


def test_async_llm_takes_adapters(adapters: list[LoRARequest], merged: list[LLM]) -> None:
    async def run() -> Any:
        engine = AsyncLLM(LLMEngine(config=EngineConfig(enable_lora=True)))
        try:
            outputs = engine.generate("a", greedy(6), "0", lora_request=adapters[1])
            return [output async for output in outputs][-1]
        finally:
            engine.shutdown()

    assert tokens([asyncio.run(run())]) == tokens(
        merged[2].generate("a", greedy(6), use_tqdm=False)
    )


def test_a_learners_scheduler_is_given_the_rule() -> None:
    from mini_vllm.core.sched.scheduler import Scheduler

    given: list[Any] = []

    class Mine(Scheduler):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            given.append(kwargs)
            super().__init__(*args, **kwargs)

    LLMEngine(config=EngineConfig(enable_lora=True), parts=EngineParts(scheduler=partial(Mine)))
    assert list(given[0]) == ["admission_rules"]
