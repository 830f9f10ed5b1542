"""Beam search at the server: the offline search's beams, in both shapes of answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

for package in (
    "fastapi",
    "uvicorn",
    "prometheus_client",
    "prometheus_fastapi_instrumentator",
    "jinja2",
):
    pytest.importorskip(package)

from mini_vllm import LLM, EngineConfig  # noqa: E402
from mini_vllm.sampling_params import BeamSearchParams  # noqa: E402
from tests.engine.helpers.sampling.beam_searches import EOS, make_prompts  # noqa: E402
from tests.engine.helpers.server.server_helpers import (  # noqa: E402
    ServerHere,
    open_request,
    probe_early,
    serve_here,
)
from tests.engine.helpers.thorough import either  # noqa: E402


@pytest.fixture(scope="module")
def server() -> Iterator[ServerHere]:
    with serve_here() as running:
        yield running


@pytest.fixture(scope="module")
def offline() -> LLM:
    return LLM()


@pytest.mark.parametrize("temperature", [0, 1.5])
@pytest.mark.parametrize("keep", [False, True])
def test_a_completions_beams_are_the_offline_ones(
    server: ServerHere, offline: LLM, keep: bool, temperature: float
) -> None:
    """Texts, ids and reasons, best first, with `n` as the width. What a step draws is one candidate more
    and changes nothing: its beam has likelier ones, as many as there are places."""
    prompt = make_prompts(3)[2][-60:]
    params = BeamSearchParams(beam_width=3, max_tokens=12)
    (found,) = offline.beam_search([{"prompt_token_ids": prompt}], params)
    assert {beam.tokens[-1] == EOS for beam in found.sequences} == {True, False}
    answer = server.complete(
        prompt=prompt, n=3, max_tokens=12, temperature=temperature, use_beam_search=True,
        logprobs=2, return_token_ids=True, include_stop_str_in_output=keep,
    )  # fmt: skip
    assert answer.status == 200, answer.body
    num_tokens = 0
    for i, (choice, beam) in enumerate(zip(answer.json["choices"], found.sequences, strict=True)):
        said = beam.tokens[60:]
        ended = said[-1] == EOS
        text = said[:-1] if ended else said
        ids = said if keep else text
        num_tokens += len(ids)
        assert choice["index"] == i
        assert choice["token_ids"] == ids
        assert choice["text"] == offline.get_tokenizer().decode(text, False)
        assert choice["finish_reason"] == ("stop" if ended else "length")
        assert choice["stop_reason"] == (EOS if ended else None)
        total = sum(choice["logprobs"]["token_logprobs"])
        if not ended or keep:
            assert total == pytest.approx(beam.cum_logprob, abs=1e-3)
    assert answer.json["usage"]["completion_tokens"] == num_tokens
    assert answer.json["usage"]["prompt_tokens"] == 60


def test_the_length_penalty_reaches_the_search(server: ServerHere, offline: LLM) -> None:
    """One that is below 0 counts a length against a beam, so those that end early come first."""
    orders = []
    for length_penalty in (-20.0, 20.0):
        beams = []
        for prompt in (each[-40:] for each in make_prompts(either(2, 6))):
            asked = {"max_tokens": 12, "length_penalty": length_penalty}
            params = BeamSearchParams(beam_width=4, **asked)  # type: ignore[arg-type]
            (found,) = offline.beam_search([{"prompt_token_ids": prompt}], params)
            answer = server.complete(
                prompt=prompt, n=4, use_beam_search=True, return_token_ids=True,
                include_stop_str_in_output=True, **asked,
            )  # fmt: skip
            got = [choice["token_ids"] for choice in answer.json["choices"]]
            assert got == [beam.tokens[40:] for beam in found.sequences]
            beams += got
        orders.append(beams)
    assert orders[0] != orders[1], "the penalty changes nothing, so nothing is tested"


def test_a_chat_has_beams_too(server: ServerHere) -> None:
    answer = server.chat(
        "Hello", n=2, max_tokens=5, use_beam_search=True, logprobs=True, top_logprobs=2
    )
    assert answer.status == 200, answer.body
    first, second = answer.json["choices"]
    assert (first["index"], second["index"]) == (0, 1)
    assert first["message"]["content"] != second["message"]["content"]
    assert all(len(one["top_logprobs"]) == 2 for one in first["logprobs"]["content"])


def test_many_prompts_are_searched_for_together(server: ServerHere) -> None:
    prompts = ["The KV cache", "A block"]
    shared = {"n": 2, "max_tokens": 4, "use_beam_search": True, "temperature": 0}
    both = server.complete(prompt=prompts, **shared).json["choices"]
    alone = [server.complete(prompt=p, **shared).json["choices"] for p in prompts]
    assert [c["text"] for c in both] == [c["text"] for each in alone for c in each]
    assert [c["index"] for c in both] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("asked", "param", "words"),
    [
        ({"stream": True}, "use_beam_search", "cannot be had with stream=true"),
        ({"echo": True, "logprobs": 1}, "echo", "does not score the prompt"),
        ({"n": 11}, "n", "n=11 with use_beam_search needs 22 log probabilities"),
        ({"n": 0}, "n", "n must be an integer of at least 1, got 0"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be an integer of at least 1, got 0"),
        (
            {"n": 10, "max_tokens": 900, "prompt": ["a"] * 40},
            "n",
            "40 prompts, n=10, max_tokens=900",
        ),
    ],
)
def test_what_a_search_cannot_have(
    server: ServerHere, asked: dict[str, object], param: str | None, words: str
) -> None:
    given: dict[str, object] = {"prompt": "a", "max_tokens": 2, "use_beam_search": True}
    answer = server.complete(**given | asked)
    assert answer.status == 400, answer.body
    assert words in answer.json["error"]["message"]
    assert param is None or answer.json["error"]["param"] == param


def test_a_search_cannot_be_rendered(server: ServerHere) -> None:
    answer = server.send("/v1/completions/render", {"prompt": "a", "use_beam_search": True})
    assert answer.status == 400
    assert "none of which can be rendered" in answer.json["error"]["message"]


def test_a_client_that_leaves_ends_its_search(
    server: ServerHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No further step is asked for, and nothing is left in the engine."""
    probe_early(monkeypatch)
    body = {"prompt": "The KV cache", "n": 4, "max_tokens": 400, "use_beam_search": True}
    sock = open_request(server, body | {"ignore_eos": True})
    server.wait_until(server.engine.has_unfinished_requests, "a step of the search runs")
    sock.close()
    server.wait_for_answers()
    server.check_unharmed()


def test_a_processor_of_ones_own_hears_what_a_request_asks(offline: LLM) -> None:
    """`--logits-processors` at the server, and `vllm_xargs` in a body."""
    name = "tests.engine.helpers.sampling.logits_processors:ForcePhrase"
    with serve_here(EngineConfig(logits_processors=[name])) as running:
        asked = {"phrase": [40, 50, 60], "at": 1}
        answer = running.complete(
            prompt="The KV cache", max_tokens=5, return_token_ids=True, vllm_xargs=asked
        )
        assert answer.json["choices"][0]["token_ids"][1:4] == [40, 50, 60]
        refused = running.complete(prompt="The KV cache", vllm_xargs={"phrase": [], "at": 0})
        assert refused.status == 400
        assert "phrase must hold a token" in refused.error["message"]
