"""Adapters beside real vLLM: decisions at the gate, slots and loads, operations, tokens, and where we
differ."""

from __future__ import annotations

import functools
import itertools
import random
from collections import OrderedDict
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from course.parity.decisions import mini_parts
from course.parity.record import vllm_parts
from course.parity.tokens_run import run_worker
from course.parity.traces import Decision, Run, Workload
from course.parity.workloads import workload
from mini_vllm import LLM, SamplingParams
from mini_vllm.compress.quantize import quantize_checkpoint
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.core.request import Request
from mini_vllm.core.sched.upstream_scheduler import UpstreamScheduler
from mini_vllm.lora.admission import LoRAAdmission
from mini_vllm.lora.lora_model import LoRAModel
from mini_vllm.lora.ops import add_lora_grouped
from mini_vllm.lora.request import LoadedLoRARequest, LoRARequest
from mini_vllm.lora.worker_manager import LRUCacheWorkerLoRAManager
from mini_vllm.tokenizer import Tokenizer
from tests.engine.helpers.engine.adapters import (
    ask,
    make_tensors,
    make_vocabulary_tensors,
    write_adapter,
    write_five,
)
from tests.engine.helpers.real_vllm.vllm_helpers import skip_unless_right
from tests.engine.helpers.thorough import either
from tests.engine.lora.test_ops import make_case

pytestmark = pytest.mark.vllm

SHAPES_OF_WORK = ("mixed", "priority", "crowd", "no-gate", "odd-blocks")


# -- decisions ------------------------------------------------------------------------------------


def adapter_of(request_id: str, seed: int) -> int:
    """0: none."""
    return random.Random(f"adapter {request_id} {seed}").choice((0, 0, 1, 2, 3, 4, 5))


def decide(run: Run) -> list[Decision]:
    decisions: list[Decision] = []
    while not run.done and len(decisions) < 3000:
        run.arrive()
        decisions.append(run.decide())
    return decisions


def decide_vllm(work: Workload, max_loras: int) -> list[Decision]:
    from vllm.lora.request import LoRARequest as VllmLoRARequest
    from vllm.v1.request import Request as VllmRequest

    parts = vllm_parts(work["config"])
    parts.scheduler.lora_config = SimpleNamespace(max_loras=max_loras)

    def make_request(arrival: Any, index: int) -> Any:
        plain = parts.make_request(arrival, index)
        adapter = adapter_of(plain.request_id, work["seed"])
        return VllmRequest(
            plain.request_id, plain.prompt_token_ids, plain.sampling_params, None,
            arrival_time=plain.arrival_time, priority=plain.priority, block_hasher=plain._block_hasher,
            lora_request=VllmLoRARequest(f"ad{adapter}", adapter, "x") if adapter else None,
        )  # fmt: skip

    return decide(Run(work, replace(parts, make_request=make_request)))


def decide_mini(work: Workload, max_loras: int) -> list[Decision]:
    rules = [LoRAAdmission(max_loras)]
    parts = mini_parts(work["config"], partial(UpstreamScheduler, admission_rules=rules))

    def make_request(arrival: Any, index: int) -> Request:
        plain = parts.make_request(arrival, index)
        adapter = adapter_of(plain.request_id, work["seed"])
        model = LoRAModel(1, {}, bytes([adapter]) * 32)
        return Request(
            plain.request_id, plain.prompt_token_ids, plain.sampling_params,
            arrival_time=plain.arrival_time, priority=plain.priority, block_size=plain.block_size,
            lora_request=LoadedLoRARequest(f"ad{adapter}", adapter, "x", model=model) if adapter else None,
        )  # fmt: skip

    return decide(Run(work, replace(parts, make_request=make_request)))


def test_the_gate_decides_as_vllms_scheduler() -> None:
    """With prefix caching, aborts, priorities and small pools."""
    num_changed = num_workloads = 0
    for shape, seed in itertools.product(SHAPES_OF_WORK, range(either(6, 100))):
        work = workload(5000 + seed, shape)
        max_loras = 1 + seed % 4
        theirs, ours = decide_vllm(work, max_loras), decide_mini(work, max_loras)
        for step, (a, b) in enumerate(zip(theirs, ours, strict=False)):
            assert a == b, f"{shape} {seed}, step {step}: vLLM {a}, mini_vllm {b}"
            assert list(a["scheduled"]) == list(b["scheduled"])
        assert len(theirs) == len(ours) < 3000
        num_changed += ours != decide_mini(work, 5)
        num_workloads += 1
    assert num_changed > num_workloads // 3, "in many workloads the gate must have something to say"


# -- slots and loads ------------------------------------------------------------------------------


