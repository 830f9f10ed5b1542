import asyncio

from vllm import AsyncEngineArgs, AsyncLLMEngine, SamplingParams
from vllm.sampling_params import RequestOutputKind

MODEL = "mini_vllm/checkpoints/tiny-llama"


async def stream(engine: AsyncLLMEngine, request_id: str, prompt: str) -> str:
    params = SamplingParams(
        temperature=0, max_tokens=16, output_kind=RequestOutputKind.DELTA, seed=42
    )
    text = ""
    async for output in engine.generate(
        request_id=request_id, prompt=prompt, sampling_params=params
    ):
        for completion in output.outputs:
            text += completion.text
        if output.finished:
            break
    return text


async def main() -> None:
    args = AsyncEngineArgs(
        model=MODEL, dtype="float32", enforce_eager=True, enable_log_requests=False
    )
    engine = AsyncLLMEngine.from_engine_args(args)
    try:
        prompts = ["The future of", "A request waits", "In short"]
        jobs = [stream(engine, f"stream-{i}", prompt) for i, prompt in enumerate(prompts)]
        for text in await asyncio.gather(*jobs):
            print(repr(text))
        print(await engine.reset_prefix_cache())
    finally:
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
