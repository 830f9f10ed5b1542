"""What vLLM's own code says of adapters' files, the gate, slots that move, halves, rows, keys, and a folder
that is gone.

    python phase-11-multi-lora/vllm_adapters.py           all topics
    python phase-11-multi-lora/vllm_adapters.py refused   one

Needs vLLM 0.22.1; its CPU build will do. The topics are vLLM's functions, without a model. `gone` is the
whole engine on the shipped Llama, with its core in a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from course.learner.labs import load_module

PHASES = Path(__file__).resolve().parents[1]
CHECKPOINTS = PHASES / "mini_vllm" / "checkpoints"
ADAPTERS = CHECKPOINTS / "tiny-llama-lora"
topics = load_module(PHASES / "phase-05-cuda-graphs/vllm_topics.py", "vllm_topics_for_phase_11")
Say = Callable[[str], None]


def _pin_nothing() -> None:
    """Let tensors be ordinary memory: pinned memory takes a GPU."""
    from vllm.utils import torch_utils

    if len(torch_utils.async_tensor_h2d.__defaults__ or ()) == 1:
        torch_utils.async_tensor_h2d.__defaults__ = (False,)
    torch_utils.PIN_MEMORY = False  # what later releases ask


def refused(say: Say) -> None:
    """Ada's settings with one key more, or another: what `PEFTHelper` makes of them."""
    from vllm.lora.peft_helper import PEFTHelper

    settings = json.loads((ADAPTERS / "snake" / "adapter_config.json").read_text("utf-8"))
    limits: Any = SimpleNamespace(max_lora_rank=16)
    for key, value in (
        ("r", 4), ("r", 32), ("use_rslora", True), ("use_dora", True), ("bias", "all"),
        ("modules_to_save", ["lm_head"]), ("peft_type", "IA3"), ("alpha_pattern", {"q_proj": 64}),
        ("rank_pattern", {"q_proj": 2}), ("lora_bias", True),
    ):  # fmt: skip
        try:
            helper = PEFTHelper.from_dict(settings | {key: value})
            helper.validate_legal(limits)
            said = f"scale {helper.vllm_lora_scaling_factor:g}"
        except ValueError as error:
            said = str(error)
        say(f"{key + ' ' + json.dumps(value):32}{said}")


def in_flight(say: Say) -> None:
    """One slot and two steps in flight, as a pipeline of two stages has them: the schedules."""
    from vllm.lora.request import LoRARequest
    from vllm.v1.request import Request

    from course.parity.record import vllm_parts

    config: Any = {
        "block_size": 16, "num_blocks": 40, "max_num_seqs": 4, "max_num_batched_tokens": 64,
        "long_prefill_token_threshold": 0, "enable_prefix_caching": False, "max_model_len": 256,
        "policy": "fcfs",
    }  # fmt: skip
    parts = vllm_parts(config)
    scheduler: Any = parts.scheduler
    scheduler.lora_config = SimpleNamespace(max_loras=1)
    for number, (name, length) in enumerate((("ada", 5), ("bo", 100)), 1):
        asked: Any = {"id": name, "prompt": list(range(10, 10 + length)), "max_tokens": 8,
                      "ignore_eos": True, "priority": 0}  # fmt: skip
        plain: Any = parts.make_request(asked, number)
        request = Request(
            name, plain.prompt_token_ids, plain.sampling_params, None,
            arrival_time=plain.arrival_time, block_hasher=plain._block_hasher,
            lora_request=LoRARequest(name, number, "unread"),
        )  # fmt: skip
        scheduler.add_request(request)
    say("max_loras 1; prompts: ada 5 tokens, bo 100; 64 tokens to a step")
    flying: list[Any] = []
    for step in (1, 2, 3):
        try:
            plan = scheduler.schedule()
        except AssertionError:
            say(
                f"step {step}  AssertionError; running: {[r.request_id for r in scheduler.running]}"
            )
            return
        flying.append(plan)
        say(f"step {step}  {plan.num_scheduled_tokens}")
        if len(flying) == 2:
            oldest = flying.pop(0)
            names = list(oldest.num_scheduled_tokens)
            scheduler.update_from_output(oldest, parts.make_output(names, [[9]] * len(names)))


