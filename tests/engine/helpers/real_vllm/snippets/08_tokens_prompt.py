from vllm import LLM, SamplingParams, TextPrompt, TokensPrompt

MODEL = "mini_vllm/checkpoints/tiny-llama"

if __name__ == "__main__":
    llm = LLM(model=MODEL, dtype="float32", enforce_eager=True, enable_prefix_caching=True)
    token_ids = llm.get_tokenizer().encode("A page table")
    params = SamplingParams(temperature=0, max_tokens=10)
    prompts = [
        TextPrompt(prompt="A page table"),
        TokensPrompt(prompt_token_ids=token_ids),
        TokensPrompt(prompt_token_ids=token_ids, cache_salt="mine"),
        {"prompt_token_ids": token_ids, "prompt": "A page table"},
        token_ids,
    ]
    for output in llm.generate(prompts, params):
        print(output.prompt, output.prompt_token_ids == token_ids, output.outputs[0].text)
