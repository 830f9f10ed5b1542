"""Lab 01-05: how the core ends a request, pinned with scripted tokens."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support
from mini_vllm.core.request import Request, RequestStatus

support = load_support(__file__)
LIVING = (RequestStatus.WAITING, RequestStatus.RUNNING, RequestStatus.PREEMPTED)


def make_request(output: list[int], num_prompt_tokens: int = 3, **knobs: Any) -> Request:
    """A running request with these output tokens, the last of them just appended."""
    request = Request("r", [1] * num_prompt_tokens, support.make_params(**knobs))
    request.status = RequestStatus.RUNNING
    for token_id in output:
        request.append_output_token_ids(token_id)
    return request


def feed(
    lab: ModuleType, output: list[int], max_model_len: int = 1000, **knobs: Any
) -> tuple[int, Request]:
    """Append the tokens one by one until check_stop says stop; how many it took, and the request."""
    request = make_request([], **knobs)
    for count, token_id in enumerate(output, 1):
        request.append_output_token_ids(token_id)
        if lab.check_stop(request, max_model_len):
            return count, request
    return len(output) + 1, request


# ---- the core: check_stop ------------------------------------------------------------------------


def test_eos_stops_generation(lab: ModuleType) -> None:
    """EOS ends the request at once, with FINISHED_STOPPED and no stop reason."""
    count, request = feed(lab, [10, 20, support.EOS, 30])
    assert count == 3, (
        f"tokens 10, 20, EOS, 30: check_stop must end the request at the third token, yours did after "
        f"{count}. Compare the newest token with sampling_params.eos_token_id"
    )
    assert request.status is RequestStatus.FINISHED_STOPPED, (
        f"the model ended its answer itself, so the status is FINISHED_STOPPED, not {request.status}"
    )
    assert request.stop_reason is None, (
        f"EOS has no stop reason: it is the ordinary end. Yours says {request.stop_reason!r}"
    )


def test_ignore_eos_runs_to_length_cap(lab: ModuleType) -> None:
    """With ignore_eos, EOS is a token like any other, and the length cap still holds."""
    count, request = feed(
        lab, [support.EOS, support.EOS, 10, support.EOS, support.EOS], ignore_eos=True, max_tokens=4
    )
    assert count == 4, (
        f"ignore_eos switches off the EOS check and nothing else: max_tokens=4 ends the request at "
        f"token 4, yours ended it at {count}"
    )
    assert request.status is RequestStatus.FINISHED_LENGTH_CAPPED, (
        f"with ignore_eos the fourth token ends the request because of the cap, even though it is "
        f"an EOS: FINISHED_LENGTH_CAPPED, not {request.status}"
    )


@pytest.mark.parametrize(("num_prompt_tokens", "max_tokens"), [(1, 1), (1, 4), (9, 4), (3, 3)])
def test_no_eos_hits_length_cap(lab: ModuleType, num_prompt_tokens: int, max_tokens: int) -> None:
    """max_tokens counts output tokens, whatever the prompt's length, and ends at exactly that many."""
    count, request = feed(
        lab, [10] * 20, num_prompt_tokens=num_prompt_tokens, max_tokens=max_tokens
    )
    assert count == max_tokens, (
        f"max_tokens={max_tokens} after a prompt of {num_prompt_tokens}: {max_tokens} output tokens, "
        f"yours ended after {count}. The prompt does not count, and the token that reaches the cap "
        "is the last (>=, not >)"
    )
    assert request.status is RequestStatus.FINISHED_LENGTH_CAPPED, (
        f"the cap ended it: FINISHED_LENGTH_CAPPED, not {request.status}"
    )


def test_max_model_len_counts_the_prompt_too(lab: ModuleType) -> None:
    """max_model_len limits prompt and output together, and the last token may reach it."""
    count, request = feed(lab, [10] * 20, num_prompt_tokens=5, max_model_len=8)
    assert count == 3, (
        f"a prompt of 5 tokens and max_model_len=8 leave room for 3 output tokens, yours took {count}: "
        "compare num_tokens, which has the prompt in it, and end when it has reached the limit"
    )
    assert request.status is RequestStatus.FINISHED_LENGTH_CAPPED, (
        f"running out of room is a matter of length: FINISHED_LENGTH_CAPPED, not {request.status}"
    )


@pytest.mark.parametrize("limit", ["max_tokens", "max_model_len"])
def test_eos_on_the_boundary_reports_stop(lab: ModuleType, limit: str) -> None:
    """EOS or a stop token as the very last token allowed is a stop, because the answer is whole."""
    for last in (support.EOS, 77):
        request = make_request([10, 20, last], max_tokens=3, stop_token_ids=[77])
        max_model_len = 1000
        if limit == "max_model_len":
            request.max_tokens, max_model_len = 100, 6
        assert lab.check_stop(request, max_model_len), "the third of three tokens is the last"
        assert request.status is RequestStatus.FINISHED_STOPPED, (
            f"token {last} ends the answer and also reaches {limit}: both are true. The user must "
            f"hear `stop`: the answer is whole, and {request.status} would tell them it was cut off. "
            "Check EOS and stop tokens before the length"
        )


