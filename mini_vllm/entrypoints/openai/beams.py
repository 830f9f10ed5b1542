"""Beam search for both endpoints: `use_beam_search`, with `n` as the width.

Mirrors `vllm/entrypoints/generate/beam_search/online.py:28 BeamSearchOnlineMixin.beam_search` and the two
`to_beam_search_params`. The search is the offline one. Upstream the server has a form of its own, which
takes for granted that a beam's answer has `2 * beam_width` tokens. A token that was drawn and is not among
the likeliest is one more, and from then on tokens and log probabilities are given to the wrong beams
(docs/FOUND_IN_VLLM.md): with its default temperature, 1.0, that is not rare.
"""

from __future__ import annotations

from mini_vllm.entrypoints.beam_search import BeamSearchInstance, one_token_params, to_completion
from mini_vllm.entrypoints.openai.errors import bad_request
from mini_vllm.entrypoints.openai.protocol import SamplingFields
from mini_vllm.entrypoints.openai.serving import EngineInput, Serving
from mini_vllm.entrypoints.openai.stream import run_all
from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import BeamSearchParams, RequestOutputKind
from mini_vllm.utils.untrusted import shorten_repr


def beam_search_params(
    body: SamplingFields, serving: Serving, max_tokens: int | None, room: int
) -> BeamSearchParams:
    """What a body asks of the search. It reads `n`, `temperature`, `ignore_eos`, `length_penalty`,
    `include_stop_str_in_output` and the length, and no other parameter of sampling
    (`vllm/entrypoints/openai/completion/protocol.py:219 CompletionRequest.to_beam_search_params`).

    Raises ValueError for a value that `BeamSearchParams` refuses, ApiError for a width that needs more log
    probabilities than the engine gives.
    """
    defaults, most = serving.defaults, serving.llm.engine.config.max_logprobs
    width = 1 if body.n is None else body.n
    if width >= 1 and 0 <= most < 2 * width:
        raise bad_request(
            f"n={shorten_repr(width)} with use_beam_search needs {shorten_repr(2 * width)} log "
            "probabilities in each step, "
            f"more than the {most} that this server gives (--max-logprobs)",
            "n",
        )
    wanted = max_tokens if max_tokens is not None else defaults.get("max_tokens")
    temperature = body.temperature
    if temperature is None:
        temperature = defaults.get("temperature", 1.0)
    return BeamSearchParams(
        beam_width=width,
        max_tokens=room if wanted is None else min(wanted, room),
        ignore_eos=body.ignore_eos,
        temperature=temperature,
        length_penalty=body.length_penalty,
        include_stop_str_in_output=body.include_stop_str_in_output,
    )


def refuse_beams(body: SamplingFields) -> None:
    """For the endpoints that show what the engine would get. Raises ApiError."""
    if body.use_beam_search:
        raise bad_request(
            "use_beam_search: a search is many requests, none of which can be rendered before the one "
            "ahead of it has been answered",
            "use_beam_search",
        )


async def answer(serving: Serving, entry: EngineInput) -> RequestOutput:
    """Run one prompt to its end, as a request or as a search."""
    return await (serving.run(entry) if entry.beams is None else run_beam_search(serving, entry))


async def run_beam_search(serving: Serving, entry: EngineInput) -> RequestOutput:
    """Search for one prompt, and answer with its best beams."""
    params = entry.beams
    assert params is not None
    tokenizer, prompt = serving.tokenizer, entry.prompt
    eos_token_id = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else -1
    instance = BeamSearchInstance(prompt["prompt_token_ids"], params, eos_token_id)
    asked = one_token_params(params)
    asked.output_kind = RequestOutputKind.FINAL_ONLY
    salt = prompt.get("cache_salt")
    # What has been read already: the search goes on with it whatever is loaded meanwhile.
    lora_request = entry.request.lora_request if entry.request else entry.lora_request
    for step in range(params.max_tokens):
        if not instance.beams:
            break
        finals = await run_all(
            [
                serving.run(
                    EngineInput(
                        beam.to_prompt(salt),
                        asked,
                        f"{entry.request_id}-{step}-beam-{i}",
                        0,
                        lora_request=lora_request,
                    )
                )
                for i, beam in enumerate(instance.beams)
            ]
        )
        instance.advance([final.outputs[0].logprobs for final in finals])
    outputs = []
    for index, beam in enumerate(instance.get_best()):
        said = beam.tokens[instance.num_prompt_tokens :]
        if beam.finish_reason == "stop":
            said = said[:-1]  # the text is without EOS in any case
        outputs.append(to_completion(index, beam, instance, tokenizer.decode(said, False)))
    return RequestOutput(
        request_id=entry.request_id,
        prompt=prompt.get("prompt"),
        prompt_token_ids=prompt["prompt_token_ids"],
        prompt_logprobs=None,
        outputs=outputs,
        finished=True,
    )
