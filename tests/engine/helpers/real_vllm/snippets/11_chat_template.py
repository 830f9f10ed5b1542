from vllm import LLM, SamplingParams

MODEL = "mini_vllm/checkpoints/tiny-llama"
conversations = [
    [{"role": "user", "content": "What is a token?"}],
    [
        {"role": "user", "content": "What is a block?"},
        {"role": "assistant", "content": "A page of KV."},
        {"role": "user", "content": "How many tokens?"},
    ],
]

if __name__ == "__main__":
    llm = LLM(model=MODEL, tokenizer=MODEL, dtype="float32", enforce_eager=True)
    tokenizer = llm.get_tokenizer()
    prompts = [
        tokenizer.apply_chat_template(c, tokenize=False, add_generation_prompt=True)
        for c in conversations
    ]
    print(prompts, tokenizer.eos_token, tokenizer.eos_token_id, len(tokenizer))
    ids = tokenizer.apply_chat_template(
        conversations[0], add_generation_prompt=True, return_dict=False
    )
    print(ids, tokenizer.decode(ids), tokenizer.convert_ids_to_tokens(ids[:3]))
    params = SamplingParams(temperature=0, max_tokens=20, stop_token_ids=[tokenizer.eos_token_id])
    for output in llm.generate([{"prompt_token_ids": ids}], params):
        print(output.outputs[0].text)