def test_stop_token_ids_give_their_id_as_reason(lab: ModuleType) -> None:
    """A stop token ends the request with FINISHED_STOPPED, and its id is the stop reason."""
    count, request = feed(lab, [10, 77, 88], stop_token_ids=[88, 77])
    assert (count, request.status) == (2, RequestStatus.FINISHED_STOPPED), (
        f"77 is among the stop token ids: the request ends there as FINISHED_STOPPED; yours took "
        f"{count} tokens and is {request.status}"
    )
    assert request.stop_reason == 77, (
        f"the user may have listed several stop tokens: the stop reason is the one that came, 77, "
        f"not {request.stop_reason!r}"
    )
    _, request = feed(lab, [10, support.EOS], stop_token_ids=[support.EOS])
    assert request.stop_reason is None, (
        "an EOS that is also listed as a stop token is an EOS: that check comes first, and has no "
        "stop reason"
    )
    count, request = feed(lab, [10, support.EOS, 30], stop_token_ids=[support.EOS], ignore_eos=True)
    assert (count, request.stop_reason) == (2, support.EOS), (
        "ignore_eos switches off the EOS check only. Who lists the EOS id as a stop token as well gets "
        f"a stop with stop_reason={support.EOS}; yours took {count} tokens, stop_reason "
        f"{request.stop_reason!r}"
    )


@pytest.mark.parametrize("token_id", [support.EOS, 77])
def test_min_tokens_holds_every_check_back(lab: ModuleType, token_id: int) -> None:
    """Below min_tokens nothing ends a request; the token that reaches min_tokens may."""
    count, _ = feed(lab, [token_id] * 6, min_tokens=4, stop_token_ids=[77])
    assert count == 4, (
        f"min_tokens=4 and a stream of nothing but token {token_id}, which ends a request: tokens 1 "
        f"to 3 must not, token 4 may. Yours ended at {count}. Compare with <, before any other check"
    )
    count, _ = feed(lab, [10] * 6, min_tokens=5, num_prompt_tokens=3, max_model_len=5)
    assert count == 5, (
        "min_tokens comes first of all, even before max_model_len: the request goes on to token 5, "
        f"yours ended at {count}. (mini_vllm refuses such a request before it gets here.)"
    )


def test_a_request_that_goes_on_is_left_alone(lab: ModuleType) -> None:
    """check_stop returns False and changes neither status nor stop reason where nothing fires."""
    resumed = make_request([10, 20], max_tokens=3)
    resumed.status, resumed.stop_reason = RequestStatus.PREEMPTED, "kept"
    lab.check_stop(resumed, 1000)
    assert (resumed.status, resumed.stop_reason) == (RequestStatus.PREEMPTED, "kept"), (
        "nothing fired, and the request's status or stop reason was written all the same"
    )
    for knobs in ({}, {"min_tokens": 3, "stop_token_ids": [20]}, {"ignore_eos": True}):
        request = make_request([10, 20], max_tokens=3, **knobs)
        ended = lab.check_stop(request, 1000)
        assert ended is False, (
            f"two of three tokens, no EOS, {knobs}: nothing ends here, so return False, not {ended!r}"
        )
        assert (request.status, request.stop_reason) == (RequestStatus.RUNNING, None), (
            f"the request goes on, yet it is {request.status} with stop reason "
            f"{request.stop_reason!r} now. Set them only when a check fires"
        )


def test_check_stop_answers_true_or_false(lab: ModuleType) -> None:
    """Each check that fires returns True."""
    for output, knobs in (
        ([support.EOS], {}),
        ([77], {"stop_token_ids": [77]}),
        ([10], {"max_tokens": 1}),
    ):
        ended = lab.check_stop(make_request(output, **knobs), 1000)
        assert ended is True, f"output {output} with {knobs} ends the request: True, not {ended!r}"


# ---- the word for the user -----------------------------------------------------------------------


def test_finish_reasons(lab: ModuleType) -> None:
    """Each status in which a request can finish has its reason: stop, length or abort."""
    for status, word in (
        (RequestStatus.FINISHED_STOPPED, "stop"),
        (RequestStatus.FINISHED_LENGTH_CAPPED, "length"),
        (RequestStatus.FINISHED_ABORTED, "abort"),
    ):
        assert lab.finish_reason(status) == word, (
            f"{status} is told to the user as {word!r}, not {lab.finish_reason(status)!r}"
        )


def test_unfinished_request_has_no_reason(lab: ModuleType) -> None:
    """WAITING, RUNNING and PREEMPTED have no reason: only a stream's last piece carries one."""
    for status in LIVING:
        assert lab.finish_reason(status) is None, (
            f"a request that is {status} has not finished: None, not {lab.finish_reason(status)!r}. "
            "A client that reads a finish reason stops reading"
        )
