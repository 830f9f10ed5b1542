"""Token ids to text as they come, and the search for stop strings.

Mirrors `vllm/v1/engine/detokenizer.py` (`BaseIncrementalDetokenizer` 67, `check_stop_strings` 309).
Stop strings are looked for here, in text, because a stop string may begin inside one token and end
inside another; the scheduler, which sees only ids, cannot find it.
"""

from __future__ import annotations

from collections.abc import Sequence

from mini_vllm.sampling_params import SamplingParams
from mini_vllm.tokenizer import Tokenizer


def check_stop_strings(
    output_text: str, new_char_count: int, stop: list[str], include_in_output: bool
) -> tuple[str, int] | None:
    """Find the first of `stop`, in the order given, that the last `new_char_count` characters end.

    Returns the stop string and the length that the text is to be cut to; None if there is none.
    Source: `vllm/v1/engine/detokenizer.py:309 check_stop_strings`.
    """
    if not new_char_count:
        return None
    for stop_str in stop:
        # A match that was possible before the new characters would have been found before.
        start = max(0, len(output_text) - new_char_count - len(stop_str) + 1)
        found = output_text.find(stop_str, start)
        if found >= 0:
            return stop_str, found + (len(stop_str) if include_in_output else 0)
    return None


class IncrementalDetokenizer:
    """The text of one completion, grown token by token.

    With a tokenizer of None it keeps the ids and no text.

    While stop strings are looked for, as many characters are held back from streamed output as
    could turn out to be the beginning of one.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        params: SamplingParams,
        prompt_token_ids: Sequence[int] = (),
    ) -> None:
        self.token_ids: list[int] = []
        self.output_text = ""
        self._stream = None
        if tokenizer is not None and params.detokenize:
            self._stream = tokenizer.stream(params.skip_special_tokens, prompt_token_ids)
        self.stop = params.stop
        self.min_tokens = params.min_tokens
        self.include_stop_str_in_output = params.include_stop_str_in_output
        self.stop_buffer_length = 0
        if self.stop and not self.include_stop_str_in_output:
            self.stop_buffer_length = max(map(len, self.stop)) - 1
        self._last_output_text_offset = 0

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:
        """Add tokens; return the stop string they complete, or None.

        Args:
            new_token_ids: the tokens of this step.
            stop_terminated: the scheduler stopped at the last of them (EOS or a stop token). It
                joins the ids, but its text is left out unless `include_stop_str_in_output`.
        """
        stream = self._stream
        num_new_tokens = len(new_token_ids)
        self.token_ids.extend(new_token_ids)
        if stream is None:
            return None
        if stop_terminated and not self.include_stop_str_in_output:
            new_token_ids = new_token_ids[:-1]
        text = self.output_text
        checked = len(text)  # up to here no stop string counts
        num_tokens = len(self.token_ids) - num_new_tokens
        for token_id in new_token_ids:
            text += stream.step(token_id)
            num_tokens += 1
            if num_tokens <= self.min_tokens:
                checked = len(text)
        new_char_count = len(text) - checked
        self.output_text = text
        if not self.stop:
            return None
        found = check_stop_strings(text, new_char_count, self.stop, self.include_stop_str_in_output)
        if found is None:
            return None
        stop_string, length = found
        self.output_text = text[:length]
        return stop_string

    def get_next_output_text(self, finished: bool, delta: bool) -> str:
        """The text to show: all of it, or with `delta` what was not shown yet."""
        held_back = 0 if finished else self.stop_buffer_length
        length = len(self.output_text) - held_back
        if not delta:
            return self.output_text[: max(length, 0)]
        offset = self._last_output_text_offset
        if length <= offset:
            return ""
        self._last_output_text_offset = length
        return self.output_text[offset:length]
