from vllm import LLM, SamplingParams

MODEL = "mini_vllm/checkpoints/tiny-llama"
prompts = ["The KV cache", "A block table", "Chunked prefill"]

if __name__ == "__main__":
    llm = LLM(model=MODEL, dtype="float32", enforce_eager=True, trust_remote_code=True)
    params = SamplingParams(temperature=0.0, max_tokens=24)
    for output in llm.generate(prompts, params):
        print(f"{output.prompt!r} -> {output.outputs[0].text!r}")
        print(output.request_id, output.finished, output.lora_request, output.metrics)
