"""Lab 01-05: how requests end. Your work: two functions, one class, and one function that joins them.

The engine has two halves, and each can end a request. The core works on token ids. After each step it
appends the sampled token to the request and calls

    check_stop(request, max_model_len)

The front end turns the ids into text, a token at a time. Some of what ends a request can only be
seen there: a stop string may begin in one token and end in another.

`run_script`, at the end, plays both halves for a request whose tokens are decided beforehand. It calls
what you write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.sampling_params import SamplingParams


class Verdict(NamedTuple):
    """What the front end makes of one token.

    Attributes:
        finish_reason: what the user is told; None while the request goes on.
        stop_reason: the stop string or the stop token id that ended it; None otherwise.
        abort_core: whether the core still runs the request and must be told to drop it.
    """

    finish_reason: str | None
    stop_reason: int | str | None
    abort_core: bool


def check_stop(request: Request, max_model_len: int) -> bool:
    """Whether the newest output token ends the request. If it does, set how.

    The checks, and their order (`vllm/v1/core/sched/utils.py:94`):

    1. Fewer output tokens than `min_tokens`: the request goes on, whatever the token is.
    2. The token is the request's EOS id: FINISHED_STOPPED. The stop reason stays None.
    3. The token is one of `stop_token_ids`: FINISHED_STOPPED, and the id is the stop reason.
    4. There are `max_tokens` output tokens, or `max_model_len` tokens, prompt included:
       FINISHED_LENGTH_CAPPED.

    Of the request you need `output_token_ids` (list of int, at least one), `num_output_tokens`,
    `num_tokens` (prompt and output), `max_tokens`, and of its `sampling_params` the fields `min_tokens`,
    `eos_token_id` and `stop_token_ids`. `eos_token_id` is None where the user asked to ignore EOS: no
    token id equals None, and that is the whole implementation of `ignore_eos`.

    Args:
        request: the newest token has been appended already. Set its `status` and `stop_reason`; a
            request that goes on keeps both.
        max_model_len: tokens.

    Returns:
        True if the request has ended.
    """
    raise NotImplementedError


def finish_reason(status: RequestStatus) -> str | None:
    """The word that the user gets for a status (`vllm/v1/request.py:349`).

    Args:
        status: any status, of a living or a finished request.

    Returns:
        `stop` for FINISHED_STOPPED, `length` for FINISHED_LENGTH_CAPPED, `abort` for
        FINISHED_ABORTED. None for every status of a living request.
    """
    raise NotImplementedError


class StopStringDetector:
    """The text of one completion as it grows, the search for stop strings, and what may be shown.

    Args:
        stop: the stop strings, none empty; may be an empty list.
        include_stop_str_in_output: whether the text ends with the stop string, or before it.
        min_tokens: a stop string counts if it is completed after this many tokens.

    Attributes:
        output_text: str, the text so far; once a stop string was found, cut.
        num_tokens: int, tokens seen.
        stop_buffer_length: int, characters at the end of the text that may not be shown while the
            request runs, because a stop string that is cut out could begin in them: one less than
            the longest stop string has. 0 where nothing is ever cut out.
    """

    def __init__(
        self, stop: Sequence[str], include_stop_str_in_output: bool = False, min_tokens: int = 0
    ) -> None:
        """Keep the settings, work out `stop_buffer_length`; no token has been seen."""
        raise NotImplementedError

    def update(self, piece: str, stop_terminated: bool = False) -> str | None:
        """Take in the text of one token; the stop string that it completes, or None.

        The token is counted, its piece joins `output_text`, and the stop strings are looked for, in
        the order in which they were given: the first that is found wins
        (`vllm/v1/engine/detokenizer.py:309`). Look only where a match would end in the new piece. A
        match further left ended in an earlier token, and was allowed to stay: that token was one of
        the first `min_tokens`. Up to that count nothing is searched.

        On a match cut `output_text`: before the stop string, or after it with
        `include_stop_str_in_output`.

        Args:
            piece: the token's text, any number of characters.
            stop_terminated: the core ended the request at this token with `stop`. The token is an
                EOS or a stop token, and its text is not part of the answer: count it, and leave its
                piece out. With `include_stop_str_in_output` it is a piece like any other.
        """
        raise NotImplementedError

    def next_text(self, finished: bool) -> str:
        """The text to show now: what is in `output_text` and was not shown before.

        While the request runs, the last `stop_buffer_length` characters are held back. When it has
        finished, nothing is. All that this method returned, joined, is then `output_text`.

        Args:
            finished: whether the request has ended, for whatever reason.
        """
        raise NotImplementedError


def front_end_verdict(
    core_reason: str | None, core_stop_reason: int | str | None, stop_string: str | None
) -> Verdict:
    """Combine what the core said of a token with what its text said.

    A stop string ends the request with `stop`, and is the stop reason, whatever the core said
    (`vllm/v1/engine/output_processor.py:576`). If the core said nothing it is still running
    the request, and must be told to abort it. Without a stop string the core's word stands.

    Args:
        core_reason: `stop` or `length` if the core ended the request at this token, else None.
        core_stop_reason: the stop token id that ended it, else None.
        stop_string: what `StopStringDetector.update` returned.
    """
    raise NotImplementedError


# ---- given: one request through your functions ---------------------------------------------------


@dataclass
class Ending:
    """What became of a scripted request.

    Attributes:
        deltas: the text shown after each token.
        token_ids: the output tokens, all that were taken from the script.
        finish_reason, stop_reason: as the user sees them.
        core_status: the status with which the core let go of the request.
    """

    deltas: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    core_status: RequestStatus = RequestStatus.RUNNING

    @property
    def text(self) -> str:
        return "".join(self.deltas)


def run_script(
    script: Iterable[tuple[int, str]],
    params: SamplingParams,
    num_prompt_tokens: int = 1,
    max_model_len: int = 1024,
) -> Ending:
    """Run a request whose tokens are decided beforehand, up to its end or the script's.

    Args:
        script: for each output token its id and its text.
        params: when to stop. Its EOS id is set by `params.update_from_generation_config`.
        num_prompt_tokens: tokens of the prompt, at least 1.
        max_model_len: the most tokens that prompt and output may have together.
    """
    request = Request("scripted", [1] * num_prompt_tokens, params)
    request.status = RequestStatus.RUNNING
    detector = StopStringDetector(params.stop, params.include_stop_str_in_output, params.min_tokens)
    ending = Ending(token_ids=request.output_token_ids)
    for token_id, piece in script:
        request.append_output_token_ids(token_id)
        # The core.
        core_reason = None
        if check_stop(request, max_model_len):
            core_reason = finish_reason(request.status)
        # The front end.
        stop_string = detector.update(piece, stop_terminated=core_reason == "stop")
        verdict = front_end_verdict(core_reason, request.stop_reason, stop_string)
        if verdict.abort_core:
            request.status = RequestStatus.FINISHED_ABORTED
        ending.finish_reason, ending.stop_reason, _ = verdict
        ending.core_status = request.status
        ending.deltas.append(detector.next_text(verdict.finish_reason is not None))
        if verdict.finish_reason is not None:
            break
    return ending
