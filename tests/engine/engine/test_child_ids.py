"""Ids of the children of a request with `n > 1`: refused whole, and not open to `abort_request`."""

from __future__ import annotations

import pytest

from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.sampling_params import SamplingParams
from tests.engine.helpers.engine.workloads import DEFAULT_PARTS, make_engine


def drain(engine: LLMEngine) -> list[str]:
    finished = []
    for _ in range(50):
        if not engine.has_unfinished_requests():
            break
        finished += [o.request_id for o in engine.step() if o.finished]
    return finished


def test_n_2_refused_for_a_taken_child_id_changes_nothing() -> None:
    engine = make_engine(DEFAULT_PARTS)
    one = SamplingParams(max_tokens=3, ignore_eos=True, temperature=1.0)
    two = SamplingParams(max_tokens=3, ignore_eos=True, temperature=1.0, n=2)
    engine.add_request("1_x", [3, 4, 5], one)
    with pytest.raises(ValueError, match="in use"):
        engine.add_request("x", [3, 4, 5], two)
    assert list(engine.engine_core.scheduler.requests) == ["1_x"]
    assert not engine.output_processor.has_request("x")
    assert drain(engine) == ["1_x"]


def test_abort_of_a_child_id_does_not_leave_its_parent_for_ever() -> None:
    engine = make_engine(DEFAULT_PARTS)
    two = SamplingParams(n=2, max_tokens=3, ignore_eos=True, temperature=1.0)
    engine.add_request("x", [3, 4, 5], two)
    with pytest.raises(ValueError, match="'0_x' is not known"):
        engine.abort_request("0_x")
    assert drain(engine) == ["x"]
    assert not engine.output_processor.has_request("x")
