"""From token ids to `RequestOutput`: text, logprobs, stop strings, and the `n` samples of a request.

Mirrors `vllm/v1/engine/output_processor.py` (`process_outputs` 576), `logprobs.py` and
`parallel_sampling.py` beside it. Left out: tracing, streaming input, queues (the async front
end brings its own).
"""

from __future__ import annotations

import copy
import os.path
from dataclasses import dataclass, field

from mini_vllm.core.sched.output import EngineCoreOutput
from mini_vllm.engine.detokenizer import IncrementalDetokenizer
from mini_vllm.outputs import (
    CompletionOutput,
    Logprob,
    PromptLogprobs,
    RequestOutput,
    RequestStateStats,
    SampleLogprobs,
)
from mini_vllm.sample.ops import LogprobsLists
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams
from mini_vllm.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_MAX_UTF8_CONTEXT = 4  # no UTF-8 character has more bytes, and a token holds at least one


class ParentRequest:
    """A request with `n > 1`: `n` children that the core schedules as requests of their own.

    They share nothing but the prefix cache. A seed given is made each child's own by adding its
    index. Source: `vllm/v1/engine/parallel_sampling.py:13 ParentRequest`.
    """

    def __init__(self, request_id: str, sampling_params: SamplingParams) -> None:
        self.request_id = request_id
        self.sampling_params = sampling_params
        self.child_requests: set[str] = set()
        self.finished_outputs: dict[int, CompletionOutput] = {}

    def get_child_info(self, index: int) -> tuple[str, SamplingParams]:
        """The id and the parameters of child `index` (0 to n - 1)."""
        params = copy.copy(self.sampling_params)
        params.n = 1
        if params.seed is not None:
            params.seed += index
        child_id = f"{index}_{self.request_id}"
        self.child_requests.add(child_id)
        return child_id, params

    def get_outputs(
        self, child_id: str, output: CompletionOutput
    ) -> tuple[list[CompletionOutput], bool]:
        """What to pass on now, and whether all children have finished.

        FINAL_ONLY waits for the last child and then gives all, by index. The other kinds pass a child's
        last output on once (`vllm/v1/engine/parallel_sampling.py:100 ParentRequest.get_outputs`).
        """
        given_already = output.finished() and child_id not in self.child_requests
        if output.finished():
            self.child_requests.discard(child_id)
        finished = not self.child_requests
        if self.sampling_params.output_kind is not RequestOutputKind.FINAL_ONLY:
            return ([] if given_already else [output]), finished
        self.finished_outputs[output.index] = output
        if not finished:
            return [], False
        return [self.finished_outputs[i] for i in sorted(self.finished_outputs)], True


