"""Lab 03-02: what chunked prefill changes, and what it does not. Your work: every NotImplementedError."""

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


# ---- before you write anything -------------------------------------------------------------------


def predictions() -> dict[str, float]:
    """Your guesses for the README's four questions, under the names that it uses."""
    raise NotImplementedError


# ---- how a prompt is cut -------------------------------------------------------------------------


def prefill_chunks(
    num_prompt_tokens: int,
    budget: int,
    num_decoding: int = 0,
    threshold: int = 0,
    num_cached: int = 0,
) -> list[int]:
    """The tokens of one prompt that each step computes, until all of it is computed.

    Args:
        num_prompt_tokens: tokens of the prompt, at least 1.
        budget: tokens that a step may compute for everybody together.
        num_decoding: other requests that decode one token each in every step, and are served first.
        threshold: the most that one request gets in a step; 0 means no such limit.
        num_cached: tokens at the beginning of the prompt that the prefix cache has; at least one is not.

    Raises ValueError, with both numbers in its message, if the others use up the budget.
    """
    raise NotImplementedError


def num_prefill_steps(
    num_prompt_tokens: int, budget: int, threshold: int = 0, num_cached: int = 0
) -> int:
    """How many steps that takes with no other requests. A formula: do not make the chunks to count them."""
    raise NotImplementedError


# ---- what the cuts cost --------------------------------------------------------------------------


def num_pairs(chunks: list[int], num_cached: int = 0) -> int:
    """Pairs of a query and a key that it sees, over all chunks: the arithmetic of attention.

    A token sees itself and every token before it, cached ones too.

    Args:
        chunks: their sizes in order, as `prefill_chunks` gives them.
        num_cached: tokens in the cache before the first chunk.
    """
    raise NotImplementedError


def num_keys_read(chunks: list[int], num_cached: int = 0) -> int:
    """Keys read from the cache, if the attention of each chunk reads every key it needs once."""
    raise NotImplementedError


# ---- whether anybody's answer changes ------------------------------------------------------------


def ask(engine: LLMEngine, prompts: Mapping[str, str], num_tokens: int) -> dict[str, Answer]:
    """Ask all prompts at once, greedily, for exactly `num_tokens` tokens each (given).

    Args:
        prompts: text by request id.

    Returns:
        An `Answer` by request id. The engine is left as it was.
    """
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
    """Which answers are not the expected ones, and what differs in each: `"tokens"` or `"logprobs"`.

    All tokens must be the same. Logprobs of the same tokens may be off by `tolerance`, because a sum of
    floats depends on its order. The chunks may differ. Answers that agree are left out.
    """
    raise NotImplementedError


def probes() -> tuple[Probe, Probe]:
    """Inputs that expose both broken engines: on each probe, each engine changes some request's answer.

    The first probe is run without prefix caching. The second has no settings: no prompt is cut, and the
    prefix cache is on, with blocks of 4 tokens. Each character of a prompt is a token, after one token that
    begins the text. All prompts are asked at once, for 6 tokens each. `support.py` has the two faults.
    """
    raise NotImplementedError
