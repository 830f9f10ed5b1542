"""Given: your manager and your gate beside vLLM's own, on a CPU. Needs vLLM 0.22.1; `course grade` does not.

    python in_vllm.py [solution | starter]   200 fresh traces and 50 fresh workloads
    python in_vllm.py --record               write recorded.json, which the tests read

vLLM hands a step's adapters to its manager as a set, whose order changes from run to run. Here they come as a
list, so that both managers see one order. Scheduling is synchronous.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from course.learner.labs import load_module, need_vllm
from course.parity.record import vllm_parts
from course.parity.workloads import workload

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_11_04_support")


class VllmManager:
    """vLLM's two managers, as the lab's one; without a model, so a slot is filled by noting it."""

    def __init__(
        self,
        max_loras: int,
        max_cpu_loras: int,
        load: Callable[[int], Any],
        set_slot: Callable[[int, Any], None],
    ) -> None:
        from vllm.lora.model_manager import LoRALRUCache, LRUCacheLoRAModelManager
        from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager

        class Table(list[Any]):
            """The slots; filling one is noted."""

            def __setitem__(self, index: Any, adapter_id: Any) -> None:
                super().__setitem__(index, adapter_id)
                if adapter_id is not None:
                    set_slot(index, inner._registered_adapters.cache[adapter_id].weights)

        inner: Any = LRUCacheLoRAModelManager.__new__(LRUCacheLoRAModelManager)
        inner.lora_config = SimpleNamespace(max_loras=max_loras, max_cpu_loras=max_cpu_loras)
        inner.modules, inner.lora_index_to_id = {}, Table([None] * max_loras)
        inner._registered_adapters = LoRALRUCache(max_cpu_loras, inner.deactivate_adapter)
        inner._active_adapters = LoRALRUCache(max_loras, inner._deactivate_adapter)
        inner._create_merged_loras_inplace = lambda lora: None
        outer: Any = LRUCacheWorkerLoRAManager.__new__(LRUCacheWorkerLoRAManager)
        outer._adapter_manager = inner
        outer._load_adapter = lambda request: SimpleNamespace(
            id=request.lora_int_id, weights=load(request.lora_int_id)
        )
        self.inner, self.outer = inner, outer

    @property
    def lora_index_to_id(self) -> list[int | None]:
        return list(self.inner.lora_index_to_id)

    def list_adapters(self) -> list[int]:
        return list(self.inner.list_adapters())

    def set_active_adapters(self, ids: list[int]) -> None:
        self.outer.set_active_adapters([_request(i) for i in ids], None)

    def add_adapter(self, adapter_id: int) -> None:
        self.outer.add_adapter(_request(adapter_id))

    def remove_adapter(self, adapter_id: int) -> bool:
        return bool(self.outer.remove_adapter(adapter_id))


def _request(adapter_id: int) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(f"adapter-{adapter_id}", adapter_id, "none")


def make_parts(work: Any, max_loras: int) -> Any:
    """vLLM's scheduler with a `LoRAConfig`, and requests with adapters."""
    from vllm.config.lora import LoRAConfig
    from vllm.v1.request import Request

    parts = vllm_parts(work["config"])
    parts.scheduler.lora_config = LoRAConfig(max_loras=max_loras)

    def make_request(arrival: Any, index: int) -> Any:
        plain = parts.make_request(arrival, index)
        adapter = support.adapter_of(plain.request_id, work["seed"])
        return Request(
            plain.request_id, plain.prompt_token_ids, plain.sampling_params, None,
            arrival_time=plain.arrival_time, priority=plain.priority, block_hasher=plain._block_hasher,
            lora_request=_request(adapter) if adapter else None,
        )  # fmt: skip

    return replace(parts, make_request=make_request)


def cases(first: int, count: int) -> Iterator[tuple[str, int, int]]:
    """So many workloads: shape, seed, slots."""
    for number in range(count):
        seed = first + number // len(support.SHAPES)
        yield support.SHAPES[number % len(support.SHAPES)], seed, 1 + seed % 3


def differing_traces(lab: Any, first: int, count: int) -> list[str]:
    """Those of so many fresh traces on which `lab.SlotManager` and vLLM's managers differ."""
    wrong = []
    for number in range(count):
        kind, seed = support.KINDS[number % len(support.KINDS)], first + number
        trace = support.draw_trace(kind, seed, 40)
        pairs = zip_longest(
            support.play_trace(lab.SlotManager, trace), support.play_trace(VllmManager, trace)
        )
        if any(mine != theirs for mine, theirs in pairs):
            wrong.append(f"{kind} {seed}")
    return wrong


def differing_workloads(lab: Any, first: int, count: int) -> list[str]:
    """Those of so many workloads on which `mini_vllm`'s scheduler with the gate and vLLM's decide
    differently, in whatever `Decision` has."""
    wrong = []
    for shape, seed, max_loras in cases(first, count):
        work = workload(seed, shape)
        mine = support.decide(work, support.make_parts(work, [lab.LoRAGate(max_loras)]))
        theirs = support.decide(work, make_parts(work, max_loras))
        if any(a != b for a, b in zip_longest(mine, theirs)):
            wrong.append(f"{shape} {seed}, {max_loras} slots")
    return wrong


def record(num_traces: int = 60, num_workloads: int = 24) -> str:
    """What recorded.json holds. Of the workloads, those that go otherwise without adapters."""
    per_kind = num_traces // len(support.KINDS)
    traces: dict[str, list[Any]] = {}
    for kind in support.KINDS:
        drawn = [support.draw_trace(kind, seed) for seed in range(per_kind)]
        traces[kind] = [
            support.write_trace(trace, list(support.play_trace(VllmManager, trace)))
            for trace in drawn
        ]
    works: dict[str, list[Any]] = {}
    for shape, seed, max_loras in cases(0, 10 * num_workloads):
        of_shape = works.setdefault(shape, [])
        if len(of_shape) == num_workloads // len(support.SHAPES):
            continue
        work = workload(seed, shape)
        steps = list(support.decide(work, make_parts(work, max_loras)))
        admitted = support.write_admissions(steps)
        without = support.decide(work, support.make_parts(work, []))
        if admitted != support.write_admissions(list(without)):
            of_shape.append([seed, max_loras, len(steps), admitted])
    parts = [
        f'"{name}":{{\n'
        + ",\n".join(
            f'"{kind}":[\n' + ",\n".join(json.dumps(line, separators=(",", ":")) for line in lines) + "\n]"
            for kind, lines in of_kind.items()
        )
        + "\n}"
        for name, of_kind in (("traces", traces), ("workloads", works))
    ]  # fmt: skip
    return '{"vllm":"0.22.1",\n' + ",\n".join(parts) + "\n}\n"


def main(which: str = "starter") -> None:
    need_vllm()
    if which == "--record":
        support.RECORDED.write_text(record(), "utf-8")
        return
    lab = load_module(HERE / f"{which}.py", f"lab_11_04_{which}")
    for what, count, wrong in (
        ("traces", 200, differing_traces(lab, 1000, 200)),
        ("workloads", 50, differing_workloads(lab, 1000, 50)),
    ):
        print(
            f"{count:3} {what:9}  {len(wrong)} differ{':' if wrong else ''} {'; '.join(wrong[:3])}".rstrip()
        )


if __name__ == "__main__":
    main(*sys.argv[1:2])
