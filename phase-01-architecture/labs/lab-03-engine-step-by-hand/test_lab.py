"""Lab 01-03: the worker's memory, and each array of a forward pass."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from mini_vllm import SamplingParams
from mini_vllm.core.sched.output import NewRequestData

support = load_support(__file__)


def test_new_requests_are_remembered(lab: ModuleType) -> None:
    """A request that the worker has not seen comes with all that it must know."""
    requests: dict[str, Any] = {}
    params = SamplingParams(temperature=1.0, seed=7, max_tokens=4)
    new = NewRequestData("a", [1, 50, 51], params, [3, 4], 2)
    lab.update_states(requests, support.decisions({"a": 1}, new=[new]))
    assert list(requests) == ["a"], (
        f"after a step that admits request 'a' the worker knows {list(requests)}: enter each of "
        "scheduled_new_reqs under its req_id"
    )
    got = requests["a"]
    assert (got.req_id, got.prompt_token_ids, got.block_ids, got.num_computed_tokens) == (
        "a", [1, 50, 51], [3, 4], 2
    ), (
        f"the worker remembers {got}. Take over prompt, block ids and num_computed_tokens as the "
        "scheduler sent them; the count is not 0 where a prefix was found in the cache"
    )  # fmt: skip
    assert got.sampling_params is params, "the request's own sampling_params belong to its state"


def test_new_blocks_are_appended(lab: ModuleType) -> None:
    """A running request's new blocks go behind those it has; None brings none."""
    requests = {
        "a": support.state(lab, "a", [1] * 9, [3], 0),
        "b": support.state(lab, "b", [1] * 3, [5], 0),
        "c": support.state(lab, "c", [1] * 3, [6], 2),
    }
    cached: dict[str, tuple[list[int] | None, int]] = {"a": ([8, 2], 4), "b": (None, 3)}
    lab.update_states(requests, support.decisions({"a": 5, "b": 1}, cached=cached))
    tables = {req_id: list(s.block_ids) for req_id, s in requests.items()}
    assert tables == {"a": [3, 8, 2], "b": [5], "c": [6]}, (
        f"the block tables are {tables}, should be a: [3, 8, 2], b: [5], c: [6]. A running request "
        "is told its new blocks only, to be appended in the order given; None means there are none; "
        "who is not in the step keeps what it has"
    )
    counts = {req_id: s.num_computed_tokens for req_id, s in requests.items()}
    assert counts == {"a": 4, "b": 3, "c": 2}, (
        f"num_computed_tokens is {counts}, should be a: 4, b: 3, c: 2. Set it to what the scheduler "
        "says for each request of scheduled_cached_reqs, with new blocks or without"
    )


def test_a_resumed_request_gets_its_table_replaced(lab: ModuleType) -> None:
    """After a preemption the block ids sent are the whole table."""
    requests = {
        "a": support.state(lab, "a", [1] * 9, [3, 4], 6, (40,)),
        "b": support.state(lab, "b", [1] * 9, [5], 4),
    }
    cached: dict[str, tuple[list[int] | None, int]] = {"b": ([7], 5), "a": ([9, 2], 4)}
    lab.update_states(requests, support.decisions({"b": 1, "a": 6}, cached=cached, resumed=("a",)))
    assert list(requests["a"].block_ids) == [9, 2], (
        f"the resumed request's table is {requests['a'].block_ids}, should be [9, 2]. Its old blocks "
        "went back to the pool when it was preempted and belong to somebody else by now: for ids "
        "in resumed_req_ids, replace the table"
    )
    assert requests["a"].num_computed_tokens == 4, (
        f"num_computed_tokens of the resumed request is {requests['a'].num_computed_tokens}, should "
        "be 4: whatever the prefix cache still had of it. The rest is computed again"
    )
    assert requests["a"].output_token_ids == [40], "a resumed request keeps what it has sampled"
    assert list(requests["b"].block_ids) == [5, 7], (
        f"'b' was not preempted, its table is {requests['b'].block_ids}: new blocks are appended, "
        "also in a step in which somebody else is resumed"
    )


def test_finished_requests_are_forgotten_first(lab: ModuleType) -> None:
    """Ids that have finished go before new requests come: an id may be used again at once."""
    requests = {
        "a": support.state(lab, "a", [1] * 3, [3], 3, (9,)),
        "b": support.state(lab, "b", [1], [4], 0),
    }
    again = NewRequestData("a", [1, 60], support.GREEDY, [8], 0)
    try:
        lab.update_states(
            requests, support.decisions({"a": 2}, new=[again], finished=("a", "never-ran"))
        )
    except KeyError as error:
        raise AssertionError(
            f"KeyError {error}: a request that is aborted while it waits is among finished_req_ids, "
            "and the worker has never seen it. Pass over ids that are not there"
        ) from error
    assert sorted(requests) == ["a", "b"], (
        f"the worker knows {sorted(requests)}, should be ['a', 'b']: forget finished_req_ids, before "
        "you add the new requests. Here 'a' was aborted and its id given to a new request"
    )
    assert requests["a"].prompt_token_ids == [1, 60], (
        "'a' is a new request now, with a new prompt: the old state must not survive under its id"
    )
    lab.update_states(requests, support.decisions({}, finished=("b",)))
    assert sorted(requests) == ["a"], (
        f"'b' has finished, and the worker still knows {sorted(requests)}: states that are never "
        "dropped are a memory leak"
    )


