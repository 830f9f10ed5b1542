"""Beam search: keep the likeliest few beginnings, extend each by one token, and so on.

Mirrors `vllm/entrypoints/generate/beam_search/` (`offline.py`, `online.py`, `utils.py`).
The engine knows nothing of beams. Each step of each beam is a request of its own, for one token and the
log probabilities of the likeliest ones, and prefix caching alone spares it from computing the beam anew.

Offline and on the server the search is the same here. Upstream it is written twice, and the server's
form counts on a beam's answer having exactly `2 * beam_width` tokens, which a drawn token breaks.

Left out: LoRA, multi-modal inputs, encoders.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mini_vllm.engine.input_processor import PromptDict, PromptType
from mini_vllm.outputs import CompletionOutput, Logprob, RequestOutput
from mini_vllm.sampling_params import BeamSearchParams, SamplingParams

if TYPE_CHECKING:
    from mini_vllm.engine.llm_engine import LLMEngine


@dataclass
class BeamSearchSequence:
    """A beam (`vllm/entrypoints/generate/beam_search/utils.py:19 BeamSearchSequence`).

    Attributes:
        tokens: prompt and output.
        logprobs: per output token, what the engine said of the likeliest tokens there.
        cum_logprob: of the output.
        text: of all the tokens; set when the search is over.
        finish_reason: `stop` for a beam that ended by EOS; None: it would go on.
        stop_reason: EOS's token id then.
    """

    tokens: list[int]
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def to_prompt(self, cache_salt: str | None = None) -> PromptDict:
        """The prompt of the request that extends this beam."""
        prompt: PromptDict = {"prompt_token_ids": self.tokens}
        if cache_salt is not None:
            prompt["cache_salt"] = cache_salt
        return prompt


@dataclass
class BeamSearchOutput:
    """A prompt's best beams, best first (`vllm/entrypoints/generate/beam_search/utils.py:99`)."""

    sequences: list[BeamSearchSequence]


def get_beam_search_score(
    tokens: Sequence[int], cumulative_logprob: float, eos_token_id: int, length_penalty: float = 1.0
) -> float:
    """What beams are ranked by: the log probability over the length to the power of the penalty.

    The length counts the prompt's tokens too, and not an EOS at the end
    (`vllm/entrypoints/generate/beam_search/utils.py:137 get_beam_search_score`). Where the power is no float
    any more it is taken for infinite or for 0, and where beams then score alike, they stay in their order;
    upstream the search ends in an error.
    """
    seq_len = len(tokens) - (tokens[-1] == eos_token_id)
    try:
        scale = float(seq_len**length_penalty)
    except OverflowError:
        return 0.0
    if not scale:
        return -math.inf if cumulative_logprob < 0 else 0.0
    return float(cumulative_logprob / scale)


class BeamSearchInstance:
    """The search for one prompt.

    Args:
        prompt_token_ids: at least one.
        params: width, penalty, and whether EOS ends a beam.
        eos_token_id: the tokenizer's.

    Attributes:
        beams: those that go on, at most `beam_width`.
        completed: those that have ended.
    """

    def __init__(
        self, prompt_token_ids: list[int], params: BeamSearchParams, eos_token_id: int
    ) -> None:
        self.params = params
        self.eos_token_id = eos_token_id
        self.num_prompt_tokens = len(prompt_token_ids)
        self.beams = [BeamSearchSequence(list(prompt_token_ids))]
        self.completed: list[BeamSearchSequence] = []

    def advance(self, answers: Sequence[list[dict[int, Logprob]] | None]) -> None:
        """Extend every beam by every token that the engine has named, and keep the best.

        Those that end by EOS leave the search. This is why a beam asks for `2 * beam_width` tokens: should
        all beams' best token be EOS, there are still enough others.

        Args:
            answers: per beam, the logprobs of its request's one token; None or empty: it was broken off, and
                the beam is lost, as at the pin.
        """
        candidates: list[BeamSearchSequence] = []
        for beam, answer in zip(self.beams, answers, strict=True):
            for token_id, logprob in answer[0].items() if answer else ():
                extended = BeamSearchSequence(
                    [*beam.tokens, token_id],
                    [*beam.logprobs, answer[0]] if answer else [],
                    beam.cum_logprob + logprob.logprob,
                )
                if token_id == self.eos_token_id and not self.params.ignore_eos:
                    extended.finish_reason, extended.stop_reason = "stop", token_id
                    self.completed.append(extended)
                else:
                    candidates.append(extended)
        self.beams = self._ranked(candidates)[: self.params.beam_width]

    def get_best(self) -> list[BeamSearchSequence]:
        """The best `beam_width` of all, ended or not."""
        return self._ranked(self.completed + self.beams)[: self.params.beam_width]

    def _ranked(self, beams: list[BeamSearchSequence]) -> list[BeamSearchSequence]:
        def score(beam: BeamSearchSequence) -> float:
            return get_beam_search_score(
                beam.tokens, beam.cum_logprob, self.eos_token_id, self.params.length_penalty
            )

        return sorted(beams, key=score, reverse=True)


