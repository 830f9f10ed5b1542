from vllm import LLM, SamplingParams

MODEL = "mini_vllm/checkpoints/tiny-llama"
WANTED = (
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:num_preemptions",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
)

if __name__ == "__main__":
    llm = LLM(model=MODEL, dtype="float32", enforce_eager=True, disable_log_stats=False)
    prompts = ["The KV cache", "A token budget"]
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))
    for output in outputs:
        stats = output.metrics
        print(stats.num_generation_tokens, stats.first_token_ts <= stats.last_token_ts)
        print(stats.first_token_latency > 0, output.num_cached_tokens)
    for metric in sorted(llm.get_metrics(), key=lambda metric: metric.name):
        if metric.name in WANTED:
            print(metric.name, int(metric.value), sorted(metric.labels))
        elif metric.name == "vllm:time_to_first_token_seconds":
            print(metric.name, metric.count, metric.sum > 0, metric.buckets["+Inf"])
