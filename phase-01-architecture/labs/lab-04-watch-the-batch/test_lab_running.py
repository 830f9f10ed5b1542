"""Lab 01-04, a probe on a running engine: what must balance, and what is measured from it."""

from __future__ import annotations

import copy
import random
from types import ModuleType
from typing import Any

import pytest

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.engine.step_record import StepRecord

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def prompt_of(length: int, first: int) -> Any:
    return {"prompt_token_ids": [1, *(8 + (first + i) % 256 for i in range(length - 1))]}


def busy(model: Any, seed: int, **kwargs: Any) -> tuple[LLMEngine, list[tuple[int, str, Any, int]]]:
    """An engine that is short of blocks and budget, and requests for it: (step, id, prompt, tokens)."""
    settings: dict[str, Any] = {
        "block_size": 4, "num_gpu_blocks": 14, "max_model_len": 48, "max_num_seqs": 4,
        "max_num_batched_tokens": 12,
    }  # fmt: skip
    rng = random.Random(seed)
    requests = []
    for i in range(8):
        # Every other prompt begins like the one before, so that there are prefixes to hit.
        prompt = prompt_of(rng.randint(2, 20), 31 * (i // 2))
        requests.append((rng.randint(0, 6), f"r{i}", prompt, rng.randint(1, 16)))
    return LLMEngine(model, EngineConfig(**settings | kwargs)), requests


def drive(engine: LLMEngine, requests: list[tuple[int, str, Any, int]]) -> list[Any]:
    told: list[Any] = []
    step, last = 0, max(at for at, *_ in requests)
    while engine.has_unfinished_requests() or step <= last:
        for at, request_id, prompt, most in requests:
            if at == step:
                params = SamplingParams(temperature=0, max_tokens=most, ignore_eos=True)
                engine.add_request(request_id, prompt, params)
        told.append([(o.request_id, o.outputs[0].token_ids) for o in engine.step()])
        step += 1
    return told


def who_decodes(engine: LLMEngine) -> list[tuple[str, ...]]:
    """Of each step from now on, filled in while the engine runs: who has all computed but one output."""
    known: dict[str, int] = {}  # prompt and outputs
    sampled: set[str] = set()
    steps: list[tuple[str, ...]] = []

    def note(record: StepRecord) -> None:
        output = record.scheduler_output
        before = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        before |= zip(cached.req_ids, cached.num_computed_tokens, strict=True)
        known.update({new.req_id: len(new.prompt_token_ids) for new in output.scheduled_new_reqs})
        steps.append(
            tuple(
                r for r in output.num_scheduled_tokens if r in sampled and before[r] == known[r] - 1
            )
        )
        for news in record.outputs:
            sampled.add(news.request_id)
            known[news.request_id] += len(news.new_token_ids)

    engine.engine_core.step_observers.append(note)
    return steps


KINDS: dict[str, dict[str, Any]] = {
    "fcfs": {},
    "no prefix cache": {"enable_prefix_caching": False},
    "blocks to spare": {"num_gpu_blocks": 100},
}


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("seed", [0, 1])
def test_every_token_is_accounted_for(lab: ModuleType, model: Any, kind: str, seed: int) -> None:
    """The books balance: expected_scheduled equals what was computed, per request and in total."""
    engine, requests = busy(model, seed, **KINDS[kind])
    probe = lab.BatchProbe(engine)
    decoding = who_decodes(engine)
    drive(engine, requests)
    for step, want in zip(probe.steps, decoding, strict=True):
        assert step.decodes == want, (
            f"step {step.index}: decodes is {step.decodes}, should be {want}, of "
            f"{step.num_scheduled_tokens}. Ask is_decode for each, with the count from before the step"
        )
    if kind != "blocks to spare":
        assert engine.engine_core.scheduler.num_preemptions, "the workload preempts nobody"
    lengths = {r: (len(p["prompt_token_ids"]), most) for _, r, p, most in requests}
    assert set(probe.ledgers) == set(lengths), "one ledger for each request that was admitted"
    for request_id, (prompt, most) in lengths.items():
        ledger = probe.ledgers[request_id]
        told = (ledger.num_prompt_tokens, ledger.num_sampled, ledger.finished)
        assert told == (prompt, most, True), (
            f"{request_id} had a prompt of {prompt}, got {most} tokens and has finished; its ledger "
            f"says {told}"
        )
        assert ledger.num_computed_tokens == prompt + most - 1, (
            f"{request_id} ended with {ledger.num_computed_tokens} tokens computed, should be "
            f"{prompt} + {most} - 1: nobody computes the token that was sampled last"
        )
        expected = lab.expected_scheduled(ledger)
        assert expected == ledger.num_scheduled, (
            f"{request_id}: its ledger says {ledger.num_scheduled} computed, expected_scheduled says "
            f"{expected} (cached {ledger.num_cached}, lost {ledger.num_lost}). One of the entries or the "
            "formula is off; if test_expected_scheduled_by_hand passes, it is an entry, and the tests of "
            "the ledger in test_lab.py say which"
        )
    total = sum(step.num_tokens for step in probe.steps)
    booked = sum(ledger.num_scheduled for ledger in probe.ledgers.values())
    assert total == booked, (
        f"the steps have {total} tokens and the ledgers {booked}: count each once"
    )


def test_expected_scheduled_by_hand(lab: ModuleType) -> None:
    """expected_scheduled is right for four ledgers, one with a hit larger than the loss before it."""
    cases = [
        ({}, 13 + 4 - 1),
        ({"num_cached": 12}, 4),
        ({"num_lost": 15}, 31),
        ({"num_cached": 12, "num_lost": 4}, 8),
    ]
    for entries, want in cases:
        got = lab.expected_scheduled(lab.RequestLedger(13, num_sampled=4, **entries))
        assert got == want, (
            f"a prompt of 13, 4 tokens sampled, {entries or 'no hit, no loss'}: {got} tokens to "
            f"compute, should be {want}"
        )


def test_the_probe_changes_nothing(lab: ModuleType, model: Any) -> None:
    """Decisions and tokens are the same with the probe as without; it wraps and leaves nothing."""
    bare, requests = busy(model, 2)
    decisions: list[Any] = []
    seen: list[Any] = []
    bare.engine_core.step_observers.append(
        lambda r: decisions.append(copy.deepcopy(r.scheduler_output))
    )
    want = drive(bare, requests)
    engine, _ = busy(model, 2)
    probe = lab.BatchProbe(engine)
    engine.engine_core.step_observers.append(
        lambda r: seen.append(copy.deepcopy(r.scheduler_output))
    )
    assert drive(engine, requests) == want, "with the probe on it the engine gives other tokens"
    assert seen == decisions, (
        "with the probe on it the engine decides otherwise, or the next observer is shown a record "
        "that the probe has changed: read only"
    )
    assert [s.num_scheduled_tokens for s in probe.steps] == [
        d.num_scheduled_tokens for d in decisions
    ], "the trace is not what was scheduled: one entry a step, in order"
    changed = set(vars(engine.engine_core.scheduler)) ^ set(vars(bare.engine_core.scheduler))
    assert not changed, f"the probe has left {sorted(changed)} in the scheduler"
    probe.detach()
    engine.add_request("late", prompt_of(3, 0), PARAMS)
    engine.step()
    assert len(probe.steps) == len(decisions), "after detach() the probe still writes"


def test_two_prompts_under_a_tight_budget(lab: ModuleType, model: Any) -> None:
    """Prompts of 13 and 6 tokens at 8 per step give a chunk, a deferral, a mixed step and an end."""
    engine = LLMEngine(model, EngineConfig(max_num_batched_tokens=8, max_num_seqs=4))
    probe = lab.BatchProbe(engine)
    drive(engine, [(0, "A", prompt_of(13, 0), 4), (0, "B", prompt_of(6, 90), 4)])
    want = [
        ({"A": 8}, ("B",), False, ()),
        ({"A": 5, "B": 3}, (), False, ()),
        ({"A": 1, "B": 3}, (), True, ()),
        ({"A": 1, "B": 1}, (), False, ()),
        ({"A": 1, "B": 1}, (), False, ("A",)),
        ({"B": 1}, (), False, ("B",)),
    ]
    assert len(probe.steps) == 6, f"the run has 6 steps, the probe wrote down {len(probe.steps)}"
    for i, (s, wanted) in enumerate(zip(probe.steps, want, strict=True), 1):
        got = (s.num_scheduled_tokens, s.waiting, lab.is_mixed(s), s.finished)
        assert got == wanted, (
            f"step {i}: tokens, waiting, mixed and finished are {got}, should be {wanted}. A takes "
            "the whole budget and B waits; the 3 that A leaves over are B's; in step 3 a decode "
            "and a chunk share the batch, and only that is mixed: step 2 has two prompts in it"
        )
    early = [lab.time_to_first_token(probe.steps, r) for r in "AB"]
    assert early == [(2, 16), (3, 20)], (
        f"steps and tokens to the first token of A and B: {early}, should be (2, 16) and (3, 20). B "
        "waits in step 1, and waiting counts; so do tokens computed for A"
    )


def batch(lab: ModuleType, index: int, scheduled: dict[str, int], **kwargs: Any) -> Any:
    empty: dict[str, Any] = dict.fromkeys(
        ("prefills", "decodes", "joined", "sampled", "finished", "preempted", "waiting"), ()
    )
    return lab.BatchStep(index, scheduled, **empty | {"budget": 10} | kwargs)


def test_first_token_counts_the_wait(lab: ModuleType) -> None:
    """The time to the first token runs from the first step that sees the request to its token's."""
    steps = [
        batch(lab, 1, {"x": 10}, sampled=("x",)),
        batch(lab, 2, {"x": 1, "y": 9}, waiting=("a",), sampled=("x", "y")),
        batch(lab, 3, {"y": 2}, sampled=("y",)),  # neither waits nor runs: it has been aborted once
        batch(lab, 4, {"x": 1, "a": 4}, sampled=("x",)),
        batch(lab, 5, {"x": 1, "a": 2}, sampled=("x", "a")),
        batch(lab, 6, {"a": 1}, sampled=("a",)),
    ]
    got = lab.time_to_first_token(steps, "a")
    assert got == (4, 20), (
        f"request a: {got} steps and tokens, should be (4, 20): steps 2 to 5 with 10 + 2 + 5 + 3 "
        "tokens. Its client waits from the moment it stands in line, for everybody's tokens"
    )
    assert lab.time_to_first_token(steps, "x") == (1, 10), (
        f"request x has its token in the step it came in: {lab.time_to_first_token(steps, 'x')}, "
        "should be (1, 10)"
    )
    for request_id, upto in (("nobody", 6), ("a", 4)):
        with pytest.raises(ValueError, match=request_id):
            lab.time_to_first_token(steps[:upto], request_id)


SETTINGS: dict[str, tuple[dict[str, Any], tuple[int, int], int]] = {
    # name: settings, (steps, tokens) to the first token of `short`, longest gap of `decoding`
    "no chunks": (
        {"max_num_batched_tokens": 256, "enable_chunked_prefill": False},
        (1, 171),
        171,
    ),
    "chunks": ({"max_num_batched_tokens": 32}, (6, 176), 32),
    "chunks, and none above 16": (
        {"max_num_batched_tokens": 32, "long_prefill_token_threshold": 16},
        (1, 27),
        27,
    ),
}


@pytest.mark.parametrize("name", list(SETTINGS))
def test_behind_a_long_prompt(lab: ModuleType, model: Any, name: str) -> None:
    """Chunks help requests that decode; a request behind the long prompt needs the threshold."""
    settings, want, gap = SETTINGS[name]
    engine = LLMEngine(model, EngineConfig(max_model_len=256, max_num_seqs=4, **settings))
    probe = lab.BatchProbe(engine)
    requests = [
        (0, "decoding", prompt_of(8, 0), 20),
        (3, "long", prompt_of(160, 40), 2),
        (3, "short", prompt_of(10, 200), 2),
    ]
    drive(engine, requests)
    got = lab.time_to_first_token(probe.steps, "short")
    assert got == want, (
        f"{name}: the short request behind 160 tokens has its first token after {got} steps and "
        f"tokens, should be {want}"
    )
    assert lab.longest_gap(probe.steps, "decoding") == gap, (
        f"{name}: the longest gap of the decoding request is "
        f"{lab.longest_gap(probe.steps, 'decoding')} tokens, should be {gap}: no step is larger "
        "than the budget, and every step gives it a token"
    )
