"""Lab 01-03, the stages: what a step does, in which order, and when it does nothing."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support
from mini_vllm import EngineConfig, SamplingParams
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.engine.output_processor import OutputProcessor
from mini_vllm.sample.sampler import Sampler
from mini_vllm.tokenizer import Tokenizer

support = load_support(__file__)


def small_engine(lab: ModuleType, model: Any, **kwargs: Any) -> tuple[Any, Any]:
    settings: dict[str, Any] = {
        "block_size": 4, "num_gpu_blocks": 40, "max_model_len": 48, "max_num_seqs": 4,
        "max_num_batched_tokens": 8,
    }  # fmt: skip
    watched = support.Watched(model)
    return lab.HandEngine(watched, EngineConfig(**settings | kwargs)), watched


def test_the_stages_come_in_order(
    lab: ModuleType, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step makes its calls in the one order that harms no client."""
    calls: list[str] = []

    def noted(owner: Any, name: str, label: str) -> None:
        method = getattr(owner, name)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            calls.append(label)
            return method(*args, **kwargs)

        monkeypatch.setattr(owner, name, wrapper)

    engine, watched = small_engine(lab, model)
    noted(Scheduler, "schedule", "schedule")
    noted(support.Watched, "forward", "forward")
    noted(Sampler, "__call__", "sample")
    noted(engine, "process_aborts_queue", "aborts")
    noted(Scheduler, "update_from_output", "update")
    noted(OutputProcessor, "process_outputs", "text")
    for name in "ab":
        engine.add_request(name, {"prompt_token_ids": [1, 50, 51]}, support.free(most=2))
    engine.step()
    went = " > ".join(calls) or "nowhere"
    for stage in ("schedule", "forward", "sample", "update", "text"):
        assert calls.count(stage) == 1, (
            f"the step went {went}: {stage} comes once in a step, for all requests together, not "
            f"{calls.count(stage)} times"
        )
    for earlier, later, why in (
        ("schedule", "forward", "the model runs what was decided in this step"),
        ("forward", "sample", "what is sampled comes from the pass"),
        ("sample", "update", "the update takes in what was sampled"),
        ("update", "text", "text is made of what the core took in"),
    ):
        assert calls.index(earlier) < calls.index(later), f"the step went {went}: {why}"
    assert "aborts" in calls[: calls.index("schedule")], (
        f"the step went {went}: who left between two steps is decided for once more. Hear of the aborts "
        "before you schedule, or a pass is spent on them"
    )
    early = "aborts" in calls[calls.index("schedule") : calls.index("sample")]
    assert "aborts" in calls[calls.index("sample") : calls.index("update")], (
        f"the step went {went}: "
        + (
            "the second look at the aborts comes before sampling: who leaves while it samples has its "
            "token taken in. Hear of the aborts "
            if early
            else "who left while the model ran has its token taken in. Hear of the aborts again "
        )
        + "once all is sampled, before the update, which passes over ids that are gone"
    )
    assert watched.rows_of_logits == [2], (
        f"the step made {watched.rows_of_logits} rows of logits, should be [2]: one a request that "
        "samples, not one a token"
    )


def test_a_chunk_in_mid_prompt_emits_no_token(lab: ModuleType, model: Any) -> None:
    """A prompt of 20 tokens under a budget of 8 samples nothing until its third step."""
    engine, watched = small_engine(lab, model)
    engine.add_request("r", {"prompt_token_ids": list(range(1, 21))}, support.free(most=1))
    told, counters = [], []
    request = engine.scheduler.requests["r"]
    for _ in range(3):
        told.append([list(o.outputs[0].token_ids) for o in engine.step()])
        counters.append(request.num_computed_tokens)
    assert [len(outputs) for outputs in told] == [0, 0, 1], (
        f"outputs in the three steps: {told}. After 8 tokens of 20 the last row predicts token 8, "
        "which the prompt has. Sampling it tells the client the answer to another prompt"
    )
    assert counters == [8, 16, 20], f"the prompt advances by 8, 8 and 4 tokens, not {counters}"
    assert sum(watched.rows_of_logits) == 1, (
        f"rows of logits in the three steps: {watched.rows_of_logits}. Rows that are discarded are "
        "not sampled here: each would cost numbers of the random stream that others share"
    )


