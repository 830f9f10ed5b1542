"""Drafts change no greedy token, whoever makes them, and what they save is counted.

What is right comes from `greedy`: dense attention over the whole text, without engine and drafts.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mini_vllm.config.engine import EngineConfig
from mini_vllm.config.mistral import MistralConfig
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.engine.parts import EngineParts
from mini_vllm.models.mistral import MistralForCausalLM
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.spec_decode.draft_model import DraftModelProposer
from mini_vllm.worker.model_runner import ModelRunner
from tests.engine.helpers.engine.detectors import poison
from tests.engine.helpers.engine.drafters import (
    count_drafts,
    drafting_engine,
    drafting_parts,
    speculative_config,
)
from tests.engine.helpers.engine.engine_helpers import SMALL, random_model, run
from tests.engine.helpers.engine.workloads import (
    DEFAULT_PARTS,
    Job,
    compare,
    drive,
    greedy,
    make_engine,
    prompts,
    random_workload,
    sharing_jobs,
)
from tests.engine.helpers.thorough import either

MODES = [
    ("ngram", False), ("noisy", False), ("eagle", False), ("eagle3", False),
    ("noisy", True), ("eagle", True), ("eagle3", True),
]  # fmt: skip
"""Drafters, without and with asynchronous scheduling, which refuses n-grams."""


def drafting_workload(kind: str, seed: int) -> tuple[list[Job], dict[str, Any]]:
    """`random_workload`, in a pool that holds what drafts need past a request's end."""
    jobs, settings = random_workload(seed)
    settings["num_gpu_blocks"] += 1 + 10 // settings["block_size"]
    return jobs, settings


@pytest.mark.parametrize(("kind", "ahead"), MODES)
def test_drafts_change_no_token(kind: str, ahead: bool) -> None:
    """Arrivals, aborts, chunks, prefix hits and preemptions, synchronous and asynchronous."""
    for seed in range(11, either(12, 40)):
        jobs, settings = drafting_workload(kind, seed)
        engine = drafting_engine(kind, async_scheduling=ahead, **settings)
        total = count_drafts(engine)
        compare(f"{kind}, seed {seed}", engine, jobs, drive(engine, jobs)[0])
        assert total.num_draft_tokens, f"{kind} drafted nothing"