def real_manager(max_loras: int, max_cpu_loras: int, loads: list[int]) -> Any:
    """vLLM's two managers as they are, without a model: what they would read and fill is noted."""
    from vllm.lora import model_manager, worker_manager

    inner = model_manager.LRUCacheLoRAModelManager.__new__(model_manager.LRUCacheLoRAModelManager)
    inner.lora_config = SimpleNamespace(max_loras=max_loras, max_cpu_loras=max_cpu_loras)  # type: ignore[assignment]
    inner.modules, inner.lora_index_to_id = {}, [None] * max_loras
    cache = model_manager.LoRALRUCache
    inner._registered_adapters = cache(max_cpu_loras, inner.deactivate_adapter)
    inner._active_adapters = cache(max_loras, inner._deactivate_adapter)
    inner._create_merged_loras_inplace = lambda lora: None  # type: ignore[method-assign]
    outer = worker_manager.LRUCacheWorkerLoRAManager.__new__(
        worker_manager.LRUCacheWorkerLoRAManager
    )
    outer._adapter_manager = inner

    def load(request: Any) -> Any:
        loads.append(request.lora_int_id)
        return SimpleNamespace(id=request.lora_int_id)

    outer._load_adapter = load  # type: ignore[method-assign]
    return outer


@pytest.mark.parametrize("seed", range(200))
def test_slots_and_loads_are_those_of_vllms_managers(seed: int) -> None:
    rng = random.Random(seed)
    max_loras = rng.randint(1, 5)
    max_cpu_loras = max_loras + rng.choice((0, 0, 1, 3))
    their_loads: list[int] = []
    our_loads: list[int] = []
    theirs = real_manager(max_loras, max_cpu_loras, their_loads)
    ours = LRUCacheWorkerLoRAManager[int, int](
        max_loras, max_cpu_loras, lambda n: (our_loads.append(n), n)[1], lambda index, lora: None
    )
    for _ in range(60):
        step = rng.sample(range(1, 9), rng.randint(0, max_loras))
        requests = [SimpleNamespace(lora_int_id=n, load_inplace=False) for n in step]
        theirs.set_active_adapters(requests, None)
        ours.set_active_adapters(OrderedDict((n, n) for n in step))
        assert our_loads == their_loads
        assert ours.lora_index_to_id == theirs._adapter_manager.lora_index_to_id
        assert ours.list_adapters() == list(theirs._adapter_manager.list_adapters())
    too_many = {n: n for n in range(max_loras + 1)}
    with pytest.raises(RuntimeError, match="adapters, and there are"):
        ours.set_active_adapters(too_many)


# -- operations -----------------------------------------------------------------------------------


def test_the_products_are_those_of_vllms_operations() -> None:
    """`sgmv_shrink` and `sgmv_expand`, on the batches of the other tests. Every row has an adapter: the CPU
    build gives one without the last slot's."""
    import torch
    from vllm.lora.ops.torch_ops import sgmv_expand, sgmv_shrink

    for seed in range(either(200, 500)):
        x, y, mapping, slots, rows = make_case(seed)
        keep = [i for i, slot in enumerate(rows) if slot is not None and slots[slot]]
        if not keep:
            continue
        x, y = x[keep], y[keep]
        mapping.set_rows([rows[i] for i in keep], [1] * len(keep))
        ours = y.copy()
        add_lora_grouped(ours, x, mapping, slots)
        theirs = torch.from_numpy(y.copy())
        ones = torch.ones(len(keep), dtype=torch.long)
        starts = torch.arange(len(keep))
        for slot_rank in range(8, 0, -1):
            for start in sorted({p.start for pieces in slots.values() for p in pieces}):
                of = [
                    next((p for p in slots.get(s, ()) if p.start == start), None)
                    for s in range(len(slots))
                ]
                mine = [
                    i
                    for i, k in enumerate(keep)
                    if (p := of[rows[k] or 0]) is not None and len(p.lora_a) == slot_rank
                ]
                if not mine:
                    continue
                shape_of = next(p for p in of if p is not None and len(p.lora_a) == slot_rank)
                zeros = (np.zeros_like(shape_of.lora_a), np.zeros_like(shape_of.lora_b))
                pairs = [
                    (p.lora_a, p.lora_b) if p is not None and len(p.lora_a) == slot_rank else zeros
                    for p in of
                ]
                a, b = (torch.from_numpy(np.stack([pair[k] for pair in pairs])) for k in (0, 1))
                index = torch.tensor([rows[keep[i]] for i in mine])
                n = len(mine)
                shrunk = torch.zeros(n, slot_rank)
                lengths = (starts[:n], ones[:n], index, n, 1, n)
                sgmv_shrink(torch.from_numpy(x[mine]), a, shrunk, *lengths, 1.0)
                delta = torch.zeros(n, b.shape[1])
                sgmv_expand(shrunk, b, delta, *lengths, True)
                theirs[mine, start : start + b.shape[1]] += delta
        scale = max(np.abs(ours).max(), 1)
        assert np.abs(ours - theirs.numpy()).max() <= 1e-5 * scale


# -- tokens ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    tensors = {**make_vocabulary_tensors(6), **make_tensors(6)}
    return [*write_five(folder), write_adapter(folder / "ad6", 6, tensors=tensors)]


