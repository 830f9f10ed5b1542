"""Lab 01-05: every way a request can end, pinned with scripted tokens."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from mini_vllm.checkpoint import load_model
from mini_vllm.config import EngineConfig
from mini_vllm.detokenizer import IncrementalDetokenizer
from mini_vllm.engine import DEFAULT_MODEL, EngineParts, LLMEngine
from mini_vllm.llama import LlamaForCausalLM
from mini_vllm.request import Request, RequestStatus
from mini_vllm.sampler import SamplerOutput
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams
from mini_vllm.tokenizer import Tokenizer

EOS = 2
LIVING = (RequestStatus.WAITING, RequestStatus.RUNNING, RequestStatus.PREEMPTED)


def make_params(**knobs: Any) -> SamplingParams:
    """Sampling parameters as the engine completes them: the model's EOS id is 2."""
    params = SamplingParams(**{"temperature": 0, "max_tokens": 100} | knobs)
    params.update_from_generation_config({}, EOS)
    return params


def make_request(output: list[int], num_prompt_tokens: int = 3, **knobs: Any) -> Request:
    """A running request with these output tokens, the last of them just appended."""
    request = Request("r", [1] * num_prompt_tokens, make_params(**knobs))
    request.status = RequestStatus.RUNNING
    for token_id in output:
        request.append_output_token_ids(token_id)
    return request


def feed(
    lab: ModuleType, output: list[int], max_model_len: int = 1000, **knobs: Any
) -> tuple[int, Request]:
    """Append the tokens one by one until check_stop says stop; how many it took, and the request."""
    request = make_request([], **knobs)
    for count, token_id in enumerate(output, 1):
        request.append_output_token_ids(token_id)
        if lab.check_stop(request, max_model_len):
            return count, request
    return len(output) + 1, request


def pieces(lab: ModuleType, texts: list[str], *args: Any, **kwargs: Any) -> tuple[Any, Any, int]:
    """Feed a detector token texts up to the first stop: (stop string, detector, tokens used)."""
    detector = lab.StopStringDetector(*args, **kwargs)
    for count, text in enumerate(texts, 1):
        if (found := detector.update(text)) is not None:
            return found, detector, count
    return None, detector, len(texts)


# ---- the core: check_stop ------------------------------------------------------------------------


def test_eos_stops_generation(lab: ModuleType) -> None:
    """EOS ends the request at once, with FINISHED_STOPPED and no stop reason."""
    count, request = feed(lab, [10, 20, EOS, 30])
    assert count == 3, (
        f"tokens 10, 20, EOS, 30: check_stop must end the request at the third token, yours did after "
        f"{count}. Compare the newest token with sampling_params.eos_token_id"
    )
    assert request.status is RequestStatus.FINISHED_STOPPED, (
        f"the model ended its answer itself, so the status is FINISHED_STOPPED, not {request.status}"
    )
    assert request.stop_reason is None, (
        f"EOS has no stop reason: it is the ordinary end. Yours says {request.stop_reason!r}"
    )


def test_ignore_eos_runs_to_length_cap(lab: ModuleType) -> None:
    """ignore_eos leaves eos_token_id unset: EOS is a token like any other, the cap still binds."""
    count, request = feed(lab, [EOS, EOS, 10, EOS, EOS], ignore_eos=True, max_tokens=4)
    assert count == 4, (
        f"ignore_eos switches off the EOS check and nothing else: max_tokens=4 ends the request at "
        f"token 4, yours ended it at {count}"
    )
    assert request.status is RequestStatus.FINISHED_LENGTH_CAPPED, (
        f"with ignore_eos the fourth token ends the request because of the cap, even though it is "
        f"an EOS: FINISHED_LENGTH_CAPPED, not {request.status}"
    )


