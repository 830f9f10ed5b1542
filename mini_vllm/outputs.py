"""What a user of the engine gets back.

Mirrors `vllm/outputs.py` and `vllm/logprobs.py`. Left out: pooling outputs, LoRA, encoder prompts,
routed experts, the flat form of logprobs.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Logprob:
    """One token's log probability at one position (`vllm/logprobs.py:13 Logprob`).

    Attributes:
        logprob: natural logarithm of the probability, before temperature and every filter.
        rank: 1 for the most likely token of the vocabulary.
        decoded_token: its text; None where there is no tokenizer.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


SampleLogprobs = list[dict[int, Logprob]]
"""Per output token: token id -> Logprob; the sampled token comes first."""

PromptLogprobs = list[dict[int, Logprob] | None]
"""Per prompt token; the first is None, since nothing predicts it."""


@dataclass(slots=True)
class CompletionOutput:
    """One completion of a request (`vllm/outputs.py:22 CompletionOutput`).

    Attributes:
        index: which of the request's `n`.
        text: the text so far, or since the last output if `output_kind` is DELTA.
        token_ids: likewise.
        cumulative_logprob: the sum over the sampled tokens; None unless logprobs were asked for.
        logprobs: None unless asked for.
        finish_reason: `stop`, `length`, `abort`; None while it runs.
        stop_reason: the stop string or stop token id that ended it; None for EOS and the rest.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: SampleLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """A request and its completions (`vllm/outputs.py:85 RequestOutput`).

    Attributes:
        request_id: as given to `add_request`.
        prompt: the prompt's text, None if token ids were given.
        prompt_token_ids: as the model saw them.
        prompt_logprobs: None unless asked for.
        outputs: one a completion, by index.
        finished: whether all of them are.
        num_cached_tokens: prompt tokens taken from the prefix cache at the admission that led to the
            first output token.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: PromptLogprobs | None
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    num_cached_tokens: int | None = None
