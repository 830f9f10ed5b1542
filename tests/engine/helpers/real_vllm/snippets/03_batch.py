from vllm import LLM, SamplingParams

MODEL = "mini_vllm/checkpoints/tiny-llama"
requests = [
    ("The scheduler", SamplingParams(temperature=0, max_tokens=5)),
    ("The scheduler", SamplingParams(temperature=0, max_tokens=20, presence_penalty=0.5)),
    ("A preempted request", SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)),
    ("Prefix caching", SamplingParams(temperature=0, max_tokens=16, repetition_penalty=1.1)),
]

if __name__ == "__main__":
    llm = LLM(
        model=MODEL,
        dtype="float32",
        tensor_parallel_size=1,
        gpu_memory_utilization=0.3,
        max_num_seqs=2,
        enforce_eager=True,
        kv_cache_dtype="auto",
        quantization=None,
    )
    prompts, params = zip(*requests, strict=True)
    for output in llm.generate(list(prompts), list(params), use_tqdm=False):
        completion = output.outputs[0]
        print(len(completion.token_ids), completion.finish_reason, repr(completion.text))
