"""Logprobs as their user reads them: a dict for each position, with each token's text and rank.

Mirrors `vllm/v1/engine/logprobs.py`.
"""

from __future__ import annotations

import os.path

from mini_vllm.core.sched.output import EngineCoreOutput
from mini_vllm.outputs import Logprob, PromptLogprobs, SampleLogprobs
from mini_vllm.sample.ops import LogprobsLists
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_MAX_UTF8_CONTEXT = 4  # no UTF-8 character has more bytes, and a token holds at least one


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

    def take_prompt_logprobs(self, delta: bool) -> PromptLogprobs | None:
        """The prompt's logprobs so far. With `delta` they are given once, with the first delta."""
        prompt_logprobs = self.prompt_logprobs
        if delta and prompt_logprobs:
            self.prompt_logprobs = []
        return prompt_logprobs

    def _positions(
        self, lists: LogprobsLists, before: SampleLogprobs | PromptLogprobs, count: int | None
    ) -> list[dict[int, Logprob]]:
        """One dict a position. Column 0 is the token that stands there, with its rank; the others
        are the top k, ranked 1 to k. A token that is both keeps its first place. Columns beyond those
        `count` belong to a neighbour that asked for more."""
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