@pytest.mark.parametrize(("num_prompt_tokens", "max_tokens"), [(1, 1), (1, 4), (9, 4), (3, 3)])
def test_no_eos_hits_length_cap(lab: ModuleType, num_prompt_tokens: int, max_tokens: int) -> None:
    """max_tokens counts output tokens, whatever the prompt's length, and ends at exactly that many."""
    count, request = feed(
        lab, [10] * 20, num_prompt_tokens=num_prompt_tokens, max_tokens=max_tokens
    )
    assert count == max_tokens, (
        f"max_tokens={max_tokens} after a prompt of {num_prompt_tokens}: {max_tokens} output tokens, "
        f"yours ended after {count}. The prompt does not count, and the token that reaches the cap "
        "is the last (>=, not >)"
    )
    assert request.status is RequestStatus.FINISHED_LENGTH_CAPPED, (
        f"the cap ended it: FINISHED_LENGTH_CAPPED, not {request.status}"
    )


def test_max_model_len_counts_the_prompt_too(lab: ModuleType) -> None:
    """max_model_len limits prompt and output together, and the last token may reach it."""
    count, request = feed(lab, [10] * 20, num_prompt_tokens=5, max_model_len=8)
    assert count == 3, (
        f"a prompt of 5 tokens and max_model_len=8 leave room for 3 output tokens, yours took {count}: "
        "compare num_tokens, which has the prompt in it, and end when it has reached the limit"
    )
    assert request.status is RequestStatus.FINISHED_LENGTH_CAPPED, (
        f"running out of room is a matter of length: FINISHED_LENGTH_CAPPED, not {request.status}"
    )


@pytest.mark.parametrize("limit", ["max_tokens", "max_model_len"])
def test_eos_on_the_boundary_reports_stop(lab: ModuleType, limit: str) -> None:
    """EOS or a stop token as the very last token allowed: the answer is whole, so it is a stop."""
    for last in (EOS, 77):
        request = make_request([10, 20, last], max_tokens=3, stop_token_ids=[77])
        max_model_len = 1000
        if limit == "max_model_len":
            request.max_tokens, max_model_len = 100, 6
        assert lab.check_stop(request, max_model_len), "the third of three tokens is the last"
        assert request.status is RequestStatus.FINISHED_STOPPED, (
            f"token {last} ends the answer and also reaches {limit}: both are true. The user must "
            f"hear `stop`: the answer is whole, and {request.status} would tell them it was cut off. "
            "Check EOS and stop tokens before the length"
        )


def test_stop_token_ids_give_their_id_as_reason(lab: ModuleType) -> None:
    """A stop token ends with FINISHED_STOPPED, and says which it was."""
    count, request = feed(lab, [10, 77, 88], stop_token_ids=[88, 77])
    assert (count, request.status) == (2, RequestStatus.FINISHED_STOPPED), (
        f"77 is among the stop token ids: the request ends there as FINISHED_STOPPED; yours took "
        f"{count} tokens and is {request.status}"
    )
    assert request.stop_reason == 77, (
        f"the user may have listed several stop tokens: the stop reason is the one that came, 77, "
        f"not {request.stop_reason!r}"
    )
    _, request = feed(lab, [10, EOS], stop_token_ids=[EOS])
    assert request.stop_reason is None, (
        "an EOS that is also listed as a stop token is an EOS: that check comes first, and has no "
        "stop reason"
    )
    count, request = feed(lab, [10, EOS, 30], stop_token_ids=[EOS], ignore_eos=True)
    assert (count, request.stop_reason) == (2, EOS), (
        "ignore_eos switches off the EOS check only. Who lists the EOS id as a stop token as well gets "
        f"a stop with stop_reason={EOS}; yours took {count} tokens, stop_reason {request.stop_reason!r}"
    )


@pytest.mark.parametrize("token_id", [EOS, 77])
def test_min_tokens_holds_every_check_back(lab: ModuleType, token_id: int) -> None:
    """Below min_tokens nothing ends a request; the token that reaches min_tokens may."""
    count, _ = feed(lab, [token_id] * 6, min_tokens=4, stop_token_ids=[77])
    assert count == 4, (
        f"min_tokens=4 and a stream of nothing but token {token_id}, which ends a request: tokens 1 "
        f"to 3 must not, token 4 may. Yours ended at {count}. Compare with <, before any other check"
    )
    count, _ = feed(lab, [10] * 6, min_tokens=5, num_prompt_tokens=3, max_model_len=5)
    assert count == 5, (
        "min_tokens comes first of all, even before max_model_len: the request goes on to token 5, "
        f"yours ended at {count}. (mini_vllm refuses such a request before it gets here.)"
    )


