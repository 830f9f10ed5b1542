"""Waiting grammars, rows and drafts beside vLLM's own schedulers and its own manager: 0 differences.

Grammars are held back and let go at chosen steps, and one class of grammar stands on both sides: it bars a
draft that is wrong, now and then a token that was sampled, and its rows tell its state.
"""

from __future__ import annotations

import itertools
import random
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from course.parity.async_traces import AsyncRun
from course.parity.decisions import mini_parts
from course.parity.record import vllm_parts
from course.parity.traces import Parts, Run, Workload, drafted
from course.parity.workloads import workload
from mini_vllm.core.sched.upstream_scheduler import UpstreamAsyncScheduler, UpstreamScheduler
from mini_vllm.structured_output.backend_types import BackendConfig, StructuredOutputGrammar
from mini_vllm.structured_output.manager import StructuredOutputManager
from mini_vllm.structured_output.scheduling import GrammarScheduling
from mini_vllm.tokenizer import Tokenizer
from mini_vllm.utils.structured_params import StructuredOutputsParams
from tests.engine.helpers.thorough import THOROUGH, either

pytestmark = pytest.mark.vllm

WRONG, END, WORDS = 51, 2, 9
PLAIN = ("mixed", "priority", "crowd", "no-gate", "odd-blocks")
DRAFTS = ("drafts", "drafts-tight", "drafts-stop-tokens")


def compile_steps(request_id: str, seed: int) -> int | None:
    """Steps until the request's grammar is compiled; None: it has no rule."""
    return random.Random(f"grammar {request_id} {seed}").choice((None, None, 0, 0, 1, 3, 9))


class Planted(StructuredOutputGrammar):
    """Bars the wrong draft, and one token of its own, which some requests sample."""

    def __init__(self, request_id: str) -> None:
        self.barred = {WRONG, random.Random(request_id).randrange(3, 400)}
        self.history: list[int] = []

    def _accept(self, token: int) -> bool:
        if self.is_terminated() or token in self.barred:
            return False
        self.history.append(token)
        return True

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return all(self._accept(token) for token in tokens)

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        allowed = list(itertools.takewhile(self._accept, tokens))
        self.rollback(len(allowed))
        return allowed

    def rollback(self, num_tokens: int) -> None:
        del self.history[len(self.history) - num_tokens :]

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        bitmask[batch_index] = hash(tuple(self.history)) % (2**31)

    def is_terminated(self) -> bool:
        return self.history[-1:] == [END]

    def reset(self) -> None:
        self.history.clear()


class Held(StructuredOutputManager):
    """Ours, which starts no compiler."""

    def grammar_init(self, request: Any) -> None:
        request.grammar = Future()


class Side:
    """One scheduler, and what was asked of its grammars."""

    def __init__(self, work: Workload, parts: Parts, ahead: bool) -> None:
        self.work = work
        self.scheduler = parts.scheduler
        self.ahead = ahead
        self.asked: list[Any] = []
        self.futures: dict[str, Future[Any]] = {}
        self._schedule = parts.scheduler.schedule
        self._update = parts.scheduler.update_from_output
        parts.scheduler.schedule = self.schedule
        parts.scheduler.update_from_output = self.update
        self.deferred: Any = None
        self.run = (AsyncRun if ahead else Run)(work, replace(parts, make_request=self.make(parts)))

    def make(self, parts: Parts) -> Any:
        def make_request(arrival: Any, index: int) -> Any:
            plain = parts.make_request(arrival, index)
            if compile_steps(plain.request_id, self.work["seed"]) is None:
                return plain
            request, future = self.bind(plain)
            self.futures[plain.request_id] = future
            return request

        return make_request

    def schedule(self) -> Any:
        for request_id, future in list(self.futures.items()):
            steps = compile_steps(request_id, self.work["seed"])
            assert steps is not None
            arrival = next(q for q in self.work["requests"] if q["id"] == request_id)
            if self.run.step >= arrival["step"] + steps:
                future.set_result(Planted(request_id))
                del self.futures[request_id]
        plan = self._schedule()
        pending = self.is_pending(plan)
        self.asked.append(("plan", pending))
        if pending:
            self.deferred = plan
        elif plan.num_scheduled_tokens:
            self.fill(plan)
        return plan

    def update(self, plan: Any, output: Any) -> Any:
        outputs = self._update(plan, output)
        if self.deferred is not None:
            self.fill(self.deferred)
            self.deferred = None
        return outputs

    def drafts(self, plan: Any) -> tuple[list[str], list[list[int]]]:
        """What the worker has drafted for the places of a plan."""
        spec = plan.scheduled_spec_decode_tokens
        live, index = self.run.live, self.run._index
        return list(spec), [drafted(index[i], live[i].num_tokens, len(spec[i])) for i in spec]

    def fill(self, plan: Any) -> None:
        found = self.bitmask(plan)
        if found is None:
            self.asked.append(None)
        else:
            rows = np.array(found.grammar_bitmask)[:, 0].tolist()
            self.asked.append((list(found.structured_output_request_ids), rows))

    def is_pending(self, plan: Any) -> bool:
        raise NotImplementedError

    def bitmask(self, plan: Any) -> Any:
        raise NotImplementedError

    def bind(self, plain: Any) -> tuple[Any, Future[Any]]:
        raise NotImplementedError

    def decisions(self) -> list[Any]:
        if isinstance(self.run, AsyncRun):
            return list(itertools.islice(self.run.calls(), 6000))
        decisions: list[Any] = []
        while not self.run.done and len(decisions) < 3000:
            self.run.arrive()
            decisions.append(self.run.decide())
        return decisions


