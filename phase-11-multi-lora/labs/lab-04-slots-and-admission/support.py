"""What the lab's tests and scripts share: traces for the slots, workloads for the gate, an engine."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from course.parity.decisions import mini_parts
from course.parity.traces import Arrival, Config, Decision, Parts, Run, Workload
from course.parity.workloads import workload  # noqa: F401
from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.core.request import Request
from mini_vllm.core.sched.admission import Admission, AdmissionRule
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.core.sched.upstream_scheduler import UpstreamScheduler
from mini_vllm.engine.parts import EngineParts
from mini_vllm.lora.lora_model import LoRAModel
from mini_vllm.lora.request import LoadedLoRARequest, LoRARequest
from mini_vllm.model_loader import get_model

RECORDED = Path(__file__).resolve().parent / "recorded.json"
BAD = 9
"""The adapter whose file cannot be read."""
STEPS = 3_000
SHAPES = ("mixed", "priority", "no-gate", "odd-blocks")


@cache
def recorded() -> dict[str, Any]:
    """What vLLM's manager did with each of `traces`, and its scheduler with each of `workloads`."""
    found: dict[str, Any] = json.loads(RECORDED.read_text("utf-8"))
    return found


# ---- slots ---------------------------------------------------------------------------------------


class BadAdapterError(Exception):
    """An adapter's file cannot be read."""


@dataclass(frozen=True)
class Operation:
    """One thing asked of a slot manager.

    Attributes:
        kind: `=` a step with these adapters, `+` add one, `-` remove one.
        ids: from 1 to 9, in the order in which they come.
    """

    kind: str
    ids: tuple[int, ...]

    def __str__(self) -> str:
        names = {"=": "set_active_adapters", "+": "add_adapter", "-": "remove_adapter"}
        return f"{names[self.kind]}({list(self.ids) if self.kind == '=' else self.ids[0]})"


@dataclass(frozen=True)
class Seen:
    """What an operation did.

    Attributes:
        loads: ids that were read from disk, or should have been.
        fills: slots that were filled, each with what.
        slots: the table afterwards.
        memory: ids in memory afterwards, the longest unused first.
        failed: a load's error reached the caller.
    """

    loads: tuple[int, ...] = ()
    fills: tuple[tuple[int, int], ...] = ()
    slots: tuple[int | None, ...] = ()
    memory: tuple[int, ...] = ()
    failed: bool = False


@dataclass(frozen=True)
class Trace:
    """Operations, for a manager with `max_loras` slots and room for `max_cpu_loras` in memory."""

    max_loras: int
    max_cpu_loras: int
    operations: tuple[Operation, ...]


KINDS = ("steps", "more memory", "all")


def draw_trace(kind: str, seed: int, length: int = 10) -> Trace:
    """A random trace: steps by default, with more memory than slots, or with all operations."""
    rng = random.Random(f"{kind} {seed}")
    max_loras = rng.randint(1, 4)
    max_cpu_loras = max_loras + (0 if kind == "steps" else rng.randint(kind != "all", 3))
    of = range(1, min(max_cpu_loras + 3, BAD))
    operations = []
    for _ in range(length):
        what = rng.choice("====+-") if kind == "all" else "="
        count = rng.randint(1, max_loras) if what == "=" else 1
        ids = rng.sample(of, count)
        if kind == "all" and what != "-" and ids and rng.random() < 0.15:
            ids[rng.randrange(len(ids))] = BAD
        operations.append(Operation(what, tuple(ids)))
    return Trace(max_loras, max_cpu_loras, tuple(operations))