def test_a_request_that_goes_on_is_left_alone(lab: ModuleType) -> None:
    """check_stop returns False and changes neither status nor stop reason where nothing fires."""
    resumed = make_request([10, 20], max_tokens=3)
    resumed.status, resumed.stop_reason = RequestStatus.PREEMPTED, "kept"
    lab.check_stop(resumed, 1000)
    assert (resumed.status, resumed.stop_reason) == (RequestStatus.PREEMPTED, "kept"), (
        "nothing fired, and the request's status or stop reason was written all the same"
    )
    for knobs in ({}, {"min_tokens": 3, "stop_token_ids": [20]}, {"ignore_eos": True}):
        request = make_request([10, 20], max_tokens=3, **knobs)
        ended = lab.check_stop(request, 1000)
        assert ended is False, (
            f"two of three tokens, no EOS, {knobs}: nothing ends here, so return False, not {ended!r}"
        )
        assert (request.status, request.stop_reason) == (RequestStatus.RUNNING, None), (
            f"the request goes on, yet it is {request.status} with stop reason "
            f"{request.stop_reason!r} now. Set them only when a check fires"
        )


def test_check_stop_answers_true_or_false(lab: ModuleType) -> None:
    """Each check that fires returns True."""
    for output, knobs in (([EOS], {}), ([77], {"stop_token_ids": [77]}), ([10], {"max_tokens": 1})):
        ended = lab.check_stop(make_request(output, **knobs), 1000)
        assert ended is True, f"output {output} with {knobs} ends the request: True, not {ended!r}"


# ---- the word for the user -----------------------------------------------------------------------


def test_finish_reasons(lab: ModuleType) -> None:
    """stop, length and abort, one for each status in which a request can finish."""
    for status, word in (
        (RequestStatus.FINISHED_STOPPED, "stop"),
        (RequestStatus.FINISHED_LENGTH_CAPPED, "length"),
        (RequestStatus.FINISHED_ABORTED, "abort"),
    ):
        assert lab.finish_reason(status) == word, (
            f"{status} is told to the user as {word!r}, not {lab.finish_reason(status)!r}"
        )


def test_unfinished_request_has_no_reason(lab: ModuleType) -> None:
    """WAITING, RUNNING and PREEMPTED have none: a stream carries a reason in its last piece only."""
    for status in LIVING:
        assert lab.finish_reason(status) is None, (
            f"a request that is {status} has not finished: None, not {lab.finish_reason(status)!r}. "
            "A client that reads a finish reason stops reading"
        )


# ---- the front end: stop strings -----------------------------------------------------------------


def test_stop_string_across_tokens(lab: ModuleType) -> None:
    """A stop string that begins in one token and ends in another, or lies inside one, is found."""
    for texts, used in (
        (["one ", "EN", "D two"], 3),
        (["one ", "E", "N", "D", "x"], 4),
        (["END"], 1),
        (["xENDx"], 1),
        (["EEN", "D"], 2),
    ):
        found, detector, count = pieces(lab, texts, ["END"])
        assert (found, count) == ("END", used), (
            f"tokens {texts}: 'END' is complete with token {used}. Yours found {found!r} after {count} "
            "token(s). Look in the text that the tokens make together, not in each token; a match at "
            "place 0 is a match, and a negative start would make find count from the end"
        )
        assert detector.output_text == "".join(texts[:used]).split("END")[0], (
            f"tokens {texts}: the text is cut right before 'END', yours is {detector.output_text!r}"
        )
    found, detector, _ = pieces(lab, ["E", "ND", "EN ", "D"], ["DEND"])
    assert (found, detector.output_text) == (None, "ENDEN D"), (
        f"'DEND' is not in 'ENDEN D'; yours found {found!r} and has {detector.output_text!r}"
    )


def test_include_stop_str_keeps_it(lab: ModuleType) -> None:
    """include_stop_str_in_output cuts after the stop string, and what follows it in the token goes."""
    for texts in (["one EN", "D two"], ["one E", "ND"]):
        found, detector, _ = pieces(lab, texts, ["END"], include_stop_str_in_output=True)
        assert (found, detector.output_text) == ("END", "one END"), (
            f"tokens {texts}: with include_stop_str_in_output the text ends with the stop string, "
            f"'one END'; yours found {found!r} and has {detector.output_text!r}"
        )


