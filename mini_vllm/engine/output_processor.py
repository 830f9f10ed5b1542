"""From token ids to `RequestOutput`: text, stop strings, and what a request's user is to see now.

Mirrors `vllm/v1/engine/output_processor.py` (`process_outputs` 576). Logprobs are made readable in
`logprobs.py`, the `n` samples of a request are joined in `parallel_sampling.py`; a run that asks for neither
loads neither. Left out: tracing, streaming input, queues (the async front end brings its own).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mini_vllm.core.sched.output import EngineCoreOutput
from mini_vllm.engine.detokenizer import IncrementalDetokenizer
from mini_vllm.outputs import CompletionOutput, RequestOutput, RequestStateStats
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams
from mini_vllm.tokenizer import Tokenizer

if TYPE_CHECKING:
    from mini_vllm.engine.logprobs import LogprobsProcessor
    from mini_vllm.engine.parallel_sampling import ParentRequest
    from mini_vllm.lora.request import LoadedLoRARequest


class RequestState:
    """The front end's side of one request (one child, if `n > 1`)."""

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        parent: ParentRequest | None = None,
        index: int = 0,
        lora_request: LoadedLoRARequest | None = None,
    ) -> None:
        if not params.detokenize:
            tokenizer = None
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.output_kind = params.output_kind
        self.parent = parent
        self.index = index
        self.lora_request = None if lora_request is None else lora_request.without_weights()
        self.detokenizer = IncrementalDetokenizer(tokenizer, params, prompt_token_ids)
        self.logprobs_processor = make_logprobs_processor(tokenizer, params)
        self.num_cached_tokens: int | None = None
        self.stats: RequestStateStats | None = None  # kept up to date by the metrics
        self.stream_interval = 1
        self.sent_tokens_offset = 0  # tokens that deltas have given

    @property
    def external_id(self) -> str:
        """The id that the user gave: the parent's, for a child."""
        return self.request_id if self.parent is None else self.parent.request_id

    def make_request_output(
        self,
        new_token_ids: list[int],
        finish_reason: str | None,
        stop_reason: int | str | None,
    ) -> RequestOutput | None:
        """What the user is to see now; None if nothing."""
        finished = finish_reason is not None
        if not finished and self.output_kind is RequestOutputKind.FINAL_ONLY:
            return None
        delta = self.output_kind is RequestOutputKind.DELTA
        if delta and self.stream_interval > 1:
            # The first token, the last, and between them so many at a time
            # (`vllm/v1/engine/output_processor.py:272 RequestState.make_request_output`).
            token_ids = self.detokenizer.token_ids
            new_token_ids = token_ids[self.sent_tokens_offset :]
            if (
                not finished
                and self.sent_tokens_offset
                and len(new_token_ids) < self.stream_interval
            ):
                return None
            self.sent_tokens_offset = len(token_ids)
        processor = self.logprobs_processor
        logprobs = processor.logprobs if processor is not None else None
        if logprobs is not None:
            logprobs = logprobs[len(logprobs) - len(new_token_ids) :] if delta else list(logprobs)
        completion = CompletionOutput(
            index=self.index,
            text=self.detokenizer.get_next_output_text(finished, delta),
            token_ids=list(new_token_ids if delta else self.detokenizer.token_ids),
            cumulative_logprob=processor.cumulative_logprob if processor is not None else None,
            logprobs=logprobs,
            finish_reason=finish_reason,
            stop_reason=stop_reason if finished else None,
        )
        outputs = [completion]
        if self.parent is not None:
            outputs, finished = self.parent.get_outputs(self.request_id, completion)
            if not outputs:
                return None
        prompt_logprobs = processor.take_prompt_logprobs(delta) if processor is not None else None
        return RequestOutput(
            request_id=self.external_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            prompt_logprobs=prompt_logprobs,
            outputs=outputs,
            finished=finished,
            num_cached_tokens=self.num_cached_tokens,
            metrics=self.stats,
            lora_request=self.lora_request,
        )


def make_logprobs_processor(
    tokenizer: Tokenizer | None, params: SamplingParams
) -> LogprobsProcessor | None:
    """None where the request asks for no logprobs."""
    if params.num_logprobs is None and params.prompt_logprobs is None:
        return None
    from mini_vllm.engine.logprobs import LogprobsProcessor

    return LogprobsProcessor(tokenizer, params)


@dataclass(slots=True)
class OutputProcessorOutput:
    request_outputs: list[RequestOutput] = field(default_factory=list)
    reqs_to_abort: list[str] = field(default_factory=list)


class OutputProcessor:
    """All requests' front-end state, and the one loop over a step's outputs.

    Args:
        stream_interval: a delta has at least so many tokens, but for a request's first and last.

    Source: `vllm/v1/engine/output_processor.py:417 OutputProcessor`.
    """

    def __init__(self, tokenizer: Tokenizer | None, stream_interval: int = 1) -> None:
        self.tokenizer = tokenizer
        self.stream_interval = stream_interval
        self.request_states: dict[str, RequestState] = {}
        self.parent_requests: dict[str, ParentRequest] = {}

    def get_num_unfinished_requests(self) -> int:
        return len(self.request_states)

    def has_unfinished_requests(self) -> bool:
        return bool(self.request_states)

    def has_request(self, request_id: str) -> bool:
        """Whether a user's request of this id is alive. A child's id is not a user's."""
        state = self.request_states.get(request_id)
        return request_id in self.parent_requests or (state is not None and state.parent is None)

    def is_taken(self, request_id: str) -> bool:
        """Whether the id is in use, for a user's request or inside the engine for a child."""
        return request_id in self.request_states or request_id in self.parent_requests

    def add_request(self, state: RequestState) -> None:
        state.stream_interval = self.stream_interval
        self.request_states[state.request_id] = state
        if state.parent is not None:
            self.parent_requests[state.parent.request_id] = state.parent

    def abort_request(self, request_id: str) -> list[str]:
        """Forget a request; returns the ids to abort in the core (its children's, if it has any)."""
        parent = self.parent_requests.pop(request_id, None)
        ids = sorted(parent.child_requests) if parent is not None else [request_id]
        for child_id in ids:
            self.request_states.pop(child_id, None)
        return ids

    def process_outputs(self, core_outputs: list[EngineCoreOutput]) -> OutputProcessorOutput:
        """Turn one step's outputs into `RequestOutput`s.

        A stop string that only text shows ends the request here, while the core still runs it:
        its id comes back in `reqs_to_abort`.
        """
        result = OutputProcessorOutput()
        states = self.request_states
        for core_output in core_outputs:
            state = states.get(core_output.request_id)
            if state is None:
                continue  # aborted in the meantime
            if state.num_cached_tokens is None:
                state.num_cached_tokens = core_output.num_cached_tokens
            finish_reason, stop_reason = core_output.finish_reason, core_output.stop_reason
            stop_string = state.detokenizer.update(
                core_output.new_token_ids, finish_reason == "stop"
            )
            if stop_string is not None:
                if finish_reason is None:
                    result.reqs_to_abort.append(core_output.request_id)
                finish_reason, stop_reason = "stop", stop_string
            if state.logprobs_processor is not None:
                state.logprobs_processor.update_from_output(core_output)
            output = state.make_request_output(
                core_output.new_token_ids, finish_reason, stop_reason
            )
            if output is not None:
                result.request_outputs.append(output)
            if finish_reason is not None:
                del states[core_output.request_id]
                if state.parent is not None and not state.parent.child_requests:
                    self.parent_requests.pop(state.parent.request_id, None)
        return result