@pytest.mark.parametrize(("kind", "ahead"), MODES)
def test_victims_and_drafts(kind: str, ahead: bool) -> None:
    """Who loses its blocks with drafts on their way starts over, and gives the same tokens."""
    lengths = enumerate(prompts(5, 9, 7, 12, 6, 10))
    jobs = [Job(prompt, 14, arrive=i // 2, priority=-i) for i, prompt in lengths]
    engine = drafting_engine(kind, num_gpu_blocks=14, async_scheduling=ahead)
    compare(kind, engine, jobs, drive(engine, jobs)[0])
    assert engine.engine_core.scheduler.num_preemptions, "nobody was preempted"


@pytest.mark.parametrize("ahead", [False, True])
def test_a_drafter_that_knows_the_model_is_always_right(ahead: bool) -> None:
    """A model that drafts for itself: every draft of 3 is accepted, and a step gives 4 tokens."""
    engine = drafting_engine("itself", num_gpu_blocks=60, async_scheduling=ahead)
    total = count_drafts(engine)
    params = SamplingParams(temperature=0, max_tokens=13, ignore_eos=True)
    (tokens,) = run(engine, prompts(8, 9), params)
    assert tokens == greedy(prompts(8, 9)[0], 13)
    assert (total.num_drafts, total.num_draft_tokens, total.num_accepted_tokens) == (3, 9, 9)
    assert total.num_accepted_tokens_per_pos == [3, 3, 3]
    assert ahead or engine.engine_core.num_steps == 4, "1 token from the prompt, then 4 a step"


@pytest.mark.parametrize("ahead", [False, True])
def test_sync_and_async_draft_alike(ahead: bool) -> None:
    """The worker fills the placeholders of a plan with the drafts that a plan would have named."""
    engine = drafting_engine("noisy", num_gpu_blocks=100, async_scheduling=ahead)
    total = count_drafts(engine)
    jobs = [Job(prompt, 20) for prompt in prompts(13, 9, 7, 12)]
    compare("noisy", engine, jobs, drive(engine, jobs)[0])
    shares = total.num_accepted_tokens / total.num_draft_tokens
    assert 0.2 < shares < 0.9, f"the noisy drafter is right in {shares:.0%}: no test of rejection"
    assert total.num_accepted_tokens_per_pos == sorted(total.num_accepted_tokens_per_pos)[::-1]


@pytest.mark.parametrize("kind", ["noisy", "eagle"])
def test_nobody_reads_a_slot_that_holds_a_rejected_draft(kind: str) -> None:
    """NaN in every slot past what is computed, in the model's caches before each step: no token changes,
    and no draft, since the drafter's caches are filled alike."""
    counts = []
    for poisoned in (False, True):
        engine = drafting_engine(kind, num_gpu_blocks=60, max_num_seqs=4, max_num_batched_tokens=20)
        total = count_drafts(engine)
        if poisoned:
            poison_before_each_step(engine)
        jobs = [Job(prompt, 15, arrive=i) for i, prompt in enumerate(prompts(21, 9, 30, 12))]
        compare(kind, engine, jobs, drive(engine, jobs)[0])
        counts.append(total)
    assert counts[0] == counts[1], "the drafter read a slot that was not written for its request"


def poison_before_each_step(engine: LLMEngine) -> None:
    """NaN in the model's caches and in the drafter's, which have the same slots."""
    runner: Any = engine.engine_core.model_runner
    caches, execute = runner.kv_caches, runner.execute_model
    fill = poison(engine)
    runner.kv_caches = runner.speculation.drafter.kv_caches
    fill_of_drafter = poison(engine)
    runner.kv_caches = caches

    def execute_poisoned(output: Any) -> Any:
        fill(output)
        fill_of_drafter(output)
        return execute(output)

    runner.execute_model = execute_poisoned


@pytest.mark.parametrize(("kind", "ahead"), [("ngram", False), ("noisy", False), ("noisy", True)])
def test_the_end_of_the_context(kind: str, ahead: bool) -> None:
    """Near `max_model_len` drafts are cut, then nobody drafts any more; the text goes on to the last token,
    with the tokens that an engine without drafts gives."""
    texts = prompts(4, 20, 12)
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    plain = run(make_engine(DEFAULT_PARTS, max_model_len=40), texts, params)
    engine = drafting_engine(kind, max_model_len=40, async_scheduling=ahead)
    assert run(engine, texts, params) == plain
    assert [len(tokens) for tokens in plain] == [20, 28]


def test_a_drafter_with_a_shorter_context() -> None:
    """`max_model_len` of the drafter: past it, nobody in the batch drafts, and zeros stand in."""
    engine = drafting_engine("itself", num_gpu_blocks=60, spec={"max_model_len": 20})
    total = count_drafts(engine)
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    (tokens,) = run(engine, prompts(8, 9), params)
    right = greedy(prompts(8, 9)[0], 30)
    assert tokens[: len(right)] == right
    # Steps end at 9, 13 and 17 tokens with room for 3 more; the next one ends at 21.
    assert total.num_accepted_tokens_per_pos[2] == 3, total
    assert total.num_drafts > 6, "the zeros are checked, too"


@pytest.mark.parametrize("kind", ["ngram", "noisy", "eagle3"])
def test_logprobs_are_those_of_each_token(kind: str) -> None:
    """A step's accepted tokens each have their logprob, as without drafts, and prompts theirs."""
    params = SamplingParams(
        temperature=0, max_tokens=12, ignore_eos=True, logprobs=2, prompt_logprobs=1
    )
    found = []
    for engine in (make_engine(DEFAULT_PARTS), drafting_engine(kind)):
        for i, prompt in enumerate(prompts(6, 7, 15)):
            engine.add_request(str(i), prompt, params)
        outputs = {}
        while engine.has_unfinished_requests():
            outputs.update((o.request_id, o) for o in engine.step())
        found.append(outputs)
    for request_id, plain in found[0].items():
        ours = found[1][request_id]
        for before, after in (
            (plain.outputs[0].logprobs, ours.outputs[0].logprobs),
            (plain.prompt_logprobs[1:], ours.prompt_logprobs[1:]),
        ):
            assert [sorted(p) for p in before] == [sorted(p) for p in after]
            for one, other in zip(before, after, strict=True):
                for token in one:
                    assert one[token].rank == other[token].rank
                    assert abs(one[token].logprob - other[token].logprob) < 1e-4


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.3},
        {"frequency_penalty": 0.7, "presence_penalty": 0.3},
        {"min_tokens": 9, "stop_token_ids": list(range(3, 40))},
        {"allowed_token_ids": list(range(10, 30))},
    ],
    ids=["repetition", "frequency", "min_tokens", "allowed"],
)
def test_parameters_that_change_logits(settings: dict[str, Any]) -> None:
    """Each draft's row has the penalties that it would have had without drafts: of the drafts before
    it, too."""
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, **settings)
    texts = prompts(31, 8, 14)
    plain = run(make_engine(DEFAULT_PARTS), texts, params)
    for kind in ("noisy", "ngram"):
        assert run(drafting_engine(kind), texts, params) == plain, f"{kind}, {settings}"