def test_the_order_of_the_list_decides_within_one_token(lab: ModuleType) -> None:
    """One token completes two stop strings: the first in the list wins, wherever it stands."""
    for stop, text in (
        (["b", "ab"], "xa"),
        (["ab", "b"], "x"),
        (["world", "hello"], "hello "),
        (["hello", "world"], ""),
    ):
        token = "xab" if "b" in stop else "hello world"
        found, detector, _ = pieces(lab, [token], stop)
        assert (found, detector.output_text) == (stop[0], text), (
            f"token {token!r} completes both of {stop}: vLLM takes them in the order given, so "
            f"{stop[0]!r} wins and the text is {text!r}. Yours: {found!r}, {detector.output_text!r}"
        )


def test_the_stop_string_completed_first_wins(lab: ModuleType) -> None:
    """Across tokens time decides: the string completed by the earlier token ends the request."""
    found, detector, count = pieces(lab, ["hello", " world"], ["world", "hello"])
    assert (found, count, detector.output_text) == ("hello", 1, ""), (
        "'hello' is complete with the first token; nobody knows yet that 'world' will come. Yours "
        f"found {found!r} after {count} tokens"
    )


def test_the_leftmost_occurrence_is_cut(lab: ModuleType) -> None:
    """A token that brings the same stop string twice is cut at the first of them."""
    found, detector, _ = pieces(lab, ["one;two;three"], [";"])
    assert (found, detector.output_text) == (";", "one"), (
        f"'one;two;three' in one token: cut at the first ';', not {detector.output_text!r}"
    )


def test_min_tokens_bars_stop_strings_too(lab: ModuleType) -> None:
    """A stop string completed within min_tokens stays in the text, for good; later ones count."""
    found, detector, count = pieces(lab, ["a;", "b", "c", ";d"], [";"], min_tokens=2)
    assert (found, count, detector.output_text) == (";", 4, "a;bc"), (
        "min_tokens=2: the ';' in token 1 is text like any other, and stays so. Look only where a match "
        f"would end in the newest piece. Yours stopped at token {count} with {detector.output_text!r}"
    )
    found, detector, count = pieces(lab, ["a", "b;", "c;"], [";"], min_tokens=2)
    assert (count, detector.output_text) != (3, "ab"), (
        "min_tokens=2: you waited long enough, and then found the ';' of token 2. A match must end in "
        "the newest piece: begin to search at n - m + 1, not one place before"
    )
    assert (count, detector.output_text) == (3, "ab;c"), (
        f"min_tokens=2: token 2 is still one of the first two, so its ';' does not count, token 3's "
        f"does. Yours stopped at token {count} with {detector.output_text!r}"
    )
    found, detector, count = pieces(lab, ["xE", "N", "D"], ["END"], min_tokens=2)
    assert (found, detector.output_text) == ("END", "x"), (
        "min_tokens=2: 'END' begins in token 1 and ends in token 3. What counts is where it is "
        f"completed; yours found {found!r} and has {detector.output_text!r}"
    )


def test_min_tokens_of_zero_bars_nothing(lab: ModuleType) -> None:
    """With the default the first token may end the request, and every token is counted."""
    found, detector, _ = pieces(lab, ["a;"], [";"])
    assert (found, detector.num_tokens) == (";", 1), (
        f"min_tokens is 0: the first token may complete a stop string; yours found {found!r} and counts "
        f"{detector.num_tokens} tokens"
    )
    found, detector, _ = pieces(lab, ["a", "", "b"], [])
    assert (found, detector.num_tokens, detector.output_text) == (None, 3, "ab"), (
        "without stop strings nothing is found, every token is counted (an empty piece is a token "
        f"too), and the text grows; yours: {found!r}, {detector.num_tokens}, {detector.output_text!r}"
    )


