from vllm import LLM, SamplingParams

MODEL = "mini_vllm/checkpoints/tiny-llama"

if __name__ == "__main__":
    llm = LLM(model=MODEL, dtype="float32", enforce_eager=True, seed=0)
    params = SamplingParams(
        n=3, temperature=0.8, top_p=0.95, top_k=20, seed=7, max_tokens=12, ignore_eos=True
    )
    (output,) = llm.generate(["The KV cache"], params)
    print([completion.index for completion in output.outputs])
    print([len(completion.token_ids) for completion in output.outputs])
    print([completion.finish_reason for completion in output.outputs])
    print(len({completion.text for completion in output.outputs}) > 1)