@pytest.mark.parametrize("spec", [{}, {"draft_sample_method": "probabilistic"}])
def test_seeded_draws_repeat(spec: dict[str, Any]) -> None:
    """The same seeds give the same tokens again; a greedy row beside them stays greedy."""
    found = []
    for _ in range(2):
        engine = drafting_engine("noisy", spec=spec)
        total = count_drafts(engine)
        (prompt,) = prompts(2, 9)
        engine.add_request("greedy", prompt, SamplingParams(temperature=0, max_tokens=9))
        for seed in (1, 2, 3):
            params = SamplingParams(temperature=0.7, seed=seed, max_tokens=20, ignore_eos=True)
            engine.add_request(str(seed), prompt, params)
        tokens: dict[str, list[int]] = {}
        while engine.has_unfinished_requests():
            tokens.update((o.request_id, list(o.outputs[0].token_ids)) for o in engine.step())
        assert 0 < total.num_accepted_tokens < total.num_draft_tokens
        right = greedy(prompt, 9, ignore_eos=False)
        assert tokens["greedy"][: len(right)] == right
        found.append(tokens)
    assert found[0] == found[1]
    assert found[0]["1"] != found[0]["2"]


def test_probabilistic_drafts_of_the_model_itself_are_all_kept() -> None:
    """p / q is 1 where both are the same: with `probabilistic` a drawn draft is judged by what it was drawn
    from. By the default rule the drafter is greedy, and the same drafter is right only now and then."""
    shares = {}
    for method in ("probabilistic", "greedy"):
        engine = drafting_engine("itself", spec={"draft_sample_method": method})
        total = count_drafts(engine)
        params = SamplingParams(temperature=1.5, max_tokens=40, ignore_eos=True)
        run(engine, prompts(2, 9, 5), params)
        shares[method] = total.num_accepted_tokens / total.num_draft_tokens
    assert shares["probabilistic"] > 0.98, shares
    assert shares["greedy"] < 0.9, shares


def test_synthetic_acceptance_keeps_its_rates() -> None:
    """`synthetic`: 2.5 tokens a step, one draft always and the second every other time."""
    spec = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.5}
    engine = drafting_engine("other", num_gpu_blocks=300, spec=spec)
    total = count_drafts(engine)
    run(
        engine,
        prompts(2, 9, 5, 6, 7),
        SamplingParams(temperature=0, max_tokens=60, ignore_eos=True),
    )
    first, second, third = (c / total.num_drafts for c in total.num_accepted_tokens_per_pos)
    assert (first, third) == (1, 0)
    assert 0.3 < second < 0.7