class Theirs(Side):
    def __init__(self, work: Workload, ahead: bool) -> None:
        import torch

        parts = vllm_parts(work["config"], ahead)
        self.manager = parts.scheduler.structured_output_manager
        vocabulary = type("Rows", (), {})()
        vocabulary.allocate_token_bitmask = lambda n: torch.full((n, WORDS), -1, dtype=torch.int32)
        self.manager.backend = vocabulary
        super().__init__(work, parts, ahead)

    def bind(self, plain: Any) -> tuple[Any, Future[Any]]:
        from vllm.sampling_params import StructuredOutputsParams as Rule
        from vllm.v1.request import Request

        plain.sampling_params.structured_outputs = Rule(regex="a")
        request = Request(
            plain.request_id, plain.prompt_token_ids, plain.sampling_params, None,
            arrival_time=plain.arrival_time, priority=plain.priority, block_hasher=plain._block_hasher,
        )  # fmt: skip
        future: Future[Any] = Future()
        request.structured_output_request.grammar = future
        return request, future

    def is_pending(self, plan: Any) -> bool:
        return bool(plan.pending_structured_output_tokens)

    def bitmask(self, plan: Any) -> Any:
        from vllm.v1.outputs import DraftTokenIds

        if self.ahead and plan is self.deferred and plan.scheduled_spec_decode_tokens:
            self.scheduler.update_draft_token_ids_in_output(DraftTokenIds(*self.drafts(plan)), plan)
        return self.scheduler.get_grammar_bitmask(plan)


class Ours(Side):
    tokenizer = Tokenizer.from_folder("mini_vllm/checkpoints/tiny-llama")

    def __init__(self, work: Workload, ahead: bool) -> None:
        parts = mini_parts(work["config"], UpstreamAsyncScheduler if ahead else UpstreamScheduler)
        spec = work["config"].get("speculative_config")
        config = BackendConfig(num_speculative_tokens=spec["num_speculative_tokens"] if spec else 0)
        manager = Held(self.tokenizer, 264, work["config"]["max_num_seqs"], config)
        self.grammars = GrammarScheduling(parts.scheduler, manager)
        self.num_left_free = 0
        super().__init__(work, parts, ahead)

    def bind(self, plain: Any) -> tuple[Any, Future[Any]]:
        plain.sampling_params.structured_outputs = StructuredOutputsParams(regex="a")
        self.grammars.init(plain)
        return plain, plain.structured_output_request.future

    def is_pending(self, plan: Any) -> bool:
        return self.grammars.is_pending(plan)

    def bitmask(self, plan: Any) -> Any:
        from mini_vllm.core.sched.output import DraftTokenIds

        found = self.grammars.get_grammar_bitmask(plan, lambda _: DraftTokenIds(*self.drafts(plan)))
        if found is not None and self.ahead and plan is not self.deferred:
            # A request that sat a plan out has places for drafts, and nothing in flight. vLLM does not ask
            # for these drafts, and leaves all rows but the first free: put back.
            spec, bound = plan.scheduled_spec_decode_tokens, self.grammars._get_bound(plan)
            theirs = self.grammars.manager.grammar_bitmask(bound, list(bound), spec)
            assert theirs is not None
            self.num_left_free += int((theirs != found.grammar_bitmask).any(axis=1).sum())
            found.grammar_bitmask = theirs
        return found


@pytest.mark.parametrize(
    ("shapes", "ahead"),
    [(PLAIN, False), (DRAFTS, False), (PLAIN, True), (DRAFTS, True)],
    ids=["plain", "drafts", "ahead", "ahead-drafts"],
)
def test_decisions_and_rows_are_vllms(shapes: tuple[str, ...], ahead: bool) -> None:
    num_deferred = num_rejected = num_rows = num_left_free = 0
    for shape, seed in itertools.product(shapes, range(either(3, 32))):
        work = workload(9000 + seed, shape)
        theirs, ours = Theirs(work, ahead), Ours(work, ahead)
        pairs = itertools.zip_longest(theirs.decisions(), ours.decisions())
        for step, (a, b) in enumerate(pairs):
            assert a == b, f"{shape} {seed}, step {step}: vLLM {a}, mini_vllm {b}"
        assert theirs.asked == ours.asked, (shape, seed)
        final = ours.run.final()
        assert theirs.run.final() == final
        num_rejected += list(final.values()).count("FINISHED_ERROR")
        num_left_free += ours.num_left_free
        num_deferred += ours.asked.count(("plan", True))
        num_rows += sum(len(asked[1]) for asked in ours.asked if asked and asked[0] != "plan")
    assert num_rows > 500
    assert num_rejected > 0
    assert (num_deferred > 0) is ahead
    assert num_left_free > 0 or not (ahead and shapes is DRAFTS and THOROUGH)
