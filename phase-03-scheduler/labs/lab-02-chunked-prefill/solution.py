"""Lab 03-02: the reference solution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mini_vllm import LLMEngine, SamplingParams
from mini_vllm.engine.step_record import StepRecord


class Answer(NamedTuple):
    """What a request got.

    Attributes:
        token_ids: the answer.
        logprobs: the logarithm of each token's probability.
        chunks: tokens computed for the prompt in each step that computed some of it.
    """

    token_ids: list[int]
    logprobs: list[float]
    chunks: list[int]


class Probe(NamedTuple):
    """Inputs for an engine.

    Attributes:
        prompts: text by request id, one or two, of at most 20 characters each.
        settings: of the engine; `max_num_batched_tokens` and `long_prefill_token_threshold`, if any.
    """

    prompts: dict[str, str]
    settings: dict[str, int]


def predictions() -> dict[str, float]:
    return {
        "steps, alone": 8,
        "steps, beside 48": 2,
        "pairs, 8 pieces for 1": 1.0,
        "keys read, 8 pieces for 1": 4.5,
    }


def prefill_chunks(
    num_prompt_tokens: int,
    budget: int,
    num_decoding: int = 0,
    threshold: int = 0,
    num_cached: int = 0,
) -> list[int]:
    left = budget - num_decoding
    if left < 1:
        raise ValueError(f"{num_decoding} that decode use up a budget of {budget}")
    chunks = []
    missing = num_prompt_tokens - num_cached
    while missing > 0:
        num_new_tokens = missing
        if 0 < threshold < num_new_tokens:
            num_new_tokens = threshold
        num_new_tokens = min(num_new_tokens, left)
        chunks.append(num_new_tokens)
        missing -= num_new_tokens
    return chunks


def num_prefill_steps(
    num_prompt_tokens: int, budget: int, threshold: int = 0, num_cached: int = 0
) -> int:
    most = min(budget, threshold) if threshold > 0 else budget
    return -(-(num_prompt_tokens - num_cached) // most)


def num_pairs(chunks: list[int], num_cached: int = 0) -> int:
    pairs, before = 0, num_cached
    for chunk in chunks:
        pairs += chunk * before + chunk * (chunk + 1) // 2
        before += chunk
    return pairs


def num_keys_read(chunks: list[int], num_cached: int = 0) -> int:
    read, before = 0, num_cached
    for chunk in chunks:
        before += chunk
        read += before
    return read


def ask(engine: LLMEngine, prompts: Mapping[str, str], num_tokens: int) -> dict[str, Answer]:
    answers = {name: Answer([], [], []) for name in prompts}

    def observe(record: StepRecord) -> None:
        for name, num_new_tokens in record.scheduler_output.num_scheduled_tokens.items():
            if not answers[name].token_ids:
                answers[name].chunks.append(num_new_tokens)
        for output in record.outputs:
            answers[output.request_id].token_ids.extend(output.new_token_ids)

    engine.engine_core.step_observers.append(observe)
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, logprobs=0)
    for name, prompt in prompts.items():
        engine.add_request(name, prompt, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            [completion] = output.outputs
            assert completion.logprobs is not None
            answers[output.request_id].logprobs[:] = [
                place[token].logprob
                for token, place in zip(completion.token_ids, completion.logprobs, strict=True)
            ]
    engine.engine_core.step_observers.remove(observe)
    return answers


def changed(
    expected: Mapping[str, Answer], actual: Mapping[str, Answer], tolerance: float = 1e-3
) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, one in expected.items():
        other = actual[name]
        if one.token_ids != other.token_ids:
            found[name] = "tokens"
        elif any(abs(a - b) > tolerance for a, b in zip(one.logprobs, other.logprobs, strict=True)):
            found[name] = "logprobs"
    return found


def probes() -> tuple[Probe, Probe]:
    one = Probe({"hal": "The scheduler"}, {"long_prefill_token_threshold": 6})
    two = Probe({"fay": "The seat is", "gil": "The seats"}, {})
    return one, two