def make_manager(max_loras: int, max_cpu_loras: int, loads: list[int]) -> Any:
    """vLLM's two managers without a model; each id that is loaded is put into `loads`."""
    from vllm.lora import model_manager, worker_manager
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    _pin_nothing()
    inner: Any = model_manager.LRUCacheLoRAModelManager.__new__(
        model_manager.LRUCacheLoRAModelManager
    )
    inner.lora_config = SimpleNamespace(max_loras=max_loras, max_cpu_loras=max_cpu_loras)
    inner.modules, inner.lora_index_to_id = {}, [None] * max_loras
    inner._registered_adapters = model_manager.AdapterLRUCache(
        max_cpu_loras, inner.deactivate_adapter
    )
    inner._active_adapters = model_manager.AdapterLRUCache(max_loras, inner._deactivate_adapter)
    inner._create_merged_loras_inplace = lambda lora: None
    inner.supports_mm, inner.vocab_size, inner._last_mapping = False, 264, None
    inner._enable_mixed_moe_lora_format = False
    inner._last_slot_layout, inner._classification_head = None, None  # later releases ask for these
    wrapper = PunicaWrapperCPU(64, 4, "cpu")
    inner.punica_wrapper_mapping = {model_manager.DEFAULT_LANGUAGE_WRAPPER_KEY: wrapper}
    outer: Any = worker_manager.LRUCacheWorkerLoRAManager.__new__(
        worker_manager.LRUCacheWorkerLoRAManager
    )
    outer._adapter_manager = inner

    def load(request: Any) -> Any:
        loads.append(request.lora_int_id)
        return SimpleNamespace(id=request.lora_int_id)

    outer._load_adapter = load
    return outer


def ask(number: int) -> Any:
    """As much of a `LoRARequest` as the managers read."""
    return SimpleNamespace(lora_int_id=number, load_inplace=False)


def moved(say: Say) -> None:
    """Two slots. Adapter 1 decodes; between two of its steps a client loads 3 and 4."""
    from vllm.lora.layers import LoRAMapping

    outer = make_manager(max_loras=2, max_cpu_loras=4, loads=[])
    inner = outer._adapter_manager
    [wrapper] = inner.punica_wrapper_mapping.values()

    def step(number: int, when: str) -> None:
        outer.set_active_adapters([ask(number)], LoRAMapping((number,), (number,), True))
        slot = int(wrapper.token_lora_indices[0])
        table = inner.lora_index_to_id
        say(f"{when:16}slots {table}, the row of {number} computes with slot {slot}: {table[slot]}")

    step(1, "a step of 1")
    for number in (3, 4):
        outer.add_adapter(ask(number))
        say(f"{'load ' + str(number):16}slots {inner.lora_index_to_id}")
    step(1, "a step of 1")


def halves(say: Say) -> None:
    """Two ranks: how rank 1 cuts the factors of an adapter, and what a step says for it beside the base's."""
    import torch
    from vllm.lora.layers import column_parallel_linear, row_parallel_linear
    from vllm.lora.utils import from_layer

    calls: list[str] = []

    def say_call(name: str) -> Callable[..., Any]:
        def call(tensor: Any, *_: Any) -> Any:
            calls.append(name)
            return torch.cat([tensor, tensor], -1) if name == "all-gather" else tensor

        return call

    gather = patch.object(
        column_parallel_linear, "tensor_model_parallel_all_gather", say_call("all-gather")
    )
    add = patch.object(
        row_parallel_linear, "tensor_model_parallel_all_reduce", say_call("all-reduce")
    )
    say(f"{'':26}{'A':10}{'B':12}beside the base's")
    with gather, add:
        for sharded in (False, True):
            say(f"fully_sharded_loras {sharded}")
            config: Any = SimpleNamespace(
                max_lora_rank=8, fully_sharded_loras=sharded, lora_dtype=torch.float32
            )
            for name, base, packed in _bases():
                layer: Any = from_layer(base, 1, config, packed)
                layer.set_mapping(_Nothing())
                size_in, size_out = base.whole
                first, second = torch.zeros(8, size_in), torch.zeros(size_out, 8)
                if len(packed) > 1:
                    a, b = layer.slice_lora_a([first] * 3)[0], layer.slice_lora_b([second] * 3)[0]
                else:
                    a, b = layer.slice_lora_a(first), layer.slice_lora_b(second)
                calls.clear()
                layer.apply(torch.zeros(3, base.x_size))
                cut = [_cut(a, first, ("rank", "inputs")), _cut(b, second, ("outputs", "rank"))]
                say(f"  {name:24}{cut[0]:10}{cut[1]:12}{', '.join(calls) or '-'}")


