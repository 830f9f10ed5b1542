"""Lab 01-03, the stages: what a step does, in which order, and when it does nothing."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support
from mini_vllm import EngineConfig, SamplingParams
from mini_vllm.sampler import Sampler
from mini_vllm.scheduler import Scheduler
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
    """Schedule, forward, sample, aborts, update; each once a step."""
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
    for name in "ab":
        engine.add_request(name, {"prompt_token_ids": [1, 50, 51]}, support.free(most=2))
    engine.step()
    want = ["aborts", "schedule", "forward", "sample", "aborts", "update"]
    assert calls == want, (
        f"the step went {' > '.join(calls)}, should go {' > '.join(want)}. One forward pass serves "
        "all requests of the step. Aborts are looked at before scheduling, and again before the "
        "update, for clients that went while the model ran"
    )
    assert watched.rows_of_logits == [2], (
        f"the step made {watched.rows_of_logits} rows of logits, should be [2]: one a request that "
        "samples, not one a token"
    )


def test_a_chunk_in_mid_prompt_emits_no_token(lab: ModuleType, model: Any) -> None:
    """A prompt of 20 under a budget of 8: two silent steps, the first token in the third."""
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
    engine, _ = small_engine(lab, model)
    engine.add_request("short", {"prompt_token_ids": [1, 50, 51]}, support.free(most=4))
    engine.add_request("long", {"prompt_token_ids": list(range(1, 21))}, support.free(most=4))
    output = engine.scheduler.schedule()
    result = engine.sample_tokens(engine.execute_model(output))
    assert (result.req_ids, result.req_id_to_index) == (
        ["short", "long"],
        {"short": 0, "long": 1},
    ), (
        f"req_ids {result.req_ids}, req_id_to_index {result.req_id_to_index}: every request of the "
        "step has an index, sampled or not"
    )
    counts = [len(row) for row in result.sampled_token_ids]
    assert counts == [1, 0], (
        f"sampled_token_ids is {result.sampled_token_ids}: one list a request, with one token for "
        "'short', which has caught up, and none for 'long', which has 5 of its 20 tokens computed"
    )
    token = result.sampled_token_ids[0][0]
    assert type(token) is int, (
        f"a sampled token is a Python int, got {type(token).__name__}: it goes into lists, hashes "
        "and JSON from here"
    )
    remembered = {req_id: s.output_token_ids for req_id, s in engine.requests.items()}
    assert remembered == {"short": [token], "long": []}, (
        f"the worker remembers the outputs {remembered}: append what a request sampled to its own "
        "state. The scheduler never sends it, and it is the next step's input"
    )


def test_an_empty_step_computes_nothing(lab: ModuleType, model: Any) -> None:
    """A step with no tokens skips the model, but not the memory and not the update."""
    engine, watched = small_engine(lab, model)
    engine.requests["gone"] = support.state(lab, "gone", [1, 2], [3], 2)
    executed = engine.execute_model(support.decisions({}, finished=("gone",)))
    assert executed is None, f"nothing was scheduled: execute_model returns None, got {executed!r}"
    assert not watched.passes, "nothing was scheduled, and still the model ran"
    assert not engine.requests, (
        "an empty step can say who has finished: update the memory before you look for tokens"
    )
    result = engine.sample_tokens(None)
    assert (result.req_ids, result.req_id_to_index, result.sampled_token_ids) == ([], {}, []), (
        f"after an empty step the output is empty, got {result}"
    )


def test_an_idle_engine_returns_at_once(lab: ModuleType, model: Any) -> None:
    """No request, no step: an empty list, and the scheduler is not asked."""
    engine, watched = small_engine(lab, model)
    scheduled: list[int] = []
    engine.scheduler.schedule = lambda: scheduled.append(1)
    assert engine.step() == [], "a step with nobody to serve returns an empty list"
    assert not scheduled, "nobody is there: return before schedule()"
    assert not watched.passes, "nobody is there, and still the model ran"


def test_a_client_that_goes_during_the_pass_gets_nothing(lab: ModuleType, model: Any) -> None:
    """An abort while the model runs takes effect before the tokens are taken in."""
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
    assert len(engine.run()["stays"].outputs[0].token_ids) == 5, "the other request is unharmed"


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
    """The front end sees a stop string; the core has to be told, or it runs on."""
    engine = lab.HandEngine(model, EngineConfig(), tokenizer)
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
    assert (last.text, last.finish_reason, last.stop_reason) == ("", "stop", "aaa"), (
        f"the last output is {last}: return process_outputs(...).request_outputs as they are"
    )
    assert not engine.has_unfinished_requests(), (
        "the client has its answer, and the core still runs the request, to its 50 tokens and with "
        "its blocks: pass process_outputs(...).reqs_to_abort on to scheduler.finish_requests"
    )


def test_run_ends_with_the_last_request(lab: ModuleType, model: Any) -> None:
    """`run` gives the finished outputs by id, and only those."""
    engine, _ = small_engine(lab, model)
    for name, most in (("a", 3), ("b", 1), ("c", 5)):
        engine.add_request(name, {"prompt_token_ids": [1, 50, 51]}, support.free(most=most))
    done = engine.run()
    lengths = {name: len(o.outputs[0].token_ids) for name, o in done.items()}
    assert lengths == {"b": 1, "a": 3, "c": 5}, (
        f"tokens by request: {lengths}, should be a: 3, b: 1, c: 5. Keep each request's finished "
        "output, which has all its tokens, and step until nobody is left"
    )
    assert all(o.finished for o in done.values()), "run returns the outputs that say finished"
    engine.add_request("long", {"prompt_token_ids": [1] + [60] * 20}, support.free(most=2))
    done = engine.run()
    assert list(done) == ["long"], (
        "a prompt of 21 tokens and a budget of 8: the first steps bring no output at all, and the "
        f"request is not over. run returned {list(done)}; step for as long as requests are left"
    )
    assert engine.run() == {}, "with nobody there, run returns an empty dict"
