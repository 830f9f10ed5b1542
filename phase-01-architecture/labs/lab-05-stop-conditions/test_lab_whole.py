"""Lab 01-05, whole requests: both halves together, and against the engine."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from mini_vllm.config.engine import DEFAULT_MODEL, EngineConfig
from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.engine.detokenizer import IncrementalDetokenizer
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.engine.parts import EngineParts
from mini_vllm.model_loader import load_model
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.sample.sampler import SamplerOutput
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams
from mini_vllm.tokenizer import Tokenizer

support = load_support(__file__)


# ---- both halves ---------------------------------------------------------------------------------


def test_a_stop_string_aborts_the_core(lab: ModuleType) -> None:
    """At a stop string the user hears stop and the core hears abort, unless the core ended the request."""
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
    """Without a stop string the core's reasons are passed on; a request that goes on has none."""
    for reason, stop_reason in (("stop", None), ("stop", 77), ("length", None), (None, None)):
        verdict = tuple(lab.front_end_verdict(reason, stop_reason, None))
        assert verdict == (reason, stop_reason, False), (
            f"no stop string, and the core says {reason!r} with stop reason {stop_reason!r}: pass both "
            f"on and abort nothing, got {verdict}"
        )


def byte_script(text: str) -> list[tuple[int, str]]:
    """Tokens of the shipped tokenizer for ASCII text: one a character. '$' stands for EOS."""
    return [(support.EOS, "") if c == "$" else (8 + ord(c), c) for c in text]


def test_a_whole_request_by_script(lab: ModuleType) -> None:
    """The text is cut at the stop string, the token ids are not, and nothing runs on."""
    script = iter(byte_script("7 apples. Q: what"))
    ending = lab.run_script(script, support.make_params(stop=["Q:"]))
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
    """A request that outlives its script has no reason, is still RUNNING, and holds text back."""
    ending = lab.run_script(byte_script("abcd"), support.make_params(stop=["xyz"]))
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
    """mini_vllm's engine, given the same tokens, ends at the same token, with the same reasons."""
    script = byte_script(text)
    outputs, request = run_engine(model, script, SamplingParams(temperature=0, **knobs))
    params = support.make_params(**knobs)
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
    """With your check_stop in the engine's scheduler, every request ends as before."""
    for text, knobs in CASES:
        params = SamplingParams(temperature=0, **knobs)
        reference, before = run_engine(model, byte_script(text), params)
        with monkeypatch.context() as patch:
            patch.setattr("mini_vllm.core.sched.scheduler.check_stop", lab.check_stop)
            outputs, after = run_engine(model, byte_script(text), params)
        for name, yours, engines in (
            ("number of output tokens", len(outputs), len(reference)),
            ("status in the core", after.status, before.status),
            ("finish_reason", outputs[-1].finish_reason, reference[-1].finish_reason),
            ("stop_reason", outputs[-1].stop_reason, reference[-1].stop_reason),
            ("text", "".join(o.text for o in outputs), "".join(o.text for o in reference)),
        ):
            assert yours == engines, (
                f"tokens {text!r} with {knobs}: with your check_stop in the scheduler the {name} is "
                f"{yours!r}, with the engine's own {engines!r}"
            )


def test_agrees_with_the_engines_detokenizer(lab: ModuleType) -> None:
    """300 random streams give what mini_vllm's detokenizer gives, token by token."""
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