def play_trace(make: Callable[..., Any], trace: Trace) -> Iterator[Seen]:
    """What a manager, `make(max_loras, max_cpu_loras, load, set_slot)`, does by operation."""
    loads: list[int] = []
    fills: list[tuple[int, int]] = []

    def load(adapter_id: int) -> tuple[str, int]:
        loads.append(adapter_id)
        if adapter_id == BAD:
            raise BadAdapterError(f"adapter {BAD} cannot be read")
        return "weights", adapter_id

    def set_slot(index: int, adapter: tuple[str, int]) -> None:
        assert isinstance(adapter, tuple), f"set_slot gets what load returned, not {adapter!r}"
        fills.append((index, adapter[1]))

    manager = make(trace.max_loras, trace.max_cpu_loras, load, set_slot)
    for operation in trace.operations:
        loads.clear()
        fills.clear()
        failed = False
        try:
            if operation.kind == "=":
                manager.set_active_adapters(list(operation.ids))
            else:
                ask = manager.add_adapter if operation.kind == "+" else manager.remove_adapter
                ask(operation.ids[0])
        except BadAdapterError:
            failed = True
        slots, memory = tuple(manager.lora_index_to_id), tuple(manager.list_adapters())
        yield Seen(tuple(loads), tuple(fills), slots, memory, failed)


def write_trace(trace: Trace, seen: Sequence[Seen]) -> list[Any]:
    """As `recorded.json` has it: per operation what is asked, loads, fills, slots and memory."""

    def digits(ids: Sequence[int | None]) -> str:
        return "".join("." if i is None else str(i) for i in ids) or "-"

    words = []
    for operation, one in zip(trace.operations, seen, strict=True):
        filled = "".join("abcd"[index] + str(adapter) for index, adapter in one.fills) or "-"
        asked = operation.kind + digits(operation.ids).strip("-")
        words.append(
            f"{asked} {digits(one.loads)} {filled} {digits(one.slots)} {digits(one.memory)}"
        )
    return [trace.max_loras, trace.max_cpu_loras, ", ".join(words)]


def read_trace(line: Sequence[Any]) -> tuple[Trace, list[Seen]]:
    """What `write_trace` has written."""

    def ids(text: str) -> tuple[Any, ...]:
        return tuple(None if c == "." else int(c) for c in text.strip("-"))

    max_loras, max_cpu_loras, words = line
    operations, seen = [], []
    for word in words.split(", "):
        asked, loads, fills, slots, memory = word.split(" ")
        operations.append(Operation(asked[0], ids(asked[1:])))
        filled = fills.strip("-")
        pairs = zip(filled[::2], filled[1::2], strict=True)
        seen.append(
            Seen(ids(loads), tuple(("abcd".index(i), int(k)) for i, k in pairs), ids(slots), ids(memory),
                 str(BAD) in loads)
        )  # fmt: skip
    return Trace(max_loras, max_cpu_loras, tuple(operations)), seen


# ---- the gate ------------------------------------------------------------------------------------

TENANTS = ("noor", "ada", "bo", "cy")
"""Whose adapter has which id; Noor asks for the plain model."""


def adapter_of(request_id: str, seed: int) -> int:
    """The adapter of a request of a workload; 0: none."""
    _, _, tenant = request_id.partition("-")
    if tenant:
        return TENANTS.index(tenant)
    return random.Random(f"adapter {request_id} {seed}").choice((0, 0, 1, 2, 3, 4, 5))


def scene(requests: Sequence[tuple[str, int, int]], max_num_seqs: int = 8) -> Workload:
    """A workload of requests with short prompts: tenant, the step it arrives before, tokens wanted.

    Steps are counted from 1. Each prompt fits into a step, and there are blocks enough for all. The first
    request is called `1-ada` if it is Ada's.
    """
    config: Config = {
        "block_size": 16, "num_blocks": 100, "max_num_seqs": max_num_seqs, "max_num_batched_tokens": 256,
        "long_prefill_token_threshold": 0, "enable_prefix_caching": False, "max_model_len": 256,
        "policy": "fcfs",
    }  # fmt: skip
    arrivals: list[Arrival] = [
        {"id": f"{i}-{tenant}", "step": step - 1, "prompt": [5 + i] * 8, "max_tokens": wanted,
         "ignore_eos": True, "priority": 0, "abort": None}
        for i, (tenant, step, wanted) in enumerate(requests, 1)
    ]  # fmt: skip
    return {"seed": 0, "config": config, "requests": arrivals}


