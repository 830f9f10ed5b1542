"""Two faults of vLLM's sampling, each by a run of it: the server's beam search, and a neighbour's logprobs.

    python -m course.faults.sampling beams
    python -m course.faults.sampling neighbour

Needs vLLM 0.22.1; the lines of docs/FOUND_IN_VLLM.md are those of its CPU build. Requests of the searches are
sent one after another, so that what is drawn for them does not depend on who was quicker.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

from course.faults.cpu import SETTINGS
from course.parity.tokens import corpus_texts
from mini_vllm.config.engine import DEFAULT_MODEL

ENGINE: dict[str, Any] = {
    "model": str(DEFAULT_MODEL), "dtype": "float32", "enforce_eager": True, "block_size": 16,
    "max_model_len": 512, "num_gpu_blocks_override": 600, "gpu_memory_utilization": 0.3, "seed": 0,
}  # fmt: skip
MAX_TOKENS = 12


class OneAtATime:
    """An engine that takes a request when the one before has been answered."""

    def __init__(self, engine: Any) -> None:
        self._engine, self._lock = engine, asyncio.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async with self._lock:
            async for output in self._engine.generate(*args, **kwargs):
                yield output


def make_serving(engine: Any) -> Any:
    """What answers `/v1/completions`, as vLLM's server makes it."""
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
    from vllm.entrypoints.openai.models.protocol import BaseModelPath
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels
    from vllm.entrypoints.serve.render.serving import OpenAIServingRender

    client: Any = OneAtATime(engine)
    models = OpenAIServingModels(client, [BaseModelPath("tiny", ENGINE["model"])])
    render = OpenAIServingRender(
        model_config=engine.model_config, renderer=engine.renderer, model_registry=models.registry,
        request_logger=None, chat_template=None, chat_template_content_format="auto",
    )  # fmt: skip
    return OpenAIServingCompletion(
        client, models, openai_serving_render=render, request_logger=None
    )


def ends_of_texts(count: int) -> list[list[int]]:
    from mini_vllm.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(DEFAULT_MODEL)
    return [tokenizer.encode(text)[-160:-6] for text in corpus_texts(3, count)]


def random_prompts(count: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(8, 264) for _ in range(rng.randint(3, 30))] for _ in range(count)]


async def count_failures(
    serving: Any, prompts: Sequence[list[int]], width: int, **more: Any
) -> str:
    """How many bodies with `use_beam_search` the server's function answers, and what the others raise."""
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    failures: list[str] = []
    for prompt in prompts:
        body = {"prompt": prompt, "n": width, "max_tokens": MAX_TOKENS, "use_beam_search": True}
        try:
            await serving.create_completion(CompletionRequest(**body | more))
        except IndexError as error:
            failures.append(f"{type(error).__name__}: {error}")
    said = f", each by {failures[0]}" if failures else ""
    return f"width {width}: {len(failures)} of {len(prompts)} bodies fail{said}"


async def find_strange_beam(
    serving: Any, prompts: Sequence[list[int]], width: int, **more: Any
) -> str:
    """The first beam whose tokens do not have the log probability that comes with them."""
    from vllm import SamplingParams
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    body = {"n": width, "max_tokens": MAX_TOKENS, "include_stop_str_in_output": True} | more
    for number, prompt in enumerate(prompts):
        asked = CompletionRequest(prompt=prompt, use_beam_search=True, **body)
        [engine_input] = await serving.render_completion_request(asked)
        params = asked.to_beam_search_params(MAX_TOKENS)
        search = serving.beam_search(engine_input, str(number), params)
        try:
            outputs = [output async for output in search]
        except IndexError:
            continue
        for beam in outputs[-1].outputs:
            whole = {"prompt_token_ids": [*prompt, *beam.token_ids]}
            read = SamplingParams(max_tokens=1, prompt_logprobs=0)
            async for answer in serving.engine_client.generate(
                whole, read, f"{number}-read-{beam.index}"
            ):
                positions = answer.prompt_logprobs[len(prompt) :]
            own = sum(p[t].logprob for p, t in zip(positions, beam.token_ids, strict=True))
            if abs(own - beam.cumulative_logprob) > 0.01:
                return (
                    f"prompt {number}, beam {beam.index}: {beam.text!r} and the end, said to have the log "
                    f"probability {beam.cumulative_logprob:.2f}; the model gives it {own:.2f}"
                )
    return "every beam has the log probability that comes with it"


async def beams() -> None:
    """The server's searches: those that fail, and one with another beam's end."""
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**ENGINE))
    try:
        serving, ends, noise = make_serving(engine), ends_of_texts(24), random_prompts(150)
        print("default temperature, random prompts,", await count_failures(serving, noise, 2))
        for width in (1, 2, 3):
            found = await count_failures(serving, ends, width, temperature=5)
            print("temperature 5, ends of texts,", found)
        more = {"temperature": 5, "length_penalty": -20}
        print("length_penalty -20,", await find_strange_beam(serving, ends, 3, **more))
    finally:
        engine.shutdown()


def neighbour() -> None:
    """The five likeliest tokens of a request, alone and beside one that asks for a token by its id."""
    from vllm import LLM, SamplingParams
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    llm = LLM(**ENGINE, distributed_executor_backend=UniProcExecutor)
    five = SamplingParams(temperature=0, max_tokens=1, logprobs=5)
    one = SamplingParams(temperature=0, max_tokens=1, logprob_token_ids=[40])
    prompts = [{"prompt_token_ids": [1, 5, 6, 7]}, {"prompt_token_ids": [1, 8, 9]}]
    for name, count in (("alone", 1), ("beside logprob_token_ids", 2)):
        outputs = llm.generate(prompts[:count], [five, one][:count], use_tqdm=False)
        [position] = outputs[0].outputs[0].logprobs
        shown = ", ".join(f"{t}: {entry.logprob:.2f}" for t, entry in position.items())
        print(f"logprobs=5 {name}: {{{shown}}}")


def main(topic: str) -> None:
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if topic == "beams":
        asyncio.run(beams())
    elif topic == "neighbour":
        neighbour()
    else:
        raise SystemExit(f"course.faults.sampling: beams or neighbour, got {topic!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