def test_the_output_says_who_sampled(lab: ModuleType, model: Any) -> None:
    """`ModelRunnerOutput` has a row for every request of the step, empty in mid-prompt."""
    engine, watched = small_engine(lab, model, long_prefill_token_threshold=5)
    engine.add_request("long", {"prompt_token_ids": list(range(1, 21))}, support.free(most=4))
    engine.add_request("short", {"prompt_token_ids": [1, 50, 51]}, support.free(most=4))
    output = engine.scheduler.schedule()
    result = engine.sample_tokens(engine.execute_model(output))
    assert (result.req_ids, result.req_id_to_index) == (
        ["long", "short"],
        {"long": 0, "short": 1},
    ), (
        f"req_ids {result.req_ids}, req_id_to_index {result.req_id_to_index}: every request of the "
        "step has an index, sampled or not"
    )
    assert watched.rows_of_logits == [1], (
        f"the step made {watched.rows_of_logits} rows of logits, should be [1]: 'short' has caught up and "
        "'long' has not, and a row that is sampled for nobody costs the others random numbers"
    )
    counts = [len(row) for row in result.sampled_token_ids]
    assert counts != [1, 0], (
        f"sampled_token_ids is {result.sampled_token_ids}: the token is in the row of 'long', which is "
        "silent. Row i belongs to req_ids[i]"
    )
    assert counts == [0, 1], (
        f"sampled_token_ids is {result.sampled_token_ids}: one list a request, with one token for "
        "'short', which has caught up, and none for 'long', which has 5 of its 20 tokens computed"
    )
    token = result.sampled_token_ids[1][0]
    assert type(token) is int, (
        f"a sampled token is a Python int, got {type(token).__name__}: it goes into lists, hashes "
        "and JSON from here"
    )
    remembered = {req_id: s.output_token_ids for req_id, s in engine.requests.items()}
    assert remembered == {"long": [], "short": [token]}, (
        f"the worker remembers the outputs {remembered}: append what a request sampled to its own "
        "state. The scheduler never sends it, and it is the next step's input"
    )


def test_an_empty_step_computes_nothing(lab: ModuleType, model: Any) -> None:
    """A step with no tokens skips the model, but still updates the worker's memory."""
    engine, watched = small_engine(lab, model)
    engine.requests["gone"] = support.state(lab, "gone", [1, 2], [3], 2)
    executed = engine.execute_model(support.decisions({}, finished=("gone",)))
    assert executed is None, (
        f"nothing was scheduled: execute_model returns None, got {type(executed).__name__}"
    )
    assert not watched.passes, "nothing was scheduled, and still the model ran"
    assert not engine.requests, (
        "an empty step can say who has finished: update the memory before you look for tokens"
    )
    result = engine.sample_tokens(None)
    assert (result.req_ids, result.req_id_to_index, result.sampled_token_ids) == ([], {}, []), (
        f"after an empty step the output is empty, got {result}"
    )


def test_an_empty_step_has_news_all_the_same(lab: ModuleType, model: Any) -> None:
    """In an empty step the worker hears which requests have finished, and the update runs."""
    engine, watched = small_engine(lab, model)
    engine.add_request("r", {"prompt_token_ids": [1, 50, 51]}, support.free(most=4))
    engine.requests["gone"] = support.state(lab, "gone", [1, 2], [3], 2)
    updates: list[Any] = []
    update = engine.scheduler.update_from_output
    engine.scheduler.schedule = lambda: support.decisions({}, finished=("gone",))
    engine.scheduler.update_from_output = lambda *args: updates.append(args[1]) or update(*args)
    assert engine.step() == [], "nothing was computed in this step, so no client is told anything"
    assert not watched.passes, "nothing was scheduled, and still the model ran"
    assert "gone" not in engine.requests, (
        "the scheduler said in an empty step that 'gone' has finished, and the worker still "
        "remembers it. Execute every step that was scheduled: execute_model brings the memory up "
        "to date before it looks for tokens"
    )
    assert len(updates) == 1, (
        f"update_from_output ran {len(updates)} times in an empty step. It takes in every step, for the "
        "scheduler may have preempted somebody"
    )
    assert engine.has_unfinished_requests(), "'r' waits for its first step, and was lost"


