"""The gate beside vLLM's own scheduler: adapters, grammars and a KV connector decide who is admitted.

Of the three nothing is there but what admission asks of them. Both schedulers get the same workloads, and
must take the same decisions.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from course.parity.decisions import mini_parts
from course.parity.record import vllm_parts
from course.parity.traces import Decision, Parts, Run, Workload
from course.parity.workloads import workload
from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.admission import Admission, AdmissionRule
from mini_vllm.core.sched.upstream_scheduler import UpstreamScheduler
from tests.engine.helpers.thorough import THOROUGH

pytestmark = pytest.mark.vllm

SHAPES = ("mixed", "priority", "crowd", "no-gate", "odd-blocks")
MAX_LORAS = 2
GRAMMAR = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR


def adapter_of(request_id: str) -> int:
    """0: none."""
    return random.Random(f"adapter {request_id}").choice((0, 0, 1, 2, 3, 4))


def compile_steps(request_id: str) -> int | None:
    """Steps until the request's grammar is compiled; None: it wants none."""
    return random.Random(f"grammar {request_id}").choice((None, None, 0, 1, 3, 9))


class Store:
    """What a connector finds elsewhere: a few blocks of some requests, though not when first asked."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.asked: Counter[str] = Counter()
        self.allocated: list[tuple[str, int]] = []

    def match(self, request_id: str, num_tokens: int, num_computed_tokens: int) -> int | None:
        rng = random.Random(f"store {request_id}")
        self.asked[request_id] += 1
        if self.asked[request_id] <= rng.choice((0, 0, 0, 1, 2)):
            return None
        rest = (num_tokens - num_computed_tokens - 1) // self.block_size
        return min(rng.choice((0, 0, 1, 3)), rest) * self.block_size


class Adapters(AdmissionRule):
    def start_step(self, scheduled_running_reqs: Any) -> None:
        self.scheduled = {adapter_of(r.request_id) for r in scheduled_running_reqs} - {0}

    def check(self, request: Request) -> Admission:
        adapter = adapter_of(request.request_id)
        full = len(self.scheduled) == MAX_LORAS
        return (
            Admission.SKIP
            if full and adapter and adapter not in self.scheduled
            else Admission.ADMIT
        )

    def admit(self, request: Request, num_external_tokens: int) -> None:
        self.scheduled |= {adapter_of(request.request_id)} - {0}


class Grammars(AdmissionRule):
    blocked_status = GRAMMAR

    def __init__(self) -> None:
        self.compiled: set[str] = set()

    def is_ready(self, request: Request) -> bool:
        return request.request_id in self.compiled


class Connector(AdmissionRule):
    def __init__(self, store: Store) -> None:
        self.store = store

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> int | None:
        return self.store.match(request.request_id, request.num_tokens, num_computed_tokens)

    def admit(self, request: Request, num_external_tokens: int) -> None:
        self.store.allocated.append((request.request_id, num_external_tokens))


class VllmConnector:
    """The same for vLLM's scheduler: what it calls of a connector."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def on_new_request(self, request: Any) -> None:
        """There is nothing to prepare."""

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        found = self.store.match(request.request_id, request.num_tokens, num_computed_tokens)
        return found, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self.store.allocated.append((request.request_id, num_external_tokens))

    def build_connector_meta(self, scheduler_output: Any) -> None:
        return None

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return False, None

    def take_events(self) -> tuple[()]:
        return ()


class AnyText:
    """A compiled grammar that every text obeys."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return True


def decide(run: Run, compile_ready: Any) -> list[Decision]:
    decisions: list[Decision] = []
    first_step: dict[str, int] = {}
    while not run.done and len(decisions) < 3000:
        run.arrive()
        for request_id, request in run.live.items():
            steps = compile_steps(request_id)
            born = first_step.setdefault(request_id, run.step)
            if steps is not None and run.step >= born + steps:
                compile_ready(request)
        decisions.append(run.decide())
    return decisions


def decide_vllm(work: Workload, abilities: set[str], store: Store) -> list[Decision]:
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.request import Request as VllmRequest

    parts = vllm_parts(work["config"])
    scheduler: Any = parts.scheduler
    if "adapters" in abilities:
        scheduler.lora_config = SimpleNamespace(max_loras=MAX_LORAS)
    if "connector" in abilities:
        scheduler.connector = VllmConnector(store)
    make = parts.make_request

    def make_request(arrival: Any, index: int) -> Any:
        request = make(arrival, index)
        if "grammars" in abilities and compile_steps(request.request_id) is not None:
            request.sampling_params.structured_outputs = StructuredOutputsParams(json="{}")
            request = VllmRequest(
                request.request_id, request.prompt_token_ids, request.sampling_params, None,
                arrival_time=request.arrival_time, priority=request.priority,
                block_hasher=request._block_hasher,
            )  # fmt: skip
        if "adapters" in abilities and (adapter := adapter_of(request.request_id)):
            request.lora_request = SimpleNamespace(lora_int_id=adapter, lora_name=str(adapter))
        return request

    def compile_ready(request: Any) -> None:
        if request.structured_output_request is not None:
            request.structured_output_request.grammar = AnyText()

    return decide(Run(work, replace(parts, make_request=make_request)), compile_ready)


def decide_mini(work: Workload, abilities: set[str], store: Store) -> list[Decision]:
    grammars = Grammars()
    rules: dict[str, AdmissionRule] = {
        "adapters": Adapters(), "grammars": grammars, "connector": Connector(store),
    }  # fmt: skip
    asked = [rule for name, rule in rules.items() if name in abilities]
    parts: Parts = mini_parts(work["config"], partial(UpstreamScheduler, admission_rules=asked))
    make = parts.make_request

    def make_request(arrival: Any, index: int) -> Any:
        request = make(arrival, index)
        if "grammars" in abilities and compile_steps(request.request_id) is not None:
            request.status = GRAMMAR
        return request

    def compile_ready(request: Any) -> None:
        grammars.compiled.add(request.request_id)

    return decide(Run(work, replace(parts, make_request=make_request)), compile_ready)


@pytest.mark.parametrize(
    "abilities", ["adapters", "grammars", "connector", "adapters grammars connector"]
)
def test_the_gate_decides_as_vllm_does(abilities: str) -> None:
    num_changed = 0
    for shape, seed in itertools.product(SHAPES, range(4 if THOROUGH else 2)):
        work = workload(seed, shape)
        if "adapters" in abilities:  # an adapter's name is part of a block's hash there
            work["config"]["enable_prefix_caching"] = False
        for arrival in work["requests"]:
            arrival["abort"] = None
        stores = [Store(work["config"]["block_size"]) for _ in range(2)]
        theirs = decide_vllm(work, set(abilities.split()), stores[0])
        ours = decide_mini(work, set(abilities.split()), stores[1])
        for step, (a, b) in enumerate(zip(theirs, ours, strict=False)):
            assert a == b, f"{shape} {seed}, step {step}: vLLM {a}, mini_vllm {b}"
            assert list(a["scheduled"]) == list(b["scheduled"])
        assert len(theirs) == len(ours) < 3000
        assert stores[0].asked == stores[1].asked
        assert stores[0].allocated == stores[1].allocated
        plain = [b["scheduled"] for b in decide_mini(work, set(), stores[1])]
        num_changed += plain != [b["scheduled"] for b in ours]
    assert num_changed >= len(SHAPES), "in most workloads the rules must have something to say"