def make_call(seed: int, folders: list[Path], with_base: bool, count: int) -> dict[str, Any]:
    rng = random.Random(seed)
    which = [rng.randint(0 if with_base else 1, len(folders)) for _ in range(count)]
    shared = [rng.randint(3, 263) for _ in range(40)]
    prompts = [
        shared[: rng.choice((0, 16, 40))] + [rng.randint(3, 263) for _ in range(rng.randint(1, 60))]
        for _ in which
    ]
    adapters = [[f"ad{i}", i, str(folders[i - 1])] if i else None for i in which]
    max_tokens = [rng.randint(1, 24) for _ in which]
    return {"prompts": prompts, "adapters": adapters, "max_tokens": max_tokens}


def run_mini(run: dict[str, Any]) -> list[Any]:
    llm = LLM(run.get("model", DEFAULT_MODEL), enable_lora=True, **run["settings"])
    answers = []
    for call in run["calls"]:
        outputs = llm.generate(
            call["prompts"],
            [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in call["max_tokens"]],
            lora_request=[a and LoRARequest(*a) for a in call["adapters"]],
            use_tqdm=False,
        )  # fmt: skip
        answers.append([[o.outputs[0].token_ids, o.num_cached_tokens] for o in outputs])
    return answers


@functools.cache
def run_both(
    folders: tuple[Path, ...], reloads: tuple[Path, Path]
) -> tuple[list[Any], list[Any], list[Any]]:
    few = {"block_size": 16, "max_model_len": 256, "max_num_seqs": 16, "max_num_batched_tokens": 64,
           "max_lora_rank": 16}  # fmt: skip
    count = either(40, 300)
    runs = [
        # With rows that have no adapter: a slot is spare, because the CPU build gives them the last one's.
        {"settings": {**few, "max_loras": 7, "num_gpu_blocks_override": 60},
         "calls": [make_call(1, list(folders), True, count)]},
        {"settings": {**few, "max_loras": 2, "num_gpu_blocks_override": 40},
         "calls": [make_call(2, list(folders), False, count)]},
        {"settings": {**few, "max_loras": 2},
         "calls": [
             {"prompts": [list(range(20, 70))], "adapters": [["tenant", i, str(folder)]], "max_tokens": [8]}
             for i, folder in enumerate(reloads, 1)
         ]},
    ]  # fmt: skip
    job = {"runs": [{"model": str(DEFAULT_MODEL), **run} for run in runs]}
    return (
        runs,
        run_worker("tests.engine.lora.vllm_child", [], job),
        [run_mini(run) for run in runs],
    )


def test_tokens_and_cached_prefixes_are_those_of_real_vllm(folders: list[Path]) -> None:
    """Chunked prompts, shared beginnings, a small pool; with a spare slot, and with more adapters than
    slots."""
    _, theirs, ours = run_both(tuple(folders), (folders[0], folders[1]))
    assert ours[0] == theirs[0]
    assert ours[1] == theirs[1]
    assert any(cached for _, cached in ours[0][0])


def test_a_reload_under_its_name_reads_the_old_adapters_kv_in_vllm_and_not_here(
    folders: list[Path],
) -> None:
    """`vllm-project/vllm` issues 30931 and 42125. A failure here means that vLLM has mended it."""
    runs, theirs, ours = run_both(tuple(folders), (folders[0], folders[1]))
    (_, before), ((stale, cached),) = theirs[2][0][0], theirs[2][1]
    assert (before, cached) == (0, 48)
    (mine, cached_here) = ours[2][1][0]
    llm = LLM(enable_lora=True)
    call = runs[2]["calls"][1]
    truth = llm.generate(
        call["prompts"],
        SamplingParams(temperature=0, max_tokens=8, ignore_eos=True),
        lora_request=ask(folders[1], 1, "fresh"),
        use_tqdm=False,
    )[0]
    assert (mine, cached_here) == (truth.outputs[0].token_ids, 0)
    assert stale != mine


def test_tokens_on_a_quantised_base_are_those_of_real_vllm(tmp_path: Path) -> None:
    """With the adapters that are shipped: random ones make the next token too close a call for activations
    that are rounded. The child mends what keeps the pin from it (`vllm-project/vllm` PR 57480)."""
    skip_unless_right(bits=8)
    quantize_checkpoint(DEFAULT_MODEL, tmp_path / "w8a8", "w8a8")
    names = ("snake", "telegram", "questions")
    shipped = [
        [n, i, str(DEFAULT_MODEL.with_name("tiny-llama-lora") / n)] for i, n in enumerate(names, 1)
    ]
    texts = ("A cached block", "The scheduler", "A running request", "The model")
    encode = Tokenizer.from_folder(DEFAULT_MODEL).encode
    calls = [(list(encode(t)), a) for t in texts for a in (None, *shipped)]
    run = {
        "model": str(tmp_path / "w8a8"),
        "settings": {"block_size": 16, "max_model_len": 256, "max_lora_rank": 16, "max_loras": 4},
        "calls": [{"prompts": [p for p, _ in calls], "adapters": [a for _, a in calls],
                   "max_tokens": [16] * len(calls)}],
    }  # fmt: skip
    theirs = run_worker("tests.engine.lora.vllm_child", [], {"runs": [run]})
    assert run_mini(run) == theirs[0]
