"""What a user of the engine gets back.

Mirrors `vllm/outputs.py`, `vllm/logprobs.py` and, for a request's numbers, `vllm/v1/metrics/stats.py`.
Left out: pooling outputs, routed experts, the flat form of logprobs. What belongs to encoders is
there and None, because scripts print it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mini_vllm.lora.request import LoRARequest


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

    @property
    def lora_request(self) -> None:
        """Not told here, as upstream: `RequestOutput` has it."""


@dataclass(slots=True)
class RequestStateStats:
    """One request in numbers (`vllm/v1/metrics/stats.py:202 RequestStateStats`).

    `arrival_time` is wall-clock time, in seconds since 1970. The `_ts` are seconds of a monotonic
    clock: only their differences mean something. What has not happened yet is 0.
    """

    num_generation_tokens: int = 0
    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    first_token_latency: float = 0.0
    is_corrupted: bool = False


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
        metrics: the request's numbers, the last child's where `n > 1`; None unless the engine
            counts (`disable_log_stats=False`).
        lora_request: its adapter, without the weights.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: PromptLogprobs | None
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    num_cached_tokens: int | None = None
    metrics: RequestStateStats | None = None
    lora_request: LoRARequest | None = None

    @property
    def encoder_prompt(self) -> None:
        """The model has no encoder."""

    @property
    def encoder_prompt_token_ids(self) -> None:
        """The model has no encoder."""

    @property
    def kv_transfer_params(self) -> None:
        """The KV cache stays in the process."""


@dataclass(frozen=True)
class CUDAGraphStat:
    """How one step ran (`vllm/compilation/cuda_graph.py:33 CUDAGraphStat`).

    Attributes:
        num_unpadded_tokens, num_padded_tokens: rows without and with padding.
        num_paddings: their difference.
        runtime_mode: NONE, PIECEWISE or FULL.
        launches: kernels and graphs that were started for the model's forward pass. Upstream does not count
            them. Logits and sampling are outside of every graph, and are not counted here.
            None for the model in torch, where nothing is counted.
    """

    num_unpadded_tokens: int
    num_padded_tokens: int
    num_paddings: int
    runtime_mode: str
    launches: int | None
