"""Lab 01-03: each array of a forward pass."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support

support = load_support(__file__)


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
    """Every array of the README's step is right: a decode, a chunk, a prompt's end with hits."""
    inputs = worked_example(lab)
    assert list(inputs.req_ids) == WORKED["req_ids"], (
        f"the rows are {list(inputs.req_ids)}, should be A, B, C. {support.RULES['req_ids']} The scheduler's "
        "order is the contract between all stages"
    )
    support.check_array(
        name, getattr(inputs, name), WORKED[name], f"{support.RULES[name]} {NOTES.get(name, '')}"
    )


def test_the_arrays_have_the_kernels_types(lab: ModuleType) -> None:
    """The arrays are int32, but the slots are int64 and the mask is bool."""
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
    """What a request sampled before a preemption is input like a prompt, and not sampled anew."""
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
