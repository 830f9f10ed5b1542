"""For in_vllm.py: vLLM's own functions in the place of yours, xgrammar's grammars in the place of the lab's.

The functions run on stand-ins that have as much of a request, a scheduler or an engine as they read.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from course.learner.labs import load_module
from mini_vllm.structured_output.backend_types import StructuredOutputOptions

support = load_module(Path(__file__).resolve().parent / "support.py", "lab_12_05_support")
parts = support.parts


class CountingMatcher:
    """xgrammar's matcher, and what is asked of it."""

    def __init__(self, matcher: Any, counter: Any) -> None:
        self.matcher, self.counter = matcher, counter

    def accept_token(self, token: int) -> bool:
        if token == -1 or self.matcher.is_terminated():
            return False  # as xgrammar, which prints a warning each time
        accepted: bool = self.matcher.accept_token(token)
        self.counter.counts.accepted[self.counter.phase] += accepted
        return accepted

    def rollback(self, num_tokens: int) -> None:
        self.matcher.rollback(num_tokens)
        self.counter.counts.rolled_back[self.counter.phase] += num_tokens

    def fill_next_token_bitmask(self, bitmask: Any, row: int) -> None:
        self.matcher.fill_next_token_bitmask(bitmask, row)
        self.counter.counts.fills += 1

    def is_terminated(self) -> bool:
        found: bool = self.matcher.is_terminated()
        return found


class Xgrammar:
    """Compiles rules for a vocabulary, as vLLM's backend does."""

    def __init__(self, vocabulary: Any = parts.PIECES) -> None:
        import torch
        import xgrammar

        self.xgrammar, self.width = xgrammar, len(vocabulary)
        torch.set_num_threads(1)
        pieces = [piece.encode() for piece in vocabulary.pieces]
        kind = xgrammar.VocabType.RAW
        info = xgrammar.TokenizerInfo(
            pieces, kind, vocab_size=self.width, stop_token_ids=[parts.END]
        )
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1)

    def compile(self, kind: StructuredOutputOptions, spec: str, counter: Any) -> Any:
        """An `XgrammarGrammar` whose matcher counts."""
        from vllm.v1.structured_output.backend_xgrammar import XgrammarGrammar
        from vllm.v1.structured_output.utils import choice_as_grammar

        if kind is StructuredOutputOptions.REGEX:
            compiled = self.compiler.compile_regex(spec)
        elif kind is StructuredOutputOptions.CHOICE:
            compiled = self.compiler.compile_grammar(choice_as_grammar(json.loads(spec)))
        else:
            compiled = self.compiler.compile_json_schema('{"type": "object"}')
        matcher = self.xgrammar.GrammarMatcher(compiled)
        return XgrammarGrammar(self.width, CountingMatcher(matcher, counter), compiled)