def test_the_only_client_goes(lab: ModuleType, model: Any) -> None:
    """When the last client leaves, between steps or during a pass, the engine is idle at once."""
    engine, watched = small_engine(lab, model)
    asked: list[int] = []
    schedule = engine.scheduler.schedule
    engine.scheduler.schedule = lambda: asked.append(1) or schedule()
    engine.add_request("between", {"prompt_token_ids": [1, 50, 51]}, support.free(most=5))
    engine.step()
    engine.abort_request("between")
    assert engine.step() == [], "the only client has gone: nobody is told anything"
    assert len(asked) == 1, (
        "the only client left between two steps, and the scheduler was asked for another. Hear of the aborts "
        "first, and only then look whether anybody is left; or it was not asked at all whether anybody is "
        "left"
    )
    engine.add_request("during", {"prompt_token_ids": [1, 60, 61]}, support.free(most=5))
    watched.during = lambda i: engine.abort_request("during")
    assert engine.step() == [], (
        "the only client left while the model ran, and was told what was sampled for it: hear of the aborts "
        "before update_from_output"
    )
    held = len(engine.scheduler.kv_cache_manager.req_to_blocks)
    assert (engine.has_unfinished_requests(), held) == (False, 0), (
        f"nobody is left, and {held} requests still hold blocks: the abort has to reach the scheduler in the "
        "step in which the client went"
    )
    assert engine.step() == [], "nobody is there: an empty list"
    assert len(asked) == 2, "nobody is there, and the scheduler was asked"


def test_an_idle_engine_returns_at_once(lab: ModuleType, model: Any) -> None:
    """An engine without requests returns an empty list, and its scheduler is not called."""
    engine, watched = small_engine(lab, model)

    def asked() -> None:
        raise AssertionError(
            "no request, and schedule() was called: ask first whether anybody is left"
        )

    engine.scheduler.schedule = asked
    assert engine.step() == [], "a step with nobody to serve returns an empty list"
    assert not watched.passes, "nobody is there, and still the model ran"


def test_a_client_that_goes_during_the_pass_gets_nothing(lab: ModuleType, model: Any) -> None:
    """A client that leaves while the model runs gets no token of that pass, and its blocks are free."""
    engine, watched = small_engine(lab, model)
    for name in ("stays", "goes"):
        engine.add_request(name, {"prompt_token_ids": [1, 50, 51]}, support.free(most=5))
    request = engine.scheduler.requests["goes"]
    watched.during = lambda i: engine.abort_request("goes") if i == 1 else None
    engine.step()
    engine.step()
    assert request.num_output_tokens == 1, (
        f"the client went during the second pass, and the request has {request.num_output_tokens} "
        "outputs, should be 1. Look at the aborts after sampling and before update_from_output: "
        "update skips requests that are gone"
    )
    assert "goes" not in engine.scheduler.requests, (
        "the request still holds its blocks after the step in which its client went"
    )
    for _ in range(4):
        engine.step()
    assert not engine.has_unfinished_requests(), "the other request has 5 tokens after 5 steps"


def test_an_abort_between_steps_comes_before_the_schedule(lab: ModuleType, model: Any) -> None:
    """A request whose client left between two steps is not scheduled again."""
    engine, watched = small_engine(lab, model)
    for name in ("stays", "goes"):
        engine.add_request(name, {"prompt_token_ids": [1, 50, 51]}, support.free(most=5))
    engine.step()
    engine.abort_request("goes")
    engine.step()
    size = len(watched.passes[1]["seq_lens"])
    assert size == 1, (
        f"the pass after the abort has {size} requests, should have 1: process the aborts before "
        "you schedule, or a pass is spent on a client that has gone"
    )
    engine.abort_request("stays")
    assert engine.step() == [], "the last client has gone: there is nothing to do"
    assert len(watched.passes) == 2, "the last client has gone, and still the model ran"


def test_a_stop_string_ends_the_request_in_the_core(
    lab: ModuleType, model: Any, tokenizer: Tokenizer
) -> None:
    """The core is told of a stop string that the front end found, so the request does not run on."""
    engine = lab.HandEngine(model, EngineConfig(num_gpu_blocks=8), tokenizer)
    bias = SamplingParams(
        temperature=0, max_tokens=50, stop=["aaa"], allowed_token_ids=[8 + ord("a")]
    )
    engine.add_request("r", "Say a", bias)
    outputs = [output for _ in range(3) for output in engine.step()]
    assert [o.finished for o in outputs] == [False, False, True], (
        f"three steps, three outputs of a request that can only say 'a' and stops at 'aaa': "
        f"{[(o.outputs[0].text, o.finished) for o in outputs]}"
    )
    last = outputs[-1].outputs[0]
    got = (last.text, last.finish_reason, last.stop_reason)
    assert got == ("", "stop", "aaa"), (
        f"text, finish_reason and stop_reason of the last output are {got}, should be ('', 'stop', 'aaa'): "
        "return process_outputs(...).request_outputs as they are"
    )
    assert not engine.has_unfinished_requests(), (
        "the client has its answer, and when step returns the core still has the request and its "
        "blocks. Call scheduler.finish_requests with process_outputs(...).reqs_to_abort in this step, "
        "not through the aborts queue, which is heard in the next"
    )
