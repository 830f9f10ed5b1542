"""Lab 01-05: how requests end. The reference solution.

The core sees token ids and checks them in `check_stop`, as `core/sched/utils.py` does. The front
end sees text and looks for stop strings in it, as `mini_vllm/engine/detokenizer.py` does.
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
    """Whether the newest token ends the request; sets its status and stop reason if so."""
    params = request.sampling_params
    if request.num_output_tokens < params.min_tokens:
        return False
    newest = request.output_token_ids[-1]
    if newest == params.eos_token_id:
        request.status = RequestStatus.FINISHED_STOPPED
    elif newest in params.stop_token_ids:
        request.status = RequestStatus.FINISHED_STOPPED
        request.stop_reason = newest
    elif request.num_output_tokens >= request.max_tokens or request.num_tokens >= max_model_len:
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED
    else:
        return False
    return True


def finish_reason(status: RequestStatus) -> str | None:
    """The word that the user gets for a status; None while the request lives."""
    return {
        RequestStatus.FINISHED_STOPPED: "stop",
        RequestStatus.FINISHED_LENGTH_CAPPED: "length",
        RequestStatus.FINISHED_ABORTED: "abort",
    }.get(status)


class StopStringDetector:
    """The text of one completion as it grows, the search for stop strings, and what may be shown."""

    def __init__(
        self, stop: Sequence[str], include_stop_str_in_output: bool = False, min_tokens: int = 0
    ) -> None:
        self.stop = stop
        self.include_stop_str_in_output = include_stop_str_in_output
        self.min_tokens = min_tokens
        self.output_text = ""
        self.num_tokens = 0
        self.stop_buffer_length = 0
        if stop and not include_stop_str_in_output:
            self.stop_buffer_length = max(len(stop_str) for stop_str in stop) - 1
        self._num_shown = 0

    def update(self, piece: str, stop_terminated: bool = False) -> str | None:
        """Take in the text of one token; the stop string that it completes, or None."""
        self.num_tokens += 1
        if stop_terminated and not self.include_stop_str_in_output:
            return None
        length_before = len(self.output_text)
        self.output_text += piece
        if self.num_tokens <= self.min_tokens:
            return None
        for stop_str in self.stop:
            # A match that begins before this place ends in the old text: it was found, or barred,
            # when its last character came.
            first = max(0, length_before - len(stop_str) + 1)
            at = self.output_text.find(stop_str, first)
            if at < 0:
                continue
            end = at + len(stop_str) if self.include_stop_str_in_output else at
            self.output_text = self.output_text[:end]
            return stop_str
        return None

    def next_text(self, finished: bool) -> str:
        """The text to show now that was not shown before."""
        held_back = 0 if finished else self.stop_buffer_length
        end = len(self.output_text) - held_back
        text = self.output_text[self._num_shown : max(self._num_shown, end)]
        self._num_shown += len(text)
        return text


def front_end_verdict(
    core_reason: str | None, core_stop_reason: int | str | None, stop_string: str | None
) -> Verdict:
    """Combine what the core said of a token with what its text said."""
    if stop_string is not None:
        return Verdict("stop", stop_string, abort_core=core_reason is None)
    return Verdict(core_reason, core_stop_reason, abort_core=False)


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
