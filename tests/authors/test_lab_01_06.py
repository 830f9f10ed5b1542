"""Lab 01-06: merging two deltas, which the lab gives, held here."""

from __future__ import annotations

from types import ModuleType

import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module
from mini_vllm.outputs import Logprob

LAB = ROOT / "phase-01-architecture/labs/lab-06-two-front-doors"
support = load_module(LAB / "support.py", "test_lab_01_06_support")


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    return load_module(LAB / "starter.py", "test_lab_01_06_starter")


def test_merge_joins_the_deltas(lab: ModuleType) -> None:
    """Text, token ids and logprobs are joined; reasons, cumulative logprob and finished are the newer's."""
    one, two = [{5: Logprob(-1.0)}], [{6: Logprob(-2.0)}]
    output = support.make_output("ab", [5], logprobs=list(one), cumulative_logprob=-1.0)
    newer = support.make_output(
        "c", [6, 7], finished=True, logprobs=list(two), cumulative_logprob=-3.0,
        finish_reason="stop", stop_reason="x",
    )  # fmt: skip
    lab.merge(output, newer)
    [completion] = output.outputs
    assert (completion.text, completion.token_ids) == ("abc", [5, 6, 7]), (
        f"deltas 'ab' [5] and 'c' [6, 7] make 'abc' [5, 6, 7], in that order; yours "
        f"{completion.text!r} {completion.token_ids}"
    )
    assert completion.logprobs == one + two, (
        "the logprobs of both deltas, one entry a token, in order"
    )
    assert completion.cumulative_logprob == -3.0, (
        "cumulative_logprob is a sum over all tokens so far already: take the newer one"
    )
    assert (completion.finish_reason, completion.stop_reason) == ("stop", "x"), (
        "the newer output knows how it ended; a merge that keeps the older's None loses the end"
    )
    assert output.finished is True, "after the last delta was merged the output is finished"
    plain = support.make_output("a", [1])
    lab.merge(plain, support.make_output("b", [2]))
    assert (plain.outputs[0].logprobs, plain.finished) == (None, False), (
        "no logprobs were asked for: None stays None. Nor is the request finished"
    )


def test_merge_goes_by_the_completions_index(lab: ModuleType) -> None:
    """With n > 1 each completion has its own text; one that was not there yet is appended."""
    output = support.make_output("a0", [10])
    lab.merge(output, support.make_output("b0", [20], index=1))
    lab.merge(output, support.make_output("a1", [11]))
    lab.merge(output, support.make_output("b1", [21], index=1, finish_reason="length"))
    got = [(c.index, c.text, c.token_ids, c.finish_reason) for c in output.outputs]
    assert got == [(0, "a0a1", [10, 11], None), (1, "b0b1", [20, 21], "length")], (
        f"two completions of one request, two deltas each: join those with the same index. Got {got}"
    )