def _cut(part: Any, whole: Any, axes: tuple[str, str]) -> str:
    cut = [
        axis for axis, mine, all_ in zip(axes, part.shape, whole.shape, strict=True) if mine < all_
    ]
    return " and ".join(cut) or "whole"


class _Nothing:
    """A Punica wrapper that adds nothing."""

    def add_shrink(self, y: Any, *_: Any, **__: Any) -> Any:
        return y

    add_expand = add_lora_linear = add_shrink


def _bases() -> list[tuple[str, Any, list[str]]]:
    """A layer of each kind as rank 1 of 2 has it, 64 numbers wide; with a name, and what is packed in it."""
    import torch
    from vllm.model_executor.layers.linear import (
        MergedColumnParallelLinear,
        QKVParallelLinear,
        RowParallelLinear,
    )

    def make(kind: Any, whole: tuple[int, int], x_size: int, y_size: int, **more: Any) -> Any:
        base = kind.__new__(kind)
        torch.nn.Module.__init__(base)
        base.weight = torch.zeros(1)
        base.tp_size, base.tp_rank = 2, 1
        base.input_size, base.whole, base.x_size = whole[0], whole, x_size
        base.quant_method = SimpleNamespace(apply=lambda _, x, bias: torch.zeros(len(x), y_size))
        for name, value in more.items():
            setattr(base, name, value)
        return base

    heads: dict[str, Any] = {
        "output_sizes": [64, 64, 64], "output_size_per_partition": 96, "num_heads": 2, "head_size": 16,
        "num_kv_heads": 2, "num_kv_head_replicas": 1,
    }  # fmt: skip
    halves_of = {"output_sizes": [64, 64], "output_size_per_partition": 64}
    narrow = {"input_size_per_partition": 32, "output_size": 64}
    return [
        ("q, k, v", make(QKVParallelLinear, (64, 64), 64, 96, **heads), ["q", "k", "v"]),
        (
            "gate, up",
            make(MergedColumnParallelLinear, (64, 64), 64, 64, **halves_of),
            ["gate", "up"],
        ),
        ("o; down", make(RowParallelLinear, (64, 64), 32, 64, **narrow), []),
    ]


def rows(say: Say) -> None:
    """Seven rows, two slots of rank 1: what the GPU's kernels are told of them, and what the CPU's add."""
    import torch
    from vllm.lora.ops.torch_ops import bgmv_expand, bgmv_shrink
    from vllm.lora.ops.triton_ops.lora_kernel_metadata import LoRAKernelMeta
    from vllm.lora.punica_wrapper.utils import compute_meta

    slot_of = torch.tensor([1, 1, 1, -1, 0, -1, 1])
    meta = LoRAKernelMeta.make(2, 7, "cpu")
    meta.prepare_tensors(slot_of)
    say(f"slot of each row        {slot_of.tolist()}")
    say("GPU")
    say(f"  rows, by slot         {meta.token_indices_sorted_by_lora_ids.tolist()}")
    say(f"  slots                 {meta.active_lora_ids.tolist()}")
    say(f"  rows of each          {meta.num_tokens_per_lora.tolist()}")
    say(f"  first of each         {meta.lora_token_start_loc.tolist()}")
    say("CPU")
    _, lengths, slots, *_ = compute_meta(slot_of)
    say(f"  runs, slot and length {list(zip(slots.tolist(), lengths.tolist(), strict=True))}")
    x, a = torch.ones(7, 1), torch.ones(2, 1, 1, 1)
    b = torch.tensor([10.0, 20.0]).reshape(2, 1, 1, 1)  # slot 0 adds 10 to a row, slot 1 adds 20
    shrunk, y = torch.zeros(7, 1), torch.zeros(7, 1)
    bgmv_shrink(x, a, shrunk, slot_of)
    bgmv_expand(shrunk, b, y, slot_of)
    say(f"  added to each row     {[int(v) for v in y[:, 0]]}")


