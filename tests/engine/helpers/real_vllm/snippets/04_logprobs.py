from vllm import LLM, SamplingParams

MODEL = "mini_vllm/checkpoints/tiny-llama"

if __name__ == "__main__":
    llm = LLM(model=MODEL, dtype="float32", enforce_eager=True, max_logprobs=5)
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=3)
    (output,) = llm.generate("The block pool", params)
    completion = output.outputs[0]
    for token_id, position in zip(completion.token_ids, completion.logprobs, strict=True):
        best = sorted(position.items(), key=lambda item: item[1].rank)
        print(token_id, [(i, p.decoded_token, p.rank, round(p.logprob, 1)) for i, p in best])
    print(f"{completion.cumulative_logprob:.2f}")