def test_shared_beginnings() -> None:
    """Prefix hits with an EAGLE head: the last block of each is computed again, and tokens stay right."""
    hits = {}
    for kind in ("noisy", "eagle"):
        engine = drafting_engine(kind, max_num_seqs=13)
        jobs = sharing_jobs()
        got, hits[kind] = drive(engine, jobs)
        compare(kind, engine, jobs, got)
    assert (hits["noisy"][1], hits["eagle"][1]) == (12, 8), hits


def test_without_speculation_nothing_of_it_runs() -> None:
    """The plain runner, and no drafts in any plan."""
    engine = make_engine(DEFAULT_PARTS)
    assert type(engine.engine_core.model_runner) is ModelRunner
    records: list[Any] = []
    engine.engine_core.step_observers.append(records.append)
    run(engine, prompts(1, 5), SamplingParams(max_tokens=3))
    assert not any(r.scheduler_output.scheduled_spec_decode_tokens for r in records)
    assert all(r.scheduler_stats.spec_decoding_stats is None for r in records)


def test_a_draft_model_of_another_vocabulary_is_refused() -> None:
    """Its ids would mean other tokens, or none."""
    small = random_model(config=dataclasses.replace(SMALL, vocab_size=32))
    parts = EngineParts(drafter=lambda config, model: DraftModelProposer(config, model, small))
    spec = {"method": "draft_model", "model": "given", "num_speculative_tokens": 2}
    config = EngineConfig(num_gpu_blocks=20, speculative_config=spec)
    with pytest.raises(ValueError, match="32 tokens for 64"):
        LLMEngine(random_model(), config, parts=parts)


SETTINGS = {field.name: getattr(SMALL, field.name) for field in dataclasses.fields(SMALL)}
WINDOW = MistralConfig(**(SETTINGS | {"sliding_window": 8}))


def window_engine(parts: EngineParts, **settings: Any) -> LLMEngine:
    """A model that attends to 8 tokens."""
    model = random_model(config=WINDOW, model_cls=MistralForCausalLM)
    config = EngineConfig(block_size=4, num_gpu_blocks=100, max_num_seqs=8, **settings)
    return LLMEngine(model, config, parts=parts)


def test_models_with_windows_take_ngrams() -> None:
    """Blocks that fall out of the window are given up by what is kept, not by what was drafted."""
    texts = [prompt * 2 for prompt in prompts(3, 15, 8, 12)]  # something to look up
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    engine = window_engine(
        DEFAULT_PARTS, speculative_config=speculative_config("ngram"), max_num_batched_tokens=24
    )
    total = count_drafts(engine)
    assert run(engine, texts, params) == run(window_engine(DEFAULT_PARTS), texts, params)
    assert total.num_draft_tokens


@pytest.mark.parametrize("kind", ["noisy", "eagle"])
def test_models_with_windows_refuse_drafters_with_a_cache(kind: str) -> None:
    """vLLM lets its layers join a group; the miniature says that it does not."""
    with pytest.raises(ValueError, match="only 'ngram' is"):
        window_engine(drafting_parts(kind), speculative_config=speculative_config(kind))


def test_a_cache_in_8_bits() -> None:
    """The drafter's cache is kept as the model's is."""
    texts = prompts(3, 30, 8)
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    plain = run(make_engine(DEFAULT_PARTS, kv_cache_dtype="fp8"), texts, params)
    engine = drafting_engine("itself", kv_cache_dtype="fp8")
    total = count_drafts(engine)
    assert run(engine, texts, params) == plain
    assert total.num_accepted_tokens > 0.9 * total.num_draft_tokens
    runner: Any = engine.engine_core.model_runner
    assert {type(c) for c in runner.speculation.drafter.kv_caches} == {
        type(c) for c in runner.kv_caches
    }
