"""What a request with `n > 1` passes on of its children."""

from __future__ import annotations

from mini_vllm.engine.parallel_sampling import ParentRequest
from mini_vllm.outputs import CompletionOutput
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams


def test_a_finished_child_is_given_once() -> None:
    parent = ParentRequest("p", SamplingParams(n=2, output_kind=RequestOutputKind.DELTA))
    ids = [parent.get_child_info(index)[0] for index in range(2)]
    first, second = (CompletionOutput(index, "", []) for index in range(2))
    assert parent.get_outputs(ids[0], first) == ([first], False)
    first.finish_reason = "stop"
    assert parent.get_outputs(ids[0], first) == ([first], False)
    assert parent.get_outputs(ids[0], first) == ([], False)
    second.finish_reason = "length"
    assert parent.get_outputs(ids[1], second) == ([second], True)
    assert parent.get_outputs(ids[1], second) == ([], True)


def test_with_final_only_all_come_when_the_last_has_finished() -> None:
    parent = ParentRequest("p", SamplingParams(n=2, output_kind=RequestOutputKind.FINAL_ONLY))
    ids = [parent.get_child_info(index)[0] for index in range(2)]
    outputs = [CompletionOutput(index, "", [], finish_reason="stop") for index in range(2)]
    assert parent.get_outputs(ids[1], outputs[1]) == ([], False)
    assert parent.get_outputs(ids[0], outputs[0]) == (outputs, True)
