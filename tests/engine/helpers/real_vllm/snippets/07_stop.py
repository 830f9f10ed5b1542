from vllm import LLM, SamplingParams

MODEL = "mini_vllm/checkpoints/tiny-llama"

if __name__ == "__main__":
    llm = LLM(model=MODEL, dtype="float32", enforce_eager=True, disable_log_stats=True)
    tokenizer = llm.get_tokenizer()
    space = tokenizer.encode("a b", add_special_tokens=False)[1]
    for extra in (
        {"stop": ["keys", "\n"]},
        {"stop": "keys", "include_stop_str_in_output": True},
        {"stop_token_ids": [space], "min_tokens": 4},
        {"max_tokens": 3},
    ):
        params = SamplingParams(**{"temperature": 0.0, "max_tokens": 40, **extra})
        (output,) = llm.generate("The KV cache", params, use_tqdm=False)
        completion = output.outputs[0]
        print(repr(completion.text), completion.finish_reason, completion.stop_reason)