class VllmLab:
    """What a lab file has, by vLLM's own functions. Its grammars are `XgrammarGrammar`."""

    def __init__(self, width: int, k: int) -> None:
        import torch
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.outputs import DraftTokenIds
        from vllm.v1.structured_output import StructuredOutputManager

        self.turn = EngineCore.step_with_batch_queue
        self.make_drafts = DraftTokenIds
        self.manager = StructuredOutputManager.__new__(StructuredOutputManager)
        self.manager.vllm_config = SimpleNamespace(
            speculative_config=SimpleNamespace(num_speculative_tokens=k)
        )
        self.manager.fill_bitmask_parallel_threshold = 128
        self.manager.reasoner_cls = None
        self.manager._full_mask = torch.tensor(-1, dtype=torch.int32)
        words = -(-width // 32)
        self.manager._grammar_bitmask = torch.zeros((k + 1, words), dtype=torch.int32)

    def filter_drafts(self, grammar: Any, drafts: Sequence[int]) -> list[int]:
        found: list[int] = grammar.validate_tokens(list(drafts))
        return found

    def fill_rows(self, grammar: Any, drafts: Sequence[int], bitmask: Any, row: int) -> int:
        rows = self.manager.grammar_bitmask({"r": _bound(grammar)}, ["r"], {"r": list(drafts)})
        bitmask[row : row + len(rows)] = rows
        return row + len(rows)

    def accept(
        self, grammar: Any, drafts: Sequence[int], chosen: Sequence[int], end: int, most: int
    ) -> list[int]:
        new: list[int] = support.cut(support.verify(drafts, chosen), most, end)
        assert grammar.accept_tokens("r", new)
        return new

    def must_defer(self, requests: Sequence[Any]) -> bool:
        """`AsyncScheduler._update_after_schedule`, on as much of a scheduler as it reads."""
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler

        scheduler = AsyncScheduler.__new__(AsyncScheduler)
        scheduler._spec_token_placeholders = []
        scheduler.enable_return_routed_experts = False
        known = {
            str(i): SimpleNamespace(
                num_computed_tokens=0,
                num_tokens=2 if r.is_prefill_chunk else 1 - r.num_output_placeholders,
                num_output_placeholders=r.num_output_placeholders,
                use_structured_output=r.bound,
            )
            for i, r in enumerate(requests)
        }
        scheduler.requests = known
        output = SimpleNamespace(
            num_scheduled_tokens=dict.fromkeys(known, 1),
            scheduled_spec_decode_tokens={},
            has_structured_output_requests=False,
            pending_structured_output_tokens=False,
        )
        scheduler._update_after_schedule(output)
        return bool(output.pending_structured_output_tokens)

    def async_step(self, core: Any) -> None:
        """`EngineCore.step_with_batch_queue`, until it has taken in a step or has nothing to do."""
        if not hasattr(core, "vllm"):
            core.vllm = _EngineAround(core, self)
        queue = core.vllm.batch_queue
        before = len(core.events)
        self.turn(core.vllm)
        assert len(core.events) > before or not queue


def _bound(grammar: Any) -> Any:
    """A request with a grammar, as far as vLLM's functions about grammars read one."""
    rule = SimpleNamespace(grammar=grammar, reasoner=None)
    return SimpleNamespace(structured_output_request=rule, use_structured_output=True)


class _EngineAround:
    """The lab's scheduler and worker, as far as `step_with_batch_queue` reads an `EngineCore`."""

    is_ec_consumer, is_pooling_model, use_spec_decode = True, False, True
    batch_queue_size = 2

    def __init__(self, core: Any, lab: VllmLab) -> None:
        self.core, self.lab = core, lab
        self.batch_queue: deque[Any] = deque(maxlen=2)
        self.scheduler = self.model_executor = self
        self.plan: Any = None

    def _process_aborts_queue(self) -> None:
        pass

    def log_error_detail(self, scheduler_output: Any) -> Any:
        return nullcontext()

    log_iteration_details = log_error_detail

    def has_requests(self) -> bool:
        return any(map(self.core.is_due, range(len(self.core.jobs))))

    def schedule(self) -> Any:
        plan = self.plan = self.core.schedule()
        # A request's own plan and vLLM's are read by different names.
        plan.total_num_scheduled_tokens = len(plan.requests)
        plan.pending_structured_output_tokens = self.lab.must_defer(plan.requests)
        plan.scheduled_spec_decode_tokens = plan.drafts
        return plan

    def execute_model(self, plan: Any, non_block: bool) -> Any:
        self.core.execute_model(plan)
        return _Never()

    def get_grammar_bitmask(self, plan: Any) -> Any:
        self.plan = plan
        return self.core.get_grammar_bitmask(plan)

    def sample_tokens(self, rows: Any, non_block: bool) -> Any:
        self.core.sample_tokens(self.plan, rows)
        return _Never("tokens")

    def update_from_output(self, plan: Any, output: Any) -> Any:
        assert self.core.in_flight[0].plan is plan
        self.core.update_from_output(None)

    def take_draft_token_ids(self) -> Any:
        taken = self.core.take_draft_token_ids(self.plan)
        return self.lab.make_drafts(list(taken), list(taken.values()))

    def update_draft_token_ids_in_output(self, drafts: Any, plan: Any) -> None:
        from vllm.v1.core.sched.scheduler import Scheduler

        requests = {
            i: SimpleNamespace(
                is_finished=lambda: False,
                use_structured_output=self.core.grammar(i) is not None,
                structured_output_request=SimpleNamespace(grammar=self.core.grammar(i)),
            )
            for i in drafts.req_ids
        }
        scheduler: Any = SimpleNamespace(
            requests=requests, structured_output_manager=self.lab.manager
        )
        Scheduler.update_draft_token_ids_in_output(scheduler, drafts, plan)


class _Never(Future[Any]):
    """A result that is not there before one waits for it, as a GPU's."""

    def __init__(self, value: Any = None) -> None:
        super().__init__()
        self.value = value

    def done(self) -> bool:
        return False

    def result(self, timeout: float | None = None) -> Any:
        return self.value
