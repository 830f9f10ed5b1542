"""What the scheduler does at the edges that vLLM's own tests reach: a result that is late, a prompt that is
too long, a reset, an output that repeats itself."""

from __future__ import annotations

import pytest

from mini_vllm.core.request import RequestStatus
from mini_vllm.core.sched.utils import check_sequence_repetition, check_stop
from mini_vllm.sampling_params import RepetitionDetectionParams
from tests.engine.helpers.engine.workloads import make_request, make_scheduler, step
from tests.engine.helpers.scheduler.scheduler_helpers import apart, setup, text


def test_a_request_that_awaits_its_result_is_passed_over() -> None:
    scheduler, _ = setup(text(9))
    scheduler.schedule()
    scheduler.add_request(make_request(scheduler, "late", text(5, 500)))
    assert scheduler.schedule().num_scheduled_tokens == {"late": 5}
    assert scheduler.schedule().num_scheduled_tokens == {}
    assert [request.request_id for request in scheduler.running] == ["0", "late"]


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_prompt_beyond_max_model_len_is_computed_once_and_ends_by_its_length(
    async_scheduling: bool,
) -> None:
    """The front refuses such a prompt; whoever speaks to the scheduler itself gets what vLLM gives."""
    settings = {"max_model_len": 32, "block_size": 4, "max_num_seqs": 8}
    scheduler = make_scheduler(async_scheduling=async_scheduling, **settings)
    scheduler.add_request(request := make_request(scheduler, "long", text(50)))
    first = step(scheduler, lambda _: 9)
    assert first.scheduled == {"long": 50}
    assert len(first.tables["long"]) == 8, "slots for 32 tokens"
    assert first.outputs[0].finish_reason == "length"
    assert request.status is RequestStatus.FINISHED_LENGTH_CAPPED
    assert not scheduler.has_unfinished_requests()
    scheduler.kv_cache_manager.check_invariants()


def test_no_position_beyond_the_last_but_one_is_computed_in_chunks() -> None:
    scheduler = make_scheduler(
        max_model_len=32, block_size=4, max_num_batched_tokens=20, max_num_seqs=2
    )
    scheduler.add_request(make_request(scheduler, "long", text(50)))
    counts = [step(scheduler).scheduled for _ in range(3)]
    assert counts == [{"long": 20}, {"long": 11}, {}]


def test_a_reset_names_its_victims_apart_from_those_of_the_step() -> None:
    scheduler, _ = setup(*apart(9, 3), max_num_seqs=8)
    step(scheduler)
    assert scheduler.reset_prefix_cache(reset_running_requests=True)
    assert not scheduler.running
    again = scheduler.schedule()
    assert again.preempted_req_ids == set()
    assert again.reset_req_ids == {"0", "1", "2"}
    assert again.scheduled_cached_reqs.resumed_req_ids == {"0", "1", "2"}
    assert scheduler.schedule().reset_req_ids == set()
    assert again.reset_req_ids == {"0", "1", "2"}, "a plan that was given out has changed"


# -- repetition -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token_ids", "sizes", "count", "found"),
    [
        ([1, 2, 1, 2, 1, 2], (1, 2), 3, True),
        ([1, 2, 1, 2, 1, 2], (1, 2), 4, False),
        ([1, 2, 1, 2, 1, 2], (3, 9), 2, False),
        ([7, 5, 5, 5], (0, 1), 3, True),
        ([5, 5, 5, 7], (0, 3), 3, False),
        ([9, 1, 2, 3, 1, 2, 3], (2, 3), 2, True),
        ([1, 2, 3, 1, 2, 4], (1, 3), 2, False),
        ([], (1, 4), 2, False),
    ],
)
def test_the_end_of_an_output_is_one_pattern_again_and_again(
    token_ids: list[int], sizes: tuple[int, int], count: int, found: bool
) -> None:
    least, most = sizes
    params = RepetitionDetectionParams(most, least, count)
    assert check_sequence_repetition(token_ids, params) is found


def test_repetition_ends_a_request_after_everything_else() -> None:
    detection = RepetitionDetectionParams(max_pattern_size=2, min_count=3)
    scheduler = make_scheduler()
    scheduler.add_request(
        request := make_request(scheduler, "a", text(5), repetition_detection=detection)
    )
    reasons = []
    while scheduler.has_unfinished_requests():
        reasons += [(o.finish_reason, o.stop_reason) for o in step(scheduler).outputs]
    assert reasons == [(None, None), (None, None), ("repetition", "repetition_detected")]
    request = make_request(scheduler, "b", text(5), repetition_detection=detection, max_tokens=3)
    for _ in range(3):
        request.append_output_token_ids(9)
    assert check_stop(request, 512)
    assert request.status is RequestStatus.FINISHED_LENGTH_CAPPED


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ((2, 3, 2), "3 and 2"),
        ((-1, 0, 2), "0 and -1"),
        ((2, -1, 2), "-1 and 2"),
        ((2, 0, 1), "got 1"),
    ],
)
def test_a_rule_of_repetition_that_means_nothing_is_refused(
    values: tuple[int, int, int], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        RepetitionDetectionParams(*values)