def make_parts(work: Workload, rules: Sequence[AdmissionRule]) -> Parts:
    """`mini_vllm`'s scheduler with these rules, and requests with adapters."""
    parts = mini_parts(work["config"], partial(UpstreamScheduler, admission_rules=list(rules)))

    def make_request(arrival: Arrival, index: int) -> Request:
        plain = parts.make_request(arrival, index)
        adapter = adapter_of(plain.request_id, work["seed"])
        return Request(
            plain.request_id, plain.prompt_token_ids, plain.sampling_params,
            arrival_time=plain.arrival_time, priority=plain.priority, block_size=plain.block_size,
            lora_request=_lora_request(adapter) if adapter else None,
        )  # fmt: skip

    return replace(parts, make_request=make_request)


def _lora_request(adapter: int) -> LoadedLoRARequest:
    model = LoRAModel(1, {}, bytes([adapter]) * 32)
    return LoadedLoRARequest(f"adapter-{adapter}", adapter, "none", model=model)


def request_of(name: str) -> Any:
    """A request, as the gate sees it, for a tenant's adapter (`1-ada`) or the plain model (`5-noor`)."""
    adapter = adapter_of(name, 0)
    return Request(
        name, [5] * 8, SamplingParams(), lora_request=_lora_request(adapter) if adapter else None
    )


@dataclass(frozen=True)
class Step:
    """What a scheduler decided in a step.

    Attributes:
        held: the adapters of the running requests that the step has.
        admitted: the ids of the requests that are admitted.
        decision: all of it.
    """

    held: tuple[int, ...]
    admitted: tuple[str, ...]
    decision: Decision


def decide(work: Workload, parts: Parts) -> Iterator[Step]:
    """Step by step what a scheduler decides on a workload, until its requests have finished."""
    run = Run(work, parts)
    running: set[str] = set()
    while not run.done and run.step < STEPS:
        run.arrive()
        decision = run.decide()
        scheduled = decision["scheduled"]
        held = {adapter_of(i, work["seed"]) for i in scheduled if i in running} - {0}
        admitted = tuple(i for i in scheduled if i not in running)
        yield Step(tuple(sorted(held)), admitted, decision)
        running = set(decision["running"])


def write_admissions(steps: Sequence[Step]) -> str:
    """As `recorded.json` has it: `6:0,1 9:2` admits r000 and r001 in step 6."""
    return " ".join(
        f"{number}:{','.join(str(int(i[1:])) for i in step.admitted)}"
        for number, step in enumerate(steps)
        if step.admitted
    )


def read_admissions(text: str) -> dict[int, tuple[str, ...]]:
    """By step whom vLLM admitted."""
    pairs = (word.split(":") for word in text.split())
    return {int(n): tuple(f"r{int(i):03}" for i in ids.split(",")) for n, ids in pairs}


def first_difference(
    lab: Any,
    work: Workload,
    max_loras: int,
    admitted: Mapping[int, tuple[str, ...]],
    num_steps: int,
) -> str:
    """Where `lab.LoRAGate` admits others than vLLM did; "" if nowhere."""

    def name(ids: Sequence[str]) -> str:
        said = [f"{i} ({adapter_of(i, work['seed']) or 'no adapter'})" for i in ids]
        return ", ".join(said) or "none"

    number = -1
    for number, step in enumerate(decide(work, make_parts(work, [lab.LoRAGate(max_loras)]))):
        theirs = admitted.get(number, ())
        if step.admitted != theirs:
            return (
                f"max_loras {max_loras}, step {number}: the running requests have the adapters "
                f"{list(step.held)}. Admitted, each with its adapter: in vLLM {name(theirs)}; "
                f"yours {name(step.admitted)}"
            )
    return "" if number + 1 == num_steps else f"{number + 1} steps; vLLM takes {num_steps}"


