"""The scheduler and grammars: wait, be promoted, fail alone, be masked, advance, filter drafts. No model."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.output import DraftTokenIds, ModelRunnerOutput
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.sampling_params import SamplingParams, StructuredOutputsParams
from mini_vllm.structured_output.scheduling import GrammarScheduling
from tests.engine.helpers.engine.invariants import check_drained
from tests.engine.helpers.engine.workloads import make_scheduler
from tests.engine.structured_output.test_manager import END, VOCAB, Counting


class Rows:
    """Fills without threads; remembers which requests were asked for."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def grammar_init(self, request: Any) -> None:
        request.grammar = Future()

    def grammar_bitmask(self, requests: Any, ids: list[str], drafts: Any) -> Any:
        self.asked.append(ids)
        rows = np.zeros((len(ids), VOCAB // 32), dtype=np.int32)
        for row, req_id in enumerate(ids):
            requests[req_id].grammar.fill_bitmask(rows, row)
        return rows

    def shutdown(self) -> None:
        pass


def make(**settings: int) -> Scheduler:
    scheduler = Scheduler(make_scheduler(**settings).config)
    GrammarScheduling(scheduler, Rows())
    return scheduler


@pytest.fixture
def scheduler() -> Scheduler:
    return make()


def add(scheduler: Scheduler, req_id: str, bound: bool, prompt: int = 5) -> Request:
    rule = StructuredOutputsParams(regex="a") if bound else None
    params = SamplingParams(temperature=0, max_tokens=6, structured_outputs=rule)
    params.update_from_generation_config({}, END)
    block_size = scheduler.config.block_size
    request = Request(req_id, [int(req_id) + 1] * prompt, params, block_size=block_size)
    if bound:
        assert scheduler.grammars is not None
        scheduler.grammars.init(request)
    scheduler.add_request(request)
    return request


def settle(request: Request, grammar: Any) -> None:
    future = request.structured_output_request.future
    if isinstance(grammar, Exception):
        future.set_exception(grammar)
    else:
        future.set_result(grammar)


def step(scheduler: Scheduler, tokens: dict[str, list[int]] | None = None) -> Any:
    """A step in which `tokens` are sampled, token 0 where nothing is said."""
    plan = scheduler.schedule()
    assert scheduler.grammars is not None
    mask = scheduler.grammars.get_grammar_bitmask(plan)
    ids = list(plan.num_scheduled_tokens)
    sampled = [(tokens or {}).get(i, [0]) for i in ids]
    result = ModelRunnerOutput(ids, {i: n for n, i in enumerate(ids)}, sampled)
    outputs = scheduler.update_from_output(plan, result)
    return plan.num_scheduled_tokens, mask, outputs


def test_a_request_waits_for_its_grammar_and_others_pass(scheduler: Scheduler) -> None:
    bound, free = add(scheduler, "0", True), add(scheduler, "1", False)
    assert bound.status is RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    scheduled, mask, _ = step(scheduler)
    assert scheduled == {"1": 5}
    assert mask is None, "no row is filled in a step without a bound request"

    settle(bound, Counting(2))
    scheduled, mask, _ = step(scheduler)
    assert scheduled == {"1": 1, "0": 5}
    assert mask.structured_output_request_ids == ["0"]
    assert bound.status is RequestStatus.RUNNING
    assert bound.structured_output_request.grammar.history == [0]
    step(scheduler, {"0": [1]})
    _, _, outputs = step(scheduler, {"0": [END]})
    assert [(o.request_id, o.finish_reason) for o in outputs] == [("1", None), ("0", "stop")]
    assert free.status is RequestStatus.RUNNING


def test_a_failed_compile_ends_its_own_request_and_no_other(scheduler: Scheduler) -> None:
    failed, free, late = (
        add(scheduler, "0", True),
        add(scheduler, "1", False),
        add(scheduler, "2", True),
    )
    reason = "structured_outputs.regex 'a': refused"
    settle(failed, ValueError(reason))
    _, _, outputs = step(scheduler)
    ended = [(o.request_id, o.new_token_ids, o.finish_reason, o.stop_reason) for o in outputs]
    assert ended == [("0", [], "error", reason), ("1", [0], None, None)]
    assert failed.status is RequestStatus.FINISHED_ERROR
    assert set(scheduler.requests) == {"1", "2"}
    settle(late, Counting(9))
    assert step(scheduler)[0] == {"1": 1, "2": 5}
    scheduler.finish_requests(["1", "2"], RequestStatus.FINISHED_ABORTED)
    scheduler.schedule()
    check_drained(scheduler)
    assert free.is_finished()


def test_one_that_is_aborted_while_it_waits_is_gone(scheduler: Scheduler) -> None:
    bound = add(scheduler, "0", True)
    step(scheduler)
    assert scheduler.finish_requests("0", RequestStatus.FINISHED_ABORTED) == ["0"]
    settle(bound, ValueError("too late"))
    scheduled, _, outputs = step(scheduler)
    assert (scheduled, outputs) == ({}, [])
    check_drained(scheduler)


def test_a_chunk_of_a_prompt_has_no_row() -> None:
    made = make(max_num_batched_tokens=16, max_num_seqs=8)
    settle(add(made, "0", True, prompt=24), Counting(2))
    assert step(made, {"0": []})[:2] == ({"0": 16}, None)
    scheduled, mask, _ = step(made)
    assert scheduled == {"0": 8}
    assert mask.structured_output_request_ids == ["0"]


def test_a_token_that_the_grammar_rejects_ends_the_request_by_an_error(
    scheduler: Scheduler,
) -> None:
    settle(add(scheduler, "0", True), Counting(2))
    _, _, [output] = step(scheduler, {"0": [7]})
    assert (output.finish_reason, output.stop_reason) == (
        "error",
        "the grammar rejected the tokens [7]",
    )
    scheduler.schedule()
    check_drained(scheduler)


def test_a_preempted_request_keeps_the_state_of_its_grammar(scheduler: Scheduler) -> None:
    bound = add(scheduler, "0", True)
    settle(bound, Counting(9))
    step(scheduler)
    step(scheduler, {"0": [1]})
    grammar = bound.structured_output_request.grammar
    scheduler.reset_prefix_cache(reset_running_requests=True)
    assert bound.status is RequestStatus.PREEMPTED
    scheduled, mask, _ = step(scheduler, {"0": [2]})
    assert scheduled == {"0": 7}, "the prompt and two tokens are computed again"
    assert mask.structured_output_request_ids == ["0"]
    assert bound.structured_output_request.grammar is grammar
    assert grammar.history == [0, 1, 2]


def test_drafts_are_cut_to_what_the_grammar_allows(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound, free = add(scheduler, "0", True), add(scheduler, "1", False)
    settle(bound, Counting(2))
    monkeypatch.setattr(Counting, "validate_tokens", lambda self, tokens: tokens[:1])
    step(scheduler)
    scheduler.update_draft_token_ids(DraftTokenIds(["0", "1"], [[1, 9, 9], [4, 5]]))
    assert (bound.spec_token_ids, free.spec_token_ids) == ([1], [4, 5])


def test_a_scheduler_that_would_move_no_grammar_on_is_refused() -> None:
    class Mine(Scheduler):
        def update_from_output(self, *args: Any) -> Any:
            return super().update_from_output(*args)

    with pytest.raises(ValueError, match="Mine has an update_from_output of its own"):
        GrammarScheduling(Mine(make_scheduler().config), Rows())