def test_the_schedulers_output_is_left_alone(lab: ModuleType) -> None:
    """The scheduler's lists are not appended to: others read them after the worker."""
    requests: dict[str, Any] = {}
    first = support.decisions({"a": 4}, new=[NewRequestData("a", [1] * 30, support.GREEDY, [3], 0)])
    again = support.decisions({"a": 4}, cached={"a": ([5], 0)}, resumed=("a",))
    before = copy.deepcopy((first, again))
    lab.update_states(requests, first)
    lab.update_states(requests, support.decisions({"a": 4}, cached={"a": ([4], 4)}))
    lab.update_states(requests, again)
    lab.update_states(requests, support.decisions({"a": 4}, cached={"a": ([6], 4)}))
    assert (first, again) == before, (
        "update_states has changed a SchedulerOutput: the state's block_ids is the scheduler's own "
        "list, and appending to one appends to the other. Whoever logs the step later sees blocks "
        "that it did not have. Keep a copy"
    )


NOTES = {
    "input_ids": "A decodes: its token at position 7 is its second output. B and C begin at 4.",
    "slot_mapping": "A's token at position 7 lies in the second block of its table, block 2.",
    "discard_request_mask": "B has 10 tokens, 7 of them computed when the step is over.",
}
WORKED: dict[str, list[Any]] = {
    "req_ids": ["A", "B", "C"],
    "input_ids": [71, 104, 105, 106, 204, 205, 206, 207, 208],
    "positions": [7, 4, 5, 6, 4, 5, 6, 7, 8],
    "slot_mapping": [11, 4, 5, 6, 24, 25, 26, 27, 16],
    "query_start_loc": [0, 1, 4, 9],
    "seq_lens": [8, 7, 9],
    "block_table": [[5, 2, 0], [7, 1, 0], [3, 6, 4]],
    "logits_indices": [0, 3, 8],
    "discard_request_mask": [False, True, False],
}


def worked_example(lab: ModuleType) -> Any:
    """The example of the README: A decodes, B is in mid-prompt, C has hits and comes to its end."""
    requests = {
        "C": support.state(lab, "C", list(range(200, 209)), [3, 6, 4], 4),
        "out": support.state(
            lab, "out", [1] * 20, [9, 10, 11, 12, 13], 17
        ),  # preempted: not in the step
        "B": support.state(lab, "B", list(range(100, 110)), [7, 1], 4),
        "A": support.state(lab, "A", [1, 50, 51, 52, 53, 54], [5, 2], 7, (70, 71)),
    }
    return lab.prepare_inputs(requests, support.decisions({"A": 1, "B": 3, "C": 5}), 4)


@pytest.mark.parametrize("name", list(WORKED))
def test_the_worked_example(lab: ModuleType, name: str) -> None:
    """Every array of the README's step: a decode, a chunk, the end of a prompt with prefix hits."""
    inputs = worked_example(lab)
    assert list(inputs.req_ids) == WORKED["req_ids"], (
        f"the rows are {list(inputs.req_ids)}, should be A, B, C. {support.RULES['req_ids']} The scheduler's "
        "order is the contract between all stages"
    )
    support.check_array(
        name, getattr(inputs, name), WORKED[name], f"{support.RULES[name]} {NOTES.get(name, '')}"
    )


def test_the_arrays_have_the_kernels_types(lab: ModuleType) -> None:
    """int32 throughout, int64 for slots, bool for the mask."""
    inputs = worked_example(lab)
    types = {name: str(np.asarray(getattr(inputs, name)).dtype) for name in WORKED}
    types.pop("req_ids")
    want = dict.fromkeys(types, "int32") | {"slot_mapping": "int64", "discard_request_mask": "bool"}
    wrong = {name: got for name, got in types.items() if got != want[name]}
    assert not wrong, (
        f"of another type than the kernels read: {wrong}. They take int32, but int64 for "
        "slot_mapping: blocks times block size can pass 2**31. On a GPU the bytes are read as what "
        "they are taken for, with no error"
    )


def test_a_resumed_request_computes_its_outputs_again(lab: ModuleType) -> None:
    """What it had sampled before the preemption is input like a prompt, and not sampled anew."""
    requests = {"a": support.state(lab, "a", [1, 50, 51], [7, 2], 0, (60, 61, 62))}
    part = lab.prepare_inputs(requests, support.decisions({"a": 5}), 4)
    support.check_array(
        "input_ids", part.input_ids, [1, 50, 51, 60, 61],
        "The request was preempted after 3 outputs: their K and V are gone too, and are computed "
        "again from the tokens themselves.",
    )  # fmt: skip
    support.check_array(
        "discard_request_mask", part.discard_request_mask, [True],
        "5 of its 6 tokens are computed. Its last row predicts token 5, which it has: 62. The rule "
        "asks for all its tokens, not for the prompt's.",
    )  # fmt: skip
    whole = lab.prepare_inputs(requests, support.decisions({"a": 6}), 4)
    support.check_array(
        "discard_request_mask", whole.discard_request_mask, [False],
        "With all 6 tokens computed it has caught up and samples the 7th.",
    )  # fmt: skip
