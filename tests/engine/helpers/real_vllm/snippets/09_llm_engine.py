import argparse

from vllm import EngineArgs, LLMEngine, SamplingParams

MODEL = "mini_vllm/checkpoints/tiny-llama"


def initialize_engine(args: argparse.Namespace) -> LLMEngine:
    engine_args = EngineArgs(
        model=args.model, dtype="float32", enforce_eager=True, max_num_seqs=args.max_num_seqs
    )
    return LLMEngine.from_engine_args(engine_args)


def process_requests(engine: LLMEngine) -> None:
    waiting = [
        ("A robot", SamplingParams(temperature=0.0, max_tokens=8)),
        ("To be", SamplingParams(temperature=0.0, max_tokens=4, logprobs=1)),
        ("What is", SamplingParams(temperature=0.0, max_tokens=12)),
    ]
    request_id = 0
    finished = []
    while waiting or engine.has_unfinished_requests():
        if waiting:
            prompt, params = waiting.pop(0)
            engine.add_request(str(request_id), prompt, params)
            request_id += 1
        for output in engine.step():
            if output.finished:
                finished.append((output.request_id, output.outputs[0].text, output.metrics))
    for name, text, metrics in sorted(finished):
        in_order = metrics.queued_ts <= metrics.scheduled_ts <= metrics.first_token_ts
        print(name, repr(text), metrics.num_generation_tokens, in_order)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--max-num-seqs", type=int, default=4)
    process_requests(initialize_engine(parser.parse_args([])))