def test_the_text_of_eos_is_not_the_answers(lab: ModuleType) -> None:
    """A token that ended the request in the core adds no text, unless the stop string is included."""
    for include, text in ((False, "hi"), (True, "hi</s>")):
        detector = lab.StopStringDetector(["</s>"], include_stop_str_in_output=include)
        detector.update("hi")
        found = detector.update("</s>", stop_terminated=True)
        assert detector.output_text == text, (
            f"the core ended the request at the token '</s>', include_stop_str_in_output={include}: the "
            f"text is {text!r}, yours {detector.output_text!r}"
        )
        assert detector.num_tokens == 2, "the token has no text in the answer, yet it is a token"
        assert found == ("</s>" if include else None), (
            f"a piece that is left out is not searched either, one that is kept is; got {found!r} for "
            f"include_stop_str_in_output={include}"
        )


# ---- streaming -----------------------------------------------------------------------------------


def test_nothing_shown_is_taken_back(lab: ModuleType) -> None:
    """While it runs, one character less than the longest stop string has is held back."""
    detector = lab.StopStringDetector(["END", ";"])
    assert detector.stop_buffer_length == 2, (
        f"the longest stop string has 3 characters. Its first 2 could be the end of what has come so "
        f"far: hold back 2, not {detector.stop_buffer_length}"
    )
    shown = []
    for piece in ["a", "bc", "E", "N", "x", "", "E", "N"]:
        detector.update(piece)
        shown.append(detector.next_text(finished=False))
        assert len("".join(shown)) == max(0, len(detector.output_text) - 2), (
            f"after {detector.output_text!r} all but the last 2 characters are shown, yours showed "
            f"{''.join(shown)!r}. What is sent to a client cannot be called back; and the end of a "
            "slice must not be negative, or it counts from the end"
        )
    detector.update("D")
    shown.append(detector.next_text(finished=True))
    assert "".join(shown) == detector.output_text == "abcENx", (
        f"'abcENxEND' stops before END. What was shown, joined, is the final text 'abcENx'; yours "
        f"showed {''.join(shown)!r} of {detector.output_text!r}"
    )


def test_held_back_text_comes_with_the_end(lab: ModuleType) -> None:
    """A request that ends for another reason shows what was held back: no character is lost."""
    detector = lab.StopStringDetector(["STOP"])
    detector.update("the ST")
    first = detector.next_text(finished=False)
    last = detector.next_text(finished=True)
    assert (first, last) == ("the", " ST"), (
        f"'the ST' and then the end by length: first 'the', 3 held back, then ' ST'. Yours showed "
        f"{first!r} and {last!r}. When the request has finished, nothing is left to wait for"
    )
    assert detector.next_text(finished=True) == "", "what was shown once is not shown again"


def test_nothing_is_held_back_needlessly(lab: ModuleType) -> None:
    """No stop strings, or stop strings that stay in the text: each piece is shown at once."""
    for stop, include in (([], False), (["STOP"], True), (["x"], False)):
        detector = lab.StopStringDetector(stop, include_stop_str_in_output=include)
        detector.update("the ST")
        text = detector.next_text(finished=False)
        assert text == "the ST", (
            f"stop={stop}, include_stop_str_in_output={include}: nothing shown could ever be cut out "
            f"again, so nothing is held back; yours showed {text!r} of 'the ST'"
        )


# ---- both halves ---------------------------------------------------------------------------------


def test_a_stop_string_aborts_the_core(lab: ModuleType) -> None:
    """The user hears stop, the core hears abort, unless it had ended the request itself."""
    assert tuple(lab.front_end_verdict(None, None, "END")) == ("stop", "END", True), (
        "a stop string, and the core still runs the request: tell the user `stop` with the string as "
        "the reason, and have the core abort it. Otherwise it goes on generating, for nobody, until "
        "max_tokens"
    )
    for reason, core_stop in (("length", None), ("stop", None), ("stop", 77)):
        assert tuple(lab.front_end_verdict(reason, core_stop, "END")) == ("stop", "END", False), (
            f"the core ended the request with {reason!r}, {core_stop} at the token that completes the stop "
            "string: the user hears `stop`, since the answer is whole, and there is nothing to abort"
        )


def test_without_a_stop_string_the_cores_word_stands(lab: ModuleType) -> None:
    """Reason and stop reason of the core are passed on; a request that goes on has neither."""
    for reason, stop_reason in (("stop", None), ("stop", 77), ("length", None), (None, None)):
        verdict = tuple(lab.front_end_verdict(reason, stop_reason, None))
        assert verdict == (reason, stop_reason, False), (
            f"no stop string, and the core says {reason!r} with stop reason {stop_reason!r}: pass both "
            f"on and abort nothing, got {verdict}"
        )