class LogprobsProcessor:
    """Collects the logprobs of one completion (`vllm/v1/engine/logprobs.py`)."""

    def __init__(self, tokenizer: Tokenizer | None, params: SamplingParams) -> None:
        self.tokenizer = tokenizer
        self.num_logprobs = params.num_logprobs
        self.num_prompt_logprobs = params.prompt_logprobs
        wanted = self.num_logprobs is not None
        self.logprobs: SampleLogprobs | None = [] if wanted else None
        self.cumulative_logprob: float | None = 0.0 if wanted else None
        self.prompt_logprobs: PromptLogprobs | None = (
            [None] if params.prompt_logprobs is not None else None
        )

    def update_from_output(self, output: EngineCoreOutput) -> None:
        if output.new_logprobs is not None and self.logprobs is not None:
            assert self.cumulative_logprob is not None
            for position in self._positions(output.new_logprobs, self.logprobs, self.num_logprobs):
                self.cumulative_logprob += next(iter(position.values())).logprob
                self.logprobs.append(position)
        if output.new_prompt_logprobs_tensors is not None and self.prompt_logprobs is not None:
            for position in self._positions(
                output.new_prompt_logprobs_tensors, self.prompt_logprobs, self.num_prompt_logprobs
            ):
                self.prompt_logprobs.append(position)

    def _positions(
        self, lists: LogprobsLists, before: SampleLogprobs | PromptLogprobs, count: int | None
    ) -> list[dict[int, Logprob]]:
        """One dict a position. Column 0 is the token that stands there, with its rank; the others
        are the top k, ranked 1 to k. A token that is both keeps its first place. Columns beyond those
        `count` are a neighbour's, who asked for more."""
        end = None if count in (None, -1) else count + 1
        context = [next(iter(d)) for d in before[-_MAX_UTF8_CONTEXT:] if d]
        positions = []
        rows = zip(
            lists.logprob_token_ids.tolist(),
            lists.logprobs.tolist(),
            lists.sampled_token_ranks.tolist(),
            strict=True,
        )
        for token_ids, logprobs, rank in rows:
            position: dict[int, Logprob] = {}
            for column, (token_id, logprob) in enumerate(
                zip(token_ids[:end], logprobs[:end], strict=True)
            ):
                position[token_id] = Logprob(
                    logprob, column or rank, self._decode(token_id, context)
                )
            positions.append(position)
            context = [*context, token_ids[0]][-_MAX_UTF8_CONTEXT:]
        return positions

    def _decode(self, token_id: int, context: list[int]) -> str | None:
        """The token's text; that of a byte depends on the tokens before it."""
        if self.tokenizer is None:
            return None
        text = self.tokenizer.decode([token_id], skip_special_tokens=False)
        if not text.endswith(_REPLACEMENT):
            return text
        return self._correct_decoded_token(token_id, context)

    def _correct_decoded_token(self, token_id: int, context: list[int]) -> str:
        """A byte that completes a character gets the whole character, one that leaves it incomplete gets
        nothing (`vllm/v1/engine/logprobs.py:249 LogprobsProcessor._correct_decoded_token`)."""
        tokenizer = self.tokenizer
        assert tokenizer is not None

        def decode(ids: list[int]) -> str:
            return tokenizer.decode(ids, skip_special_tokens=False) if ids else ""

        for count in range(1, len(context) + 1):
            before = context[-count:]
            whole = decode([*before, token_id])
            if whole.endswith(_REPLACEMENT):
                continue
            while before and decode(before[-1:]).endswith(_REPLACEMENT):
                before.pop()  # these bytes got no text of their own: they belong to this one
            # Of a tokenizer that normalizes, the text before may read otherwise when it stands alone.
            shared = os.path.commonprefix([decode(before), whole])  # noqa: RUF071 - character by character
            return whole[len(shared) :]
        return ""


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
    ) -> None:
        if not params.detokenize:
            tokenizer = None
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.output_kind = params.output_kind
        self.parent = parent
        self.index = index
        self.detokenizer = IncrementalDetokenizer(tokenizer, params, prompt_token_ids)
        self.logprobs_processor = LogprobsProcessor(tokenizer, params)
        self.num_cached_tokens: int | None = None
        self.stats: RequestStateStats | None = None  # kept up to date by whoever counts
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
        logprobs = processor.logprobs
        if logprobs is not None:
            logprobs = logprobs[len(logprobs) - len(new_token_ids) :] if delta else list(logprobs)
        completion = CompletionOutput(
            index=self.index,
            text=self.detokenizer.get_next_output_text(finished, delta),
            token_ids=list(new_token_ids if delta else self.detokenizer.token_ids),
            cumulative_logprob=processor.cumulative_logprob,
            logprobs=logprobs,
            finish_reason=finish_reason,
            stop_reason=stop_reason if finished else None,
        )
        outputs = [completion]
        if self.parent is not None:
            outputs, finished = self.parent.get_outputs(self.request_id, completion)
            if not outputs:
                return None
        prompt_logprobs = processor.prompt_logprobs
        if delta and prompt_logprobs:
            processor.prompt_logprobs = []  # given once, with the first delta
        return RequestOutput(
            request_id=self.external_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            prompt_logprobs=prompt_logprobs,
            outputs=outputs,
            finished=finished,
            num_cached_tokens=self.num_cached_tokens,
            metrics=self.stats,
        )


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