class Barrier(AdmissionRule):
    """A gate that stops where another one skips."""

    def __init__(self, gate: AdmissionRule) -> None:
        self.gate = gate

    def start_step(self, scheduled_running_reqs: Sequence[Request]) -> None:
        self.gate.start_step(scheduled_running_reqs)

    def check(self, request: Request) -> Admission:
        decision = self.gate.check(request)
        return Admission.STOP if decision is Admission.SKIP else decision

    def admit(self, request: Request, num_external_tokens: int) -> None:
        self.gate.admit(request, num_external_tokens)


# The README's two scenes.
QUEUE = [(tenant, 1, 4) for tenant in ("ada", "ada", "bo", "cy", "noor", "ada", "cy", "bo")]
STREAM = [
    ("ada", 1, 10), ("bo", 1, 30), ("cy", 1, 10), ("noor", 2, 5), ("ada", 8, 10), ("ada", 15, 10),
    ("bo", 20, 4),
]  # fmt: skip


def timeline(work: Workload, rules: Sequence[AdmissionRule]) -> dict[str, list[int]]:
    """By request the steps in which it was scheduled, counted from 1."""
    found: dict[str, list[int]] = {q["id"]: [] for q in work["requests"]}
    for number, step in enumerate(decide(work, make_parts(work, rules)), 1):
        for request_id in step.decision["scheduled"]:
            found[request_id].append(number)
    return found


# ---- the engine ----------------------------------------------------------------------------------

ADAPTERS = {"ada": "snake", "bo": "telegram", "cy": "questions"}
"""Of the shipped adapters whose is which."""


class _InEngine:
    """A lab's manager where the engine has its own, which is told of requests instead of ids."""

    def __init__(self, lab: Any, config: Any, set_slot: Callable[[int, Any], None]) -> None:
        self.wanted: Mapping[Any, Any] = {}
        self.manager = lab.SlotManager(
            config.max_loras, config.num_cpu_loras, lambda key: self.wanted[key], set_slot
        )

    @property
    def lora_index_to_id(self) -> list[Any]:
        return list(self.manager.lora_index_to_id)

    def set_active_adapters(self, requests: Mapping[Any, Any]) -> None:
        self.wanted = requests
        self.manager.set_active_adapters(list(requests))


@cache
def _model() -> Any:
    return get_model(str(DEFAULT_MODEL), EngineConfig().attention, None)


def answers(lab: Any = None) -> dict[str, list[int]]:
    """Tokens of eight requests, three adapters and none on two slots; with a lab, by its parts."""
    config = EngineConfig(
        enable_lora=True, max_loras=2, max_num_seqs=4, max_model_len=64, num_gpu_blocks=64
    )
    parts = EngineParts()
    if lab is not None:

        def make_scheduler(config: Any, manager: Any, admission_rules: Any) -> Scheduler:
            return Scheduler(config, manager, admission_rules=[lab.LoRAGate(config.max_loras)])

        parts = EngineParts(scheduler=make_scheduler)
    engine = LLMEngine(_model(), config, parts=parts)
    if lab is not None:
        component: Any = engine.engine_core.model_runner.lora
        component.manager = _InEngine(lab, engine.config, component._set_slot)
    for i, (tenant, _, _) in enumerate(QUEUE, 1):
        lora = None
        if tenant in ADAPTERS:
            folder = DEFAULT_MODEL.parent / "tiny-llama-lora" / ADAPTERS[tenant]
            lora = LoRARequest(ADAPTERS[tenant], TENANTS.index(tenant), str(folder))
        params = SamplingParams(temperature=0, max_tokens=3 + i % 3, ignore_eos=True)
        prompt = {"prompt_token_ids": list(range(20, 32))}
        engine.add_request(f"{i}-{tenant}", prompt, params, lora_request=lora)
    tokens: dict[str, list[int]] = {}
    for _ in range(STEPS):
        if not engine.has_unfinished_requests():
            break
        for output in engine.step():
            if output.finished:
                tokens[output.request_id] = list(output.outputs[0].token_ids)
    return tokens