def byte_script(text: str) -> list[tuple[int, str]]:
    """Tokens of the shipped tokenizer for ASCII text: one a character. '$' stands for EOS."""
    return [(EOS, "") if c == "$" else (8 + ord(c), c) for c in text]


def test_a_whole_request_by_script(lab: ModuleType) -> None:
    """The text is cut at the stop string, the token ids are not, and nothing runs on."""
    script = iter(byte_script("7 apples. Q: what"))
    ending = lab.run_script(script, make_params(stop=["Q:"]))
    assert (ending.text, ending.finish_reason, ending.stop_reason) == (
        "7 apples. ",
        "stop",
        "Q:",
    ), (
        f"'7 apples. Q: what' with stop='Q:' gives the text '7 apples. ', finish reason 'stop', stop "
        f"reason 'Q:'; yours {ending.text!r}, {ending.finish_reason!r}, {ending.stop_reason!r}"
    )
    assert len(ending.token_ids) == 12, (
        f"the text loses the stop string, the token ids keep it: they were generated, and are paid "
        f"for. 12 tokens, got {len(ending.token_ids)}"
    )
    assert ending.core_status is RequestStatus.FINISHED_ABORTED, (
        f"the core never saw the stop string. It was told to abort: FINISHED_ABORTED, not "
        f"{ending.core_status}"
    )
    rest = "".join(piece for _, piece in script)
    assert rest == " what", f"no token is generated after the end; what was left over is {rest!r}"


def test_a_request_that_has_not_ended_says_so(lab: ModuleType) -> None:
    """The script is over before the request is: no reason, still RUNNING, text held back."""
    ending = lab.run_script(byte_script("abcd"), make_params(stop=["xyz"]))
    got = (ending.deltas, ending.finish_reason, ending.stop_reason, ending.core_status)
    assert got == (["", "", "a", "b"], None, None, RequestStatus.RUNNING), (
        f"4 tokens, nothing fired, 2 characters held back: ['', '', 'a', 'b'] and RUNNING, got {got}"
    )


# ---- against the engine --------------------------------------------------------------------------


class Script:
    """A sampler that says what it was told to, one request at a time: `EngineParts(sampler=...)`."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []

    def __call__(self, logits: Any, sampling_metadata: Any) -> SamplerOutput:
        assert len(logits) == 1, "the script speaks for one request"
        return SamplerOutput(np.array([self.token_ids.pop(0)]))


CASES: list[tuple[str, dict[str, Any]]] = [
    ("hello$", {}),
    ("hel$lo$", {"ignore_eos": True, "max_tokens": 6}),
    ("hello there", {"max_tokens": 5}),
    ("hell$", {"max_tokens": 5}),
    ("hello Q: x", {"stop": ["Q:"]}),
    ("hello Q: x", {"stop": ["Q:"], "include_stop_str_in_output": True}),
    ("hello Q: x", {"stop": ["zzzz", "Q:"], "max_tokens": 8}),
    ("hello Q: x", {"stop": ["Q:"], "max_tokens": 7}),
    ("a;b;c;d", {"stop": [";"], "min_tokens": 4}),
    ("a;b;c;d", {"stop_token_ids": [8 + ord(";")], "min_tokens": 3}),
    ("a;b;c;d", {"stop_token_ids": [8 + ord(";")], "include_stop_str_in_output": True}),
    ("a;b;c;d", {"stop": ["c;"], "stop_token_ids": [8 + ord("d")]}),
    ("x" * 40, {"max_tokens": None}),
]
ROOM = 24


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return load_model(DEFAULT_MODEL)


def run_engine(
    model: LlamaForCausalLM, script: list[tuple[int, str]], params: SamplingParams
) -> tuple[Any, Request]:
    """The same script through mini_vllm's engine: (deltas joined into one output, core request)."""
    sampler = Script()
    sampler.token_ids = [token_id for token_id, _ in script]
    engine = LLMEngine(
        model,
        EngineConfig(max_model_len=ROOM, num_gpu_blocks=8),
        tokenizer=Tokenizer.from_folder(DEFAULT_MODEL),
        parts=EngineParts(sampler=lambda seed: sampler),  # type: ignore[arg-type,return-value]
    )
    params = params.clone()
    params.output_kind = RequestOutputKind.DELTA
    engine.add_request("r", {"prompt_token_ids": [1] * 4}, params)
    request = engine.engine_core.scheduler.requests["r"]
    outputs = []
    while engine.has_unfinished_requests():
        outputs += [output.outputs[0] for output in engine.step()]
    return outputs, request


