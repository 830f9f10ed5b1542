import math

from vllm import LLM, SamplingParams

MODEL = "mini_vllm/checkpoints/tiny-llama"


def perplexity(output):
    pairs = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    scored = [position[token_id] for token_id, position in pairs]
    return math.exp(-sum(one.logprob for one in scored) / len(scored))


if __name__ == "__main__":
    llm = LLM(model=MODEL, dtype="float32", enforce_eager=True)
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    for output in llm.generate(["A block holds 16 tokens.", "Zebras graze at noon."], params):
        print(output.prompt, output.prompt_logprobs[0], f"{perplexity(output):.2f}")