def keys(say: Say) -> None:
    """What the keys of a prompt's first and second block hold beside the tokens."""
    from vllm.lora.request import LoRARequest
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import (
        generate_block_hash_extra_keys,
        hash_block_tokens,
        init_none_hash,
    )

    init_none_hash(sha256)
    blocks: dict[bytes, str] = {}
    for who, name, number, path, salt in (
        ("nothing", None, 0, "", None),
        ("ada, id 1", "ada", 1, "a/", None),
        ("ada, id 2", "ada", 2, "b/", None),
        ("bo, id 3", "bo", 3, "b/", None),
        ("bo, salted", "bo", 3, "b/", "x"),
        ("salted ada", None, 0, "", "ada"),
    ):
        request: Any = SimpleNamespace(
            mm_features=[], prompt_embeds=None, cache_salt=salt,
            lora_request=LoRARequest(name, number, path) if name else None,
        )  # fmt: skip
        first, second = (
            generate_block_hash_extra_keys(request, at, at + 16, 0)[0] for at in (0, 16)
        )
        key = hash_block_tokens(sha256, None, list(range(16)), first)
        same = blocks.setdefault(key, who)
        note = f"  first block shared with: {same}" if same != who else ""
        say(f"{who:12}{first!s:15}{second!s:10}{note}".rstrip())


def gone(say: Say) -> None:
    """One slot. Ada's folder is removed after she was served, Bo takes the slot, and Ada comes again."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "TORCH_COMPILE_DISABLE": "1",
                   "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "CRITICAL"}  # fmt: skip
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.v1.executor import UniProcExecutor

    llm = LLM(
        str(CHECKPOINTS / "tiny-llama"), dtype="float32", enforce_eager=True, max_model_len=256,
        enable_lora=True, max_loras=1, distributed_executor_backend=UniProcExecutor,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        ada = LoRARequest("ada", 1, shutil.copytree(ADAPTERS / "snake", f"{folder}/ada"))
        bo = LoRARequest("bo", 2, str(ADAPTERS / "telegram"))
        for who, lora in (("ada", ada), ("bo", bo), ("ada", ada), ("bo", bo), ("no adapter", None)):
            params = SamplingParams(temperature=0, max_tokens=24)
            try:
                text = (
                    llm.generate(["Why "], params, lora_request=lora, use_tqdm=False)[0]
                    .outputs[0]
                    .text
                )
                say(f"{who:12}{text!r}")
            except Exception as error:
                say(f"{who:12}{type(error).__name__}")
            shutil.rmtree(ada.lora_path, ignore_errors=True)


TOPICS = {
    "refused": refused,
    "in_flight": in_flight,
    "moved": moved,
    "halves": halves,
    "rows": rows,
    "keys": keys,
    "gone": gone,
}

if __name__ == "__mp_main__":  # in the process that `gone` starts
    _pin_nothing()
if __name__ == "__main__":
    os.environ |= {name: os.environ.get(name, value) for name, value in topics.ON_PAPER.items()}
    names = topics.wanted(TOPICS)
    if len(names) > 1:
        topics.each_apart(__file__, names)
    else:
        topics.tell(names[0], TOPICS[names[0]])