@pytest.mark.parametrize(("text", "knobs"), CASES, ids=range(len(CASES)))
def test_agrees_with_the_engine(
    lab: ModuleType, model: LlamaForCausalLM, text: str, knobs: dict[str, Any]
) -> None:
    """mini_vllm's engine, given the same tokens, ends at the same one, with the same words."""
    script = byte_script(text)
    outputs, request = run_engine(model, script, SamplingParams(temperature=0, **knobs))
    params = make_params(**knobs)
    if params.max_tokens is None:
        params.max_tokens = ROOM
    ending = lab.run_script(script, params, num_prompt_tokens=4, max_model_len=ROOM)
    for name, yours, engines in (
        ("token ids", ending.token_ids, [t for output in outputs for t in output.token_ids]),
        ("text shown after each token", ending.deltas, [output.text for output in outputs]),
        ("finish_reason", ending.finish_reason, outputs[-1].finish_reason),
        ("stop_reason", ending.stop_reason, outputs[-1].stop_reason),
        ("status in the core", ending.core_status, request.status),
    ):
        assert yours == engines, (
            f"tokens {text!r} with {knobs}: the engine's {name} is {engines!r}, yours {yours!r}"
        )


def test_your_check_stop_runs_in_the_engine(
    lab: ModuleType, model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler calls your function in the place of its own: every request ends as before."""
    for text, knobs in CASES:
        params = SamplingParams(temperature=0, **knobs)
        reference, before = run_engine(model, byte_script(text), params)
        with monkeypatch.context() as patch:
            patch.setattr("mini_vllm.scheduler.check_stop", lab.check_stop)
            outputs, after = run_engine(model, byte_script(text), params)
        assert (outputs, after.status) == (reference, before.status), (
            f"tokens {text!r} with {knobs}: with your check_stop the engine ends as {after.status} "
            f"with {outputs[-1]}, with its own as {before.status} with {reference[-1]}"
        )


def test_agrees_with_the_engines_detokenizer(lab: ModuleType) -> None:
    """300 random streams of bytes against mini_vllm's detokenizer, token by token."""
    tokenizer = Tokenizer.from_folder(DEFAULT_MODEL)
    rng = random.Random(5)
    for _ in range(300):
        letters = "ab" if rng.random() < 0.7 else "abc"
        stop = [
            "".join(rng.choices(letters, k=rng.randint(1, 4))) for _ in range(rng.randint(0, 3))
        ]
        include, min_tokens = rng.random() < 0.4, rng.choice([0, 0, 2, 5])
        params = SamplingParams(
            stop=stop, include_stop_str_in_output=include, min_tokens=min_tokens, max_tokens=30
        )
        theirs = IncrementalDetokenizer(tokenizer, params)
        mine = lab.StopStringDetector(stop, include, min_tokens)
        stream = rng.choices(letters, k=20)
        for count, letter in enumerate(stream, 1):
            ended = rng.random() < 0.03
            want = theirs.update([8 + ord(letter)], ended)
            got = mine.update(letter, ended)
            finished = want is not None or ended or count == len(stream)
            shown = (mine.next_text(finished), theirs.get_next_output_text(finished, True))
            where = (
                f"stream {''.join(stream[:count])!r}, stop={stop}, include={include}, "
                f"min_tokens={min_tokens}, ended in the core: {ended}"
            )
            assert got == want, f"{where}: the engine finds {want!r}, yours {got!r}"
            assert mine.output_text == theirs.output_text, (
                f"{where}: the engine's text is {theirs.output_text!r}, yours {mine.output_text!r}"
            )
            assert shown[0] == shown[1], (
                f"{where}: the engine shows {shown[1]!r} now, yours {shown[0]!r}"
            )
            if finished:
                break