def one_token_params(params: BeamSearchParams) -> SamplingParams:
    """What each step of a beam asks of the engine. The token that it draws is one candidate among the
    others (`vllm/entrypoints/generate/beam_search/offline.py:75`)."""
    return SamplingParams(
        logprobs=2 * params.beam_width, max_tokens=1, temperature=params.temperature
    )


def to_completion(
    index: int, beam: BeamSearchSequence, instance: BeamSearchInstance, text: str
) -> CompletionOutput:
    """A beam as the server answers it: output alone, and without its EOS unless that is asked for
    (`vllm/entrypoints/generate/beam_search/online.py:212 in BeamSearchOnlineMixin.beam_search`)."""
    token_ids = beam.tokens[instance.num_prompt_tokens :]
    if beam.finish_reason == "stop" and not instance.params.include_stop_str_in_output:
        token_ids = token_ids[:-1]
    return CompletionOutput(
        index=index,
        text=text,
        token_ids=token_ids,
        cumulative_logprob=beam.cum_logprob,
        logprobs=beam.logprobs[: len(token_ids)],
        finish_reason=beam.finish_reason or "length",
        stop_reason=beam.stop_reason,
    )


def search_offline(
    engine: LLMEngine,
    generate: Callable[..., list[RequestOutput]],
    prompts: Sequence[Any],
    params: BeamSearchParams,
    concurrency_limit: int | None,
) -> list[BeamSearchOutput]:
    """`LLM.beam_search`: a step of all beams of up to `concurrency_limit` prompts is one call of `generate`
    (`vllm/entrypoints/generate/beam_search/offline.py:27 BeamSearchOfflineMixin.beam_search`).

    Raises ValueError without a tokenizer.
    """
    tokenizer = engine.tokenizer
    if tokenizer is None:
        raise ValueError("beam_search needs a tokenizer: its EOS ends a beam, got None")
    processed = [engine.input_processor.process_prompt(prompt) for prompt in prompts]
    eos_token_id = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else -1
    instances = [BeamSearchInstance(p.token_ids, params, eos_token_id) for p in processed]
    limit = concurrency_limit or len(instances)
    for start in range(0, len(instances), limit):
        group = list(zip(instances, processed, strict=True))[start : start + limit]
        for _ in range(params.max_tokens):
            beams: list[PromptType] = [
                beam.to_prompt(prompt.cache_salt)
                for instance, prompt in group
                for beam in instance.beams
            ]
            if not beams:
                break
            outputs = iter(generate(beams, one_token_params(params), use_tqdm=False))
            for instance, _prompt in group:
                instance.advance([next(outputs).outputs[0].logprobs for _ in instance.beams])
    found = [BeamSearchOutput(instance.get_best()) for instance in instances]
    for output in found:
        for beam in output.sequences:
            beam.text = tokenizer.decode(beam.tokens)
    return found
