from vllm import LLM, SamplingParams

MODEL = "mini_vllm/checkpoints/tiny-llama"
one = [{"role": "user", "content": "What is a block?"}]
two = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What does the scheduler do?"}]},
]

if __name__ == "__main__":
    llm = LLM(model=MODEL, dtype="float32", enforce_eager=True, max_model_len=256)
    params = SamplingParams(temperature=0, max_tokens=32)
    print(llm.chat(one, params, use_tqdm=False)[0].outputs[0].text)
    for output in llm.chat([one, two], sampling_params=params, use_tqdm=False):
        print(repr(output.prompt), len(output.prompt_token_ids), output.outputs[0].text)
    begun = [*one, {"role": "assistant", "content": "A block holds"}]
    (output,) = llm.chat(
        begun, params, use_tqdm=False, add_generation_prompt=False, continue_final_message=True
    )
    print(output.prompt, "|", output.outputs[0].text)
